"""Which replica counts as the leader when a fault should strike the leader."""

from __future__ import annotations

from escrowmq.actors.admin.types import ReplicaStatus
from tests.chaos.deployment import leading


def replica(number: int, term: int, *, ready: bool = False, reachable: bool = True) -> ReplicaStatus:
    positions = dict.fromkeys(
        (
            "commit_index",
            "applied_index",
            "first_index",
            "last_index",
            "durable_index",
            "open_transactions",
        ),
        0,
    )
    return ReplicaStatus(0, number, reachable, "leader", term, number, details={"ready": ready}, **positions)


def test_of_two_that_lead_it_is_the_one_of_the_later_term() -> None:
    cut_off, successor, follower = replica(0, 3, ready=True), replica(2, 4, ready=True), replica(1, 4)
    assert leading([cut_off, follower, successor]) == 2
    assert leading([successor, follower, cut_off]) == 2


def test_nobody_leads_who_is_not_ready_or_does_not_answer() -> None:
    assert (
        leading([replica(0, 3, ready=True), replica(1, 9), replica(2, 9, ready=True, reachable=False)]) == 0
    )
    assert leading([replica(0, 3), replica(1, 3)]) is None
    assert leading([]) is None
