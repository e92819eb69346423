"""What a producer does when its topic is another one by the time its first batch, or its PREPARE, arrives."""

from __future__ import annotations

from typing import Any

import pytest

from escrowmq.actors.client.topic_placement import TopicPlacement
from escrowmq.actors.producer.batcher import BuiltRequest, GroupBatcher
from escrowmq.actors.producer.config import ProducerConfig
from escrowmq.actors.producer.encoding.blocks import Outcome, PrepareBlock
from escrowmq.actors.producer.plain.partition_stream import PartitionStream
from escrowmq.actors.producer.plain.record_batch import SendFuture
from escrowmq.actors.producer.transactions.results import prepare_problem
from escrowmq.replication.errors import OutcomeUnknown, TopicRecreated, UnknownTopic
from escrowmq.replication.format.codec import decode_ops
from escrowmq.replication.format.operation import OpType
from escrowmq.replication.model import NO_ID, ResultCode, TopicInfo
from tests.support.plain import queued

OLD, NEW = 4, 9
OTHER = int(ResultCode.OTHER_TOPIC)


def info(topic_id: int) -> TopicInfo:
    return TopicInfo("t", 1, "hold", 15, 6000, -1, -1, topic_id=topic_id)


class Producing:
    """A batcher that has heard of topic ``t``."""

    def __init__(self, topic_id: int = OLD) -> None:
        self.placement = TopicPlacement(1)
        self.placement.hear([info(topic_id)])
        self.batcher = GroupBatcher("shop", ProducerConfig(), "p", placement=self.placement)
        self.forgotten: list[str] = []
        self.stream = PartitionStream(
            "t", 0, "p", 30.0, lambda size: None, self.forgotten.append, lambda t, p: None, self.batcher.heard
        )
        self.batcher.add_stream(self.stream)

    def send(self) -> SendFuture:
        self.batcher.stream("t", 0)
        return queued(self.stream, b"row")[0]

    def prepare(self, part: int = 0, home_group: int = -1) -> list[Outcome]:
        outcomes: list[Outcome] = []
        block = PrepareBlock("t", home_group, 0, part, ["x"], ["x"], [1], ("t", 0, b"row"), 3)
        block.deadline, block.done = 1e9, outcomes.append
        if home_group >= 0:
            block.home_index = [5]
        self.batcher.prepare(block, 0.0)
        return outcomes

    def build(self) -> tuple[list[tuple[int, ...]], BuiltRequest]:
        """For each MESSAGE (epoch, sequence, topic id), for each PRE_MESSAGE (topic id)."""
        request = self.batcher.build()
        assert request is not None
        shown: list[tuple[int, ...]] = []
        for op in decode_ops(b"".join(request.frames)):
            if op.type == OpType.MESSAGE:
                shown.append((op.meta.epoch, op.meta.seq, op.meta.topic_id))
            elif op.type == OpType.PRE_MESSAGE:
                shown.append((op.meta.topic_id,))
        return shown, request

    def answer(self, request: BuiltRequest, *results: list[Any], repeated: bool = False) -> None:
        self.batcher.answered(request, ("ok", list(results), 50), repeated)


def test_the_first_batch_tells_the_topics_id_and_later_ones_need_not() -> None:
    producing = Producing()
    producing.send()
    shown, request = producing.build()
    assert shown == [(0, 0, OLD)]
    producing.answer(request, [0, [0, 50]])
    producing.send()
    assert producing.build()[0] == [(0, 1, NO_ID)]


def test_what_is_heard_after_the_producer_began_is_told() -> None:
    """It begins with a placement that has no topic yet."""
    placement = TopicPlacement(1)
    producing = Producing()
    producing.batcher = GroupBatcher("shop", ProducerConfig(), "p", placement=placement)
    producing.batcher.add_stream(producing.stream)
    placement.hear([info(NEW)])
    producing.send()
    assert producing.build()[0] == [(0, 0, NEW)]


def test_a_topic_without_an_id_is_told_as_before() -> None:
    producing = Producing(NO_ID)
    producing.send()
    producing.prepare()
    shown, _ = producing.build()
    assert sorted(shown) == [(NO_ID,), (0, 0, NO_ID)]


def test_a_batch_that_was_sent_once_goes_to_the_topic_that_there_is_now() -> None:
    """It is sent again: the application meant the topic with that name, and nothing was stored."""
    producing = Producing()
    future = producing.send()
    _, request = producing.build()
    producing.answer(request, [OTHER, NEW])
    assert producing.forgotten == ["t"], "its settings may be others, too"
    shown, request = producing.build()
    assert shown == [(0, 0, NEW)]
    producing.answer(request, [0, [7, 50]])
    assert future.result(0).offset == 7


def test_nothing_goes_back_to_an_earlier_topic() -> None:
    """A deletion and the creation behind it have reached group 0 alone. What another group still has would
    go with its topic when they arrive, although it was acknowledged."""
    producing = Producing(NEW)
    future, outcomes = producing.send(), producing.prepare()
    shown, request = producing.build()
    told: list[Any] = [[OTHER, OLD] if len(one) == 3 else [OTHER, ["t", 0, OLD]] for one in shown]
    producing.answer(request, *told)
    assert isinstance(future.exception(0), TopicRecreated)
    assert outcomes == [{0: (OTHER, ["t", 0, OLD])}] and producing.placement.id_of("t") == NEW


def test_a_batch_that_was_sent_twice_may_be_in_the_topic_before() -> None:
    producing = Producing()
    future = producing.send()
    _, request = producing.build()
    producing.answer(request, [OTHER, NEW], repeated=True)
    assert isinstance(future.exception(0), TopicRecreated) and producing.stream.epoch == 1


def test_a_transaction_that_was_sent_once_is_prepared_in_the_topic_that_there_is_now() -> None:
    producing = Producing()
    outcomes = producing.prepare()
    shown, request = producing.build()
    assert shown == [(OLD,)]
    producing.answer(request, [OTHER, ["t", 0, NEW]])
    shown, request = producing.build()
    assert shown == [(NEW,)] and not outcomes
    producing.answer(request, [0])
    assert outcomes == [{}]


@pytest.mark.parametrize(("part", "home_group", "repeated"), [(0, -1, True), (1, -1, False), (0, 1, False)])
def test_one_of_which_something_may_be_in_the_topic_before_is_refused(
    part: int, home_group: int, repeated: bool
) -> None:
    producing = Producing()
    outcomes = producing.prepare(part, home_group)
    _, request = producing.build()
    producing.answer(request, [OTHER, ["t", 0, NEW]], repeated=repeated)
    assert outcomes == [{0: (OTHER, ["t", 0, NEW])}]
    problem = prepare_problem("x", OTHER, ["t", 0, NEW])
    assert isinstance(problem, TopicRecreated) and isinstance(problem, UnknownTopic)
    assert "deleted and created again" in str(problem) and not isinstance(problem, OutcomeUnknown)
