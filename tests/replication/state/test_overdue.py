"""Checks that are overdue are found in the table of open transactions, whatever became of the queues."""

from __future__ import annotations

import random

from escrowmq.replication.format import ops
from escrowmq.replication.state.due_queue import OVERDUE_MS, DueQueue, overdue
from escrowmq.replication.state.open_tx import OpenTable, OpenTx
from tests.support.fed_state import FedState

TIMEOUT_MS = 6_000


def late(log: FedState, by_ms: int) -> int:
    """A time at which what was just prepared has been due for so long."""
    return log.now_ms + TIMEOUT_MS + OVERDUE_MS + by_ms


def test_one_that_nobody_takes_out_of_the_queue_is_told_with_its_app_and_topic() -> None:
    log = FedState()
    log.prepare(["a"], timeout_ms=TIMEOUT_MS)
    began = log.now_ms
    log.prepare(["b"], timeout_ms=TIMEOUT_MS)
    assert overdue(log.state.transactions, began + TIMEOUT_MS + OVERDUE_MS - 10).count == 0
    told = overdue(log.state.transactions, late(log, 500))
    assert (told.count, told.app, told.topic, told.tx_id, told.limited) == (2, "app", "t", "a", False)
    assert abs(told.oldest_ms - (OVERDUE_MS + 1_500)) < 10
    log.commit(["a", "b"])
    assert overdue(log.state.transactions, late(log, 500)).count == 0


def test_one_that_is_lost_from_all_queues_is_told_too() -> None:
    log = FedState()
    log.prepare(["a"], timeout_ms=TIMEOUT_MS)
    log.state.due = DueQueue(log.state.transactions)  # empty
    assert overdue(log.state.transactions, late(log, 500)).tx_id == "a"


def test_one_that_was_checked_waits_again() -> None:
    log = FedState()
    log.prepare(["a"], timeout_ms=TIMEOUT_MS)
    log.now_ms = late(log, 500)
    assert overdue(log.state.transactions, log.now_ms).count == 1
    log.add(ops.checked("app", ["a"]))
    assert overdue(log.state.transactions, log.now_ms).count == 0


def test_parked_ones_and_branches_do_not_count() -> None:
    log = FedState()
    log.prepare(["branch"], timeout_ms=TIMEOUT_MS, home_group=1)
    log.prepare(["parked"], timeout_ms=TIMEOUT_MS)
    for _ in range(20):
        log.add(ops.checked("app", ["parked"]))
    assert log.state.transactions.app("app").parked
    assert overdue(log.state.transactions, late(log, 10**9)).count == 0


def test_what_is_settled_beside_a_held_view_does_not_count() -> None:
    log = FedState()
    log.prepare(["a", "b", "c"], timeout_ms=TIMEOUT_MS)
    opened = log.state.transactions.app("app").open
    opened.old.update(opened.young)  # they are old ones now
    opened.young.clear()
    opened.hold()
    log.commit(["a"])
    log.add(ops.checked("app", ["b"]))
    assert opened.gone == {"a"}
    assert [tx_id for tx_id, _ in opened.first(9)] == ["b", "c"]
    assert overdue(log.state.transactions, late(log, 500)).count == 2


class Watched(OpenTable):
    """Says how many are read at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[int] = []

    def first(self, most: int) -> list[tuple[str, OpenTx]]:
        self.read.append(most)
        return super().first(most)


def test_a_look_is_bounded_and_says_so() -> None:
    log = FedState()
    log.state.transactions.app("app").open = watched = Watched()
    for n in range(30):
        log.prepare([f"{n}-{i}" for i in range(20)], timeout_ms=TIMEOUT_MS)
    told = overdue(log.state.transactions, late(log, 500), look_max=100)
    assert (told.count, told.limited, told.tx_id, watched.read) == (100, True, "0-0", [100])


def test_no_app_hides_another_ones() -> None:
    log = FedState()
    log.prepare([f"{n}" for n in range(50)], timeout_ms=10**9)
    log.prepare(["x"], timeout_ms=TIMEOUT_MS, app="other")
    told = overdue(log.state.transactions, late(log, 500), look_max=10)
    assert (told.count, told.app, told.limited) == (1, "other", True)


def test_the_head_of_the_table_is_its_oldest_in_any_history() -> None:
    rng, log = random.Random(7), FedState()
    for n in range(400):
        log.prepare([f"{n}"])
        table = log.state.transactions.app("app").open
        if rng.random() < 0.5:
            log.commit([rng.choice(list(table))])
        if rng.random() < 0.05:
            table.hold()
        elif table.in_use and rng.random() < 0.2:
            table.release()
        assert [tx_id for tx_id, _ in table.first(10**6)] == list(table)
        assert {tx_id for tx_id, _ in table.first(5)} <= set(list(table)[:5])
