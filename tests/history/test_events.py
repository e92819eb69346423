"""Bodies that cannot be confused, and files that are still readable after a kill."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.history.__main__ import main
from tests.history.checker import check
from tests.history.events import BadHistory, Recorder, Sent, body, identify
from tests.history.files import load

IDS = st.text(st.characters(codec="utf-8", exclude_characters="|"), min_size=1, max_size=20)


@given(IDS, st.integers(0, 5000))
def test_a_body_says_its_id(id: str, size: int) -> None:
    value = body(id, size)
    assert identify(value) == id
    assert len(value) == max(size, len(id.encode()) + 9)


@given(IDS, st.integers(0, 3000), st.data())
def test_a_changed_body_says_that_it_is_corrupt(id: str, size: int, data: st.DataObject) -> None:
    value = bytearray(body(id, size))
    at = data.draw(st.integers(0, len(value) - 1))
    if data.draw(st.booleans()):
        value[at] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del value[at:]
    assert identify(bytes(value)).startswith("corrupt:")


def write(file: Path, process: str) -> None:
    recorder = Recorder(process, file)
    op = recorder.invoke("send", producer=process, messages=[Sent(f"{process}-{recorder._next}", "t", 0)])
    recorder.ok(op, places=[["t", 0, 0]])
    recorder.read("r", "t", 0, [(0, "x")], start=0, end=1, cut="c")
    recorder.close()


def test_what_was_written_is_what_is_read(tmp_path: Path) -> None:
    write(tmp_path / "a", "a")
    write(tmp_path / "b", "b")
    events = load([tmp_path / "a", tmp_path / "b"])
    assert [event.process for event in events] == ["a"] * 3 + ["b"] * 3
    assert events[0].fields["messages"] == [Sent("a-0", "t", 0)]
    assert events[2].fields["cut"] == "c" and events[2].fields["records"] == [[0, "x"]]


@pytest.mark.parametrize("cut", (2, 10, 60))
def test_a_recorder_that_was_killed_goes_on_in_the_same_file(tmp_path: Path, cut: int) -> None:
    file = tmp_path / "a"
    write(file, "a")
    file.write_bytes(file.read_bytes()[:-cut])
    assert len(load([file])) == 2, "the last line is torn"
    write(file, "a")
    events = load([file])
    assert len(events) == 5
    assert len({event.op for event in events if event.phase == "invoke"}) == 2


def test_a_file_that_is_broken_elsewhere_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a"
    write(file, "a")
    file.write_bytes(b"{torn\n" + file.read_bytes())
    with pytest.raises(BadHistory, match="a:1 is no event"):
        load([file])


def test_the_command_shows_tables_and_fails_for_anomalies(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(main)
    file = tmp_path / "a"
    recorder = Recorder("a", file)
    recorder.ok(recorder.invoke("prepare", app="a", tx="x", messages=[Sent("m", "t", 0)]))
    recorder.ok(
        recorder.invoke("decide", app="a", tx="x", outcome="COMMITTED", by="producer"), outcome="COMMITTED"
    )
    broken = CliRunner().invoke(app, [str(file)])
    assert broken.exit_code == 1 and "lost-write" in broken.output
    recorder.read("r", "t", 0, [(0, "m")], start=0, end=1)
    assert check(load([file])).ok
    good = CliRunner().invoke(app, [str(file)])
    assert good.exit_code == 0 and "no anomalies" in good.output
