"""Delayed messages of transactions: in blocks, in requests, and in the digest that tells transactions
apart."""

from __future__ import annotations

from typing import Any

import pytest

from escrowmq.actors.producer.config import ProducerConfig
from escrowmq.actors.producer.encoding.blocks import PrepareBlock, encode_prepare
from escrowmq.actors.producer.encoding.delayed_messages import Later
from escrowmq.actors.producer.encoding.encoder import Encoder, TxPlan
from escrowmq.replication.delivery_times import delivery_time
from escrowmq.replication.errors import InvalidMessage, MessageTooLarge
from escrowmq.replication.format.operation import OpType
from escrowmq.replication.model import Message
from escrowmq.replication.replica.validation import parse_request

DUE_MS = 1_764_000_060_000
GROUPS = 3


def encoder(groups: int = 1, **settings: Any) -> Encoder:
    made = Encoder(ProducerConfig(**settings), lambda topic: 4, lambda topic, partition: partition % groups)
    made.time_of = lambda message: delivery_time(message.delay_s, message.deliver_at)
    return made


def plan(made: Encoder, *messages: Message, tx_id: str = "tx") -> TxPlan:
    later: list[Later] = []
    encoded, size = made.encode(messages, tx_id, later)
    return made.plan(tx_id, tx_id, encoded, size, 0, False, later)


def parsed(*blocks: PrepareBlock) -> list[Any]:
    return parse_request(encode_prepare("shop", blocks, lambda topic: 7, instance="me"))


def at(partition: int, value: bytes = b"v", **when: Any) -> Message:
    return Message("orders", value, partition=partition, **when)


def test_delayed_messages_follow_the_others_in_their_own_operations() -> None:
    made = plan(encoder(), at(0), at(0, deliver_at=DUE_MS), at(1, delay_s=5), at(0, delay_s=1))
    assert made.single is not None
    prepare, pre, *scheduled = parsed(made.single)
    assert (prepare.meta.attached, pre.type) == (3, OpType.PRE_MESSAGE)
    assert [(op.meta.topic, op.meta.partition, op.meta.txs) for op in scheduled] == [
        ("orders", 0, [0, 0]),
        ("orders", 1, [0]),
    ]
    assert [(op.meta.times, op.meta.ordinals, op.meta.topic_id) for op in scheduled] == [
        ([DUE_MS, -1_000], [0, 2], 7),
        ([-5_000], [1], 7),
    ]


def test_a_transaction_may_have_delayed_messages_only() -> None:
    made = plan(encoder(), at(3, delay_s=5))
    assert made.home_topic == "orders" and made.groups == (0,) and made.single is not None
    prepare, scheduled = parsed(made.single)
    assert prepare.meta.attached == 1 and scheduled.meta.times == [-5_000]


def test_blocks_are_merged_and_divided_with_their_delayed_messages() -> None:
    made = encoder()
    plans = [
        plan(made, at(0, b"a%d" % n), at(0, b"b%d" % n, deliver_at=DUE_MS + n), tx_id=f"tx{n}")
        for n in range(3)
    ]
    plans.insert(1, plan(made, at(0, b"plain"), tx_id="plain"))
    blocks = [one.single for one in plans if one.single is not None]
    prepare, pre, scheduled = parsed(*blocks)
    assert prepare.meta.tx_ids == ["tx0", "plain", "tx1", "tx2"]
    assert (pre.meta.txs, scheduled.meta.txs) == ([0, 1, 2, 3], [0, 2, 3])
    assert scheduled.meta.times == [DUE_MS, DUE_MS + 1, DUE_MS + 2]
    whole = PrepareBlock(
        "orders", -1, 0, 0, prepare.meta.tx_ids, prepare.meta.tx_ids, prepare.meta.digests,
        {("orders", 0): ([0, 1, 2, 3], [9] * 4, [b"x" * 9] * 4)}, 63,
    )  # fmt: skip
    whole.later = {("late", 1): ([0, 2, 3], [9] * 3, [b"y" * 9] * 3, [1, 2, 3], [4, 5, 6])}
    assert whole.touching("late") == {0, 2, 3} and whole.touching("orders") == {0, 1, 2, 3}
    some = whole.select([3, 1])
    assert some.later == {("late", 1): ([0], [9], [b"y" * 9], [3], [6])} and some.size == 27
    assert whole.select([1]).later == {}


def test_parts_and_groups_get_their_own() -> None:
    messages = [at(n % 4, b"x" * 900, **({"delay_s": n} if n % 2 else {})) for n in range(12)]
    made = plan(encoder(GROUPS, part_bytes=2_000), *messages)
    assert made.parts is not None and made.single is None and set(made.groups) == {0, 1, 2}
    ordinals: list[int] = []
    for blocks in made.parts.values():
        for block in blocks:
            if block.home_group >= 0:
                block.home_index = [5]  # as home has told
            ops = parsed(block)
            ordinals += [n for op in ops if op.type == OpType.PRE_SCHEDULED for n in op.meta.ordinals]
            assert block.size <= 2_000
    assert sorted(ordinals) == list(range(6))


def test_the_digest_covers_the_times() -> None:
    def digest(groups: int, *messages: Message) -> int:
        made = plan(encoder(groups), *messages)
        block = made.single or (made.parts or {})[made.groups[0]][0]
        return block.digests[0]

    for groups in (1, GROUPS):
        base = at(0), at(1, deliver_at=DUE_MS)
        assert digest(groups, *base) == digest(groups, *base)
        others = [(at(0), at(1, deliver_at=DUE_MS + 1)), (at(0), at(1, delay_s=1)), (at(0), at(1))]
        assert len({digest(groups, *base), *(digest(groups, *other) for other in others)}) == 4


def test_sizes_and_limits_count_them() -> None:
    small = encoder(message_bytes_max=100, transaction_bytes_max=150)
    with pytest.raises(MessageTooLarge):
        plan(small, at(0, b"x" * 200, delay_s=1))
    with pytest.raises(MessageTooLarge):
        plan(small, at(0, b"x" * 80), at(0, b"x" * 80, delay_s=1))


def test_nothing_is_added_if_one_of_them_is_refused() -> None:
    made, later = encoder(), [Later("orders", 0, b"", 0, 0)]

    def refuse(message: Message) -> int:
        if message.delay_s == 2:
            raise InvalidMessage("no")
        return -1

    made.time_of = refuse
    with pytest.raises(InvalidMessage):
        made.encode([at(0, delay_s=1), at(0, delay_s=2)], "tx", later)
    assert len(later) == 1
    made.encode([at(0, delay_s=1)], "tx", later)
    assert [one.ordinal for one in later] == [0, 1]


def test_who_takes_none_says_so() -> None:
    with pytest.raises(InvalidMessage, match="cannot be delayed here"):
        encoder().encode([at(0, delay_s=1)], "tx")
