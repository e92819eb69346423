"""A producer keeps the streams that it has used last. One that begins again is another one for the broker:
nothing is lost, and nothing is stored twice."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from escrowmq.actors.client.failures import Failure, FailureKind
from escrowmq.actors.client.topic_placement import TopicPlacement
from escrowmq.actors.producer import core
from escrowmq.actors.producer.batcher import STREAMS_MAX, BuiltRequest, GroupBatcher, StreamTable
from escrowmq.actors.producer.config import ProducerConfig
from escrowmq.actors.producer.plain.delayed_stream import DelayedBatch, DelayedStream
from escrowmq.actors.producer.plain.partition_stream import PartitionStream
from escrowmq.actors.producer.plain.record_batch import SendFuture
from escrowmq.replication.format import ops
from escrowmq.replication.format.codec import decode_ops
from escrowmq.replication.format.operation import OpType
from escrowmq.replication.format.ops import claimed_epoch, first_epoch
from escrowmq.replication.format.timer_ops import owner_of
from escrowmq.replication.model import ResultCode
from tests.support.fed_state import FedState
from tests.support.plain import queued

TOPICS = ("a", "b", "c", "d")


def stream_to(topic: str, partition: int = 0, claimed: int = 0, **calls: Any) -> PartitionStream:
    told: dict[str, Any] = dict.fromkeys(("released", "refused", "heard"), lambda told: None)
    told["taken"] = lambda topic, partition: None
    return PartitionStream(topic, partition, "p", 30.0, **told | calls, claimed=claimed)


class Service:
    """A producer with room for few streams, and a real state that it sends to."""

    def __init__(self, seed: int, streams_max: int) -> None:
        self.rng = random.Random(seed)
        self.broker = FedState()
        for topic in TOPICS:
            self.broker.add(ops.create_topic(topic, {"partitions": 2}, 0))
        self.placement = TopicPlacement(1)
        self.hear()
        self.batcher = GroupBatcher("shop", ProducerConfig(), "p", placement=self.placement)
        self.batcher._streams = self.table = StreamTable(streams_max)
        self.sent: dict[bytes, SendFuture] = {}
        self.late: list[bytes] = []
        self.begun = 0
        #: Where each value was stored; several times, if that ever happens.
        self.stored: dict[bytes, list[int]] = {}

    def hear(self, topic: str = "") -> None:
        self.placement.hear([known.info for known in self.broker.state.topics.topics.values()])

    def send(self) -> None:
        topic, partition, value = self.rng.choice(TOPICS), self.rng.randrange(2), b"%06d" % len(self.sent)
        stream = self.batcher.stream(topic, partition)
        if stream is None:
            self.begun += 1
            stream = stream_to(topic, partition, heard=self.batcher.heard, refused=self.hear)
            self.batcher.add_stream(stream)
        (self.sent[value],) = queued(stream, value)

    def apply(self, request: bytes) -> list[Any]:
        results: list[Any] = self.broker.add(request)
        for op, (code, *info) in zip(decode_ops(request), results, strict=True):
            assert op.type == OpType.MESSAGE
            body = request[op.body_pos : op.body_pos + op.body_size]
            for at in range(0, len(body) if code == ResultCode.OK else 0, 6):
                self.stored.setdefault(body[at : at + 6], []).append(info[0][0] + at // 6)
        return results

    def recreate(self) -> None:
        topic = self.rng.choice(TOPICS)
        now = self.broker.state.topics.topics[topic].info.topic_id
        self.broker.add(ops.delete_topic(topic, now), ops.create_topic(topic, {"partitions": 2}, 0))

    def step(self) -> None:
        drawn = self.rng.random()
        if drawn < 0.45:
            self.send()
        elif drawn < 0.55 and self.late:
            self.apply(self.rng.choice(self.late))  # a copy of any earlier request; nobody hears the answer
        elif drawn < 0.57:
            self.recreate()
        elif (built := self.batcher.build()) is not None:
            self.exchange(built)

    def exchange(self, built: BuiltRequest) -> None:
        request, fate = b"".join(built.frames), self.rng.random()
        self.late.append(request)
        if fate < 0.15:  # it never came, or its answer got lost
            if fate < 0.08:
                self.apply(request)
            self.batcher.answered(built, Failure(FailureKind.UNKNOWN), True)
        elif fate < 0.25:  # sent again after no answer
            self.apply(request)
            self.batcher.answered(built, ("ok", self.apply(request), self.broker.now_ms), True, 2)
        elif fate < 0.3:
            self.batcher.answered(built, Failure(FailureKind.UNAVAILABLE), False)
        else:
            self.batcher.answered(built, ("ok", self.apply(request), self.broker.now_ms), False)

    def check(self) -> None:
        twice = {value: at for value, at in self.stored.items() if len(at) > 1}
        assert not twice, f"stored twice: {twice}"
        for value, future in self.sent.items():
            if future.done() and future.exception(0) is None:
                assert self.stored.get(value) == [future.result(0).offset], value


def runs() -> list[Service]:
    made = []
    for seed in range(40):
        service = Service(seed, streams_max=2 + seed % 4)
        for _ in range(400):
            service.step()
        service.check()
        made.append(service)
    return made


def test_drawn_schedules_lose_nothing_and_store_nothing_twice() -> None:
    made = runs()
    assert sum(service.begun for service in made) > 40 * 4 * len(TOPICS), "streams began again"
    told = Counter(
        future.exception(0) is None for service in made for future in service.sent.values() if future.done()
    )
    assert told[True] > 1_000 and told[False] > 300, told


def test_and_would_not_if_a_stream_began_again_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PartitionStream, "begin_at", lambda self, epoch: None)
    with pytest.raises(AssertionError, match=r"^(stored twice|b'\d+')"):
        runs()


def test_a_service_of_short_lived_topics_keeps_so_many_streams_and_no_more() -> None:
    table = StreamTable()
    for number in range(3 * STREAMS_MAX):
        table.add((f"topic-{number}", 0, False), stream_to("t"))
        assert len(table) <= STREAMS_MAX
    assert table.get(("topic-0", 0, False)) is None and len(table) > STREAMS_MAX // 2


def test_what_is_used_stays_and_so_does_what_is_under_way() -> None:
    table = StreamTable(4)
    used, busy = stream_to("used"), stream_to("busy")
    table.add(("used", 0, False), used)
    table.add(("busy", 0, False), busy)
    queued(busy, b"row")
    for number in range(100):
        table.add((f"topic-{number}", 0, False), stream_to("t"))
        assert table.get(("used", 0, False)) is used
    assert table.get(("busy", 0, False)) is busy and len(table) <= 6


def test_thousands_that_are_all_under_way_are_all_kept_and_not_looked_at_each_time() -> None:
    table = StreamTable(10)
    turns = Counter[str]()
    turn = table._turn
    table._turn = lambda: (turns.update(["turn"]), turn())[1]  # type: ignore[method-assign, func-returns-value]
    for number in range(2_000):
        stream = stream_to("t")
        queued(stream, b"row")
        table.add((f"topic-{number}", 0, False), stream)
    assert len(table) == 2_000 and turns["turn"] < 20


def test_a_stream_begins_again_above_all_that_were_dropped_and_under_the_same_claim() -> None:
    table = StreamTable(2)
    first = stream_to("first", claimed=7)
    table.add(("first", 0, False), first)
    first.epoch += 5
    for number in range(4):
        table.add((f"topic-{number}", 0, False), stream_to("t", claimed=7))
    again = stream_to("first", claimed=7)
    table.add(("first", 0, False), again)
    assert again.epoch > first.epoch > first_epoch(7) and claimed_epoch(again.epoch) == 7


def test_where_keyless_messages_gather_is_kept_for_so_many_topics_and_no_more() -> None:
    made = core.ProducerCore.__new__(core.ProducerCore)
    made._sticky = {"a": 3}
    assert made.gathers("a") == 3
    for number in range(core.STICKY_MAX + 100):
        assert made.gathers(f"topic-{number}") == 0 and len(made._sticky) <= core.STICKY_MAX
    assert made.gathers("a") == 0


def test_ids_of_delayed_messages_are_not_used_again() -> None:
    table = StreamTable(2)
    named: list[tuple[int, int]] = []
    for _ in range(3):
        stream = DelayedStream(
            "t",
            0,
            "p",
            30.0,
            released=lambda size: None,
            refused=lambda topic: None,
            taken=lambda topic, partition: None,
            heard=lambda ms: None,
            owner=owner_of("p"),
            cluster_id="c",
        )
        table.add(("t", 0, True), stream)
        parcel = DelayedBatch("t", 0)
        parcel.fill([b"row"], None, 3, [-1_000])
        stream.add(parcel, 0.0)
        frame, batch = stream.take(1_000, 0)
        ((_, meta, _, _),) = decode_ops(frame)
        named.append((meta.owner, meta.first_ordinal))
        stream.finished(batch, [0, [-1, 7]], False)
        for number in range(3):
            table.add((f"other-{number}", 0, False), stream_to("t"))
        assert table.get(("t", 0, True)) is None
    assert len(set(named)) == 3 and named[0] == (owner_of("p"), 0)
