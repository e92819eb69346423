"""What a broker does for transactions over several groups, with real replicas, threads and time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from escrowmq.replication.format import ops
from escrowmq.replication.format.ops import PrepareExtra
from tests.support.brokers import Brokers
from tests.support.waiting import wait_until

#: A new leader takes about a second; on a busy machine somewhat longer.
FOLLOWS_S = 15.0


@pytest.fixture
def two_groups(tmp_path: Path) -> Iterator[Brokers]:
    running = Brokers(tmp_path, groups=2, replicas=3)
    running.topic("t", 2)
    yield running
    running.close()


def prepare(brokers: Brokers, tx_id: str) -> int:
    """Prepares at home, in group 0, and a branch in group 1, without messages; returns home's index."""
    home = PrepareExtra(participants=[1])
    ((code, index),) = brokers.groups[0].submit(ops.prepare("a", "t", [tx_id], None, 0, 0, [1], -1, 0, home))
    assert code == 0
    branch = PrepareExtra(home_index=[index])
    request = ops.prepare("a", "t", [tx_id], None, 0, 0, [1], 0, 0, branch)
    assert brokers.groups[1].submit(request) == [[0]]
    return int(index)


def outcome(brokers: Brokers, gid: int, tx_id: str) -> str:
    status, states = brokers.groups[gid].leader().parts.inspection.tx_states("a", [tx_id])
    return str(states[0]) if status == "ok" else "?"


def test_a_branch_follows_although_the_leader_that_decided_dies(two_groups: Brokers) -> None:
    index = prepare(two_groups, "x")
    assert two_groups.groups[0].submit(ops.commit("a", ["x"], "producer", [index])) == [[0]]
    two_groups.lose(0, two_groups.leader(0))
    wait_until(lambda: outcome(two_groups, 1, "x") == "COMMITTED", FOLLOWS_S, "the branch to follow")

    def owes_nothing() -> bool:
        state = two_groups.groups[0].leader().parts.running.replica.state
        return (
            state.transactions.across.decided == 0 and state.transactions.look("a").outcome("x") is not None
        )

    wait_until(owes_nothing, FOLLOWS_S, "home to hear of it")


def test_a_branch_that_its_home_does_not_know_is_rolled_back(two_groups: Brokers) -> None:
    request = ops.prepare("a", "t", ["x"], None, 300, 0, [1], 0, 0, PrepareExtra(home_index=[99_999]))
    assert two_groups.groups[1].submit(request) == [[0]]
    wait_until(lambda: outcome(two_groups, 1, "x") == "ROLLBACK", FOLLOWS_S, "the branch to ask its home")
