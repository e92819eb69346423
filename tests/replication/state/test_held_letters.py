"""Dead letters that a transaction redrives into a topic: held from its PREPARE on, final by its COMMIT."""

from __future__ import annotations

from typing import Any

import pytest

from escrowmq.replication.format import ops, share_ops
from escrowmq.replication.format.codec import encode_row
from escrowmq.replication.format.ops import ROLLBACK, PrepareExtra
from escrowmq.replication.model import ResultCode as Code
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.state.snapshot import capture, encode, restore
from tests.support.fed_state import FedState, dump

GROUP, DEAD = "mail", "__dead.mail"
OPENED = [[0]]
ROW = encode_row(None, b"v", None, None)


@pytest.fixture
def log() -> FedState:
    """Ten dead letters."""
    made = FedState()
    made.add(ops.create_topic(DEAD, {"partitions": 1}, 0, 0))
    made.add(share_ops.forward(DEAD, 0, [0] * 10, [ROW] * 10))
    return made


def topic_id(log: FedState) -> int:
    return log.state.topics.topics[DEAD].info.topic_id


def prepare(log: FedState, tx_id: str, *ranges: int, id: int | None = None) -> Any:
    extra = PrepareExtra("", heard_ms=log.now_ms + 1, on_timeout=ROLLBACK)
    frame = ops.prepare("app", "t", [tx_id], None, 0, 0, [1], -1, 1, extra)
    named = topic_id(log) if id is None else id
    return log.add(frame + share_ops.pre_letters(GROUP, 0, ranges, named, "lost", "operator:kim"))


def commit(log: FedState, tx_id: str) -> Any:
    return log.add(ops.Commit("app", [tx_id], "producer", 0, [], -1).frame())


def ack(log: FedState, *ranges: int) -> Any:
    return log.add(share_ops.share_ack(GROUP, DEAD, 0, ranges, topic_id(log), "DROPPED operator:eve"))


def refused(code: Code, *info: Any) -> Any:
    return [[int(Code.PARTIAL), [[0, int(code), list(info)]]]]


def final(log: FedState) -> list[int]:
    partition = log.state.topics.find(DEAD, 0)
    pair = log.state.shares.get(GROUP, partition)  # type: ignore[arg-type]
    assert pair is not None
    return [offset for offset in range(10) if pair.has(offset)]


def restarted(log: FedState) -> FedState:
    """The same state, from its snapshot."""
    again = FedState()
    again.state = StateMachine(0, 1)
    restore(again.state, "snap", b"".join(encode(capture(log.state, 3, []))))
    again.index, again.now_ms = log.index, log.now_ms
    assert dump(again.state)["letters"] == dump(log.state)["letters"]
    return again


@pytest.mark.parametrize("from_snapshot", [False, True])
def test_the_commit_makes_them_final_and_a_rollback_frees_them(log: FedState, from_snapshot: bool) -> None:
    assert prepare(log, "a", 1, 2, 5, 5) == OPENED
    log = restarted(log) if from_snapshot else log
    assert final(log) == []
    assert prepare(log, "b", 0, 1) == refused(Code.OFFSETS_PENDING, GROUP, DEAD, 0, "app", "a")
    assert prepare(log, "c", 3, 4) == OPENED
    assert commit(log, "a") == OPENED
    assert final(log) == [1, 2, 5]
    log.add(ops.rollback("app", ["c"]))
    assert final(log) == [1, 2, 5] and not log.state.letters.by_tx
    assert log.state.transactions.audit[-1][1:] == (
        "operator:kim", GROUP, f"{DEAD}/0@1-2,5-5 -> lost (a)", "REDRIVEN",
    )  # fmt: skip
    assert prepare(log, "d", 3, 4) == OPENED


def test_what_is_final_or_elsewhere_opens_nothing(log: FedState) -> None:
    assert ack(log, 4, 5) == OPENED
    assert prepare(log, "a", 2, 4) == refused(Code.OFFSETS_MOVED, GROUP, DEAD, 0, 4)
    assert prepare(log, "b", 5, 6) == refused(Code.OFFSETS_MOVED, GROUP, DEAD, 0, 5)
    assert prepare(log, "c", 8, 10) == refused(Code.OUT_OF_RANGE, 0, 10)
    assert prepare(log, "d", 0, 1, id=77) == refused(Code.OFFSETS_MOVED, GROUP, DEAD, -1, -1)
    assert prepare(log, "e", 2, 3, 6, 9) == OPENED
    assert list(log.state.letters.by_tx) == [("app", "e")]


def test_letters_of_a_deleted_topic_are_let_go(log: FedState) -> None:
    assert prepare(log, "a", 0, 3) == OPENED
    log.add(ops.delete_topic(DEAD))
    assert not log.state.letters.by_tx
    log.add(ops.create_topic(DEAD, {"partitions": 1}, 0, 0))
    log.add(share_ops.forward(DEAD, 0, [0] * 10, [ROW] * 10))
    assert commit(log, "a") == OPENED and final(log) == [], "these are others"
    assert prepare(log, "b", 0, 3) == OPENED
