"""First batches of plain messages state what their producer has heard from the group, where that is
accepted."""

from __future__ import annotations

from typing import Any

import pytest

from escrowmq.actors.client.failures import Failure, FailureKind
from escrowmq.actors.producer.batcher import TRY_AGAIN_S, BuiltRequest, GroupBatcher
from escrowmq.actors.producer.config import ProducerConfig
from escrowmq.actors.producer.encoding.blocks import DecisionBlock
from escrowmq.actors.producer.plain.partition_stream import PartitionStream
from escrowmq.actors.producer.plain.record_batch import SendFuture
from escrowmq.replication.errors import OutcomeUnknown
from escrowmq.replication.format.codec import OpType, decode_ops
from escrowmq.replication.model import ResultCode
from tests.support.plain import queued

STALE, OK = int(ResultCode.STALE), int(ResultCode.OK)
OUT_OF_SEQUENCE = int(ResultCode.OUT_OF_SEQUENCE)
#: Partition, epoch, number, and the time heard or None.
Shown = tuple[int, int, int, int | None]


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
            _, number, _, epoch, seq, _, *heard = op.meta
            shown.append((number, epoch, seq, heard[0] if heard else None))
        return shown, request

    def decide(self, tx_id: str) -> None:
        self.batcher.decide(DecisionBlock(True, (tx_id,)), 0.0)

    def kinds(self) -> list[int]:
        """The kinds of the operations of the next request."""
        request = self.batcher.build()
        assert request is not None
        return [op.type for op in decode_ops(b"".join(request.frames))]

    def answer(
        self, request: BuiltRequest, *results: list[Any], repeated: bool = False, sendings: int = 1
    ) -> None:
        self.batcher.answered(request, ("ok", list(results)), repeated, sendings)


def test_the_first_one_travels_alone_and_the_next_ones_tell_what_it_heard() -> None:
    sending = Sending()
    for partition in range(3):
        sending.add(partition)
    shown, request = sending.build()
    assert shown == [(0, 0, 0, -1)], "if it is refused, nothing else is"
    sending.answer(request, [OK, [0, 77]])
    sending.add(0)
    shown, request = sending.build()
    assert shown == [(0, 0, 1, None), (1, 0, 0, 77), (2, 0, 0, 77)], "later ones need not"
    sending.answer(request, [OK, [0, 79]], [OK, [0, 78]], [OK, [0, 78]])
    sending.add(3)
    assert sending.build()[0] == [(3, 0, 0, 79)], "but hear all the same"


def test_no_decision_is_refused_with_it() -> None:
    sending = Sending()
    sending.decide("a")
    assert sending.kinds() == [OpType.COMMIT]
    sending.decide("b")
    sending.add(0)
    assert sending.kinds() == [OpType.COMMIT]
    sending.decide("c")
    assert sending.kinds() == [OpType.MESSAGE]
    assert sending.kinds() == [OpType.COMMIT]


def test_a_group_that_does_not_take_it_gets_the_same_number_as_before() -> None:
    sending = Sending()
    future = sending.add(0)
    _, request = sending.build()
    sending.batcher.answered(request, Failure(FailureKind.UNSUPPORTED), False)
    shown, again = sending.build()
    assert shown == [(0, 0, 0, None)]
    sending.answer(again, [OK, [5, 77]])
    assert future.result(0).offset == 5
    for now in (0.0, TRY_AGAIN_S):
        sending.batcher._speech_of_messages.pass_time(now)
    sending.add(1)
    assert sending.build()[0] == [(1, 0, 0, 77)], "and is tried again"


def test_older_software_calls_it_malformed() -> None:
    sending = Sending()
    sending.add(0)
    _, request = sending.build()
    sending.batcher.answered(request, Failure(FailureKind.MALFORMED), False)
    assert sending.build()[0] == [(0, 0, 0, None)]


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
