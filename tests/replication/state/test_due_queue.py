"""The queue of due checks follows what is open, not what was opened: on the leader and on followers."""

from __future__ import annotations

from escrowmq.replication.format import ops
from escrowmq.replication.state import due_queue as checks
from escrowmq.replication.state.due_queue import DueQueue
from tests.support.fed_state import FedState
from tests.support.queued_checks import queued_checks

HOUR_MS = 3_600_000


def log_with_slack(slack: int) -> FedState:
    log = FedState()
    log.state.due = DueQueue(log.state.transactions, tidy_slack=slack)
    return log


def test_settled_transactions_leave_the_queue_long_before_their_time_out() -> None:
    log = log_with_slack(10)
    log.prepare(["stays"], timeout_ms=HOUR_MS)
    for n in range(50):
        ids = [f"{n}-{i}" for i in range(20)]
        log.prepare(ids, timeout_ms=HOUR_MS)
        log.commit(ids)
        log.state.due.tidy()
        assert queued_checks(log.state.due) <= 2 * log.state.transactions.open_count() + 10 + 20
    due, later = log.state.due, log.now_ms + HOUR_MS + 1_000
    due.advance(later)
    assert [tx for tx, _ in due.lock("app", "t", 10, "me", 5_000, later)] == ["stays"]


def test_what_is_due_and_settles_without_a_check_leaves_the_queue() -> None:
    log = log_with_slack(10)
    for n in range(50):
        ids = [f"{n}-{i}" for i in range(20)]
        log.prepare(ids)
        log.now_ms += 7_000
        assert log.state.due.advance(log.now_ms), "all of them are due"
        log.commit(ids)
        log.state.due.tidy()
        assert queued_checks(log.state.due) <= 10 + 20
    assert log.state.due.lock("app", "t", 100, "me", 5_000, log.now_ms) == []
    assert queued_checks(log.state.due) == 0


def test_a_follower_keeps_no_trace_of_checks_that_the_leader_had_answered() -> None:
    """It never locks anything, so nothing it queued is ever removed that way."""
    log = log_with_slack(10)
    log.prepare(["open"])
    for n in range(200):
        log.prepare([f"{n}"])
        log.now_ms += 7_000
        log.add(ops.checked("app", ["open", f"{n}"]))
        log.commit([f"{n}"])
        log.state.due.resign(log.now_ms)
        log.state.due.tidy()
        assert queued_checks(log.state.due) <= 2 + 10 + 3


def test_leadership_that_was_lost_and_won_again_finds_every_due_check() -> None:
    log = FedState()
    log.prepare([f"{i}" for i in range(10)])
    due, now = log.state.due, log.now_ms + 7_000
    due.advance(now)
    assert len(due.lock("app", "t", 4, "one", 60_000, now)) == 4
    due.resign(now)
    due.resign(now + 100)
    due.tidy()
    assert due.lock("app", "t", 100, "two", 5_000, now + 100) == [] and not due.has_leases()
    due.advance(now + 61_000)
    found = [tx for tx, _ in due.lock("app", "t", 100, "two", 5_000, now + 61_000)]
    assert sorted(found) == [f"{i}" for i in range(10)], "each once"


def test_what_came_due_by_a_clock_that_was_ahead_is_handed_out_once_its_time_has_come() -> None:
    """When a group begins to go by its own clocks, they may be behind the leader's that told it before."""
    log = FedState()
    log.prepare(["a"])
    due, now = log.state.due, log.state.transactions.look("app").open["a"].due_ms
    assert due.advance(now + 500)
    assert due.lock("app", "t", 10, "me", 5_000, now - 600) == []
    assert locked(due, now - 500) == []
    assert locked(due, now + 600) == ["a"]
    assert not due.advance(now + 700) and queued_checks(due) == 1, "the end of its lease"


def test_a_lease_that_had_ended_by_a_clock_that_was_ahead_ends_again() -> None:
    log = FedState()
    log.prepare(["a"])
    due, now = log.state.due, log.state.transactions.look("app").open["a"].due_ms
    assert locked(due, now + 600) == ["a"]
    assert due.advance(now + 6_100), "its lease of 5 s has ended"
    assert due.lock("app", "t", 10, "you", 5_000, now + 5_000) == []
    assert locked(due, now + 5_500) == []
    assert locked(due, now + 6_100) == ["a"]


def test_tidying_keeps_leases_and_what_is_yet_to_come() -> None:
    log = log_with_slack(0)
    log.prepare(["leased", "released", "future"])
    due, now = log.state.due, log.now_ms + 7_000
    log.add(ops.checked("app", ["future"]))
    due.advance(now)
    assert len(due.lock("app", "t", 3, "one", 4_000, now)) == 3
    due.release("app", ["released"], "one", now)
    dead = [f"dead-{i}" for i in range(3 * checks.CHUNK)]
    log.prepare(dead)
    log.commit(dead)
    for _ in range(10):
        due.tidy(budget=500)
    assert queued_checks(due) <= 2 * 3
    due.advance(now + 1_500)
    assert [tx for tx, _ in due.lock("app", "t", 9, "two", 9_000, now + 1_500)] == ["released"]
    due.advance(now + 5_000)
    assert {tx for tx, _ in due.lock("app", "t", 9, "two", 9_000, now + 5_000)} == {"leased", "future"}


def test_a_rebuilt_queue_hands_out_the_same_checks() -> None:
    log = FedState()
    log.prepare([f"{i}" for i in range(2 * checks.CHUNK + 5)])
    log.add(ops.checked("app", ["7"]))
    due, now = log.state.due, log.now_ms + 8_000
    due.rebuild()
    while due.advance(now):
        pass
    locked = due.lock("app", "t", 10_000, "me", 5_000, now)
    assert {tx for tx, _ in locked} == {f"{i}" for i in range(2 * checks.CHUNK + 5)}
    assert len(locked) == 2 * checks.CHUNK + 5


def test_a_follower_keeps_no_trace_of_times_that_have_passed() -> None:
    """Every quarter of a second under traffic is a bucket, and a follower never empties one."""
    log = log_with_slack(10)
    due = log.state.due
    for n in range(3 * checks.GONE_BUCKETS):
        log.prepare([f"{n}"])
        log.now_ms += checks.BUCKET_MS
        log.commit([f"{n}"])
        due.resign(log.now_ms)
        due.tidy()
        assert len(due.order) <= 2 * len(due.buckets) + checks.GONE_BUCKETS + 50
    log.prepare(["last"])
    later = log.now_ms + 10_000
    due.advance(later)
    assert [tx for tx, _ in due.lock("app", "t", 10, "me", 5_000, later)] == ["last"]


def parked() -> tuple[FedState, DueQueue]:
    """The transaction ``parked``, of a topic with three checks, after all of them."""
    log = FedState()
    log.prepare(["parked", "open"])
    for _ in range(3):
        log.add(ops.checked("app", ["parked"]))
    return log, log.state.due


def locked(due: DueQueue, now_ms: int) -> list[str]:
    due.advance(now_ms)
    return [tx for tx, _ in due.lock("app", "t", 10, "me", 5_000, now_ms)]


def test_a_parked_transaction_is_handed_out_when_it_is_asked_for_until_that_check_is_answered() -> None:
    log, due = parked()
    now = log.now_ms
    assert "parked" not in locked(due, now)
    assert due.check_again("app", "parked", now) and due.check_again("app", "parked", now)
    due.tidy()
    assert locked(due, now + 300) == ["parked"] and locked(due, now + 600) == []
    assert "parked" in locked(due, now + 7_000), "that lease ended without an answer"
    due.release("app", ["parked"], "me", now + 7_000)
    assert "parked" in locked(due, now + 9_000), "nobody could be asked"
    log.add(ops.checked("app", ["parked"]))
    assert "parked" not in locked(due, now + 30_000), "answered: it stays parked"
    record = log.state.transactions.app("app").open["parked"]
    assert (record.checks, record.due_ms) == (4, -1)


def test_only_what_is_parked_is_checked_again_and_a_new_leader_knows_of_no_wish() -> None:
    log, due = parked()
    assert not due.check_again("app", "open", log.now_ms)
    assert not due.check_again("app", "nobody's", log.now_ms)
    assert due.check_again("app", "parked", log.now_ms)
    due.resign(log.now_ms)
    assert "parked" not in locked(due, log.now_ms + 1_000) and not due.check_again("other", "parked", 0)
    assert due.check_again("app", "parked", log.now_ms)
    log.add(ops.rollback("app", ["parked"], by="operator:eve"))
    assert not due.has_leases(), "settled: nothing is kept of it"
