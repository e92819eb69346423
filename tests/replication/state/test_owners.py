"""The owner of an open transaction: the instance that prepared it last, unless its PREPARE is a late copy.

A check decides under the newest PREPARE: one that was prepared again since then is not rolled back.
"""

from __future__ import annotations

from typing import Any

import pytest

from escrowmq.replication.errors import InvalidMessage
from escrowmq.replication.format import ops
from escrowmq.replication.format.codec import encode_row
from escrowmq.replication.format.ops import PrepareExtra
from escrowmq.replication.host.due_checks import lock_due
from escrowmq.replication.model import ResultCode
from escrowmq.replication.replica.validation import parse_request
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.state.open_tx import OpenTx
from escrowmq.replication.state.snapshot import capture, encode, restore
from tests.support.fed_state import FedState

STALE = [ResultCode.PARTIAL, [[0, ResultCode.STALE, None]]]


class Owned(FedState):
    """Transaction ``x`` with a time-out of 6 s."""

    def take(self, instance: str, heard_ms: int = -1, *, part: int = 0, home_group: int = -1) -> Any:
        row = encode_row(None, b"x", None, "x")
        index = [5] if home_group >= 0 else []
        extra = PrepareExtra(instance=instance, heard_ms=heard_ms, home_index=index)
        frame = ops.prepare("app", "t", ["x"], None, 6_000, part, [7], home_group, 1, extra)
        (result,) = self.add(frame, ops.pre_message("t", 0, [0], [len(row)], [row]))
        return result

    @property
    def heard(self) -> int:
        """The time known to a client that had an answer after the newest entry."""
        return self.now_ms + 1

    @property
    def x(self) -> OpenTx:
        record: OpenTx = self.state.transactions.look("app").open["x"]
        return record

    def locked(self, now_ms: int) -> list[tuple[Any, ...]]:
        self.state.due.advance(now_ms)
        return lock_due(self.state, "app", "t", 10, 4.0, "me", now_ms)


def test_whoever_prepares_last_owns_it_and_its_checks_begin_anew() -> None:
    log = Owned()
    assert log.take("one") == [0]
    first = log.x
    log.add(ops.checked("app", ["x"]))
    log.add(ops.checked("app", ["x"]))
    assert log.x.checks == 2
    assert log.take("two", log.heard) == [0]
    assert (log.x.instance, log.x.newest_index, log.x.checks) == ("two", log.index, 0)
    assert log.x.prepared_ms == log.now_ms and log.x.due_ms == log.now_ms + 6_000
    assert log.x.log_index == first.log_index and log.x.refs == first.refs, "its messages are where they were"
    assert log.locked(log.now_ms + 5_000) == []
    (row,) = log.locked(log.now_ms + 6_500)
    assert row[6:] == ("two", log.index, 6_500, b"")


def test_a_parked_transaction_that_is_prepared_again_is_checked_again() -> None:
    log = Owned()
    log.take("one")
    for _ in range(3):
        log.add(ops.checked("app", ["x"]))
    assert log.x.due_ms == -1, "parked"
    log.take("one", log.now_ms)
    assert log.x.due_ms == log.now_ms + 6_000


def test_a_late_copy_of_an_earlier_owner_takes_nothing_away() -> None:
    """Otherwise a check would ask the earlier owner, which does not run the transaction, and then roll back
    under the present one."""
    log = Owned()
    heard = log.now_ms
    log.take("one", heard)
    log.take("two", log.heard)
    mine = log.x
    assert log.take("one", heard) == STALE, "the copy"
    assert log.take("three", heard) == STALE, "unaware of the second: comes again with what it has heard"
    assert log.x == mine
    assert log.take("three", log.heard) == [0] and log.x.instance == "three"


def test_a_late_copy_of_the_owner_s_own_changes_nothing_that_matters() -> None:
    log = Owned()
    log.take("one", 5)
    log.take("one", 5)
    assert log.x.instance == "one" and log.x.newest_index == log.index


def test_nobody_asks_the_owner_of_a_branch_so_any_copy_will_do() -> None:
    log = Owned()
    log.take("one", 5, home_group=1)
    assert log.take("two", 5, home_group=1) == [0]


def prepare(log: FedState, tx_id: str, extra: PrepareExtra | None, digest: int = 7, part: int = 0) -> int:
    """Applies one PREPARE without messages; returns its index."""
    log.add(ops.prepare("app", "t", [tx_id], None, 0, part, [digest], -1, 0, extra))
    return log.index


def restored(data: bytes) -> StateMachine:
    state = StateMachine(0, 1)
    restore(state, "x.snap", data)
    return state


def test_a_transaction_keeps_its_fence_and_is_of_no_other_one() -> None:
    log = FedState()
    mine, other = b"m" * 16, b"o" * 16

    def again(tx_id: str, instance: str, fence: bytes) -> list[list[object]]:
        extra = PrepareExtra(instance, heard_ms=log.now_ms + 1, fence=fence)
        return log.add(ops.prepare("app", "t", [tx_id], None, 0, 0, [7], -1, 0, extra))

    log.add(ops.prepare("app", "t", ["x", "y"], None, 0, 0, [7, 7], -1, 0, PrepareExtra("one", fence=mine)))
    table = log.state.transactions.look("app").open
    assert table["x"].fence == table["y"].fence == mine, "also of those that form a block"
    conflict = [[int(ResultCode.PARTIAL), [[0, int(ResultCode.TX_CONFLICT), "PREPARE"]]]]
    assert again("x", "two", other) == conflict
    assert table["x"].instance == "one", "the one that was refused owns nothing"
    assert again("x", "two", b"") == [[0]] == again("x", "three", mine)
    assert (table["x"].instance, table["x"].fence) == ("three", mine), "one that names none keeps it"
    assert again("z", "old", b"") == [[0]] == again("z", "new", mine) and table["z"].fence == mine


@pytest.mark.parametrize(
    ("fence", "home", "problem"), [(b"short", -1, "16 bytes"), (b"f" * 16, 1, "follows its home")]
)
def test_a_fence_has_16_bytes_and_is_homes_alone(fence: bytes, home: int, problem: str) -> None:
    extra = PrepareExtra(fence=fence, home_index=[5] if home >= 0 else [])
    request = ops.prepare("app", "t", ["x"], None, 0, 0, [7], home, 0, extra)
    with pytest.raises(InvalidMessage, match=problem):
        parse_request(request)


def test_an_open_transaction_knows_its_owner_and_its_newest_prepare() -> None:
    log = FedState()
    first = prepare(log, "x", PrepareExtra(instance="one", parts=2, given=True))
    record = log.state.transactions.look("app").open["x"]
    assert (record.instance, record.newest_index, record.log_index) == ("one", first, first)
    assert (record.participants, record.parts, record.given, record.home_index) == ((), 2, True, -1)
    second = prepare(log, "x", PrepareExtra(instance="two", heard_ms=log.now_ms + 1), part=1)
    again = prepare(log, "x", PrepareExtra(instance="three", heard_ms=log.now_ms + 1))
    record = log.state.transactions.look("app").open["x"]
    assert (record.instance, record.newest_index, record.log_index) == ("three", again, first)
    assert record.digests == (7, 7) and first < second < again
    prepare(log, "x", PrepareExtra(instance="other content"), digest=8)
    assert log.state.transactions.look("app").open["x"] == record, "a conflict changes nothing"
    unnamed = prepare(log, "x", PrepareExtra(heard_ms=log.now_ms + 1))
    record = log.state.transactions.look("app").open["x"]
    assert (record.instance, record.newest_index) == ("", unnamed), "one that names no instance has taken it"


def test_a_check_rolls_back_only_what_was_not_prepared_again_since() -> None:
    log = FedState()
    indexes = [prepare(log, tx_id, PrepareExtra(instance="one")) for tx_id in ("a", "b", "c")]
    prepare(log, "b", PrepareExtra(instance="two", heard_ms=log.now_ms + 1))
    under = ops.rollback("app", ["a", "b", "c", "gone"], "feedback", newest_index=[*indexes, 1])
    # Leaders leave out what is not open, so an entry settles all of its ids; here one is left in.
    table = log.state.transactions.look("app")
    assert log.add(under) == [
        [ResultCode.PARTIAL, [[n, ResultCode.RETRY, None] for n in range(3)] + [[3, 6, None]]]
    ]
    assert set(table.open) == {"a", "b", "c"}
    under = ops.rollback("app", ["a", "b", "c"], "feedback", newest_index=indexes)
    assert log.add(under) == [[ResultCode.PARTIAL, [[1, ResultCode.RETRY, None]]]]
    assert set(table.open) == {"b"} and table.outcome("a") == table.outcome("c") == 2
    assert log.add(ops.rollback("app", ["b"], "feedback", newest_index=[])) == [[0]], "unconditional"


def test_of_two_prepares_in_one_entry_neither_may_roll_back() -> None:
    """Two new instances run one id. Both are told the index of this entry, and neither knows of the other."""
    log = FedState()
    first = PrepareExtra(given=True)
    told = log.add(*(ops.prepare("app", "t", ["x"], None, 0, 0, [7], -1, 0, first) for _ in range(3)))
    assert told == [[0, log.index], [0, [log.index, log.index]], [0, [log.index, log.index]]]
    index, table = log.index, log.state.transactions.look("app")
    refused = [[ResultCode.PARTIAL, [[0, ResultCode.RETRY, None]]]]
    assert log.add(ops.rollback("app", ["x"], "producer", newest_index=[index])) == refused
    data = b"".join(encode(capture(log.state, 1, [])))
    assert restored(data).transactions.look("app").open["x"] == table.open["x"]
    under = ops.rollback("app", ["x"], "feedback", newest_index=[table.open["x"].newest_index])
    assert log.add(under) == [[0]], "a check asks under the PREPARE that it was shown"
