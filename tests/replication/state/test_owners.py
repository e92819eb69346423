"""The owner of an open transaction: the instance that prepared it last, unless its PREPARE is a late copy."""

from __future__ import annotations

from typing import Any

import pytest

from escrowmq.replication.format import ops
from escrowmq.replication.format.codec import PrepareExtra, encode_row
from escrowmq.replication.host.due_checks import lock_due
from escrowmq.replication.model import ResultCode
from escrowmq.replication.state import machine
from escrowmq.replication.state.open_tx import OpenTx
from tests.support.fed_state import FedState

STALE = [ResultCode.PARTIAL, [[0, ResultCode.STALE, None]]]


class Owned(FedState):
    """Transaction ``x`` with a time-out of 6 s, at level 2."""

    def __init__(self) -> None:
        super().__init__()
        self.add(ops.level(2))

    def take(self, instance: str, heard_ms: int = -1, *, part: int = 0, home_group: int = -1) -> Any:
        row = encode_row(None, b"x", None, "x")
        extra = PrepareExtra(instance=instance, heard_ms=heard_ms)
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


def test_a_lock_at_level_1_tells_no_index() -> None:
    log = FedState()
    log.prepare(["x"], timeout_ms=100)
    log.state.due.advance(log.now_ms + 1_000)
    (row,) = lock_due(log.state, "app", "t", 10, 4.0, "me", log.now_ms + 1_000)
    assert row[6:] == ("", 0, 1_000, b"")


def test_that_rule_is_what_keeps_the_late_copy_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "is_overtaken", lambda record, extra: False)
    log = Owned()
    log.take("one", 5)
    log.take("two", log.heard)
    assert log.take("one", 5) == [0] and log.x.instance == "one"
