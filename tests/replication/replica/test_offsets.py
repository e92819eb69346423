"""Transactions that move offsets of a group, at one replica: crashes, time-outs, wrong requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from escrowmq.replication.errors import InvalidMessage
from escrowmq.replication.format import ops
from escrowmq.replication.format.codec import encode_row
from escrowmq.replication.format.ops import NONE_YET, PrepareExtra, pre_offsets
from escrowmq.replication.model import ResultCode as Code
from escrowmq.replication.replica.validation import parse_request
from tests.support.single import Single

GROUP = "billing"
TIMEOUT_MS = 3_000
UNASKED = PrepareExtra("p", on_timeout="rollback")


def transform(
    tx_id: str,
    moves: dict[int, tuple[int, int]],
    extra: PrepareExtra = UNASKED,
    *,
    tx_ids: tuple[str, ...] = (),
    part: int = 0,
    home_group: int = -1,
) -> bytes:
    """One message, and what it was made of."""
    ids, row = tx_ids or (tx_id,), encode_row(None, tx_id.encode(), None, None)
    frame = ops.prepare(
        "app", "t", ids, None, TIMEOUT_MS, part, [1] * len(ids), home_group, 2, extra
    ) + ops.pre_message("t", 0, [0], [len(row)], [row])
    return frame + pre_offsets(GROUP, "in", moves, 1)


class Group(Single):
    """One that has a topic ``in`` to read and ``t`` for what is made of it."""

    def begin(self) -> Group:
        assert self.submit(ops.create_topic("in", {"partitions": 2}, 0, 0)) == [[0, 1]]
        self.topic(partitions=1)
        return self

    def prepare(self, tx_id: str, begin: int, end: int, extra: PrepareExtra = UNASKED) -> Any:
        (result,) = self.submit(transform(tx_id, {0: (begin, end)}, extra))
        return result

    def commit(self, tx_id: str) -> Any:
        return self.submit(ops.commit("app", [tx_id]))[0]

    def committed(self) -> int:
        return self.state.group_offsets.get(GROUP, {}).get("in", {}).get(0, NONE_YET)

    def pass_time(self, ms: int) -> None:
        for _ in range(max(ms // 250, 1)):
            self.now_ms += 250
            self.replica.on_timer(self.now_ms)
            self.send()


def test_messages_and_offsets_count_together_whatever_crashes(tmp_path: Path) -> None:
    """The table of crashes: after prepare; commit durable and its answer lost; another member's prepare."""
    group = Group(tmp_path).begin()
    assert group.prepare("1", NONE_YET, 3) == [0]
    group.close()
    group = Group(tmp_path)
    assert (group.committed(), group.texts()) == (NONE_YET, []), "prepared, and the member is gone"
    assert group.prepare("2", NONE_YET, 2)[1][0][1] == Code.OFFSETS_PENDING
    group.pass_time(2 * TIMEOUT_MS)
    assert group.prepare("2", NONE_YET, 2) == [0], "rolled back at its time-out: begins where it began"
    assert group.commit("2") == [0]
    group.close()
    group = Group(tmp_path)
    assert group.commit("2") == [0], "asked again"
    assert (group.committed(), group.texts()) == (2, ["2"])
    assert group.prepare("3", NONE_YET, 3)[1][0][1:] == [int(Code.OFFSETS_MOVED), [GROUP, "in", 0, 2]]
    assert group.prepare("4", 2, 3) == [0], "the next one begins where it ended"
    assert group.prepare("5", 2, 3)[1][0][1] == Code.OFFSETS_PENDING, "a new member waits"
    assert group.commit("4") == [0], "the one that lost its partition still counts"
    assert (group.committed(), group.texts()) == (3, ["2", "4"])
    group.close()


def test_the_leader_ends_what_nobody_is_asked_about(tmp_path: Path) -> None:
    group = Group(tmp_path).begin()
    assert group.prepare("asked", NONE_YET, 3, PrepareExtra("p")) == [0]
    assert group.submit(ops.prepare("app", "t", ["alone"], None, TIMEOUT_MS, 0, [1], -1, 0, UNASKED)) == [[0]]
    group.pass_time(TIMEOUT_MS - 500)
    assert group.state.transactions.open_count() == 2
    group.pass_time(1_000)
    opened = group.state.transactions.look("app").open
    assert "asked" in opened and "alone" not in opened
    assert group.state.due.lock("app", "t", 10, "f", 1_000, group.now_ms)[0][0] == "asked"
    assert not group.state.transactions.audit, "no operator has done it"
    late = group.commit("alone")
    assert late[1][0][1:] == [int(Code.TX_CONFLICT), "ROLLBACK"]
    group.close()


def test_a_new_leader_ends_it_and_a_repeated_prepare_begins_anew(tmp_path: Path) -> None:
    group = Group(tmp_path).begin()
    assert group.prepare("x", NONE_YET, 3) == [0]
    group.pass_time(TIMEOUT_MS - 1_000)
    extra = PrepareExtra("p", on_timeout="rollback", heard_ms=group.now_ms)
    assert group.prepare("x", NONE_YET, 3, extra) == [0]
    group.pass_time(TIMEOUT_MS - 1_000)
    assert group.state.transactions.open_count() == 1, "its time began with the repetition"
    group.fail_over()
    group.pass_time(2_000)
    assert group.state.transactions.open_count() == 0
    group.close()


def test_one_that_is_prepared_again_with_a_local_transaction_is_asked_about(tmp_path: Path) -> None:
    """By an application with ids of its own. That local transaction may have taken place."""
    group = Group(tmp_path).begin()
    assert group.prepare("x", NONE_YET, 3) == [0]
    assert group.prepare("x", NONE_YET, 3, PrepareExtra("p", heard_ms=group.now_ms)) == [0]
    group.pass_time(2 * TIMEOUT_MS)
    ((tx_id, _),) = group.state.due.lock("app", "t", 10, "f", 1_000, group.now_ms)
    assert tx_id == "x" and group.commit("x") == [0]
    group.close()


def test_a_lost_rollback_is_written_again(tmp_path: Path) -> None:
    group = Group(tmp_path).begin()
    assert group.prepare("x", NONE_YET, 3) == [0]
    group.node.held = []
    group.pass_time(TIMEOUT_MS + 1_000)
    ((_, done),), group.node.held = group.node.held, None
    done(None, False)
    assert group.state.transactions.open_count() == 1
    group.pass_time(3_000)
    assert group.state.transactions.open_count() == 0
    group.close()


def test_what_is_right_is_accepted() -> None:
    assert len(parse_request(transform("x", {0: (NONE_YET, 0), 1: (4, 4)}, PrepareExtra()))) == 3


@pytest.mark.parametrize(
    ("request_bytes", "why"),
    [
        (transform("x", {0: (5, 4)}), "goes forwards"),
        (transform("x", {0: (-2, 4)}), "-1 or more"),
        (transform("x", {0: (NONE_YET, -1)}), "-1 or more"),
        (transform("x", {0: (0, 1 << 60)}), "-1 or more"),
        (transform("x", {-1: (0, 1)}), "partitions of 0 or more"),
        (transform("x", {}), "triples"),
        (transform("x", dict.fromkeys(range(10001), (0, 1))), "at most 10000"),
        (transform("x", {0: (0, 1)}, tx_ids=("x", "y")), "of one transaction"),
        (transform("x", {0: (0, 1)}, part=1), "the first PREPARE"),
        (transform("x", {0: (0, 1)}, PrepareExtra("p", on_timeout="commit")), "on_timeout"),
        (
            transform("x", {0: (0, 1)}, PrepareExtra(on_timeout="rollback", home_index=[3]), home_group=1),
            "follows its home",
        ),
        (pre_offsets(GROUP, "in", {0: (0, 1)}), "without its PREPARE"),
        (
            ops.prepare("app", "t", ["x"], None, 0, 0, [1], -1, 2, UNASKED)
            + 2 * pre_offsets(GROUP, "in", {0: (0, 1)}),
            "once",
        ),
        (
            ops.prepare("app", "t", ["x"], None, 0, 0, [1], -1, 2, UNASKED)
            + pre_offsets(GROUP, "in", {0: (0, 1)})
            + ops.pre_message("t", 0, [0], [4], [b"\x94\xc0\xc0\xc0"]),
            "behind the messages",
        ),
        (
            ops.prepare("app", "t", ["x"], None, 0, 0, [1], -1, 1, UNASKED)
            + pre_offsets("", "in", {0: (0, 1)}),
            "1 to 512 characters",
        ),
    ],
)
def test_what_is_wrong_is_refused(request_bytes: bytes, why: str) -> None:
    with pytest.raises(InvalidMessage, match=why):
        parse_request(request_bytes)
