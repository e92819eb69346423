"""A slice of ``make chaos`` for every run of the tests: most kinds of faults on processes once.

``make test-long`` has the others, and restarts all brokers, one after the other. If machines can be
simulated, it has a round with a cut-off leader whose successor is killed, and with a restart on a full
disk.

The rounds take less than three minutes on an idle machine. The test prints how long they took and how busy
the machine was; it fails if the machine was idle and they took longer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos import cleanup
from tests.chaos.kinds import KINDS, Kind
from tests.chaos.machines import missing
from tests.chaos.plan import Round, plan_round
from tests.chaos.running import Run, RunOptions

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(500)]

#: Every kind without machines. The seed of each round gives short pauses, two broker groups, a slow
#: database without a fence, and the second fault below. Those of ``ALSO`` have tests of their own
#: (test_feedback.py, the demo), or do less than their brothers: a round of their own has them. A restart of
#: all brokers, one after the other, takes half a minute and has a separate round. So has the change of a
#: group to five replicas and back to three.
LONG = (Kind.ROLLING_RESTART, Kind.SET_REPLICAS)
ALSO = (Kind.FOLLOWER_KILL, Kind.FOLLOWER_PAUSE, Kind.FEEDBACK_KILL, Kind.PRODUCER_KILL)
ON_PROCESSES = tuple(kind for kind in Kind if not KINDS[kind].machines and kind not in (*LONG, *ALSO))
PROCESSES_SEED, PROCESSES_ROUND = 17113, 2
ON_MACHINES = (Kind.LEADER_CUT, Kind.DISK_FULL_RESTART, Kind.LEADER_KILL)
MACHINES_SEED, MACHINES_ROUND = 5645, 1
#: Limit for a commit after a fail-over, on a machine that may be busy; figures are measured elsewhere.
FAIL_OVER_S = 10.0
SLICE_S = 180.0
#: Runnable processes per core, a minute's average, below which a machine is idle before the slice begins.
IDLE_LOAD = 0.3


class Lines:
    """Prints what happens, for the output of a test that fails."""

    def round_begins(self, plan: Round) -> None:
        print(f"round {plan.number}: {[fault.kind.value for fault in plan.faults]}")

    def told(self, plan: Round, event: dict[str, Any]) -> None:
        shown = ("number", "kind", "meanwhile", "victim", "away_s", "well_after_s", "violations", "text")
        print(event["event"], {name: event[name] for name in shown if name in event})

    def left_out(self, reasons: dict[str, str]) -> None:
        print("left out:", reasons)

    def failed(self, plan: Round, directory: Path, problems: list[str], replay: str) -> None:
        print(f"everything is in {directory}; again: {replay}", *problems, sep="\n")


@pytest.fixture(scope="module", autouse=True)
def duration() -> Iterator[None]:
    """Print how long all rounds took, and check the bound if the machine was idle."""
    load, begin = os.getloadavg()[0], time.monotonic()
    idle = load / (os.cpu_count() or 1) < IDLE_LOAD and "PYTEST_XDIST_WORKER" not in os.environ
    yield
    took = time.monotonic() - begin
    print(f"slice of chaos: {took:.0f} s, load average before: {load:.1f} ({'idle' if idle else 'busy'})")
    assert took < SLICE_S or not idle, f"the slice took {took:.0f} s on an idle machine"


def ran(seed: int, number: int, kinds: tuple[Kind, ...], **overrides: Any) -> Run:
    """Run one round with a trial for each kind; it must have no violation and leave nothing behind."""
    options = RunOptions(seed, len(kinds), len(kinds), kinds, only=number, overrides=overrides)
    run = Run(options, Lines(), missing())
    assert run.run(), run.results.violations
    assert {trial["kind"] for trial in run.results.trials} == {kind.value for kind in kinds}
    assert cleanup.marked(run.mark) == [], "nothing is left behind"
    return run


def test_promises_hold_while_processes_are_killed_stopped_and_restarted() -> None:
    results = ran(PROCESSES_SEED, PROCESSES_ROUND, ON_PROCESSES, producers=2, crashes=0.01).results
    killed = next(trial for trial in results.trials if trial["kind"] == Kind.LEADER_KILL.value)
    assert killed["away_s"] < FAIL_OVER_S
    assert results.together() == {"consumer-kill during recreated-topic": 1}
    figures, operations = results.figures(), results.operations()
    assert figures["topics deleted and created again"] > 0
    assert figures["messages of 30 KB and more"] > 0 and figures["transactions"] > 100
    assert operations["decide"]["ok"] > 100 and operations["send"]["ok"] > 100
    assert operations["offset-commit"]["ok"] > 10


@pytest.mark.long
def test_promises_hold_while_followers_feedback_and_producers_are_killed() -> None:
    results = ran(20182, PROCESSES_ROUND, ALSO, producers=2).results
    assert results.operations()["decide"]["ok"] > 100


@pytest.mark.long
def test_promises_hold_while_all_brokers_are_restarted_one_after_the_other() -> None:
    results = ran(PROCESSES_SEED, PROCESSES_ROUND, (Kind.ROLLING_RESTART,), producers=2).results
    assert results.operations()["decide"]["ok"] > 100


@pytest.mark.long
def test_promises_hold_while_replicas_come_and_go() -> None:
    results = ran(PROCESSES_SEED, PROCESSES_ROUND, (Kind.SET_REPLICAS,), producers=2).results
    assert results.operations()["decide"]["ok"] > 100


@pytest.mark.long
def test_promises_hold_on_machines_that_are_cut_off_and_whose_disks_are_full() -> None:
    if (reason := missing()) is not None:
        pytest.skip(f"no machines here: {reason}")
    planned = plan_round(MACHINES_SEED, MACHINES_ROUND, len(ON_MACHINES), ON_MACHINES)
    assert planned.machines and planned.groups == 2 and planned.slow_database
    results = ran(MACHINES_SEED, MACHINES_ROUND, ON_MACHINES, producers=2, consumers=1).results
    assert results.together() == {"leader-kill during leader-cut": 1}
    assert results.operations()["decide"]["ok"] > 50 and results.figures()["records read"] > 100
