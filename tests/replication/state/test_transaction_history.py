"""What is reported of settled transactions: as they were, within bounds, and after a restart, too."""

from __future__ import annotations

from collections.abc import Iterable

from escrowmq.replication.format import ops
from escrowmq.replication.state import transactions
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.state.snapshot import capture, encode, restore
from escrowmq.replication.state.transactions import Life, Settling
from tests.support.fed_state import FedState, state_with_history


def told(state: StateMachine, tx_id: str) -> tuple[str, Life] | None:
    found = state.transactions.lives.find("app", tx_id)
    return None if found is None else (found[0].by, found[1])


def settle(log: FedState, tx_ids: Iterable[str], by: str) -> None:
    for tx_id in tx_ids:
        log.prepare([tx_id])
        log.add(ops.rollback("app", [tx_id], by=by))


def restarted(log: FedState) -> StateMachine:
    state = StateMachine(0, 1)
    restore(state, "x.snap", b"".join(encode(capture(log.state, 1, []))))
    return state


def test_a_life_is_what_the_transaction_was_when_it_was_settled() -> None:
    log = FedState()
    log.prepare(["x", "y"])
    prepared_ms = log.now_ms
    log.add(ops.checked("app", ["x"]))
    log.add(ops.checked("app", ["x"]))
    checked_ms = log.now_ms
    log.commit(["y"])
    log.add(ops.rollback("app", ["x"], by="feedback"))
    for state in (log.state, restarted(log)):
        assert told(state, "x") == ("feedback", Life("t", "x", 1, prepared_ms, 2, checked_ms))
        assert told(state, "y") == ("producer", Life("t", "y", 1, prepared_ms, 0, 0))
        assert told(state, "z") is None and state.transactions.lives.find("other", "x") is None
    found = log.state.transactions.lives.find("app", "x")
    assert found is not None and found[0].at_ms == log.now_ms


def test_what_is_open_keeps_the_time_of_its_last_check_over_a_restart() -> None:
    log = state_with_history()
    for state in (log.state, restarted(log)):
        record = state.transactions.look("app").open["waits"]
        assert (record.checks, record.checked_ms) == (1, log.now_ms - 3_000)


def test_prepared_again_its_checks_begin_anew() -> None:
    log = FedState()
    log.prepare(["x"])
    log.add(ops.checked("app", ["x"]))
    log.prepare(["x"])
    assert log.state.transactions.look("app").open["x"].checked_ms == 0


def test_of_an_id_that_came_before_the_newest_is_told() -> None:
    found = transactions.TransactionHistory()
    for at_ms, rule in ((5, False), (9, True), (7, False)):
        life = Life("t", f"q{at_ms}", 1, 1, 0, 0)
        found.add(Settling(at_ms, "x", "app", 1, ["a"], [life]), rule=rule)
    newest = found.find("app", "a")
    assert newest is not None and newest[1].query_id == "q9"


def keeping_ten() -> FedState:
    """A state that tells of the last ten of each kind."""
    log = FedState()
    log.state.transactions.lives = transactions.TransactionHistory((10, 10))
    return log


def test_the_last_ones_are_kept_and_what_nobody_asks_about_pushes_out_nothing_else() -> None:
    log = keeping_ten()
    settle(log, ["by hand"], "operator:eve")
    settle(log, [f"x{n}" for n in range(25)], "producer")
    for state in (log.state, restarted(log)):
        assert [n for n in range(25) if told(state, f"x{n}")] == [*range(15, 25)]
        assert told(state, "by hand") is not None
    again = restarted(log)
    again.apply(log.index + 1, b"")
    log.prepare(["further"])
    log.add(ops.rollback("app", ["further"]))
    assert told(log.state, "x15") is None and told(log.state, "further") is not None


def test_a_decision_over_many_goes_as_a_whole() -> None:
    log = keeping_ten()
    for first in (0, 4, 8):
        ids = [f"x{n}" for n in range(first, first + 4)]
        log.prepare(ids)
        log.add(ops.rollback("app", ids))
    assert [n for n in range(12) if told(log.state, f"x{n}")] == [*range(4, 12)]
    many = [f"y{n}" for n in range(20)]
    log.prepare(many)
    log.add(ops.rollback("app", many))
    assert told(log.state, "x11") is None and told(log.state, "y0") and told(log.state, "y19")
