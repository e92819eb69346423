"""Ids that the application gave may be used again: they are remembered by time, apart from others."""

from __future__ import annotations

import pytest

from escrowmq.replication.format import ops
from escrowmq.replication.format.ops import PrepareExtra
from escrowmq.replication.model import ResultCode
from escrowmq.replication.state import transactions
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.state.snapshot import capture, encode, release, restore
from escrowmq.replication.state.transactions import APP_AS_IDS
from tests.support.fed_state import FedState, dump

DUPLICATE, TOO_MANY = int(ResultCode.DUPLICATE), int(ResultCode.TOO_MANY_IDS)
HOUR_MS = 3_600_000


class Log(FedState):
    """A log with these replicated settings; entries are a second apart."""

    def __init__(self, **values: int) -> None:
        super().__init__()
        #: What the last PREPARE's answer says about where its transactions were opened.
        self.opened_at: object = None
        self.add(ops.settings({"settled_generation": APP_AS_IDS + 5, **values}))

    def open(
        self, *tx_ids: str, given: bool = True, app: str = "app", heard_ms: int | None = None
    ) -> list[object]:
        extra = PrepareExtra(given=given, heard_ms=self.now_ms if heard_ms is None else heard_ms)
        (result,) = self.add(ops.prepare(app, "t", tx_ids, None, 0, 0, [1] * len(tx_ids), -1, 0, extra))
        self.opened_at = result[1] if result[0] == 0 and len(result) > 1 else None
        return [0] if result[0] == 0 else result[:2]

    def settle(self, *tx_ids: str, given: bool = True, app: str = "app") -> None:
        assert self.open(*tx_ids, given=given, app=app) == [0]
        assert self.add(ops.rollback(app, tx_ids)) == [[0]]

    def code(self, tx_id: str, app: str = "app") -> int | None:
        """The result of a repetition of the id; None: it is opened again."""
        result = self.open(tx_id, app=app)
        return None if result == [0] else result[1][0][1]  # type: ignore[index]

    def pass_time(self, ms: int) -> None:
        """Lets time pass, with an entry a minute, as in a group that is in use."""
        for _ in range(ms // transactions.STEP_MS_MAX):
            self.now_ms += transactions.STEP_MS_MAX - 1_000  # and one second for the entry itself
            self.add(ops.trim("t", {}))

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


def test_it_is_remembered_for_the_time_and_at_most_twice_as_long() -> None:
    log = Log(remember_ids_s=3_600)
    log.settle("first")
    log.pass_time(HOUR_MS - 60_000)
    log.settle("last of the hour")
    log.pass_time(HOUR_MS)
    log.settle("next hour")
    assert log.code("last of the hour") == log.code("first") == DUPLICATE
    log.pass_time(HOUR_MS)
    log.settle("the hour after")
    assert log.code("next hour") == DUPLICATE
    assert log.code("first") is None, "memory is bounded in time"


def test_beyond_the_number_the_oldest_go_first() -> None:
    log = Log(remember_ids_max=2 * (transactions.APP_AS_GIVEN_IDS + 10))
    for number in range(35):
        log.settle(f"order-{number}")
        assert len(log.state.transactions.look("app").given) <= 20
    assert [log.code(f"order-{number}") for number in range(25, 35)] == [DUPLICATE] * 10
    assert log.code("order-0") is None


def test_remembered_strictly_new_ones_are_refused_until_time_has_made_room() -> None:
    most = transactions.APP_AS_GIVEN_IDS + 5
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
        log.pass_time(HOUR_MS)
    assert log.code("new") is None


def test_apps_that_come_and_go_with_given_ids_leave_nothing_for_good() -> None:
    """Each batch write of Spark is a separate app."""
    log = Log(remember_ids_max=20 * transactions.APP_AS_GIVEN_IDS)
    for number in range(100):
        log.settle("x", app=f"batch-{number}")
        assert len(log.state.transactions.apps) <= 22
    assert all(log.code("x", f"batch-{number}") == DUPLICATE for number in range(91, 100))


def test_a_replica_restored_from_a_snapshot_forgets_at_the_same_entry() -> None:
    values = {
        "remember_ids_s": 40,
        "remember_ids_max": 4 * transactions.APP_AS_GIVEN_IDS,
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


def test_a_clock_that_is_days_ahead_makes_no_id_older_than_it_is() -> None:
    """Time decides only when an id is used again; a clock that jumps must not cause an order to be
    repeated. Finds jumps that count in full: each of them would forget the older half of all ids."""
    log = Log(remember_ids_s=3_600)
    log.settle("first")
    log.pass_time(HOUR_MS)
    log.settle("second")  # the hour is over: "first" belongs to the older ones from here on
    for number in range(3):
        log.now_ms += 2 * 24 * HOUR_MS  # for one entry
        log.settle(f"later {number}")
    ids = "first", "second", "later 0", "later 1"
    assert [log.code(tx_id) for tx_id in ids] == [DUPLICATE] * 4


@pytest.mark.parametrize("values", [{"remember_ids_max": 2}, {"remember_ids_s": 10}], ids=["number", "time"])
def test_a_late_copy_of_a_forgotten_order_opens_nothing(values: dict[str, int]) -> None:
    """Otherwise a truthful check would commit it a second time."""
    log = Log(**values)
    heard = log.now_ms
    assert log.open("order-42", heard_ms=heard) == [0]
    assert log.add(ops.rollback("app", ["order-42"])) == [[0]]
    for number in range(30):
        log.settle(f"order-{100 + number}")
    stale = [int(ResultCode.PARTIAL), [[0, int(ResultCode.STALE), None]]]
    assert log.open("order-42", heard_ms=heard) == stale
    assert log.code("order-42") is None, "the application may bring it again: it has heard of later times"


def test_the_first_id_of_an_app_is_open_also_when_others_are_forgotten_then() -> None:
    """Forgetting removes apps without anything left, but not the one whose transaction is being opened."""
    log = Log(remember_ids_s=3_600)
    log.settle("m", app="job of monday")
    log.pass_time(HOUR_MS)
    assert log.open("d", app="job of tuesday") == [0]
    assert "d" in log.state.transactions.look("job of tuesday").open
    assert log.add(ops.rollback("job of tuesday", ["d"])) == [[0]]


def test_a_replica_that_writes_a_snapshot_meanwhile_opens_and_decides_the_same() -> None:
    """A table that a snapshot reads is kept for longer than others; nothing may depend on it."""
    logs = [Log(remember_ids_s=100), Log(remember_ids_s=100)]
    for log in logs:
        for app in ("a", "b"):
            log.settle("1", app=app)
        log.pass_time(120_000)
        assert log.open("2", app="b") == [0]
        log.pass_time(120_000)
    snapshot = capture(logs[1].state, 1, [])
    results = []
    for log in logs:
        assert log.open("9", app="a") == [0]
        results.append(log.add(ops.Commit("a", ["9"], "producer", 0, [], -1).frame()))
    release(logs[1].state, snapshot)
    assert results == [[[0]], [[0]]]


def reach_ms(log: Log) -> int | None:
    """What operators are shown: for how long ids are remembered, if that is less than promised."""
    state = log.state
    return state.transactions.given.reach_ms(state.settings, state.now_ms)


def test_operators_are_told_when_the_number_has_cut_the_time_short() -> None:
    log = Log(remember_ids_s=3_600, remember_ids_max=2 * (transactions.APP_AS_GIVEN_IDS + 10))
    assert reach_ms(log) is None
    log.settle("order-1")
    log.pass_time(10 * 60_000)
    for number in range(30):  # more than both generations hold
        log.settle(f"flood-{number}")
    assert log.code("order-1") is None, "it was forgotten after ten minutes"
    short = reach_ms(log)
    assert short is not None and short < 60_000
    log.pass_time(HOUR_MS)
    assert reach_ms(log) is None, "nobody comes with an id that is younger than an hour and not remembered"


def test_they_are_told_nothing_where_time_alone_makes_ids_forgotten() -> None:
    log = Log(remember_ids_s=600)
    for _ in range(50):
        log.settle(f"order-{log.index}")
        log.pass_time(120_000)
        assert reach_ms(log) is None


@pytest.mark.parametrize("count", [1, 100], ids=["records", "a block"])
def test_the_answer_says_which_given_ids_were_open_before(count: int) -> None:
    """Another run may have carried out their local transactions: so this one must not roll them back."""
    log = Log()
    old, new = [f"old-{i}" for i in range(count)], [f"new-{i}" for i in range(count)]
    assert log.open(*old) == [0] and type(log.opened_at) is int
    first = log.opened_at
    assert log.open(*old, *new) == [0] and type(log.opened_at) is list
    newest = log.opened_at[0]
    assert newest > first and log.opened_at[1:] == [first] * count + [newest] * count
    assert log.open("made", given=False) == [0] and log.opened_at is None, "only this producer uses its own"
