"""Requests about delayed messages: what is refused, by whom, and with which words."""

from __future__ import annotations

import pytest

from escrowmq.replication.errors import InvalidMessage
from escrowmq.replication.format import ops, timer_ops
from escrowmq.replication.format.codec import decode_ops, encode_row
from escrowmq.replication.format.timer_ops import ORDINALS, owner_of
from escrowmq.replication.limits import TIMEOUT_MS_MAX
from escrowmq.replication.replica.validation import parse_request

ROW = encode_row(None, b"later", None, None)


def scheduled(times: list[int], *, first: int = 0, owner: int = 1, seq: int = 0) -> bytes:
    return timer_ops.scheduled("t", 0, "p", 0, seq, times, [ROW] * len(times), owner, first, -1, 0)


def pre_scheduled(times: list[int], ordinals: list[int], txs: list[int] | None = None) -> bytes:
    sizes, txs = [len(ROW)] * len(times), [0] * len(times) if txs is None else txs
    return timer_ops.pre_scheduled("t", 0, txs, sizes, times, ordinals, [ROW] * len(times), 0)


def prepared(*attached: bytes) -> bytes:
    return ops.prepare("app", "t", ["x"], None, 0, 0, [1], -1, len(attached)) + b"".join(attached)


CANCEL = timer_ops.cancel("t", 0, [(5, 1, 0)], 0)
GOOD = [scheduled([5, -1, 0]), prepared(pre_scheduled([-7], [3])), CANCEL]


@pytest.mark.parametrize("request_", GOOD, ids=("plain", "in a transaction", "cancel"))
def test_what_is_right_is_accepted(request_: bytes) -> None:
    assert parse_request(request_) == decode_ops(request_)


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        (scheduled([]), "columns do not fit"),
        (scheduled([1 << 60]), "a time must be"),
        (scheduled([-TIMEOUT_MS_MAX - 1]), "a delay at most"),
        (scheduled([1, 1], first=ORDINALS - 1), "an ordinal must be"),
        (scheduled([1], first=-1), "an ordinal must be"),
        (scheduled([1], owner=-1), "64 bits"),
        (scheduled([1], seq=-2), "sequence number"),
        (timer_ops.scheduled("t", -1, "p", 0, 0, [1], [ROW], 1, 0, -1, 0), "a partition is 0 or more"),
        (timer_ops.scheduled("t", 0, "", 0, 0, [1], [ROW], 1, 0, -1, 0), "producer must have"),
        (timer_ops.scheduled("t", 0, "p", 0, 0, [1], [ROW], 1, 0, -1, -1), "topic's id"),
        (pre_scheduled([1], [0]), "PRE_SCHEDULED without its PREPARE"),
        (prepared(pre_scheduled([1, 2], [0])), "columns differ in length"),
        (prepared(pre_scheduled([1], [0], [1])), "PRE_SCHEDULED refers to a transaction"),
        (prepared(pre_scheduled([1], [ORDINALS])), "an ordinal must be"),
        (prepared(scheduled([1])), "instead of PRE_MESSAGE"),
        (timer_ops.cancel("t", 0, [], 0), "triples"),
        (timer_ops.cancel("t", 0, [(-5, 1, 0)], 0), "CANCEL's times"),
        (timer_ops.cancel("t", 0, [(5, -1, 0)], 0), "64 bits"),
        (timer_ops.timer(b""), "leaders only"),
        (timer_ops.release(bytes(24), 0, []), "leaders only"),
        (timer_ops.cancelled(bytes(24), [1], [], [7]), "leaders only"),
    ],
)
def test_what_cannot_be_carried_out_is_refused(request_: bytes, problem: str) -> None:
    with pytest.raises(InvalidMessage, match=problem):
        parse_request(request_)


def test_owners_are_part_of_the_format() -> None:
    assert owner_of("shop", "a") == int.from_bytes(bytes.fromhex("b8082e4eb6ab871c"), "big")
    assert len({owner_of("a", "bc"), owner_of("ab", "c"), owner_of("abc")}) == 3
