"""A bound in bytes over several threads: nobody exceeds it, everybody gets a turn, and it is said aloud."""

from __future__ import annotations

import threading
import time

import pytest

from escrowmq.replication.errors import Overloaded
from escrowmq.replication.host.snapshot_source import SAID_EVERY_S, ByteBudget


def test_nobody_exceeds_it_and_everybody_gets_a_turn() -> None:
    reports: list[str] = []
    budget = ByteBudget(100, "it is full", reports.append, 20.0)
    seen: list[int] = []

    def work(size: int) -> None:
        for _ in range(20):
            with budget.hold(size):
                seen.append(budget.held)
                time.sleep(0.0005)

    threads = [threading.Thread(target=work, args=(size,)) for size in (30, 40, 60, 100, 500)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20.0)
    assert len(seen) == 100 and max(seen) <= 100 and budget.held == 0
    assert reports == ["it is full: others wait"], "once in a while, not each time"


def test_who_waits_too_long_is_told() -> None:
    now, reports = [0.0], list[str]()
    budget = ByteBudget(100, "it is full", reports.append, 0.01, lambda: now[0])
    with budget.hold(70):
        for _ in range(3):
            with pytest.raises(Overloaded), budget.hold(31):
                pass
        assert len(reports) == 1
        now[0] = SAID_EVERY_S
        with pytest.raises(Overloaded), budget.hold(31):
            pass
        assert len(reports) == 2
        with budget.hold(30):
            assert budget.held == 100
    with pytest.raises(ZeroDivisionError), budget.hold(100):
        raise ZeroDivisionError
    assert budget.held == 0


def test_a_part_that_fails_to_be_read_is_given_back() -> None:
    budget = ByteBudget(10, "full", lambda text: None, 0.01)
    with pytest.raises(OSError, match="bad"), budget.hold(10):
        raise OSError("bad")
    with budget.hold(10):
        pass
