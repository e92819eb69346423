"""Delayed plain messages of one partition: the requests that they make, and what callers are told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from escrowmq.actors.client.cancelling import ScheduleId
from escrowmq.actors.client.failures import Failure, FailureKind
from escrowmq.actors.producer.plain.delayed_stream import DelayedBatch, DelayedStream
from escrowmq.actors.producer.plain.partition_stream import Batch
from escrowmq.actors.producer.plain.record_batch import SendFuture
from escrowmq.replication.errors import OutcomeUnknown, TooManyScheduled, TopicRecreated
from escrowmq.replication.format.timer_ops import ORDINALS, Scheduled, owner_of
from escrowmq.replication.model import NO_ID, RecordMetadata, ResultCode
from escrowmq.replication.replica.validation import parse_request

NOW_MS, DUE_MS = 1_764_000_000_000, 1_764_000_060_000


class OneStream:
    """A stream whose broker is the test."""

    def __init__(self) -> None:
        self.forgotten: list[str] = []
        self.stream = DelayedStream(
            "orders",
            2,
            "me",
            30.0,
            released=lambda size: None,
            refused=self.forgotten.append,
            taken=lambda topic, partition: None,
            heard=lambda time_ms: None,
            owner=owner_of("me"),
            cluster_id="c1",
        )

    def add(self, *times: int, size: int = 10) -> list[SendFuture]:
        parcel = DelayedBatch("orders", 2)
        rows = [b"%0*d" % (size, number) for number in range(len(times))]
        parcel.fill(rows, None, size * len(times), list(times))
        self.stream.add(parcel, 0.0)
        return [SendFuture(parcel, number) for number in range(len(times))]

    def take(self, bytes_max: int = 1 << 20, heard_ms: int = -1, topic_id: int = 7) -> tuple[Any, Batch]:
        frame, batch = self.stream.take(bytes_max, heard_ms, topic_id)
        (op,) = parse_request(frame)
        return op.meta, batch

    def answer(self, batch: Batch, outcome: Sequence[Any] | Failure, repeated: bool = False) -> None:
        self.stream.finished(batch, outcome, repeated)

    def stored(self, batch: Batch) -> None:
        self.answer(batch, [int(ResultCode.OK), [-1, NOW_MS]])


@pytest.fixture
def one() -> OneStream:
    return OneStream()


def test_a_request_names_times_sizes_owner_and_ordinals(one: OneStream) -> None:
    one.add(-1_000, DUE_MS, 0)
    meta, _ = one.take()
    assert meta == Scheduled(
        topic="orders",
        partition=2,
        producer="me/later",
        epoch=0,
        seq=0,
        times=[-1_000, DUE_MS, 0],
        sizes=[10] * 3,
        owner=owner_of("me"),
        first_ordinal=0,
        heard_ms=-1,
        topic_id=7,
    )


def test_results_have_no_offset_but_a_time_and_an_id(one: OneStream) -> None:
    futures = one.add(-1_000, DUE_MS, 0)
    _, batch = one.take()
    one.stored(batch)
    for number, (future, time_ms) in enumerate(zip(futures, (NOW_MS + 1_000, DUE_MS, NOW_MS), strict=True)):
        named = ScheduleId("orders", 2, time_ms, owner_of("me"), number).text("c1")
        assert future.result(0) == RecordMetadata("orders", 2, -1, NOW_MS, time_ms, named)


def test_ordinals_go_on_from_batch_to_batch_and_a_repetition_has_the_same(one: OneStream) -> None:
    futures = one.add(*[DUE_MS] * 5) + one.add(*[DUE_MS] * 3)
    first, batch = one.take(bytes_max=30)
    assert (first.first_ordinal, len(first.times)) == (0, 3)
    one.stream.put_back(batch)
    again, batch = one.take(bytes_max=30)
    assert again == first
    one.stored(batch)
    second, batch = one.take()
    assert (second.seq, second.first_ordinal, len(second.times)) == (1, 3, 5)
    one.stored(batch)
    ids = [future.result(0).schedule_id for future in futures]
    assert [ScheduleId.parse(text, "c1").ordinal for text in ids] == list(range(8))


def test_messages_that_were_joined_are_single_rows_again(one: OneStream) -> None:
    parcel = DelayedBatch("orders", 2)
    parcel.fill([b"aabbbc"], [2, 3, 1], 6, [0, 1, 2])
    one.stream.add(parcel, 0.0)
    meta, batch = one.take(bytes_max=5)
    assert (meta.times, meta.sizes) == ([0, 1], [2, 3])
    one.stored(batch)
    meta, _ = one.take()
    assert (meta.times, meta.sizes) == ([2], [1])


def test_only_the_first_batch_of_an_epoch_tells_what_was_heard_but_all_name_their_topic(
    one: OneStream,
) -> None:
    one.add(DUE_MS)
    meta, batch = one.take(heard_ms=55, topic_id=9)
    assert (meta.heard_ms, meta.topic_id) == (55, 9)
    one.stored(batch)
    one.add(DUE_MS)
    meta, _ = one.take(topic_id=NO_ID)
    assert (meta.heard_ms, meta.topic_id) == (-1, 9)


def test_ordinals_begin_again_before_they_no_longer_fit(one: OneStream) -> None:
    one.stream._next_ordinal = ORDINALS - 2
    one.add(DUE_MS, DUE_MS, DUE_MS)
    meta, _ = one.take()
    assert meta.first_ordinal == 0


def test_a_topic_that_was_created_again_gets_what_was_sent_only_once(one: OneStream) -> None:
    (future,) = one.add(DUE_MS)
    meta, batch = one.take(topic_id=7)
    one.answer(batch, [int(ResultCode.OTHER_TOPIC), 8])
    assert one.forgotten == ["orders"]
    meta, batch = one.take(topic_id=8)
    assert meta.topic_id == 8
    one.stored(batch)
    assert future.result(0).offset == -1


def test_refusals_are_typed_and_use_up_no_number(one: OneStream) -> None:
    too_many, unknown, other = [], [], []
    for futures, outcome, repeated in (
        (too_many, [int(ResultCode.TOO_MANY_SCHEDULED), 100], False),
        (unknown, Failure(FailureKind.UNKNOWN), True),
        (other, [int(ResultCode.OTHER_TOPIC), 8], True),
    ):
        futures += one.add(DUE_MS)
        _, batch = one.take()
        one.answer(batch, outcome, repeated)
    with pytest.raises(TooManyScheduled, match="100 messages wait"):
        too_many[0].result(0)
    with pytest.raises(OutcomeUnknown):
        unknown[0].result(0)
    with pytest.raises(TopicRecreated):
        other[0].result(0)
    one.add(DUE_MS)
    meta, _ = one.take()
    assert (meta.epoch, meta.seq) == (3, 0)  # a new epoch each time: a late copy is stored nowhere


def test_a_batch_that_was_sent_again_and_is_refused_then_may_be_stored(one: OneStream) -> None:
    (future,) = one.add(DUE_MS)
    _, batch = one.take()
    one.answer(batch, [int(ResultCode.TOO_MANY_SCHEDULED), 100], repeated=True)
    with pytest.raises(OutcomeUnknown):
        future.result(0)
