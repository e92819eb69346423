"""Consumers with ``retry`` in a cluster in memory: what a nack does in either order, and how it ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from escrowmq import (
    ConfigError,
    Consumer,
    GroupKindMismatch,
    InvalidMessage,
    Message,
    NotDeserializable,
    OutcomeUnknown,
    RetryPolicy,
    ShareConsumer,
    StreamRecord,
    Unavailable,
)
from escrowmq.actors.client.share_groups import send_settling
from escrowmq.actors.consumer import retries
from escrowmq.testing import InMemoryCluster

TOPIC, GROUP = "orders", "billing"
ORDERS = ["concurrent", "ordered"]


@pytest.fixture
def cluster() -> Iterator[InMemoryCluster]:
    with InMemoryCluster() as made:
        made.admin.create_topic(TOPIC)
        yield made


def consumer_of(cluster: InMemoryCluster, order: str, **options: Any) -> Consumer:
    named = {} if "pattern" in options else {"topics": [TOPIC]}
    options = {"auto_offset_reset": "earliest", **named, **options}
    return cluster.consumer(GROUP, retry=RetryPolicy(order=order), **options)


def send(cluster: InMemoryCluster, *values: bytes, **about: Any) -> None:
    with cluster.producer("shop") as producer:
        for value in values:
            producer.send(Message(TOPIC, value, **about)).result(0)


def values(records: list[Any]) -> list[bytes]:
    return [record.value for record in records]


def past(records: list[Any]) -> list[tuple[bytes, int]]:
    return [(record.value, record.attempt) for record in records]


# ---------------------------------------------------------------- what either order does


@pytest.mark.parametrize("order", ORDERS)
def test_a_record_tells_its_attempt_and_its_origin(cluster: InMemoryCluster, order: str) -> None:
    send(cluster, b"a", key=b"k")
    consumer = consumer_of(cluster, order)
    (first,) = consumer.poll()
    assert isinstance(first, StreamRecord)
    origin = (TOPIC, 0, 0, first.timestamp)
    assert (first.attempt, first.origin) == (1, origin)
    consumer.nack(first, reason="no")
    assert consumer.poll(timeout_s=0.5) == []
    (again,) = consumer.poll(timeout_s=2.0)
    assert (again.attempt, again.origin, again.key) == (2, origin, b"k")


@pytest.mark.parametrize("order", ORDERS)
def test_after_the_last_attempt_it_is_a_dead_letter(cluster: InMemoryCluster, order: str) -> None:
    consumer = consumer_of(cluster, order)
    cluster.admin.set_group(GROUP, max_attempts=3, delays_s=[1, 2])
    send(cluster, b"bad", b"good")
    seen: list[tuple[bytes, int]] = []
    while records := consumer.poll(timeout_s=3.0):
        for record in records:
            if consumer.position(record.topic, record.partition) <= record.offset:
                continue
            seen.append((record.value, record.attempt))
            if record.value == b"bad":
                consumer.nack(record, reason=f"attempt {record.attempt}")
    assert [n for value, n in seen if value == b"bad"] == [1, 2, 3]
    assert [n for value, n in seen if value == b"good"] == [1]
    (letter,) = cluster.admin.dead_letters(GROUP)
    assert (letter.value, letter.attempts, letter.reason) == (b"bad", 3, "attempt 3")
    assert letter.origin is not None and letter.origin[:3] == (TOPIC, 0, 0)


@pytest.mark.parametrize("order", ORDERS)
def test_a_rejected_record_is_a_dead_letter_at_once_and_can_be_redriven(
    cluster: InMemoryCluster, order: str
) -> None:
    send(cluster, b"bad", b"good")
    consumer = consumer_of(cluster, order)
    (bad,) = consumer.poll(1)
    consumer.reject(bad, "hopeless")
    assert values(consumer.poll()) == [b"good"]
    (letter,) = cluster.admin.dead_letters(GROUP)
    assert (letter.reason, letter.attempts) == ("hopeless", 1)
    cluster.admin.redrive(GROUP, [letter.id], by="kim")
    (again,) = consumer.poll()
    assert (again.value, again.attempt, again.origin) == (b"bad", 1, bad.origin)
    consumer.nack(again, reason="still")
    (again,) = consumer.poll(timeout_s=5.0)
    assert (again.value, again.attempt, again.origin) == (b"bad", 2, bad.origin)
    assert cluster.admin.dead_letters(GROUP) == []


@pytest.mark.parametrize("order", ORDERS)
def test_the_group_is_described_with_what_it_has_failed(cluster: InMemoryCluster, order: str) -> None:
    send(cluster, b"a", b"b", b"c")
    consumer = consumer_of(cluster, order)
    a, *_ = consumer.poll(1)
    consumer.reject(a)
    (b,) = consumer.poll(1)
    consumer.nack(b, delay_s=60)
    consumer.commit()
    found = cluster.admin.describe_group(GROUP)
    assert found.kind == "stream" and found.share is not None and found.share.dead == 1
    later = 1 if order == "concurrent" else 0  # only the consumer knows how long its partition waits
    assert (found.share.retrying, found.share.retrying_later) == (1, later)
    (each,) = [each for each in found.partitions if each.topic == TOPIC]
    assert (each.committed, each.attempts) == ((2, 0) if order == "concurrent" else (1, 1))
    (told,) = cluster.admin.trace(TOPIC, 0, 1).groups
    assert (told.kind, told.state, told.attempt) == ("stream", "retrying", 2)
    assert (told.due_ms is None) is (order == "ordered")
    cluster.clock.advance(100)
    consumer.poll()
    consumer.commit()
    found = cluster.admin.describe_group(GROUP)
    assert found.share is not None and found.share.retrying == 0
    assert [each.attempts for each in found.partitions] == [0] * len(found.partitions)
    (told,) = cluster.admin.trace(TOPIC, 0, 1).groups
    assert told.state == ("done" if order == "concurrent" else "passed")


@pytest.mark.parametrize("order", ORDERS)
def test_the_trace_of_a_message_that_has_failed_ends_with_what_became_of_it(
    cluster: InMemoryCluster, order: str
) -> None:
    def told(offset: int) -> tuple[str, int | None]:
        (progress,) = cluster.admin.trace(TOPIC, 0, offset).groups
        return progress.state, progress.attempt

    consumer = consumer_of(cluster, order)
    cluster.admin.set_group(GROUP, max_attempts=2, delays_s=[1])
    send(cluster, b"bad")
    for attempt in (1, 2):
        (record,) = consumer.poll(timeout_s=5.0)
        consumer.nack(record, reason="no")
        consumer.commit()
        assert told(0) == (("retrying", 2) if attempt == 1 else ("dead", 2))
    (letter,) = cluster.admin.dead_letters(GROUP)
    cluster.admin.redrive(GROUP, [letter.id])
    assert told(0) == ("retrying", 1)
    consumer.poll(timeout_s=5.0)
    consumer.commit()
    assert told(0) == ("done", 1)


@pytest.mark.parametrize("order", ORDERS)
def test_a_group_has_one_kind(cluster: InMemoryCluster, order: str) -> None:
    consumer_of(cluster, order).close()
    with pytest.raises(GroupKindMismatch):
        cluster.share_consumer(GROUP, [TOPIC])
    cluster.share_consumer("mail", [TOPIC]).close()
    with pytest.raises(GroupKindMismatch):
        cluster.consumer("mail", [TOPIC], retry=RetryPolicy(order=order))


@pytest.mark.parametrize("order", ORDERS)
def test_what_failed_before_a_member_read_its_retries_is_not_skipped(
    cluster: InMemoryCluster, order: str
) -> None:
    """With "latest" the group begins at the end of its topics, and not at that of its retries."""
    consumer = consumer_of(cluster, order, auto_offset_reset="latest")
    send(cluster, b"a")
    (a,) = consumer.poll()
    consumer.reject(a)
    cluster.admin.redrive(GROUP, by="kim")
    consumer.commit()
    consumer.close()
    with consumer_of(cluster, order, auto_offset_reset="latest") as later:
        assert values(later.poll()) == [b"a"]


@pytest.mark.parametrize("order", ORDERS)
def test_patterns_find_topics_and_the_retries_are_read_beside_them(
    cluster: InMemoryCluster, order: str
) -> None:
    send(cluster, b"a")
    consumer = consumer_of(cluster, order, pattern="ord.*")
    (a,) = consumer.poll()
    consumer.nack(a, delay_s=0)
    assert past(consumer.poll()) == [(b"a", 2)]
    cluster.admin.create_topic("ordinary")
    cluster.clock.advance(10)
    assert consumer.poll(timeout_s=1.0) == []
    assert {topic for topic, _ in consumer.assignment()} == {TOPIC, "ordinary", "__retry.billing"}


# ---------------------------------------------------------------- concurrent


def test_concurrent_others_go_on_and_a_commit_passes_the_message(cluster: InMemoryCluster) -> None:
    send(cluster, b"a", b"b", b"c")
    consumer = consumer_of(cluster, "concurrent")
    a, b, _ = consumer.poll()
    consumer.nack(b, delay_s=60, reason="later")
    consumer.commit()
    assert consumer.committed(TOPIC, 0) == 3
    consumer.close()  # another member gets it
    with consumer_of(cluster, "concurrent") as other:
        assert other.poll(timeout_s=1.0) == []
        cluster.clock.advance(60)
        (again,) = other.poll()
        assert (again.topic, again.attempt, again.origin) == ("__retry.billing", 2, b.origin)
        assert a.origin != b.origin


@pytest.mark.parametrize("carried_out", [False, True])
def test_concurrent_no_commit_passes_a_message_whose_failure_is_not_known_to_be_durable(
    cluster: InMemoryCluster, carried_out: bool
) -> None:
    send(cluster, b"a", b"b", b"c")
    consumer = consumer_of(cluster, "concurrent")
    _, b, _ = consumer.poll()
    cluster.fail_next("nack", OutcomeUnknown, carried_out=carried_out)
    with pytest.raises(OutcomeUnknown):
        consumer.nack(b, delay_s=3600)
    consumer.commit()
    assert consumer.committed(TOPIC, 0) == 1
    (again,) = consumer.poll(timeout_s=10.0)
    assert (again.offset, again.attempt) == (1, 1), "it is returned again by this consumer"
    consumer.nack(again, delay_s=3600)
    consumer.commit()
    assert consumer.committed(TOPIC, 0) == 3


@contextmanager
def interrupted_nacks(monkeypatch: pytest.MonkeyPatch, *, carried_out: bool) -> Iterator[None]:
    """The block is to be left by the exception of a signal's handler, which came while a nack was sent."""

    def interrupted(*arguments: Any) -> None:
        if carried_out:
            send_settling(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(retries, "send_settling", interrupted)
        yield


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("carried_out", [False, True])
def test_a_nack_that_a_signal_interrupts_keeps_no_record_for_ever(
    cluster: InMemoryCluster, order: str, carried_out: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its handler may raise anything in the middle of the call, and the service may go on."""
    send(cluster, b"a", b"b", b"c")
    consumer = consumer_of(cluster, order)
    a, *_ = consumer.poll()
    with interrupted_nacks(monkeypatch, carried_out=carried_out):
        consumer.reject(a, "of an operator")
    again = consumer.poll(timeout_s=10.0)
    assert (again[0].offset, again[0].attempt) == (0, 1)
    consumer.reject(again[0], "of an operator")
    if order == "ordered":
        consumer.poll(timeout_s=10.0)
    consumer.commit()
    assert consumer.committed(TOPIC, 0) == 3


def test_what_cannot_be_read_comes_again_after_an_interrupted_nack(
    cluster: InMemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(cluster, b"{", b"2")
    consumer = consumer_of(cluster, "concurrent", value_deserializer="json")
    with interrupted_nacks(monkeypatch, carried_out=False):
        consumer.run(print)
    for _ in range(2):
        with pytest.raises(NotDeserializable):
            consumer.poll(timeout_s=10.0)


def test_concurrent_a_record_is_nacked_as_long_as_it_is_this_members(cluster: InMemoryCluster) -> None:
    send(cluster, b"a", b"b")
    consumer = consumer_of(cluster, "concurrent")
    (a,) = consumer.poll(1)
    with pytest.raises(InvalidMessage, match="was not returned"):
        consumer.nack(StreamRecord(TOPIC, 0, 1, 0, None, b"b", {}, None))
    consumer.nack(a)
    consumer.nack(a)  # repeated: another copy, with the same origin
    found = [record for _ in range(3) for record in consumer.poll(timeout_s=3.0)]
    assert sorted(values(found)) == [b"a", b"a", b"b"]


# ---------------------------------------------------------------- ordered


def test_ordered_the_partition_waits_and_all_behind_comes_again(cluster: InMemoryCluster) -> None:
    send(cluster, b"a", b"b", b"c")
    consumer = consumer_of(cluster, "ordered")
    _, b, c = consumer.poll()
    consumer.nack(b, delay_s=60, reason="later")
    assert consumer.committed(TOPIC, 0) is None, "what lies before it may be in a transaction"
    consumer.commit()
    assert consumer.committed(TOPIC, 0) == 1
    consumer.nack(c, reason="comes again anyway")
    send(cluster, b"d")
    assert consumer.poll(timeout_s=59.0) == []
    assert past(consumer.poll(timeout_s=2.0)) == [(b"b", 2), (b"c", 1), (b"d", 1)]
    consumer.commit()
    assert consumer.committed(TOPIC, 0) == 4


def test_ordered_other_partitions_go_on(cluster: InMemoryCluster) -> None:
    cluster.admin.create_topic("two", partitions=2)
    with cluster.producer("shop") as producer:
        for number in range(8):
            producer.send(Message("two", b"%d" % number, partition=number % 2)).result(0)
    consumer = consumer_of(cluster, "ordered", topics=["two"])
    records = consumer.poll()
    bad = next(record for record in records if record.value == b"0")
    consumer.nack(bad, delay_s=60)
    assert {record.partition for record in records} == {0, 1}
    with cluster.producer("shop") as producer:
        producer.send(Message("two", b"9", partition=1)).result(0)
    assert values(consumer.poll()) == [b"9"]
    assert values(consumer.poll(timeout_s=61.0)) == [b"0", b"2", b"4", b"6"]


def test_ordered_attempts_go_with_the_offset(cluster: InMemoryCluster) -> None:
    """A rebalance, or a consumer that dies, does not give a message new attempts."""
    send(cluster, b"bad", b"good")
    for attempt in (1, 2):
        with consumer_of(cluster, "ordered") as consumer:
            (bad,) = consumer.poll(1)
            assert bad.attempt == attempt
            consumer.nack(bad)
    cluster.admin.set_group(GROUP, max_attempts=3)
    with consumer_of(cluster, "ordered") as last:
        (bad,) = last.poll(1)
        last.nack(bad, reason="no")
        assert past(last.poll()) == [(b"good", 1)]
    (letter,) = cluster.admin.dead_letters(GROUP)
    assert letter.attempts == 3
    with consumer_of(cluster, "ordered") as other:
        assert past(other.poll()) == [(b"good", 1)], "the offset is behind the dead letter"


@pytest.mark.parametrize("goes_back", ["reset", "seek", "reset of what is not done"])
def test_ordered_what_is_handled_again_begins_at_its_first_attempt(
    cluster: InMemoryCluster, goes_back: str
) -> None:
    consumer = consumer_of(cluster, "ordered")
    cluster.admin.set_group(GROUP, max_attempts=3, delays_s=[1])
    send(cluster, b"a", b"b")
    for attempt in (1, 2, 3):
        records = consumer.poll(timeout_s=2)
        assert past(records)[0] == (b"a", attempt)
        if attempt < 3:
            consumer.nack(records[0])
    if goes_back != "reset of what is not done":
        consumer.commit()
    if goes_back == "seek":
        consumer.seek(TOPIC, 0, 0)
    else:
        consumer.close()
        cluster.admin.reset_group(GROUP, to="earliest")
        consumer = consumer_of(cluster, "ordered")
    records = consumer.poll(timeout_s=2)
    assert past(records) == [(b"a", 1), (b"b", 1)]
    consumer.nack(records[0])
    assert past(consumer.poll(timeout_s=2)) == [(b"a", 2), (b"b", 1)]
    assert cluster.admin.dead_letters(GROUP) == []


def test_ordered_a_first_failure_too_long_ago_is_the_end(cluster: InMemoryCluster) -> None:
    send(cluster, b"bad")
    consumer = consumer_of(cluster, "ordered")
    cluster.admin.set_group(GROUP, max_age_s=100, delays_s=[60])
    for _ in range(2):
        (bad,) = consumer.poll(timeout_s=61.0)
        consumer.nack(bad)
    (bad,) = consumer.poll(timeout_s=61.0)
    assert cluster.admin.dead_letters(GROUP) == []
    consumer.nack(bad)
    (letter,) = cluster.admin.dead_letters(GROUP)
    assert letter.attempts == 3


def test_ordered_an_attempt_that_is_not_durable_is_told_and_the_message_comes_again(
    cluster: InMemoryCluster,
) -> None:
    send(cluster, b"a", b"b")
    consumer = consumer_of(cluster, "ordered")
    a, _ = consumer.poll()
    cluster.fail_next("commit_offsets", Unavailable)
    with pytest.raises(Unavailable):
        consumer.nack(a)
    assert past(consumer.poll(timeout_s=10.0)) == [(b"a", 2), (b"b", 1)]


def test_ordered_seeking_ends_the_pause(cluster: InMemoryCluster) -> None:
    send(cluster, b"a", b"b")
    consumer = consumer_of(cluster, "ordered")
    a, _ = consumer.poll()
    consumer.nack(a, delay_s=3600)
    consumer.pause((TOPIC, 0))
    consumer.resume((TOPIC, 0))
    assert consumer.poll(timeout_s=1.0) == []
    consumer.seek(TOPIC, 0, 1)
    assert past(consumer.poll()) == [(b"b", 1)]
    consumer.seek(TOPIC, 0, 0)
    assert past(consumer.poll(1)) == [(b"a", 2)]


def test_ordered_nothing_is_nacked_that_was_not_returned(cluster: InMemoryCluster) -> None:
    send(cluster, b"a", b"b")
    consumer = consumer_of(cluster, "ordered")
    consumer.poll(1)
    with pytest.raises(InvalidMessage, match="was not returned"):
        consumer.nack(StreamRecord(TOPIC, 0, 1, 0, None, b"b", {}, None))
    assert values(consumer.poll()) == [b"b"]


def test_ordered_tables_wait_too(cluster: InMemoryCluster) -> None:
    send(cluster, b"a", b"b")
    consumer = consumer_of(cluster, "ordered")
    (a,) = consumer.poll(1)
    consumer.nack(a, delay_s=10)
    assert consumer.poll_arrow(timeout_s=9.0).num_rows == 0
    assert consumer.poll_arrow(timeout_s=2.0)["value"].to_pylist() == [b"a", b"b"]


# ---------------------------------------------------------------- run


class Handler:
    """Fails for values that begin with ``bad``, as often as the digit behind says; ends the run when all of
    ``count`` are handled."""

    def __init__(self, count: int, stop: Any = None) -> None:
        self.stop = threading.Event() if stop is None else stop
        self.handled: list[bytes] = []
        self.calls: list[bytes] = []
        self._count = count

    def __call__(self, record: StreamRecord) -> None:
        self.calls.append(record.value)
        fails = int(record.value[3:]) if record.value.startswith(b"bad") else 0
        if record.attempt <= fails:
            raise ValueError("not yet")
        self.handled.append(record.value)
        if len(self.handled) == self._count:
            self.stop.set()

    async def awaited(self, record: StreamRecord) -> None:
        await asyncio.sleep(0)
        self(record)


def test_run_in_order_stops_at_what_failed(cluster: InMemoryCluster) -> None:
    send(cluster, b"a", b"bad2", b"c", b"bad1", b"e")
    handler = Handler(5)
    consumer = consumer_of(cluster, "ordered")
    consumer.run(handler, ordered=True, stop=handler.stop)
    assert handler.handled == [b"a", b"bad2", b"c", b"bad1", b"e"]
    assert handler.calls == [b"a", *[b"bad2"] * 3, b"c", *[b"bad1"] * 2, b"e"]
    assert consumer.committed(TOPIC, 0) == 5


def test_run_concurrently_goes_on(cluster: InMemoryCluster) -> None:
    send(cluster, b"a", b"bad1", b"c")
    handler = Handler(3)
    consumer = consumer_of(cluster, "concurrent")
    consumer.run(handler, stop=handler.stop)
    assert handler.handled == [b"a", b"c", b"bad1"]
    assert consumer.committed(TOPIC, 0) == 3 and consumer.committed("__retry.billing", 0) == 1


@pytest.mark.parametrize("order", ORDERS)
def test_run_in_an_event_loop(cluster: InMemoryCluster, order: str) -> None:
    cluster.admin.set_group(GROUP, delays_s=[0])
    send(cluster, b"a", b"bad1", b"c")

    async def main() -> Handler:
        handler = Handler(3, asyncio.Event())
        await consumer_of(cluster, order).aio.run(handler.awaited, stop=handler.stop)
        return handler

    handler = asyncio.run(main())
    assert sorted(handler.handled) == [b"a", b"bad1", b"c"]
    if order == "ordered":
        assert handler.calls == [b"a", b"bad1", b"bad1", b"c"]


def test_a_cancelled_run_has_not_handled_the_record(cluster: InMemoryCluster) -> None:
    send(cluster, b"a", b"b")
    consumer = consumer_of(cluster, "ordered")

    async def main() -> None:
        began = asyncio.Event()

        async def handle(record: StreamRecord) -> None:
            began.set()
            await asyncio.sleep(3600)

        running = asyncio.create_task(consumer.aio.run(handle))
        await began.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())
    consumer.commit()
    assert past(consumer.poll()) == [(b"a", 1), (b"b", 1)]


def test_a_cancelled_run_keeps_what_could_not_be_nacked(cluster: InMemoryCluster) -> None:
    send(cluster, b"bad", b"b", b"c")
    consumer = consumer_of(cluster, "concurrent")
    cluster.fail_next("nack", Unavailable)
    seen: list[bytes] = []

    async def main() -> None:
        began = asyncio.Event()

        async def handle(record: StreamRecord) -> None:
            seen.append(record.value)
            if record.value == b"bad":
                raise ValueError("its nack fails, too")
            began.set()
            await asyncio.sleep(3600)

        running = asyncio.create_task(consumer.aio.run(handle))
        await began.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())
    assert seen == [b"bad", b"b"]
    consumer.commit()
    consumer.close()
    again = consumer_of(cluster, "concurrent")
    assert values(again.poll()) == [b"bad", b"b", b"c"], "none of them was handled"


@pytest.mark.parametrize("order", ORDERS)
def test_run_nacks_what_cannot_be_read_and_a_handler_may_nack_itself(
    cluster: InMemoryCluster, order: str
) -> None:
    cluster.admin.set_group(GROUP, max_attempts=2, delays_s=[1])
    send(cluster, b"1", b"{", b"2")
    consumer = consumer_of(cluster, order, value_deserializer="json")
    seen = list[tuple[int, int]]()
    stop = SimpleNamespace(is_set=lambda: len(seen) == 3 and bool(cluster.admin.dead_letters(GROUP)))

    def handle(record: StreamRecord) -> None:
        seen.append((record.value, record.attempt))
        if record.value == 1 and record.attempt == 1:
            consumer.nack(record, delay_s=5, reason="mine")
            raise ValueError("after that")

    consumer.run(handle, stop=stop)  # type: ignore[arg-type]
    assert sorted(seen) == [(1, 1), (1, 2), (2, 1)]
    (letter,) = cluster.admin.dead_letters(GROUP)
    assert (letter.value, letter.attempts, letter.by) == (b"{", 2, "client")
    assert "NotDeserializable" in letter.reason


def test_what_ends_the_process_ends_the_run(cluster: InMemoryCluster) -> None:
    send(cluster, b"a", b"b")
    consumer = consumer_of(cluster, "ordered")

    def handle(record: StreamRecord) -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        consumer.run(handle)
    assert past(consumer.poll(timeout_s=5.0)) == [(b"a", 1), (b"b", 1)], "a stop is no failed attempt"


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize("order", ["", "Ordered", None, 7, b"ordered"])
def test_an_order_is_one_of_two(order: Any) -> None:
    with pytest.raises(ConfigError, match="order"):
        RetryPolicy(order=order)


def test_retry_is_a_policy_for_members_of_a_group(cluster: InMemoryCluster) -> None:
    with pytest.raises(ConfigError, match="RetryPolicy"):
        cluster.consumer(GROUP, [TOPIC], retry="ordered")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="group"):
        cluster.consumer(retry=RetryPolicy(order="ordered"))
    for name in ("__billing", "with space", "x" * 181):
        with pytest.raises(ConfigError, match="group"):
            cluster.consumer(name, [TOPIC], retry=RetryPolicy(order="ordered"))


@pytest.mark.parametrize("order", ORDERS)
def test_internal_topics_cannot_be_named(cluster: InMemoryCluster, order: str) -> None:
    with pytest.raises(ConfigError, match="broker's own"):
        consumer_of(cluster, order, topics=[TOPIC, "__retry.billing"])


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("bad", [{"delay_s": -1}, {"delay_s": 4e8}, {"delay_s": True}, {"reason": 7}])
def test_a_bad_delay_or_reason_is_refused_and_changes_nothing(
    cluster: InMemoryCluster, order: str, bad: dict[str, Any]
) -> None:
    send(cluster, b"a", b"b")
    consumer = consumer_of(cluster, order)
    (a,) = consumer.poll(1)
    with pytest.raises(InvalidMessage):
        consumer.nack(a, **bad)
    assert past(consumer.poll()) == [(b"b", 1)]


def test_without_retry_nack_is_this_consumers_own_affair(cluster: InMemoryCluster) -> None:
    send(cluster, b"a")
    consumer = cluster.consumer("plain", [TOPIC], auto_offset_reset="earliest")
    (a,) = consumer.poll()
    assert not isinstance(a, StreamRecord)
    consumer.nack(a, reason="kept nowhere")
    assert consumer.poll(timeout_s=4.0) == []
    assert values(consumer.poll(timeout_s=2.0)) == [b"a"]
    for refused in (lambda: consumer.reject(a), lambda: consumer.run(print)):
        with pytest.raises(ConfigError, match="retry"):
            refused()
    consumer.commit()


def test_the_stated_order_must_be_that_of_the_policy(cluster: InMemoryCluster) -> None:
    with pytest.raises(ConfigError, match="ordered"):
        consumer_of(cluster, "concurrent").run(print, ordered=True)


def test_a_share_consumer_has_its_own_records(cluster: InMemoryCluster) -> None:
    send(cluster, b"a")
    queue: ShareConsumer = cluster.share_consumer("mail", [TOPIC], auto_offset_reset="earliest")
    (record,) = queue.poll()
    assert isinstance(record, StreamRecord) and record.origin[:3] == (TOPIC, 0, 0)


# ---------------------------------------------------------------- a message dies once


@pytest.mark.parametrize("order", ORDERS)
def test_a_message_is_one_dead_letter_however_often_it_dies(cluster: InMemoryCluster, order: str) -> None:
    """A consumer dies behind its nack, and before its commit: the next one finds the message again."""
    send(cluster, b"bad", b"other")
    for _ in range(2):
        consumer = consumer_of(cluster, order)
        bad, other = consumer.poll()
        if order == "ordered":
            cluster.fail_next("nack", OutcomeUnknown, carried_out=True)
            with pytest.raises(OutcomeUnknown):
                consumer.reject(bad, "hopeless")
        else:
            consumer.reject(bad, "hopeless")
            consumer.reject(bad, "and again")
        consumer.close()
    (letter,) = cluster.admin.dead_letters(GROUP)
    assert letter.origin == bad.origin and other.origin != bad.origin
    assert cluster.admin.redrive(GROUP).redriven == 1


@pytest.mark.parametrize("order", ORDERS)
def test_what_was_redriven_may_die_again(cluster: InMemoryCluster, order: str) -> None:
    send(cluster, b"bad")
    consumer = consumer_of(cluster, order)
    (bad,) = consumer.poll()
    consumer.reject(bad)
    for _ in range(2):
        (letter,) = cluster.admin.dead_letters(GROUP)
        cluster.admin.redrive(GROUP)
        assert cluster.admin.dead_letters(GROUP) == []
        (again,) = consumer.poll(timeout_s=3.0)
        consumer.reject(again)
        assert [one.origin for one in cluster.admin.dead_letters(GROUP)] == [letter.origin]
