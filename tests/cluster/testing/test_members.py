"""Members of consumer groups that were cut off, and what they do when they are back: real consumers, under a
clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from escrowmq import GroupNotEmpty, Message
from escrowmq.actors.broker.group_service import AGAIN, GroupService
from escrowmq.testing import InMemoryCluster


@pytest.fixture
def cluster() -> Iterator[InMemoryCluster]:
    with InMemoryCluster() as made:
        made.admin.create_topic("orders")
        yield made


def member(cluster: InMemoryCluster, **options: Any) -> Any:
    return cluster.consumer("g", ["orders"], auto_offset_reset="earliest", **options)


def send(cluster: InMemoryCluster, *values: bytes) -> None:
    with cluster.producer("shop") as producer:
        for value in values:
            producer.send(Message("orders", value)).result(0)


def drain(consumer: Any) -> list[bytes]:
    return [record.value for _ in range(12) for record in consumer.poll(timeout_s=1)]


def test_what_a_join_said_was_lost_is_not_claimed_by_the_next(cluster: InMemoryCluster) -> None:
    """Between both joins the application does not poll, so it has not heard of the loss."""
    first = member(cluster)
    send(cluster, b"0")
    assert drain(first) == [b"0"]
    first.commit()
    calls = first.core.calls
    calls.call = lambda *args: None  # cut off
    cluster.clock.advance(40)
    second = member(cluster)
    send(cluster, b"1", b"2")
    assert drain(second) == [b"1", b"2"]
    second.commit()
    del calls.call
    cluster.clock.advance(8)
    second.close()
    cluster.clock.advance(8)
    first.subscribe(["orders"])
    cluster.clock.advance(8)
    assert drain(first) == []
    first.commit()
    (each,) = cluster.admin.describe_group("g").partitions
    assert each.committed == 3, "it is not set back"


def test_a_member_whose_first_join_was_not_answered_does_not_go_on_where_another_has_read(
    cluster: InMemoryCluster,
) -> None:
    """It joins again and repeats its claims, though the first join has given it the partition anew."""
    first = member(cluster)
    send(cluster, b"0")
    assert drain(first) == [b"0"]
    first.commit()
    calls, joins, lost = first.core.calls, list[str](), {"group_heartbeat", "group_join"}
    call = calls.call

    def without(gid: int, rid: int, method: str, args: tuple[Any, ...], done: Any) -> None:
        if method not in lost:
            call(gid, rid, method, args, done)

    calls.call = without
    cluster.clock.advance(40)
    with member(cluster) as second:
        send(cluster, b"1", b"2")
        assert drain(second) == [b"1", b"2"]
        second.commit()

    def loses_one_answer(gid: int, rid: int, method: str, args: tuple[Any, ...], done: Any) -> None:
        if method == "group_join":
            joins.append(method)
            done = done if len(joins) > 1 else lambda answer, failure: None
        call(gid, rid, method, args, done)

    calls.call = loses_one_answer
    cluster.clock.advance(16)
    assert len(joins) == 2 and drain(first) == []
    first.commit()
    (each,) = cluster.admin.describe_group("g").partitions
    assert each.committed == 3, "it is not set back"


def test_a_group_that_lives_is_not_changed_because_its_leader_is_new(cluster: InMemoryCluster) -> None:
    """Its members join the new leader with their next heartbeats; until then it knows of none."""
    consumer = member(cluster)
    send(cluster, b"0", b"1", b"2")
    assert len(drain(consumer)) == 3
    consumer.commit()
    groups = fail_over(cluster)
    offsets = {"orders": {0: 3}}
    assert groups.delete("g", offsets) == AGAIN
    assert groups.commit("g", "", 1, offsets) == AGAIN, "a reset by an operator"
    cluster.clock.advance(5)
    for change in (cluster.admin.delete_group, lambda group: cluster.admin.reset_group(group, "earliest")):
        with pytest.raises(GroupNotEmpty):
            change("g")
    consumer.commit()
    (each,) = cluster.admin.describe_group("g").partitions
    assert each.committed == 3


def test_a_group_without_members_is_deleted_once_a_new_leader_has_waited_for_them(
    cluster: InMemoryCluster,
) -> None:
    with member(cluster) as consumer:
        send(cluster, b"0")
        drain(consumer)
        consumer.commit()
    fail_over(cluster)
    cluster.admin.reset_group("g", "earliest")
    cluster.admin.delete_group("g")
    assert "g" not in cluster.admin.groups()


def test_long_after_a_fail_over_nothing_waits_for_members(cluster: InMemoryCluster) -> None:
    """Members had their time to join, although nobody has called the coordinator since."""
    with member(cluster) as consumer:
        send(cluster, b"0")
        drain(consumer)
        consumer.commit()
    groups = fail_over(cluster)
    cluster.clock.advance(60)
    assert groups.delete("g", {"orders": {0: 1}}) == ("ok", None)


def fail_over(cluster: InMemoryCluster) -> GroupService:
    """The broker leads in a new term, with an empty memory of members."""
    network: Any = cluster.network
    parts = network.brokers[0].parts
    parts.running.node.term = 2
    groups: GroupService = parts.groups
    return groups


def test_an_outage_does_not_repeat_the_warning_of_a_missing_poll(
    cluster: InMemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """The member cannot leave its group while no broker answers; it says so once, and then rarely."""

    def said() -> int:
        found = [r for r in caplog.records if r.getMessage().startswith("no poll for ")]
        caplog.clear()
        return len(found)

    consumer = member(cluster)
    send(cluster, b"0")
    assert drain(consumer) == [b"0"]
    calls = consumer.core.calls
    calls.call = lambda *args: None  # cut off
    cluster.clock.advance(400)
    assert said() == 1
    cluster.clock.advance(610)
    assert said() == 1, "every ten minutes"
    del calls.call
    cluster.clock.advance(60)
    assert said() <= 1 and consumer.core.membership.idle
    send(cluster, b"1")
    assert drain(consumer) == [b"0", b"1"]
    cluster.clock.advance(400)
    assert said() == 1, "it is told of another time without a poll"


Poll = Callable[[InMemoryCluster, Any], list[bytes]]


def by_threads(cluster: InMemoryCluster, consumer: Any) -> list[bytes]:
    return drain(consumer)


def by_arrow(cluster: InMemoryCluster, consumer: Any) -> list[bytes]:
    return [row for _ in range(12) for row in consumer.poll_arrow(timeout_s=1)["value"].to_pylist()]


def by_tasks(cluster: InMemoryCluster, consumer: Any) -> list[bytes]:
    async def read() -> list[bytes]:
        found: list[bytes] = []
        for _ in range(12):
            found += [record.value for record in await consumer.aio.poll(timeout_s=0)]
            cluster.clock.advance(1)
        return found

    return asyncio.run(read())


@pytest.mark.parametrize("poll", [by_threads, by_arrow, by_tasks])
def test_a_pause_lasts_while_the_partition_stays(cluster: InMemoryCluster, poll: Poll) -> None:
    """Members that come and go end no pause, nor does a gap that is shorter than the session."""
    cluster.admin.create_topic("more", partitions=2)
    consumer = cluster.consumer("g", ["more"], auto_offset_reset="earliest")
    assert poll(cluster, consumer) == []
    consumer.pause()
    with cluster.producer("shop") as producer:
        for partition in (0, 1):
            producer.send(Message("more", b"%d" % partition, partition=partition)).result(0)
    with cluster.consumer("g", ["more"], auto_offset_reset="earliest") as other:
        other.poll(timeout_s=1)
        assert poll(cluster, consumer) == []
        (kept,) = consumer.assignment()
        calls = consumer.core.calls
        calls.call = lambda *args: None  # cut off
        cluster.clock.advance(6)
        del calls.call
        assert poll(cluster, consumer) == [] and consumer.assignment() == [kept]
        consumer.resume(kept)
        assert poll(cluster, consumer) == [b"%d" % kept[1]]


@pytest.mark.parametrize(
    ("how", "poll"), [("session", by_threads), ("no poll", by_arrow), ("subscribed anew", by_tasks)]
)
@pytest.mark.parametrize("again", [False, True])
def test_a_partition_that_was_lost_comes_back_without_its_pause(
    cluster: InMemoryCluster, poll: Poll, how: str, again: bool
) -> None:
    """An ``on_assign`` that pauses it is called before anything of it is returned."""
    consumer = member(cluster, on_assign=lambda got: again and consumer.pause(*got))
    assert poll(cluster, consumer) == []
    consumer.pause()
    send(cluster, b"0")
    assert poll(cluster, consumer) == []
    if how == "session":
        calls = consumer.core.calls
        calls.call = lambda *args: None  # cut off
        cluster.clock.advance(40)
        with member(cluster) as other:
            assert drain(other) == [b"0"]
        del calls.call
        cluster.clock.advance(8)
    elif how == "no poll":
        cluster.clock.advance(400)
    else:
        consumer.subscribe([])
        assert drain(consumer) == []
        consumer.subscribe(["orders"])
    assert poll(cluster, consumer) == ([] if again else [b"0"])
    assert consumer.assignment() == [("orders", 0)]
    consumer.resume()
    assert poll(cluster, consumer) == ([b"0"] if again else [])
