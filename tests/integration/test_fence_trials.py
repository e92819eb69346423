"""A part of ``make fence-trials`` for make test-long: a service, a handler, the leader and PostgreSQL are
killed, and the other service is stopped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fence_trials.running import (
    BILLER,
    DATABASE,
    LEADER,
    SERVICE,
    SHARES,
    STOPPED,
    Run,
    Trial,
    deck_of,
    plan,
)

if TYPE_CHECKING:
    from escrowmq import Cluster

SEED = 5


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.timeout(300)
def test_every_order_has_its_message_and_its_bill_whatever_is_killed(cluster: Cluster) -> None:
    outcome = Run(cluster, [Trial(SEED, 0, "postgresql", (SERVICE, STOPPED, BILLER, LEADER, DATABASE))]).run()
    assert outcome.problems == [] and outcome.trials == 1 and outcome.orders > 5
    assert cluster.admin.list_transactions(state="PARKED") == []


def test_a_run_is_the_same_for_the_same_seed_and_strikes_everything() -> None:
    trials = plan(1, 100)
    assert trials == plan(1, 100) != plan(2, 100)
    assert [trial.number for trial in trials] == list(range(100))
    for kind, share in SHARES.items():
        mine = [trial for trial in trials if trial.kind == kind]
        assert len(mine) == round(100 * share)
        assert {trial.victims for trial in mine} == {*deck_of(kind)}
