"""What a share consumer refuses, each with an error that says what to do. Nothing is done then."""

from __future__ import annotations

import asyncio
import copy
import math
from collections.abc import Iterator
from typing import Any

import pytest

from escrowmq import (
    Closed,
    ConfigError,
    GroupKindMismatch,
    InvalidMessage,
    LeaseLost,
    Message,
    Overloaded,
    RecordNotHeld,
    ShareConsumer,
    ShareRecord,
    UnknownTopic,
)
from escrowmq.replication.replica import share_admission
from escrowmq.testing import InMemoryCluster


@pytest.fixture
def cluster() -> Iterator[InMemoryCluster]:
    with InMemoryCluster() as made:
        made.admin.create_topic("orders")
        made.admin.create_topic("others")
        yield made


@pytest.fixture
def queue(cluster: InMemoryCluster) -> ShareConsumer:
    return cluster.share_consumer("mail", ["orders", "others"], auto_offset_reset="earliest")


@pytest.fixture
def record(cluster: InMemoryCluster, queue: ShareConsumer) -> ShareRecord:
    with cluster.producer("shop") as producer:
        producer.send(Message("orders", b"1")).result(0)
    (found,) = queue.poll()
    return found


def changed(record: ShareRecord, **fields: Any) -> ShareRecord:
    names = (
        "topic",
        "partition",
        "offset",
        "timestamp",
        "key",
        "value",
        "headers",
        "tx_id",
        "attempt",
        "lease",
    )
    return ShareRecord(**{**{name: getattr(record, name) for name in names}, **fields})


SETTLE = {
    "ack": lambda queue, record: queue.ack(record),
    "nack": lambda queue, record: queue.nack(record, reason="no"),
    "reject": lambda queue, record: queue.reject(record, "no"),
    "release": lambda queue, record: queue.release(record),
    "extend": lambda queue, record: queue.extend(record, 60),
}
settling = pytest.mark.parametrize("settle", SETTLE.values(), ids=SETTLE)


@settling
def test_a_message_that_was_never_delivered(queue: ShareConsumer, record: ShareRecord, settle: Any) -> None:
    with pytest.raises(RecordNotHeld, match="did not poll it"):
        settle(queue, changed(record, offset=7))
    queue.ack(record)


@settling
def test_a_message_of_another_topic(queue: ShareConsumer, record: ShareRecord, settle: Any) -> None:
    with pytest.raises(RecordNotHeld, match="others/0, offset 0"):
        settle(queue, changed(record, topic="others"))
    queue.ack(record)


@settling
def test_a_message_that_another_group_has_polled(
    cluster: InMemoryCluster, queue: ShareConsumer, record: ShareRecord, settle: Any
) -> None:
    foreign = cluster.share_consumer("billing", ["orders"], auto_offset_reset="earliest")
    (theirs,) = foreign.poll()
    assert theirs.offset == record.offset
    with pytest.raises(RecordNotHeld):
        settle(queue, theirs)
    foreign.ack(theirs)
    queue.ack(record)


@settling
@pytest.mark.parametrize("first", ["ack", "nack", "reject", "release"])
def test_a_message_that_is_settled(
    queue: ShareConsumer, record: ShareRecord, first: str, settle: Any
) -> None:
    SETTLE[first](queue, record)
    with pytest.raises(RecordNotHeld, match="settle each record once"):
        settle(queue, record)


def test_a_record_of_another_kind_of_consumer(cluster: InMemoryCluster, queue: ShareConsumer) -> None:
    with cluster.producer("shop") as producer:
        producer.send(Message("orders", b"1")).result(0)
    with cluster.consumer("stream", ["orders"], auto_offset_reset="earliest") as consumer:
        (record,) = consumer.poll()
        with pytest.raises(RecordNotHeld):
            queue.ack(record)  # type: ignore[arg-type]


def test_a_copy_of_a_record_is_as_good_as_the_record(queue: ShareConsumer, record: ShareRecord) -> None:
    queue.ack(copy.deepcopy(record))
    with pytest.raises(RecordNotHeld):
        queue.ack(record)


@pytest.mark.parametrize("what", ["nack", "reject", "release", "extend"])
def test_only_ack_counts_once_another_consumer_has_the_message(cluster: InMemoryCluster, what: str) -> None:
    options = {"auto_offset_reset": "earliest", "lease_s": 1, "lease_extend_max_s": 1}
    late = cluster.share_consumer("late", ["orders"], **options)
    other = cluster.share_consumer("late", ["orders"], auto_offset_reset="earliest")
    with cluster.producer("shop") as producer:
        producer.send(Message("orders", b"1")).result(0)
    (record,) = late.poll()
    cluster.clock.advance(1.1)
    (theirs,) = other.poll()
    with pytest.raises(LeaseLost, match="another consumer has the message"):
        SETTLE[what](late, record)
    other.nack(theirs, delay_s=0)
    (again,) = other.poll()
    assert again.attempt == 2


@pytest.mark.parametrize("delay_s", [-1, -0.001, math.nan, math.inf, 11 * 366 * 86_400, "5", True])
def test_a_delay_that_is_none(queue: ShareConsumer, record: ShareRecord, delay_s: Any) -> None:
    with pytest.raises(InvalidMessage, match="delay_s must be seconds from 0 to ten years"):
        queue.nack(record, delay_s)
    queue.ack(record)


@pytest.mark.parametrize("lease_s", [0, 0.5, -1, math.nan, 86_400, "30", None, True])
def test_a_lease_that_is_too_short_or_too_long(
    queue: ShareConsumer, record: ShareRecord, lease_s: Any
) -> None:
    with pytest.raises(InvalidMessage, match="lease_s must be 1 to 43200 seconds"):
        queue.extend(record, lease_s)
    queue.ack(record)


def test_a_reason_is_cut_to_a_kibibyte_and_never_empty(
    cluster: InMemoryCluster, queue: ShareConsumer
) -> None:
    with cluster.producer("shop") as producer:
        for _ in range(2):
            producer.send(Message("orders", b"1")).result(0)
    first, second = queue.poll()
    queue.reject(first, "ü" * 5_000)
    queue.reject(second, "  ")
    reasons = [dead.reason for dead in cluster.admin.dead_letters("mail")]
    assert reasons == ["ü" * 512, "no reason given"]


def test_a_reason_that_is_no_text(queue: ShareConsumer, record: ShareRecord) -> None:
    with pytest.raises(InvalidMessage, match="reason must be a str"):
        queue.reject(record, b"bytes")  # type: ignore[arg-type]
    queue.ack(record)


@pytest.mark.parametrize("group", ["", "__retry.mail", "__dead.mail", "a b", "a/b", "x" * 181, None, 7])
def test_a_group_that_cannot_have_retries(cluster: InMemoryCluster, group: Any) -> None:
    with pytest.raises(ConfigError, match="group"):
        cluster.share_consumer(group, ["orders"])


@pytest.mark.parametrize("topics", [[], "orders", ["orders", ""], [b"orders"], None])
def test_topics_that_are_none(cluster: InMemoryCluster, topics: Any) -> None:
    with pytest.raises((ConfigError, InvalidMessage), match="topics"):
        cluster.share_consumer("new", topics)


def test_a_topic_of_the_brokers(cluster: InMemoryCluster, queue: ShareConsumer) -> None:
    with pytest.raises(ConfigError, match="the broker's own"):
        cluster.share_consumer("mail", ["orders", "__dead.mail"])


def test_a_topic_that_does_not_exist_decides_nothing(cluster: InMemoryCluster) -> None:
    with pytest.raises(UnknownTopic):
        cluster.share_consumer("new", ["nowhere"])
    cluster.consumer("new", ["orders"]).poll(timeout_s=0)


def test_a_group_keeps_its_kind(cluster: InMemoryCluster, queue: ShareConsumer) -> None:
    with cluster.consumer("stream", ["orders"], auto_offset_reset="earliest") as consumer:
        consumer.poll(timeout_s=0)
        consumer.commit({("orders", 0): 0})
    with pytest.raises(GroupKindMismatch, match="stream group"):
        cluster.share_consumer("stream", ["orders"])
    with pytest.raises(GroupKindMismatch, match="share group"), cluster.consumer("mail", ["orders"]) as one:
        one.poll()
        one.commit({("orders", 0): 0})


@pytest.mark.parametrize(
    "settings",
    [
        {"lease_s": 0.5},
        {"lease_s": 86_400},
        {"lease_s": -1},
        {"lease_extend_max_s": 0},
        {"prefetch_records": -1},
        {"ack_records": 0},
        {"groups_at_a_time": 0},
        {"auto_offset_reset": "none"},
        {"leases": 1},
    ],
)
def test_settings_that_make_no_sense(cluster: InMemoryCluster, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        cluster.share_consumer("mail", ["orders"], **settings)


def test_a_closed_consumer(queue: ShareConsumer, record: ShareRecord) -> None:
    queue.close()
    for settle in SETTLE.values():
        with pytest.raises(Closed):
            settle(queue, record)
    with pytest.raises(Closed):
        queue.poll()
    with pytest.raises(Closed):
        queue.run(print)


@pytest.mark.parametrize("threads", [0, -1, 1.5, "8", True, 100_000])
def test_a_number_of_threads_that_is_none(queue: ShareConsumer, threads: Any) -> None:
    with pytest.raises(ConfigError, match="threads"):
        queue.run(print, threads=threads)


def test_a_topic_that_a_group_cannot_begin_with_is_told(
    cluster: InMemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.admin.create_topic("parcels")
    with cluster.share_consumer("mail", ["parcels"], auto_offset_reset="earliest") as queue:
        assert queue.poll(timeout_s=0.1) == []
        monkeypatch.setattr(share_admission, "PAIRS_MAX", 0)
        cluster.admin.delete_topic("parcels")
        cluster.admin.create_topic("parcels")
        with cluster.producer("shop") as producer:
            producer.send(Message("parcels", b"1")).result(0)
        with pytest.raises(Overloaded, match="read 0 partitions of a broker group, its limit"):
            queue.poll(timeout_s=1)
        monkeypatch.undo()
        cluster.clock.advance(1)
        assert [record.value for record in queue.poll(timeout_s=1)] == [b"1"]
        assert queue.poll(timeout_s=1) == []


@pytest.mark.parametrize("wait_s", [math.nan, math.inf, -1, 10**400, "1"])
def test_a_flush_that_waits_for_no_time_is_refused(queue: ShareConsumer, wait_s: Any) -> None:
    with pytest.raises(InvalidMessage, match="timeout_s must be seconds"):
        queue.flush(wait_s)
    with pytest.raises(InvalidMessage, match="timeout_s must be seconds"):
        asyncio.run(queue.aio.flush(wait_s))
