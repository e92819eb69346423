"""Ids that the application gave come back by themselves: they are remembered by time, apart from others."""

from __future__ import annotations

import pytest

from escrowmq.replication.format import ops
from escrowmq.replication.format.codec import PrepareExtra
from escrowmq.replication.model import ResultCode
from escrowmq.replication.state import given_ids, transactions
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.state.snapshot import capture, encode, release, restore
from escrowmq.replication.state.transactions import APP_AS_IDS
from tests.support.fed_state import FedState, dump

DUPLICATE, TOO_MANY = int(ResultCode.DUPLICATE), int(ResultCode.TOO_MANY_IDS)
HOUR_MS = 3_600_000


class Log(FedState):
    """Of level 2, with these replicated settings; entries are a second apart."""

    def __init__(self, **values: int) -> None:
        super().__init__()
        self.add(ops.level(2), ops.settings({"settled_generation": APP_AS_IDS + 5, **values}))

    def open(self, *tx_ids: str, given: bool = True, app: str = "app") -> list[object]:
        extra = PrepareExtra(given=given, heard_ms=self.now_ms)
        (result,) = self.add(ops.prepare(app, "t", tx_ids, None, 0, 0, [1] * len(tx_ids), -1, 0, extra))
        return result

    def settle(self, *tx_ids: str, given: bool = True, app: str = "app") -> None:
        assert self.open(*tx_ids, given=given, app=app) == [0]
        assert self.add(ops.rollback(app, tx_ids)) == [[0]]

    def code(self, tx_id: str, app: str = "app") -> int | None:
        """What a repetition of the id gets; None: it is opened anew."""
        result = self.open(tx_id, app=app)
        return None if result == [0] else result[1][0][1]  # type: ignore[index]

    def others(self, count: int) -> None:
        for number in range(count):
            self.settle(f"other-{self.index}-{number}", given=False)


def test_a_given_id_outlives_what_pushes_the_others_out() -> None:
    log = Log()
    log.settle("order-42")
    log.settle("generated", given=False)
    log.others(100)
    assert log.code("order-42") == DUPLICATE
    assert log.code("generated") is None


def test_with_that_taken_away_a_repeated_order_is_opened_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    def as_the_others(self: transactions.AppTransactions, tx_id: str, outcome: int) -> transactions.OpenTx:
        record = self.open.take(tx_id)
        self.settled.set(tx_id, record.digests[0] << 2 | outcome)
        self.open_by_topic[record.topic] -= 1
        return record

    monkeypatch.setattr(transactions.AppTransactions, "settle", as_the_others)
    log = Log()
    log.settle("order-42")
    log.others(100)
    assert log.code("order-42") is None


def test_it_is_remembered_for_the_time_and_at_most_twice_as_long() -> None:
    log = Log(remember_ids_s=3_600)
    log.settle("first")
    log.now_ms += HOUR_MS - 10_000
    log.settle("last of the hour")
    log.now_ms += HOUR_MS - 10_000
    log.settle("next hour")
    assert log.code("last of the hour") == log.code("first") == DUPLICATE
    log.now_ms += HOUR_MS
    log.settle("the hour after")
    assert log.code("next hour") == DUPLICATE
    assert log.code("first") is None, "memory is bounded in time"


def test_beyond_the_number_the_oldest_go_first() -> None:
    log = Log(remember_ids_max=2 * (given_ids.APP_AS_GIVEN_IDS + 10))
    for number in range(35):
        log.settle(f"order-{number}")
        assert len(log.state.transactions.look("app").given) <= 20
    assert [log.code(f"order-{number}") for number in range(25, 35)] == [DUPLICATE] * 10
    assert log.code("order-0") is None


def test_remembered_strictly_new_ones_are_refused_until_time_has_made_room() -> None:
    most = given_ids.APP_AS_GIVEN_IDS + 5
    log = Log(remember_ids_s=3_600, remember_ids_max=most, remember_ids_strictly=1)
    for number in range(4):
        log.settle(f"order-{number}")
    assert log.open("open") == [0]
    assert log.open("new", "order-1") == [
        int(ResultCode.PARTIAL),
        [[0, TOO_MANY, most], [1, DUPLICATE, "ROLLBACK"]],
    ]
    assert log.open("open") == [0], "sent again: its answer was lost"
    assert log.add(ops.rollback("app", ["open"])) == [[0]], "never refused at the decision"
    log.settle("generated", given=False)
    for _ in range(2):
        assert log.code("new") == TOO_MANY
        log.now_ms += HOUR_MS
    assert log.code("new") is None


def test_apps_that_come_and_go_with_given_ids_leave_nothing_for_good() -> None:
    """Each batch write of Spark is an app of its own."""
    log = Log(remember_ids_max=20 * given_ids.APP_AS_GIVEN_IDS)
    for number in range(100):
        log.settle("x", app=f"batch-{number}")
        assert len(log.state.transactions.apps) <= 22
    assert all(log.code("x", f"batch-{number}") == DUPLICATE for number in range(91, 100))


def test_a_replica_restored_from_a_snapshot_forgets_at_the_same_entry() -> None:
    values = {
        "remember_ids_s": 40,
        "remember_ids_max": 4 * given_ids.APP_AS_GIVEN_IDS,
        "remember_ids_strictly": 1,
    }
    log, other = Log(**values), Log(**values)
    for number in range(120):
        for each in (log, other):
            app = f"app-{number % 3}"
            each.open(f"{number}", app=app)
            if number % 4:
                each.add(ops.rollback(app, [f"{number}"]))
        if number % 5 == 0:
            state, snapshot = StateMachine(0, 1), capture(other.state, 1, [])
            restore(state, "x.snap", b"".join(encode(snapshot)))
            release(other.state, snapshot)
            other.state = state
        both = [dump(each.state) for each in (log, other)]
        assert both[0]["given"] == both[1]["given"] and both[0]["given since"] == both[1]["given since"], (
            number
        )
        mine, its = log.state.transactions.given, other.state.transactions.given
        assert (mine.young, mine.old, mine.opened) == (its.young, its.old, its.opened), number
