"""Figures: percentiles, rows by kind, and how they are drawn and reported."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tests.chaos import report
from tests.chaos.__main__ import BROKEN, TOO_SLOW, exit_code
from tests.chaos.audit import acknowledged_at, never_delivered
from tests.chaos.measure import FailOver, Results, fail_over, percentile, rows
from tests.chaos.picture import draw, per_second
from tests.chaos.round import bucketed
from tests.history.events import Recorder, Sent


def trial(
    kind: str, away_s: float, *, overlapping: bool = False, well_s: float | None = 3.0
) -> dict[str, Any]:
    return {
        "kind": kind,
        "round": 0,
        "number": 0,
        "groups": 2,
        "overlapping": overlapping,
        "away_s": away_s,
        "well_after_s": well_s,
        "struck_at": 2_000_000_000,
        "victim": "broker-g0-r0",
    }


def judged() -> dict[str, Any]:
    return {
        "round": 0,
        "groups": 2,
        "machines": True,
        "slow_database": False,
        "operations": {"decide": {"invoke": 10, "ok": 9, "unknown": 1}},
        "counts": {"transactions": 10, "records read": 30},
        "figures": {"messages": 12},
        "own_crashes": 2,
        "operator": {"listed": 3, "decided": 1},
        "acknowledged": bucketed([1_000_000_000, 1_100_000_000, 3_000_000_000]),
    }


@given(st.lists(st.floats(0, 100), min_size=1), st.floats(0.01, 1.0))
def test_a_percentile_is_the_smallest_value_that_enough_do_not_exceed(
    values: list[float], share: float
) -> None:
    found = percentile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-9
    below = [value for value in values if value < found]
    assert not below or sum(value <= max(below) for value in values) < share * len(values)


def test_percentiles_of_few_values() -> None:
    assert percentile([], 0.5) is None
    assert percentile([3.0], 0.95) == 3.0
    assert percentile([float(n) for n in range(1, 101)], 0.95) == 95.0


def test_overlapping_trials_count_but_their_times_do_not() -> None:
    trials = [
        trial("leader-kill", 0.5),
        trial("leader-kill", 0.7),
        trial("leader-kill", 9.0, overlapping=True),
    ]
    (row,) = rows([*trials])
    assert (row.trials, row.by_groups, row.overlapping) == (3, (0, 3, 0), 1)
    assert (row.away_p50, row.away_p95, row.away_max, row.well_max) == (0.5, 0.7, 0.7, 3.0)


def test_times_of_a_trial_with_a_second_fault_are_not_counted_but_both_faults_are_told(
    tmp_path: Path,
) -> None:
    both = {**trial("leader-cut", 9.0), "meanwhile": "leader-kill"}
    results = Results(1, [trial("leader-cut", 0.5), both, both])
    (row,) = rows(results.trials)
    assert (row.trials, row.overlapping, row.away_max) == (3, 2, 0.5)
    report.write(results, None, tmp_path / "r.md")
    assert "While another lasted: leader-kill during leader-cut 2." in (tmp_path / "r.md").read_text()


def test_a_trial_whose_recovery_was_not_awaited_has_no_time_for_it() -> None:
    (row,) = rows([trial("follower-kill", 0.1, well_s=None)])
    assert row.well_p50 is None and report.cells(row)[-2:] == ["-", "-"]


def judged_fail_over(*trials: dict[str, Any]) -> FailOver:
    found = fail_over(trials)
    assert found is not None
    return found


def test_fail_over_is_judged_by_the_p95_of_enough_trials() -> None:
    fast, slow = [trial("leader-kill", 0.5)] * 30, [trial("leader-kill", 1.5)] * 3
    assert judged_fail_over(*fast[:19]).held is None
    assert judged_fail_over(*fast[:20]).held is True
    assert judged_fail_over(*fast, *slow).held is False
    assert "MORE THAN 1 s" in judged_fail_over(*fast, *slow).text()
    overlapping = judged_fail_over(*[trial("leader-kill", 5.0, overlapping=True)] * 30)
    assert overlapping.held is None and "not judged: 0" in overlapping.text()
    assert fail_over([trial("follower-kill", 5.0)]) is None


@pytest.mark.parametrize(
    ("good", "p95", "samples", "enforced", "code"),
    [
        (True, 0.9, 20, True, 0),
        (True, 1.1, 20, True, TOO_SLOW),
        (True, 1.1, 20, False, 0),
        (True, 1.1, 19, True, 0),
        (False, 1.1, 20, True, BROKEN),
        (False, 0.9, 20, False, BROKEN),
    ],
)
def test_a_slow_fail_over_fails_the_run_where_it_is_enforced(
    good: bool, p95: float, samples: int, enforced: bool, code: int
) -> None:
    console = Console(file=io.StringIO())
    assert exit_code(good, FailOver(samples, p95), enforced, console) == code
    said = "--fail-over" in console.file.getvalue() or "fails (3)" in console.file.getvalue()  # type: ignore[attr-defined]
    assert said == (p95 > 1.0 and samples >= 20), "a slow one is told in any case"


def test_make_chaos_enforces_the_fail_over_and_leaves_a_way_out() -> None:
    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    (line,) = [line for line in makefile.splitlines() if "-m tests.chaos " in line]
    assert "--fail-over" in line.split("$(ARGS)")[0], "what comes in ARGS has the last word"


def test_reports_name_every_kind_and_what_was_left_out_and_why(tmp_path: Path) -> None:
    results = Results(4, [trial("leader-kill", 0.5), trial("brokers-kill", 3.0)], judged=[judged()])
    results.left_out |= dict.fromkeys(("leader-cut", "disk-full"), "not possible on this machine: no root")
    results.violations.append({"round": 0, "text": "duplicate: x"})
    report.write(results, tmp_path / "r.json", tmp_path / "r.md")
    text = (tmp_path / "r.md").read_text()
    assert "leader-kill" in text and "brokers-kill" in text and "1 violations" in text
    assert "| leader-kill | 1 | 0, 1, 0 |" in text and "| 2 | 1 | 1 | 0 | 2 | 10 | 30 | 0 |" in text
    assert "Not inflicted: leader-cut, disk-full: not possible on this machine: no root." in text
    assert "2 crashes of clients by their own plan" in text and "| decide | 10 | 9 | 0 | 1 |" in text
    loaded = json.loads((tmp_path / "r.json").read_text())
    assert loaded["seed"] == 4 and len(loaded["trials"]) == 2 and loaded["violations"]
    assert set(loaded["left_out"]) == {"leader-cut", "disk-full"}


def test_the_results_of_several_runs_are_read_as_one(tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.json" for number in range(2)]
    for number, file in enumerate(files):
        one = Results(4, [trial("leader-kill", 0.5 + number)], judged=[judged()], took_s=60.0)
        report.write(one, file, None)
    both = report.read(files)
    assert (len(both.trials), len(both.judged), both.took_s) == (2, 2, 120.0)
    assert "2 trials on real processes (seed 4), 0 violations, 2 minutes" in report.markdown(both)
    with pytest.raises(ValueError, match="no files"):
        report.read([])


def test_acknowledgements_are_counted_in_intervals() -> None:
    found = bucketed([1_000_000_000, 1_100_000_000, 1_450_000_000], 200_000_000)
    assert found == {"start": 1_000_000_000, "width_ns": 200_000_000, "counts": [2, 0, 1]}
    assert bucketed([])["counts"] == []
    times, rates = per_second(found)
    assert times == pytest.approx([0.1, 0.3, 0.5]) and rates == pytest.approx([5.0, 5.0, 2.5])


@pytest.mark.parametrize("name", ["round.svg", "round.png"])
def test_a_picture_is_drawn_of_a_judged_round_only(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    assert not draw(Results(1), file) and not file.exists()
    assert draw(Results(1, [trial("leader-kill", 0.5)], judged=[judged()]), file)
    content = file.read_bytes()
    assert content[:4] == b"\x89PNG" or b"leader-kill" in content


def test_what_the_group_was_never_given_is_found() -> None:
    member, driver = Recorder("consumer-0.1"), Recorder("driver")
    member.read("consumer-0.1#1", "t", 0, [(0, "a"), (2, "c")])
    driver.read("final-0", "t", 0, [(0, "a"), (1, "b"), (2, "c")], start=0, end=3)
    driver.read("final-0", "t", 1, [], start=0, end=0)
    events = member.events + driver.events
    (missed,) = never_delivered(events, [("t", 0), ("t", 1)])
    assert "1 messages of t[0]: [1]" in missed
    member.read("consumer-0.1#2", "t", 0, [(1, "b")])
    assert never_delivered(member.events + driver.events, [("t", 0), ("t", 1)]) == []


def test_acknowledged_are_commits_and_sends_that_ended_well() -> None:
    recorder = Recorder("p", clock=iter(range(100)).__next__)
    first = recorder.invoke("send", producer="p", messages=[Sent("a", "t")])
    second = recorder.invoke("prepare", app="x", tx="1", messages=[Sent("b", "t")])
    third = recorder.invoke("decide", app="x", tx="1", outcome="COMMITTED", by="producer")
    lost = recorder.invoke("decide", app="x", tx="2", outcome="COMMITTED", by="producer")
    recorder.ok(second)
    recorder.ok(third, outcome="COMMITTED")
    recorder.unknown(lost, "no answer")
    recorder.ok(first, places=[["t", 0, 0]])
    assert acknowledged_at(recorder.events) == [5, 7]
