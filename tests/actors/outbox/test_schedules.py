"""A few of the drawn schedules of relays; ``python -m tests.relays`` runs as many as one likes."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.relays import schedule
from tests.support.faults.replaying import command

#: What a few schedules must contain between them, or they show little.
MUST = (
    "long stop", "kill", "late request", "commit late", "cut", "step: SENT", "step: REFUSED", "step: AWAY",
)  # fmt: skip


def test_every_row_is_sent_once_and_in_order() -> None:
    did = Counter[str]()
    for seed in (2, 18, 56):
        outcome = schedule.run(seed)
        assert outcome.found == [], f"again: {command('tests.relays', seed=seed, seeds=1)}"
        did += outcome.did
    assert [what for what in MUST if not did[what]] == []


def test_a_database_that_goes_back_stops_a_shard_until_a_person_decides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(schedule, "RESTORES", 1.0)
    outcomes = [schedule.run(seed) for seed in (2, 5)]
    assert [outcome.found for outcome in outcomes] == [[], []]
    assert sum(outcome.did["fail over"] + outcome.did["restore"] for outcome in outcomes) > 3
    assert sum(outcome.did["released"] for outcome in outcomes) > 0


@pytest.mark.parametrize("seed", range(4))
def test_a_seed_gives_the_same_schedule_again(seed: int) -> None:
    assert schedule.run(seed, turns=300) == schedule.run(seed, turns=300)
