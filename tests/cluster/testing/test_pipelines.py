"""Consume, transform, produce: each order becomes one invoice, whatever fails in between."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest

import escrowmq
from escrowmq import (
    ConfigError,
    EscrowMQError,
    GroupKindMismatch,
    InvalidMessage,
    Message,
    OffsetsMoved,
    OffsetsPending,
    OutcomeUnknown,
    RetryPolicy,
    StaleMember,
    TransactionSettled,
    Unavailable,
    UnknownTopic,
)
from escrowmq.actors.consumer import group_work, running
from escrowmq.testing import InMemoryCluster

GROUP = "billing"
ORDERS = 12


@pytest.fixture
def cluster() -> Iterator[InMemoryCluster]:
    with InMemoryCluster() as made:
        made.admin.create_topic("orders", partitions=2)
        made.admin.create_topic("invoices", partitions=2)
        with made.producer("shop") as producer:
            for number in range(ORDERS):
                producer.send(Message("orders", str(number).encode(), partition=number % 2))
        yield made


def member(cluster: InMemoryCluster) -> escrowmq.Consumer:
    return cluster.consumer(GROUP, ["orders"], auto_offset_reset="earliest")


def transform(consumer: escrowmq.Consumer, producer: escrowmq.Producer, most: int = 5) -> int:
    """One transaction; how many orders it had."""
    records = consumer.poll(max_records=most, timeout_s=1)
    with producer.transaction(local=False) as tx:
        tx.send_offsets(consumer)
        for record in records:
            tx.send(Message("invoices", record.value))
    return len(records)


def drain(cluster: InMemoryCluster) -> None:
    with member(cluster) as consumer, cluster.producer("shop") as producer:
        idle = 0
        while idle < 3:
            with suppress(OffsetsMoved, OffsetsPending):
                idle = 0 if transform(consumer, producer) else idle + 1


def invoices(cluster: InMemoryCluster) -> list[int]:
    with cluster.consumer("reader", ["invoices"], auto_offset_reset="earliest") as consumer:
        return sorted(int(record.value) for record in consumer.poll(max_records=1_000))


def group_offset(cluster: InMemoryCluster, partition: int = 0) -> int | None:
    with cluster.consumer(GROUP) as consumer:
        return consumer.committed("orders", partition)


def test_orders_become_invoices_and_the_group_is_behind_them(cluster: InMemoryCluster) -> None:
    drain(cluster)
    assert invoices(cluster) == list(range(ORDERS))
    assert (group_offset(cluster), group_offset(cluster, 1)) == (6, 6)


@pytest.mark.parametrize("when", ["poll", "send_offsets", "send", "prepare"])
def test_an_exception_brings_the_same_orders_again(cluster: InMemoryCluster, when: str) -> None:
    with member(cluster) as consumer, cluster.producer("shop") as producer:
        with pytest.raises(ZeroDivisionError), producer.transaction(local=False) as tx:
            if when == "poll":
                tx.send_offsets(consumer)
            found = consumer.poll(max_records=4)
            if when != "poll":
                tx.send_offsets(consumer)
            tx.send(*(Message("invoices", record.value) for record in found))
            if when == "prepare":
                tx.prepare()
            raise ZeroDivisionError
        if when == "poll":
            return  # what was polled after it belongs to the next transaction
        cluster.clock.advance(1)
        again = consumer.poll(max_records=4)
        assert [(r.partition, r.offset) for r in again] == [(r.partition, r.offset) for r in found]
    assert not invoices(cluster)


def test_of_two_members_that_have_polled_the_same_one_prepares(cluster: InMemoryCluster) -> None:
    with member(cluster) as first, cluster.producer("shop") as producer:
        records = first.poll(max_records=100)
        assert len(records) == ORDERS
        with producer.transaction(local=False) as one:
            one.send_offsets(first)
            one.send(*(Message("invoices", record.value) for record in records))
            one.prepare()
            given = {("orders", 0): (-1, 6), ("orders", 1): (-1, 6)}
            with pytest.raises(OffsetsPending), producer.transaction(local=False) as two:
                two.send_offsets(GROUP, given)
                two.send(Message("invoices", b"99"))
        with pytest.raises(OffsetsMoved) as moved, producer.transaction(local=False) as two:
            two.send_offsets(GROUP, given)
            two.send(Message("invoices", b"99"))
        assert (moved.value.group, moved.value.committed) == (GROUP, 6)
        assert transform(first, producer) == 0, "the next transaction begins where the last one ended"
        producer.send(Message("orders", b"12", partition=0))
        assert transform(first, producer) == 1
    assert invoices(cluster) == list(range(ORDERS + 1))


def test_a_member_that_was_late_goes_on_where_the_work_is_done(cluster: InMemoryCluster) -> None:
    with member(cluster) as late, cluster.producer("shop") as producer:
        assert late.poll(max_records=3)
        with producer.transaction(local=False) as other:
            other.send_offsets(GROUP, {("orders", 0): (-1, 5)})
            other.send(*(Message("invoices", str(n).encode()) for n in range(0, 10, 2)))
        with pytest.raises(OffsetsMoved):
            transform(late, producer)
        cluster.clock.advance(1)
    drain(cluster)
    assert invoices(cluster) == list(range(ORDERS))


def test_a_new_reader_waits_for_the_outcome(cluster: InMemoryCluster) -> None:
    with cluster.producer("shop") as producer:
        for commit in (False, True):
            with producer.transaction(local=False) as tx:
                begin = -1 if group_offset(cluster) is None else 0
                tx.send_offsets(GROUP, {("orders", 0): (begin, 2)})
                tx.prepare()
                with member(cluster) as consumer:
                    seen = {record.partition for record in consumer.poll(max_records=100, timeout_s=1)}
                    assert seen == {1}, "what is held is not read"
                    (tx.commit if commit else tx.rollback)()
                    first = consumer.poll(max_records=1, timeout_s=1)[0]
                    assert (first.partition, first.offset) == (0, 2 if commit else 0)


def test_nobody_is_asked_and_the_time_out_ends_it(cluster: InMemoryCluster) -> None:
    with member(cluster) as consumer, cluster.producer("shop") as producer:
        records = consumer.poll(max_records=100)
        with pytest.raises(TransactionSettled), producer.transaction(local=False) as tx:
            tx.send_offsets(consumer)
            tx.send(*(Message("invoices", record.value) for record in records))
            tx.prepare()
            cluster.clock.advance(20)
        assert len(consumer.poll(max_records=100, timeout_s=2)) == ORDERS, "the same again"
    drain(cluster)
    assert invoices(cluster) == list(range(ORDERS))


@pytest.mark.parametrize("named", [True, False])
def test_the_successor_of_a_named_member_does_not_wait_for_its_time_out(
    cluster: InMemoryCluster, named: bool
) -> None:
    """The member dies between prepare and commit. Without a name its successor waits for the time-out."""

    def process() -> escrowmq.Producer:
        return cluster.producer("shop", transactional_id="billing-0" if named else None)

    killed, hour_s = process(), 3600.0
    with member(cluster) as first:
        records = first.poll(max_records=100)
        tx = killed.transaction(local=False, transaction_timeout_s=hour_s)
        tx.send_offsets(first)
        tx.send(*(Message("invoices", record.value) for record in records))
        tx.prepare()
    waits, began = 0, cluster.clock.time()
    given = {("orders", 0): (-1, 6), ("orders", 1): (-1, 6)}
    with process() as successor:
        while waits <= 2 * hour_s:
            try:
                with successor.transaction(local=False) as tx:
                    tx.send_offsets(GROUP, given)
                    tx.send(*(Message("invoices", record.value) for record in records))
                break
            except OffsetsPending as pending:
                waits += 1
                cluster.clock.advance(pending.retry_after_s if named else hour_s / 10)
    took_s = cluster.clock.time() - began
    assert waits <= 1 and took_s < 5 if named else took_s >= hour_s
    assert (group_offset(cluster), group_offset(cluster, 1)) == (6, 6)
    assert invoices(cluster) == list(range(ORDERS))


@pytest.mark.parametrize("carried_out", [False, True])
@pytest.mark.parametrize("what", ["prepare", "commit"])
def test_an_answer_that_is_lost_neither_doubles_nor_drops_an_order(
    cluster: InMemoryCluster, what: str, carried_out: bool
) -> None:
    with member(cluster) as consumer, cluster.producer("shop") as producer:
        cluster.fail_next(what, OutcomeUnknown, carried_out=carried_out)
        with pytest.raises((OutcomeUnknown, Unavailable, TransactionSettled)):
            transform(consumer, producer)
        cluster.clock.advance(30)
    drain(cluster)
    assert invoices(cluster) == list(range(ORDERS))


def test_a_record_that_is_nacked_after_send_offsets_is_not_passed(cluster: InMemoryCluster) -> None:
    with member(cluster) as consumer, cluster.producer("shop") as producer:
        records = consumer.poll(max_records=4, timeout_s=1)
        with (
            pytest.raises(InvalidMessage, match="wait in this consumer"),
            producer.transaction(local=False) as tx,
        ):
            tx.send_offsets(consumer)
            consumer.nack(records[0], delay_s=60)
            tx.send(Message("invoices", b"nothing"))
    drain(cluster)
    assert invoices(cluster) == list(range(ORDERS))


def test_it_ends_at_the_lowest_record_that_was_nacked(cluster: InMemoryCluster) -> None:
    with in_order(cluster) as consumer, cluster.producer("shop") as producer:
        records = [record for record in consumer.poll(max_records=100) if record.partition == 0]
        consumer.nack(records[4], delay_s=60)
        consumer.nack(records[3], delay_s=60)
        with producer.transaction(local=False) as tx:
            tx.send_offsets(consumer)
        assert (group_offset(cluster), group_offset(cluster, 1)) == (3, 6)


def test_with_a_local_transaction_it_works_the_same(cluster: InMemoryCluster) -> None:
    with member(cluster) as consumer, cluster.producer("shop") as producer:
        records = consumer.poll(max_records=100)
        with producer.transaction() as tx:
            tx.send_offsets(consumer)
            tx.send(*(Message("invoices", record.value) for record in records))
            tx.prepare()
            cluster.clock.advance(5)
            assert group_offset(cluster) is None
    assert invoices(cluster) == list(range(ORDERS)) and group_offset(cluster) == 6


def test_plain_commits_resets_and_deletions_wait(cluster: InMemoryCluster) -> None:
    with member(cluster) as consumer, cluster.producer("shop") as producer:
        consumer.poll(max_records=4)
        consumer.commit()
        consumer.poll(max_records=100)
        with producer.transaction(local=False) as tx:
            tx.send_offsets(consumer)
            tx.prepare()
            with pytest.raises(OffsetsPending):
                consumer.commit()
    with cluster.producer("shop") as producer, producer.transaction(local=False) as tx:
        tx.send_offsets(GROUP, {("orders", 0): (6, 6)})
        tx.prepare()
        cluster.clock.advance(3)
        with pytest.raises(OffsetsPending):
            cluster.admin.reset_group(GROUP, to="earliest")
        with pytest.raises(OffsetsPending):
            cluster.admin.delete_group(GROUP)
    cluster.admin.delete_group(GROUP)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("",), InvalidMessage),
        (("", {("orders", 0): (0, 1)}), InvalidMessage),
        (("x" * 256, {("orders", 0): (0, 1)}), InvalidMessage),
        ((None,), InvalidMessage),
        ((GROUP, {}), InvalidMessage),
        ((GROUP, {("orders", 0): (5, 4)}), InvalidMessage),
        ((GROUP, {("orders", 0): (-2, 4)}), InvalidMessage),
        ((GROUP, {("orders", 0): (-1, -1)}), InvalidMessage),
        ((GROUP, {("orders", -1): (0, 1)}), InvalidMessage),
        ((GROUP, {("orders", 0): 4}), InvalidMessage),
        ((GROUP, {("orders", 0): (0, 1 << 60)}), InvalidMessage),
        ((GROUP, {"orders": (0, 1)}), InvalidMessage),
        ((GROUP, {("orders", 0): (0.0, 1)}), InvalidMessage),
        ((GROUP, [("orders", 0)]), InvalidMessage),
        ((GROUP, {("orders", 2): (0, 1)}), UnknownTopic),
        ((GROUP, {("nothing", 0): (0, 1)}), UnknownTopic),
    ],
)
def test_what_is_no_offset_is_refused(
    cluster: InMemoryCluster, arguments: tuple[Any, ...], error: type[EscrowMQError]
) -> None:
    with cluster.producer("shop") as producer, pytest.raises(error), producer.transaction(local=False) as tx:
        tx.send_offsets(*arguments)


def test_mistakes_with_a_consumer_are_typed_errors(cluster: InMemoryCluster) -> None:
    with cluster.producer("shop") as producer, member(cluster) as consumer:
        consumer.poll(max_records=100)
        with pytest.raises(InvalidMessage, match="once"), producer.transaction(local=False) as tx:
            tx.send_offsets(consumer)
            tx.send_offsets(consumer)
        with producer.transaction(local=False) as tx:
            tx.prepare()
            with pytest.raises(InvalidMessage, match="before prepare"):
                tx.send_offsets(consumer)
        with (
            cluster.consumer() as alone,
            pytest.raises(ConfigError, match="without a group"),
            producer.transaction(local=False) as tx,
        ):
            tx.send_offsets(alone)
        drained = {("orders", 0): (-1, 6)}
        with producer.transaction(local=False) as tx:
            tx.send_offsets(GROUP, drained)
        consumer.poll(timeout_s=1)
        consumer.seek("orders", 0, 2)
        consumer.poll(max_records=1, timeout_s=1)


def test_a_share_group_has_no_offsets(cluster: InMemoryCluster) -> None:
    with cluster.share_consumer("shared", ["orders"]) as shared, cluster.producer("shop") as producer:
        shared.poll(max_records=1)
        with pytest.raises(InvalidMessage, match="consumer with poll"), producer.transaction() as tx:
            tx.send_offsets(shared)
        with pytest.raises(GroupKindMismatch), producer.transaction(local=False) as tx:
            tx.send_offsets("shared", {("orders", 0): (-1, 1)})


def test_moved_back_by_hand_is_refused(cluster: InMemoryCluster) -> None:
    with member(cluster) as consumer, cluster.producer("shop") as producer:
        transform(consumer, producer, most=100)
        consumer.seek("orders", 0, 2)
        with pytest.raises(InvalidMessage, match="moved back"), producer.transaction(local=False) as tx:
            tx.send_offsets(consumer)
        consumer.seek("orders", 0, 6)
        assert transform(consumer, producer) == 0


def test_moved_back_by_hand_in_one_partition_the_others_are_polled_again(cluster: InMemoryCluster) -> None:
    with member(cluster) as consumer, cluster.producer("shop") as producer:
        transform(consumer, producer, most=100)
        producer.send(Message("orders", b"12", partition=1)).result(0)
        assert consumer.poll(max_records=100, timeout_s=1)
        consumer.seek("orders", 0, 2)
        with pytest.raises(InvalidMessage, match="moved back"), producer.transaction(local=False) as tx:
            tx.send_offsets(consumer)
        assert consumer.position("orders", 0) == 2  # the application has moved it
        consumer.seek("orders", 0, 6)
        assert transform(consumer, producer) == 1
    assert invoices(cluster) == list(range(13))


def test_what_a_later_poll_has_lost_is_in_no_transaction(cluster: InMemoryCluster) -> None:
    """The application polls twice before its block, and the second time another member takes a partition."""
    with member(cluster) as consumer, cluster.producer("shop") as producer:
        records = consumer.poll(max_records=ORDERS, timeout_s=1)
        with member(cluster) as other:
            while len(consumer.assignment()) > 1:
                other.poll(timeout_s=1)
                records += consumer.poll(timeout_s=1)
            with pytest.raises(StaleMember), producer.transaction(local=False) as tx:
                tx.send_offsets(consumer)
                for record in records:
                    tx.send(Message("invoices", record.value))
            while transform(consumer, producer) + transform(other, producer):
                pass
    assert invoices(cluster) == list(range(ORDERS))


def test_a_topic_that_was_created_again_gets_no_old_group_offset(cluster: InMemoryCluster) -> None:
    with member(cluster) as consumer, cluster.producer("shop") as producer:
        consumer.poll(max_records=100)
        with producer.transaction(local=False) as tx:
            tx.send_offsets(consumer)
            tx.send(Message("invoices", b"1"))
            tx.prepare()
            cluster.admin.delete_topic("orders")
            cluster.admin.create_topic("orders", partitions=2)
    assert invoices(cluster) == [1] and group_offset(cluster) is None


def test_asyncio_does_the_same(cluster: InMemoryCluster) -> None:
    async def run() -> None:
        consumer, producer = member(cluster), cluster.producer("shop")
        records = await consumer.aio.poll(max_records=100)
        async with producer.aio.transaction(local=False) as tx:
            await tx.send_offsets(consumer.aio)
            await tx.send(*(Message("invoices", record.value) for record in records))
        producer.close()
        consumer.close()

    asyncio.run(run())
    assert invoices(cluster) == list(range(ORDERS)) and group_offset(cluster) == 6


@pytest.mark.parametrize("ends", ["refused", "cancelled"])
def test_orders_that_no_transaction_has_taken_come_again(
    cluster: InMemoryCluster, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """The given had to be looked up, and that failed, or took too long for the caller."""
    looked = threading.Event()

    def look_up(core: object) -> None:
        if ends == "refused":
            raise Unavailable("no leader", 0.1)
        looked.wait(10.0)

    async def cancelled(consumer: escrowmq.Consumer, producer: escrowmq.Producer) -> None:
        assert len(await consumer.aio.poll(max_records=5, timeout_s=1)) == 5
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1), producer.aio.transaction(local=False) as tx:
                await tx.send_offsets(consumer.aio)
        looked.set()

    with member(cluster) as consumer, cluster.producer("shop") as producer:
        with monkeypatch.context() as patched:
            patched.setattr(group_work, "_look_up_committed", look_up)
            if ends == "refused":
                with pytest.raises(Unavailable):
                    transform(consumer, producer)
            else:
                asyncio.run(cancelled(consumer, producer))
        while transform(consumer, producer):
            pass
    assert invoices(cluster) == list(range(ORDERS))


@pytest.mark.parametrize("goes_back", ["seek", "abort"])
def test_reading_again_does_not_wait_for_fetches_of_other_partitions(
    cluster: InMemoryCluster, goes_back: str
) -> None:
    """They park at the broker, up to 30 s here."""
    partitions = range(5)
    cluster.admin.create_topic("inputs", partitions=len(partitions))
    consumer = cluster.consumer("many", ["inputs"], auto_offset_reset="earliest")
    with cluster.producer("shop") as producer:
        for partition in partitions:
            producer.send(Message("inputs", b"x", partition=partition)).result(0)
        for _ in range(5):
            with producer.transaction(local=False) as tx:
                consumer.poll(timeout_s=0.5)
                tx.send_offsets(consumer)
        for partition in partitions:
            began = cluster.clock.time()
            if goes_back == "seek":
                consumer.seek("inputs", partition, 0)
            else:
                producer.send(Message("inputs", b"y", partition=partition)).result(0)
                assert [record.value for record in consumer.poll(timeout_s=40)] == [b"y"]
                began = cluster.clock.time()
                with suppress(ZeroDivisionError), producer.transaction(local=False) as tx:
                    tx.send_offsets(consumer)
                    raise ZeroDivisionError
            (again,) = consumer.poll(timeout_s=40)
            assert again.partition == partition and cluster.clock.time() - began < 1
            with producer.transaction(local=False) as tx:
                if goes_back == "abort":
                    tx.send_offsets(consumer)


# ---------------------------------------------------------------- nacks are part of the transaction


def in_order(cluster: InMemoryCluster) -> escrowmq.Consumer:
    cluster.admin.set_group(GROUP, max_attempts=2, delays_s=[1])
    retry = RetryPolicy(order="ordered")
    return cluster.consumer(GROUP, ["orders"], auto_offset_reset="earliest", retry=retry)


def of_partition(records: list[Any], partition: int = 0) -> list[Any]:
    return [record for record in records if record.partition == partition]


def bill(consumer: escrowmq.Consumer, tx: escrowmq.Transaction, records: list[Any], bad: bytes = b"") -> None:
    """Sends invoices, nacks what is bad, and leaves out what comes again with it."""
    for record in records:
        if record.value == bad:
            consumer.nack(record)
        if record.offset < consumer.position(record.topic, record.partition):
            tx.send(Message("invoices", record.value))


@pytest.mark.parametrize("retry", [True, False])
def test_what_an_aborted_transaction_had_can_be_nacked(cluster: InMemoryCluster, retry: bool) -> None:
    with in_order(cluster) if retry else member(cluster) as consumer, cluster.producer("shop") as producer:
        consumer.poll(max_records=100)
        with suppress(ZeroDivisionError), producer.transaction(local=False) as tx:
            tx.send_offsets(consumer)
            tx.prepare()
            raise ZeroDivisionError
        records = of_partition(polled(consumer, ORDERS))
        consumer.nack(records[2], 1)
        again = of_partition(polled(consumer, 1))
        assert again[0].offset == 2


@pytest.mark.parametrize("before", [True, False])
def test_an_abort_takes_a_nack_back_with_everything_before_it(cluster: InMemoryCluster, before: bool) -> None:
    with in_order(cluster) as consumer, cluster.producer("shop") as producer:
        for aborts in (True, False):
            records = of_partition(consumer.poll(max_records=100, timeout_s=3))
            assert [(record.offset, record.attempt) for record in records] == [(n, 1) for n in range(6)]
            if before:
                consumer.nack(records[3])
            with suppress(ZeroDivisionError), producer.transaction(local=False) as tx:
                tx.send_offsets(consumer)
                bill(consumer, tx, records, b"" if before else b"6")
                if aborts:
                    raise ZeroDivisionError
        assert group_offset(cluster) == 3 and invoices(cluster) == [0, 2, 4]
        (letters, again) = cluster.admin.dead_letters(GROUP), of_partition(consumer.poll(timeout_s=3))
        assert letters == [] and [(r.offset, r.attempt) for r in again] == [(3, 2), (4, 1), (5, 1)]
        with producer.transaction(local=False) as tx:
            tx.send_offsets(consumer)
            bill(consumer, tx, again)
        assert group_offset(cluster) == 6 and invoices(cluster) == list(range(0, ORDERS, 2))


def test_a_nack_counts_at_once_where_the_transaction_has_nothing_of_the_partition(
    cluster: InMemoryCluster,
) -> None:
    with in_order(cluster) as consumer, cluster.producer("shop") as producer:
        for attempt in (1, 2):
            records = of_partition(consumer.poll(max_records=100, timeout_s=3))
            assert [(record.offset, record.attempt) for record in records[:2]] == [(0, attempt), (1, 1)]
            with suppress(ZeroDivisionError), producer.transaction(local=False) as tx:
                tx.send_offsets(consumer)
                consumer.nack(records[0])
                raise ZeroDivisionError
        assert [letter.origin.offset for letter in cluster.admin.dead_letters(GROUP)] == [0]
        assert group_offset(cluster) == 1


def test_an_abort_leaves_a_pause_alone_of_whose_partition_it_has_nothing(cluster: InMemoryCluster) -> None:
    with in_order(cluster) as consumer, cluster.producer("shop") as producer:
        records = polled(consumer, ORDERS)
        with suppress(ZeroDivisionError), producer.transaction(local=False) as tx:
            tx.send_offsets(consumer)
            consumer.nack(of_partition(records)[0], 60)
            tx.prepare()
            raise ZeroDivisionError
        again = consumer.poll(timeout_s=3) + consumer.poll(timeout_s=1)
        assert of_partition(again) == [], "the message waits for its time"


def test_a_rejection_that_waits_is_none_once_the_application_seeks(cluster: InMemoryCluster) -> None:
    with in_order(cluster) as consumer:
        consumer.reject(of_partition(polled(consumer, ORDERS))[3])
        consumer.seek("orders", 0, 3)
        consumer.commit()
        assert [record.offset for record in consumer.poll(timeout_s=3)] == [3, 4, 5]
        assert group_offset(cluster) == 3 and not cluster.admin.dead_letters(GROUP)


def test_an_attempt_of_a_committed_transaction_is_known_to_the_next_member(cluster: InMemoryCluster) -> None:
    with in_order(cluster) as consumer, cluster.producer("shop") as producer:
        records = consumer.poll(max_records=100)
        with producer.transaction(local=False) as tx:
            tx.send_offsets(consumer)
            bill(consumer, tx, records, b"6")
        consumer.poll(timeout_s=0)
    with in_order(cluster) as other:
        (again, *_) = of_partition(other.poll(timeout_s=3))
        assert (again.offset, again.attempt) == (3, 2)


@pytest.mark.parametrize("commits", [True, False])
def test_a_message_dies_with_the_transaction_that_moves_the_offset_to_it(
    cluster: InMemoryCluster, commits: bool
) -> None:
    with in_order(cluster) as consumer, cluster.producer("shop") as producer:
        records = consumer.poll(max_records=100)
        with suppress(ZeroDivisionError), producer.transaction(local=False) as tx:
            tx.send_offsets(consumer)
            consumer.reject(of_partition(records)[3], "hopeless")
            bill(consumer, tx, records)
            if not commits:
                raise ZeroDivisionError
        again = of_partition(consumer.poll(timeout_s=0.5))
        assert [record.offset for record in again] == ([4, 5] if commits else list(range(6)))
        assert [letter.reason for letter in cluster.admin.dead_letters(GROUP)] == ["hopeless"] * commits
        assert group_offset(cluster) == (4 if commits else None)


def test_a_commit_counts_a_nack_and_says_if_it_cannot(cluster: InMemoryCluster) -> None:
    with in_order(cluster) as consumer:
        records = of_partition(consumer.poll(max_records=100))
        consumer.reject(records[2])
        cluster.fail_next("nack", Unavailable)
        with pytest.raises(Unavailable):
            consumer.commit()
        assert group_offset(cluster) == 2
        (again, *_) = of_partition(consumer.poll(timeout_s=10))
        assert (again.offset, again.attempt) == (2, 1)
        consumer.reject(again)
        assert group_offset(cluster) == 3 and len(cluster.admin.dead_letters(GROUP)) == 1


@pytest.mark.parametrize("retry", [True, False])
@pytest.mark.parametrize("ends", ["prepared", "committed"])
def test_what_a_transaction_has_cannot_be_nacked(cluster: InMemoryCluster, retry: bool, ends: str) -> None:
    with in_order(cluster) if retry else member(cluster) as consumer, cluster.producer("shop") as producer:
        records = consumer.poll(max_records=100)
        with producer.transaction(local=False) as tx:
            tx.send_offsets(consumer)
            bill(consumer, tx, records)
            tx.prepare()
            if ends == "committed":
                tx.commit()
            with pytest.raises(InvalidMessage, match="nack before prepare"):
                consumer.nack(records[0])
        assert consumer.poll(timeout_s=30) == [] and invoices(cluster) == list(range(ORDERS))


def test_without_retry_a_transaction_is_refused_while_nacked_records_wait(cluster: InMemoryCluster) -> None:
    with member(cluster) as consumer, cluster.producer("shop") as producer:
        records = consumer.poll(max_records=100)
        consumer.nack(records[3], delay_s=60)
        with pytest.raises(InvalidMessage, match="overtake"), producer.transaction(local=False) as tx:
            tx.send_offsets(consumer)
            tx.send(*(Message("invoices", record.value) for record in records if record != records[3]))
        again = consumer.poll(max_records=100, timeout_s=3)
        assert len(again) == ORDERS
        with producer.transaction(local=False) as tx:
            tx.send_offsets(consumer)
            tx.send(*(Message("invoices", record.value) for record in again))
    assert invoices(cluster) == list(range(ORDERS))


def test_a_group_whose_messages_leave_their_partition_has_no_offsets_to_send(
    cluster: InMemoryCluster,
) -> None:
    retry = RetryPolicy(order="concurrent")
    consumer = cluster.consumer(GROUP, ["orders"], auto_offset_reset="earliest", retry=retry)
    with consumer, cluster.producer("shop") as producer:
        assert len(consumer.poll(max_records=100)) == ORDERS
        with pytest.raises(ConfigError, match="in order"), producer.transaction(local=False) as tx:
            tx.send_offsets(consumer)
    assert not invoices(cluster)


def test_asyncio_nacks_in_the_block(cluster: InMemoryCluster) -> None:
    async def run() -> None:
        consumer, producer = in_order(cluster), cluster.producer("shop")
        for aborts in (True, False):
            records = of_partition(await consumer.aio.poll(max_records=100, timeout_s=3))
            assert [record.offset for record in records] == list(range(6))
            with suppress(ZeroDivisionError):
                async with producer.aio.transaction(local=False) as tx:
                    await tx.send_offsets(consumer.aio)
                    await consumer.aio.reject(records[3])
                    await tx.send(*(Message("invoices", record.value) for record in records[:3]))
                    if aborts:
                        raise ZeroDivisionError
        again = of_partition(await consumer.aio.poll(timeout_s=3))
        assert [(record.offset, record.attempt) for record in again] == [(4, 1), (5, 1)]
        consumer.close()
        producer.close()

    asyncio.run(run())
    assert group_offset(cluster) == 4 and invoices(cluster) == [0, 2, 4]
    assert len(cluster.admin.dead_letters(GROUP)) == 1


# ---------------------------------------------------------------- going back behind a transaction

BACK = {
    "seek": lambda consumer: consumer.seek("orders", 0, 0),
    "beginning": lambda consumer: consumer.seek_to_beginning(("orders", 0)),
    "time": lambda consumer: consumer.seek_to_time("orders", 0, 0),
}


@pytest.mark.parametrize("retry", [True, False])
@pytest.mark.parametrize("how", BACK)
def test_what_is_read_again_behind_a_transaction_can_be_nacked(
    cluster: InMemoryCluster, retry: bool, how: str
) -> None:
    with in_order(cluster) if retry else member(cluster) as consumer, cluster.producer("shop") as producer:
        consumer.poll(max_records=100)
        with producer.transaction(local=False) as tx:
            tx.send_offsets(consumer)
        BACK[how](consumer)
        records = of_partition(consumer.poll(max_records=3, timeout_s=3))
        assert [record.offset for record in records] == [0, 1, 2]
        consumer.nack(records[2], 1)
        again = of_partition(consumer.poll(max_records=1, timeout_s=10) if retry else polled(consumer, 4))
        assert (again[-1].offset, getattr(again[-1], "attempt", 2)) == (2, 2)


def polled(consumer: escrowmq.Consumer, count: int) -> list[Any]:
    found: list[Any] = []
    while len(found) < count:
        found += consumer.poll(timeout_s=10)
    return found


@pytest.mark.parametrize("retry", [True, False])
def test_what_is_read_again_while_the_transaction_is_open_can_be_nacked_behind_it(
    cluster: InMemoryCluster, retry: bool
) -> None:
    with in_order(cluster) if retry else member(cluster) as consumer, cluster.producer("shop") as producer:
        first = of_partition(consumer.poll(max_records=100))
        with producer.transaction(local=False) as tx:
            tx.send_offsets(consumer)
            tx.prepare()
            consumer.seek("orders", 0, 1)
            records = of_partition(consumer.poll(max_records=3, timeout_s=1))
            with pytest.raises(InvalidMessage, match="nack before prepare"):
                consumer.nack(records[1])
        consumer.nack(records[1])
        with pytest.raises(InvalidMessage, match="nack before prepare"):
            consumer.nack(first[0])


def test_what_is_not_read_again_stays_in_its_transaction(cluster: InMemoryCluster) -> None:
    with in_order(cluster) as consumer, cluster.producer("shop") as producer:
        first = of_partition(consumer.poll(max_records=100))
        with producer.transaction(local=False) as tx:
            tx.send_offsets(consumer)
        consumer.seek("orders", 0, 3)
        assert [record.offset for record in of_partition(consumer.poll(timeout_s=1))] == [3, 4, 5]
        with pytest.raises(InvalidMessage, match="nack before prepare"):
            consumer.reject(first[2])
        assert group_offset(cluster) == 6 and not cluster.admin.dead_letters(GROUP)
        consumer.reject(first[3])
        assert len(cluster.admin.dead_letters(GROUP)) == 1


@pytest.mark.parametrize("retry", [True, False])
@pytest.mark.parametrize("second", ["rolled back", "unknown"])
def test_what_a_transaction_has_is_not_nacked_behind_one_that_failed(
    cluster: InMemoryCluster, retry: bool, second: str
) -> None:
    """``unknown``: the first one itself, which the broker has committed."""
    with in_order(cluster) if retry else member(cluster) as consumer, cluster.producer("shop") as producer:
        records = consumer.poll(max_records=100)
        if second == "unknown":
            cluster.fail_next("commit", OutcomeUnknown, carried_out=True)
        with suppress(OutcomeUnknown), producer.transaction(local=False) as tx:
            tx.send_offsets(consumer)
            tx.send(*(Message("invoices", record.value) for record in records))
        producer.send(Message("orders", b"12", partition=0)).result(0)
        assert [record.value for record in consumer.poll(timeout_s=3)] == [b"12"]
        if second == "rolled back":
            with suppress(ZeroDivisionError), producer.transaction(local=False) as tx:
                tx.send_offsets(consumer)
                raise ZeroDivisionError
            assert [record.value for record in consumer.poll(timeout_s=3)] == [b"12"]
        with pytest.raises(InvalidMessage, match="nack before prepare"):
            consumer.nack(of_partition(list(records))[0], 0)
        assert consumer.poll(timeout_s=3) == [] and group_offset(cluster) == 6


def test_a_member_that_has_its_partition_back_cannot_nack_what_it_had_before(
    cluster: InMemoryCluster,
) -> None:
    with in_order(cluster) as consumer, cluster.producer("shop") as producer:
        stale = of_partition(consumer.poll(max_records=100))
        cluster.clock.advance(400)
        with in_order(cluster) as other:
            records = polled(other, ORDERS)
            with producer.transaction(local=False) as tx:
                tx.send_offsets(other)
                bill(other, tx, records)
        producer.send(Message("orders", b"12", partition=0)).result(0)
        assert [record.value for record in polled(consumer, 1)] == [b"12"]
        with pytest.raises(InvalidMessage, match="nack before prepare"):
            consumer.reject(stale[2])
        assert group_offset(cluster) == 6 and not cluster.admin.dead_letters(GROUP)


@pytest.mark.parametrize("aio", [False, True])
@pytest.mark.parametrize("opened", [False, True])
def test_run_handles_what_it_reads_again_behind_a_transaction(
    cluster: InMemoryCluster, monkeypatch: pytest.MonkeyPatch, aio: bool, opened: bool
) -> None:
    """``opened``: until the handler has failed for the second time. A nack is refused before that."""
    seen, failures = list[tuple[int, int]](), 2 if opened else 1
    monkeypatch.setattr(running, "AGAIN_S", 0.1)  # with asyncio it is waited for
    stop: Any = asyncio.Event() if aio else threading.Event()
    with in_order(cluster) as consumer, cluster.producer("shop") as producer:
        cluster.admin.set_group(GROUP, delays_s=[0])
        consumer.poll(max_records=100)
        tx = producer.transaction(local=False, transaction_timeout_s=3600)
        tx.send_offsets(consumer)
        tx.prepare()
        if not opened:
            tx.commit()
        consumer.seek("orders", 0, 0)

        def handle(record: Any) -> None:
            seen.append((record.offset, record.attempt))
            count = [offset for offset, _ in seen].count(3)
            if record.offset == 3 and count <= failures:
                if count == 2:
                    tx.commit()
                raise ValueError
            if record.offset == 5 or len(seen) > 20:
                stop.set()

        async def awaited(record: Any) -> None:
            await asyncio.sleep(0)
            handle(record)

        if aio:
            asyncio.run(consumer.aio.run(awaited, stop=stop))
        else:
            consumer.run(handle, stop=stop)
        again = [(3, 1)] * (failures - 1) + [(3, 2)]
        assert seen == [(0, 1), (1, 1), (2, 1), (3, 1), *again, (4, 1), (5, 1)]
        assert group_offset(cluster) == 6


def test_run_passes_what_its_handler_has_committed_before_it_failed(cluster: InMemoryCluster) -> None:
    stop = threading.Event()
    with in_order(cluster) as consumer, cluster.producer("shop") as producer:

        def handle(record: Any) -> None:
            with producer.transaction(local=False) as tx:
                tx.send_offsets(consumer)
                tx.send(Message("invoices", record.value))
            if len(invoices(cluster)) == ORDERS:
                stop.set()
            raise ValueError("too late")

        consumer.run(handle, stop=stop)
    assert invoices(cluster) == list(range(ORDERS)) and not cluster.admin.dead_letters(GROUP)


@pytest.mark.parametrize("knows", [True, False])
@pytest.mark.parametrize("how", ["reject", "nack", "run", "aio"])
def test_a_member_that_has_lost_its_partition_makes_no_dead_letter(
    cluster: InMemoryCluster, monkeypatch: pytest.MonkeyPatch, how: str, knows: bool
) -> None:
    """``knows``: before it asks. Else its process stood still for longer than its session."""
    with ExitStack() as stack, cluster.producer("shop") as producer:
        zombie = stack.enter_context(in_order(cluster))
        if not knows:
            thread, membership = zombie.core.membership_thread, zombie.core.membership
            keep = thread._keep_membership

            def stands_still(now: float) -> None:
                assert membership is not None
                if membership.joined:
                    thread._next_heartbeat = now + 10
                else:
                    keep(now)

            monkeypatch.setattr(thread, "_keep_membership", stands_still)

        def others_do_it() -> None:
            cluster.clock.advance(400)
            other = stack.enter_context(in_order(cluster))
            cluster.admin.set_group(GROUP, max_attempts=1)
            records = polled(other, ORDERS)
            with producer.transaction(local=False) as tx:
                tx.send_offsets(other)
                bill(other, tx, records)

        def handle(record: Any) -> None:
            others_do_it()
            stop.set()
            raise ValueError

        async def awaited(record: Any) -> None:
            await asyncio.to_thread(handle, record)

        stop: Any = asyncio.Event() if how == "aio" else threading.Event()
        with pytest.raises(StaleMember):
            if how == "run":
                zombie.run(handle, stop=stop)
            elif how == "aio":
                asyncio.run(zombie.aio.run(awaited, stop=stop))
            else:
                records = of_partition(zombie.poll(max_records=100))
                others_do_it()
                (zombie.reject if how == "reject" else zombie.nack)(records[0])
        assert not cluster.admin.dead_letters(GROUP) and invoices(cluster) == list(range(ORDERS))
