"""A commit may say how often the message at its offset has failed: who may say it, and how long it counts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from escrowmq import Message
from escrowmq.actors.client.consumer_groups import GroupCallRefused, MembershipStale
from escrowmq.testing import InMemoryCluster

TOPIC = "orders"


class Member:
    """Member ``m`` of group ``g``, which reads both partitions."""

    def __init__(self, cluster: InMemoryCluster) -> None:
        self.router = cluster.admin.router
        self.generation = 0
        self.generation = self.call("group_join", "g", "m", [TOPIC], 10.0).assignment.generation
        self.call("group_heartbeat", "g", "m", self.generation)

    def call(self, method: str, *args: Any) -> Any:
        return self.router.leader_call(0, method, *args, timeout_s=5.0).result(0)

    def commit(
        self, offsets: dict[int, int], attempts: dict[int, int] | None = None, generation: int = 0
    ) -> Any:
        told = [] if attempts is None else [None, {TOPIC: attempts}]
        return self.call("commit_offsets", "g", "m", generation or self.generation, {TOPIC: offsets}, *told)

    def attempts(self, *offsets: tuple[int, int]) -> Any:
        return self.call("failed_attempts", "g", [(TOPIC, *at) for at in offsets])


@pytest.fixture
def cluster() -> Iterator[InMemoryCluster]:
    with InMemoryCluster() as made:
        yield made


@pytest.fixture
def member(cluster: InMemoryCluster) -> Member:
    cluster.admin.create_topic(TOPIC, partitions=2)
    with cluster.producer("shop") as producer:
        for number in range(10):
            producer.send(Message(TOPIC, b"x", partition=number % 2)).result(0)
    return Member(cluster)


def test_attempts_count_as_long_as_the_offset_does(member: Member) -> None:
    assert member.commit({0: 2, 1: 3}, {0: 4, 1: 1}) is None
    assert member.attempts((0, 2), (1, 3), (0, 1), (0, 3), (7, 0)) == [4, 1, 0, 0, 0]
    assert member.call("committed", "g", [TOPIC]) == {TOPIC: {0: 2, 1: 3}}
    assert member.commit({0: 3}, {0: 0}) is None
    assert member.attempts((0, 2), (0, 3), (1, 3)) == [0, 0, 1]
    assert member.commit({1: 3}) is None, "the offset is the same"
    assert member.attempts((1, 3)) == [1]


@pytest.mark.parametrize("moves", ["a commit", "a transaction"])
def test_a_message_that_was_done_begins_anew(member: Member, cluster: InMemoryCluster, moves: str) -> None:
    """Also if the group is moved back to it."""
    assert member.commit({0: 2, 1: 2}, {0: 4, 1: 1}) is None
    if moves == "a commit":
        member.commit({0: 3})
    else:
        with cluster.producer("shop") as producer, producer.transaction(local=False) as tx:
            tx.send_offsets("g", {(TOPIC, 0): (2, 3)})
    assert member.commit({0: 2}) is None
    assert member.attempts((0, 2), (1, 2)) == [0, 1]


def test_a_transaction_that_ends_where_it_began_forgets_nothing(
    member: Member, cluster: InMemoryCluster
) -> None:
    assert member.commit({0: 2}, {0: 4}) is None
    with cluster.producer("shop") as producer:
        with producer.transaction(local=False) as tx:
            tx.send_offsets("g", {(TOPIC, 0): (2, 2)})
        with pytest.raises(ZeroDivisionError), producer.transaction(local=False) as tx:
            tx.send_offsets("g", {(TOPIC, 0): (2, 3)})
            tx.prepare()
            raise ZeroDivisionError
    assert member.attempts((0, 2)) == [4]


@pytest.mark.parametrize("to", [2, "earliest"])
def test_a_reset_begins_anew_also_at_the_same_offset(
    member: Member, cluster: InMemoryCluster, to: int | str
) -> None:
    assert member.commit({0: 2, 1: 0}, {0: 4, 1: 3}) is None
    member.call("group_leave", "g", "m")
    cluster.admin.reset_group("g", to=to, topic=TOPIC, partition=0)
    assert member.attempts((0, 2), (0, 0), (1, 0)) == [0, 0, 3]
    cluster.admin.reset_group("g", to="earliest")
    assert member.attempts((1, 0)) == [0]


def test_only_who_holds_the_partition_may_say_it(member: Member) -> None:
    answer = member.commit({0: 2}, {0: 4}, generation=member.generation + 1)
    assert isinstance(answer, MembershipStale)
    assert member.attempts((0, 2)) == [0]


@pytest.mark.parametrize("attempts", [{1: 1}, {0: 1, 1: 1}, {}])
def test_attempts_are_for_the_offsets_that_are_committed(member: Member, attempts: dict[int, int]) -> None:
    assert isinstance(member.commit({0: 2}, attempts), GroupCallRefused)
    assert member.call("committed", "g", [TOPIC]) == {TOPIC: {}}
