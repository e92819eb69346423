"""A slice of ``make chaos`` for every run of the tests: one round, each kind of fault on processes once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.chaos import cleanup
from tests.chaos.kinds import Kind
from tests.chaos.plan import Round
from tests.chaos.running import Run, RunOptions

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(400)]

SEED = 20
KINDS = (
    Kind.LEADER_KILL,
    Kind.BROKERS_KILL,
    Kind.LEADER_PAUSE,
    Kind.FEEDBACK_KILL,
    Kind.PRODUCER_KILL,
    Kind.CONSUMER_KILL,
    Kind.SUPERVISOR_KILL,
    Kind.ROLLING_RESTART,
)
#: Of a commit after a fail-over, on a machine that may be busy with anything; figures are measured elsewhere.
FAIL_OVER_S = 10.0


class Lines:
    """What happens, for the output of a test that fails."""

    def round_begins(self, plan: Round) -> None:
        print(f"round {plan.number}: {[fault.kind.value for fault in plan.faults]}")

    def told(self, plan: Round, event: dict[str, Any]) -> None:
        shown = ("number", "kind", "victim", "away_s", "well_after_s", "violations", "text")
        print(event["event"], {name: event[name] for name in shown if name in event})

    def left_out(self, reasons: dict[str, str]) -> None:
        print("left out:", reasons)

    def failed(self, plan: Round, directory: Path, problems: list[str], replay: str) -> None:
        print(f"everything is in {directory}; again: {replay}", *problems, sep="\n")


def test_promises_hold_while_processes_are_killed_stopped_and_restarted() -> None:
    options = RunOptions(SEED, len(KINDS), len(KINDS), KINDS, overrides={"producers": 2, "crashes": 0.01})
    run = Run(options, Lines(), machines_missing=None)
    assert run.run(), run.results.violations
    results = run.results
    assert {trial["kind"] for trial in results.trials} == {kind.value for kind in KINDS}
    killed = next(trial for trial in results.trials if trial["kind"] == Kind.LEADER_KILL.value)
    assert killed["away_s"] < FAIL_OVER_S
    figures, operations = results.figures(), results.operations()
    assert figures["messages of 30 KB and more"] > 0 and figures["transactions"] > 100
    assert operations["decide"]["ok"] > 100 and operations["send"]["ok"] > 100
    assert operations["offset-commit"]["ok"] > 10
    assert cleanup.marked(run.mark) == [], "nothing is left behind"
