"""First batches of plain messages state what their producer has heard from the group."""

from __future__ import annotations

from typing import Any

import pytest

from escrowmq.actors.producer.batcher import BuiltRequest, GroupBatcher
from escrowmq.actors.producer.config import ProducerConfig
from escrowmq.actors.producer.plain.partition_stream import PartitionStream
from escrowmq.actors.producer.plain.record_batch import SendFuture
from escrowmq.replication.errors import OutcomeUnknown
from escrowmq.replication.format.codec import decode_ops
from escrowmq.replication.format.operation import OpType
from escrowmq.replication.model import ResultCode
from tests.support.plain import queued

STALE, OK = int(ResultCode.STALE), int(ResultCode.OK)
OUT_OF_SEQUENCE = int(ResultCode.OUT_OF_SEQUENCE)
#: Partition, epoch, number, and the time heard; -1: none.
Shown = tuple[int, int, int, int]


class Sending:
    """A batcher and its streams."""

    def __init__(self) -> None:
        self.batcher = GroupBatcher("shop", ProducerConfig(), "p")

    def add(self, partition: int) -> SendFuture:
        stream = self.batcher.stream("t", partition)
        if stream is None:
            stream = PartitionStream(
                "t",
                partition,
                "p",
                30.0,
                released=lambda size: None,
                refused=lambda topic: None,
                taken=lambda topic, number: None,
                heard=self.batcher.heard,
            )
            self.batcher.add_stream(stream)
        return queued(stream, b"row")[0]

    def build(self) -> tuple[list[Shown], BuiltRequest]:
        request = self.batcher.build()
        assert request is not None
        shown: list[Shown] = []
        for op in decode_ops(b"".join(request.frames)):
            assert op.type == OpType.MESSAGE
            shown.append((op.meta.partition, op.meta.epoch, op.meta.seq, op.meta.heard_ms))
        return shown, request

    def answer(
        self, request: BuiltRequest, *results: list[Any], repeated: bool = False, sendings: int = 1
    ) -> None:
        self.batcher.answered(request, ("ok", list(results)), repeated, sendings)


def test_first_ones_tell_what_was_heard_and_later_ones_need_not() -> None:
    sending = Sending()
    sending.add(0)
    shown, request = sending.build()
    assert shown == [(0, 0, 0, -1)]
    sending.answer(request, [OK, [0, 77]])
    for partition in range(3):
        sending.add(partition)
    shown, request = sending.build()
    assert shown == [(0, 0, 1, -1), (1, 0, 0, 77), (2, 0, 0, 77)], "later ones need not"
    sending.answer(request, [OK, [0, 79]], [OK, [0, 78]], [OK, [0, 78]])
    sending.add(3)
    assert sending.build()[0] == [(3, 0, 0, 79)], "but hear all the same"


def test_a_stale_one_comes_again_with_what_the_refusal_told() -> None:
    sending = Sending()
    future = sending.add(0)
    _, request = sending.build()
    sending.answer(request, [STALE, 88])
    assert not future.done()
    shown, again = sending.build()
    assert shown == [(0, 0, 0, 88)]
    sending.answer(again, [OK, [5, 99]])
    assert future.result(0).offset == 5


def test_where_it_may_have_been_stored_nobody_can_know() -> None:
    sending = Sending()
    future = sending.add(0)
    _, request = sending.build()
    sending.answer(request, [STALE, 88], repeated=True)
    assert isinstance(future.exception(0), OutcomeUnknown)
    sending.add(0)
    assert sending.build()[0] == [(0, 1, 0, 88)], "late copies of the first epoch are refused"


@pytest.mark.parametrize("refusal", [[STALE, 88], [OUT_OF_SEQUENCE, 0]])
@pytest.mark.parametrize("first", [True, False])
def test_a_copy_of_a_refused_sending_may_have_been_stored_and_forgotten(
    refusal: list[Any], first: bool
) -> None:
    sending = Sending()
    if not first:
        sending.add(0)
        sending.answer(sending.build()[1], [OK, [0, 77]])
    future = sending.add(0)
    _, request = sending.build()
    sending.answer(request, refusal, sendings=2)
    assert isinstance(future.exception(0), OutcomeUnknown), "to send it once more could store it twice"
