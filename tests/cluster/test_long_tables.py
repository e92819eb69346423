"""Tables of many rows look as short ones do, and take no time."""

from __future__ import annotations

import io
import time
from contextlib import redirect_stdout

import pytest

from escrowmq.cluster.cli import output
from escrowmq.cluster.cli.output import Format

ROWS: list[dict[str, object]] = [
    {"name": "orders", "partitions": 4, "kept": "for ever", "lag": None},
    {"name": "größe [bold]日本[/bold]", "partitions": 16, "kept": True, "lag": 1.5},
    {"name": "", "partitions": 1, "kept": "-", "lag": 10},
]
COLUMNS = ("name", "partitions", "kept", "lag")


def shown(rows: list[dict[str, object]], title: str = "") -> str:
    with redirect_stdout(io.StringIO()) as out:
        output.show_rows(Format.table, rows, COLUMNS, title=title)
    return out.getvalue()


@pytest.mark.parametrize("title", ["", "Topics"])
def test_a_long_table_looks_as_a_short_one(title: str) -> None:
    times = output.LONG // len(ROWS)
    *by_rich, end = [line.rstrip() for line in shown(ROWS * times, title).splitlines()]
    assert shown(ROWS * (times + 1), title).splitlines() == [*by_rich, *by_rich[-len(ROWS) :], end]


@pytest.mark.parametrize("text", [r"\[/x]", "[bold]", r"\\[red]", ":smile:", "a\\", "[link=x]"])
def test_a_short_table_shows_a_text_as_it_is(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    output.show_rows(Format.table, [{"reason": text}], ["reason"])
    output.show_pairs(Format.table, text, {"reason": text})
    assert capsys.readouterr().out.count(text) == 2


@pytest.mark.parametrize("rows", [1, output.LONG + 1])
def test_no_table_passes_on_what_terminals_obey(rows: int, capsys: pytest.CaptureFixture[str]) -> None:
    output.show_rows(Format.table, [{"reason": "a\x1b[2J\x9bb\x07\r\u202ec\nd"}] * rows, ["reason"])
    printed = capsys.readouterr().out
    assert printed.replace("\n", "").isprintable()
    assert printed.count(r"a\x1b[2J\x9bb\x07\r\u202ec") == rows


def test_ten_thousand_rows_take_a_fraction_of_a_second() -> None:
    rows = [{**ROWS[0], "name": f"topic-{number}"} for number in range(10_000)]
    began = time.process_time()
    lines = shown(rows).splitlines()
    assert time.process_time() - began < 1.0, "rich takes ten seconds"
    assert len(lines) == len(rows) + 4
