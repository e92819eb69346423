"""Share consumers of a cluster in memory: leases, acks, failures, retries, dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from escrowmq import (
    DiskFull,
    EscrowMQError,
    Message,
    OutcomeUnknown,
    Overloaded,
    ShareConsumer,
    ShareRecord,
    Unavailable,
    UnknownTopic,
)
from escrowmq.cluster.testing.calls import Network
from escrowmq.testing import InMemoryCluster


@pytest.fixture
def cluster() -> Iterator[InMemoryCluster]:
    with InMemoryCluster() as made:
        made.admin.create_topic("orders", partitions=2)
        yield made


def queue_of(cluster: InMemoryCluster, group: str = "mail", **options: object) -> ShareConsumer:
    return cluster.share_consumer(group, ["orders"], auto_offset_reset="earliest", **options)


def send(cluster: InMemoryCluster, *values: bytes) -> None:
    with cluster.producer("shop") as producer:
        for value in values:
            producer.send(Message("orders", value)).result(0)


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def everything(queue: ShareConsumer) -> list[ShareRecord]:
    """All that is available now."""
    found: list[ShareRecord] = []
    while records := queue.poll(timeout_s=0):
        found += records
    return found


def values(records: list[ShareRecord]) -> list[bytes]:
    return sorted(record.value for record in records)


def test_messages_are_divided_and_what_is_acked_never_comes_again(cluster: InMemoryCluster) -> None:
    first, second = queue_of(cluster, prefetch_records=0), queue_of(cluster, prefetch_records=0)
    send(cluster, *numbered(40))
    mine = [record for _ in range(10) for record in first.poll(max_records=2, timeout_s=0)]
    theirs = everything(second)
    assert values(mine + theirs) == sorted(numbered(40)) and len(mine) >= 10
    for record in mine:
        first.ack(record)
    for record in theirs:
        second.ack(record)
    cluster.clock.advance(3600)
    assert everything(first) == everything(second) == []
    assert first.statistics().acked == len(mine) and first.statistics().held == 0


def test_a_record_has_its_offset_its_attempt_and_its_origin(cluster: InMemoryCluster) -> None:
    queue = queue_of(cluster)
    with cluster.producer("shop") as producer:
        sent = producer.send(Message("orders", b"v", b"key", {"h": b"1"}, partition=1)).result(0)
    (record,) = queue.poll()
    assert (record.topic, record.partition, record.offset) == ("orders", 1, 0)
    assert (record.key, record.headers, record.attempt) == (b"key", {"h": b"1"}, 1)
    assert record.origin == ("orders", 1, 0, sent.timestamp)


def test_a_nacked_message_comes_again_after_its_delay_and_the_others_go_on(cluster: InMemoryCluster) -> None:
    queue = queue_of(cluster)
    send(cluster, b"bad", b"good")
    records = {record.value: record for record in queue.poll()}
    queue.nack(records[b"bad"], delay_s=60, reason="the printer is out of paper")
    queue.ack(records[b"good"])
    cluster.clock.advance(59)
    assert everything(queue) == []
    cluster.clock.advance(1)
    (again,) = queue.poll()
    assert (again.value, again.attempt) == (b"bad", 2) and again.origin == records[b"bad"].origin
    assert again.headers["escrowmq-reason"] == b"the printer is out of paper"


def test_without_a_delay_the_table_of_the_group_decides_and_the_last_attempt_is_a_dead_letter(
    cluster: InMemoryCluster,
) -> None:
    cluster.admin.set_group("mail", max_attempts=2, delays_s=[10])
    queue = queue_of(cluster)
    send(cluster, b"bad")
    (record,) = queue.poll()
    queue.nack(record, reason="first")
    cluster.clock.advance(8.9)
    assert everything(queue) == []
    cluster.clock.advance(2.2)  # a tenth of jitter
    (record,) = queue.poll()
    assert record.attempt == 2
    queue.nack(record, reason="second")
    cluster.clock.advance(3600)
    assert everything(queue) == []
    (dead,) = cluster.admin.dead_letters("mail")
    assert (dead.value, dead.reason, dead.attempts) == (b"bad", "second", 2)
    assert dead.origin == record.origin


def test_a_rejected_message_is_a_dead_letter_at_once(cluster: InMemoryCluster) -> None:
    queue = queue_of(cluster)
    send(cluster, b"bad")
    queue.reject(queue.poll()[0], "no such customer")
    assert [dead.reason for dead in cluster.admin.dead_letters("mail")] == ["no such customer"]


def test_a_released_message_comes_at_once_and_counts_as_no_attempt(cluster: InMemoryCluster) -> None:
    first, second = queue_of(cluster), queue_of(cluster)
    send(cluster, b"1")
    first.release(first.poll()[0])
    (record,) = everything(second) or everything(first)
    assert record.attempt == 1


def test_leases_of_what_is_handled_are_extended_until_the_limit(cluster: InMemoryCluster) -> None:
    slow, other = queue_of(cluster, lease_s=10, lease_extend_max_s=60), queue_of(cluster)
    send(cluster, b"1")
    (record,) = slow.poll()
    cluster.clock.advance(59)
    assert everything(other) == []
    cluster.clock.advance(20)
    (again,) = everything(other)
    assert again.attempt == 2, "a lease has ended"
    slow.ack(record)  # it was done, though late
    slow.flush()
    cluster.clock.advance(3600)
    assert everything(slow) == []


def test_leases_that_run_out_at_the_last_attempt_count_in_the_number_and_not_as_failures(
    cluster: InMemoryCluster,
) -> None:
    cluster.admin.set_group("mail", max_attempts=2, delays_s=[1])
    queue = queue_of(cluster, lease_s=10, lease_extend_max_s=10)
    send(cluster, b"deadly")
    (record,) = queue.poll()
    queue.nack(record, reason="first")
    numbers = []
    for _ in range(200):
        numbers += [record.attempt for record in everything(queue)]
        cluster.clock.advance(1)
    assert numbers == [2, 3, 4], "its last attempt: three leases, of which each ran out"
    (dead,) = cluster.admin.dead_letters("mail")
    assert (dead.attempts, dead.by) == (2, "lease")


def test_what_lies_in_the_buffer_of_a_consumer_that_does_not_poll_goes_to_others(
    cluster: InMemoryCluster,
) -> None:
    busy, other = queue_of(cluster, lease_s=10), queue_of(cluster, lease_s=10)
    busy.poll(timeout_s=0)
    send(cluster, *numbered(10))
    kept = busy.poll(max_records=1)
    cluster.clock.advance(11)
    found = everything(other)
    assert values(kept + found) == sorted(numbered(10))
    assert {record.attempt for record in found} == {1}, "no lease has ended: they were given back"


def test_an_extended_lease_ends_when_the_application_said(cluster: InMemoryCluster) -> None:
    slow, other = queue_of(cluster, lease_s=10, lease_extend_max_s=10), queue_of(cluster)
    send(cluster, b"1")
    (record,) = slow.poll()
    slow.extend(record, 100)
    cluster.clock.advance(99)
    assert everything(other) == []
    assert (slow.statistics().leases_lost, slow.statistics().held) == (0, 1)
    cluster.clock.advance(2)
    assert (slow.statistics().leases_lost, slow.statistics().held) == (1, 0)
    assert values(everything(other)) == [b"1"]


def test_close_gives_the_buffer_back_and_waits_for_acks(cluster: InMemoryCluster) -> None:
    first = queue_of(cluster)
    send(cluster, *numbered(10))
    (record,) = first.poll(max_records=1)
    first.ack(record)
    first.close()
    first.close()
    rest = everything(queue_of(cluster))
    assert values([record, *rest]) == sorted(numbered(10))


def test_acks_wait_for_the_end_of_an_outage(cluster: InMemoryCluster) -> None:
    queue = queue_of(cluster)
    send(cluster, b"1")
    (record,) = queue.poll()
    with cluster.outage():
        queue.ack(record)
        with pytest.raises(Unavailable, match="not confirmed"):
            queue.flush(5.0)
    queue.flush()
    assert queue.statistics().acked == 1


@pytest.mark.parametrize("error", [Unavailable, Overloaded, DiskFull, OutcomeUnknown])
def test_acks_that_a_broker_cannot_take_now_are_sent_again(
    cluster: InMemoryCluster, error: type[EscrowMQError]
) -> None:
    queue = queue_of(cluster)
    send(cluster, b"1")
    (record,) = queue.poll()
    cluster.fail_next("ack", error)
    queue.ack(record)
    cluster.clock.advance(queue.core.config.call_timeout_s + 1)
    queue.flush()
    statistics = queue.statistics()
    assert (statistics.acked, statistics.acks_failed) == (1, 0)


def test_a_nack_that_could_not_be_sent_may_be_repeated(cluster: InMemoryCluster) -> None:
    queue = queue_of(cluster, lease_s=120)
    send(cluster, b"1")
    (record,) = queue.poll()
    with cluster.outage(), pytest.raises((Unavailable, OutcomeUnknown)):
        queue.nack(record)
    queue.nack(record, delay_s=0)
    assert [again.attempt for again in everything(queue)] == [2]


def test_a_group_begins_at_the_end_unless_told_otherwise_and_only_once(cluster: InMemoryCluster) -> None:
    send(cluster, b"old")
    queue = cluster.share_consumer("mail", ["orders"])
    send(cluster, b"new")
    queue.close()
    assert values(everything(queue_of(cluster))) == [b"new"]
    assert values(everything(queue_of(cluster, group="others"))) == [b"new", b"old"]


def test_a_value_that_cannot_be_read_ends_as_a_dead_letter_and_others_are_read(
    cluster: InMemoryCluster,
) -> None:
    cluster.admin.set_group("mail", max_attempts=1)
    queue = queue_of(cluster, value_deserializer="json")
    send(cluster, b"{}", b"not json", b"[1]", b"{", b"2")
    assert sorted(str(record.value) for record in everything(queue)) == ["2", "[1]", "{}"]
    dead = cluster.admin.dead_letters("mail")
    assert sorted(letter.value for letter in dead) == [b"not json", b"{"]
    assert all(letter.reason.startswith("NotDeserializable") and letter.by == "client" for letter in dead)


def test_a_topic_that_is_deleted_is_reported_and_one_that_comes_again_is_read(
    cluster: InMemoryCluster,
) -> None:
    queue = queue_of(cluster)
    cluster.admin.delete_topic("orders")
    with pytest.raises(UnknownTopic, match="deleted"):
        queue.poll(timeout_s=60)
    cluster.admin.create_topic("orders")
    cluster.clock.advance(2)
    send(cluster, b"new")
    assert values(queue.poll(timeout_s=60)) == [b"new"]


def test_iteration_ends_when_the_consumer_is_closed(cluster: InMemoryCluster) -> None:
    queue = queue_of(cluster)
    send(cluster, b"1", b"2", b"3")
    seen = []
    for record in queue:
        seen.append(record)
        queue.ack(record)
        if len(seen) == 3:
            queue.close()
    assert values(seen) == [b"1", b"2", b"3"]


def test_messages_of_an_answer_that_was_lost_come_again_long_before_their_lease_ends(
    cluster: InMemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute, lost = Network._execute, []

    def lossy(self: Network, gid: int, method: str, args: Any, done: Any, dropped: Any) -> None:
        heard = method != "share_acquire" or len(lost) >= 3
        if not heard:
            lost.append(args)
        execute(self, gid, method, args, done if heard else lambda answer, error: None, dropped)

    send(cluster, *numbered(3))
    queue = queue_of(cluster, lease_s=300.0)
    monkeypatch.setattr(Network, "_execute", lossy)
    found: list[ShareRecord] = []
    end = cluster.clock.now() + timedelta(seconds=200)
    while not found and cluster.clock.now() < end:
        with suppress(OutcomeUnknown):  # said once it has gone on for long
            found += queue.poll(timeout_s=0)
        cluster.clock.advance(1)
    assert lost and values(found) == numbered(3) and {record.attempt for record in found} == {1}
    queue.close()


def test_a_handler_that_raises_a_cancellation_of_its_own_has_failed(cluster: InMemoryCluster) -> None:
    """As a library does whose task was cancelled; nobody has cancelled the handler."""
    cluster.admin.set_group("mail", max_attempts=2, delays_s=[0])
    send(cluster, b"bad")
    calls: list[int] = []

    def is_set() -> bool:
        return len(calls) > 4 or bool(cluster.admin.dead_letters("mail"))

    async def main() -> None:
        async def handle(record: ShareRecord) -> None:
            calls.append(record.attempt)
            raise asyncio.CancelledError("of a library's task")

        async with queue_of(cluster).aio as queue:
            await queue.run(handle, stop=SimpleNamespace(is_set=is_set))  # type: ignore[arg-type]

    asyncio.run(main())
    assert calls == [1, 2]
    (dead,) = cluster.admin.dead_letters("mail")
    assert dead.reason == "CancelledError: of a library's task"


def test_a_cancelled_run_gives_back_what_is_handled(cluster: InMemoryCluster) -> None:
    send(cluster, b"a", b"b")

    async def main() -> None:
        began = asyncio.Event()

        async def handle(record: ShareRecord) -> None:
            began.set()
            await asyncio.sleep(3600)

        async with queue_of(cluster).aio as queue:
            running = asyncio.create_task(queue.run(handle))
            await began.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running

    asyncio.run(main())
    with queue_of(cluster) as queue:
        found = [(record.value, record.attempt) for record in everything(queue)]
    assert sorted(found) == [(b"a", 1), (b"b", 1)]
