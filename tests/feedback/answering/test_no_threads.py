"""A container that has no room for another thread, when a check comes."""

from __future__ import annotations

import asyncio
import threading

import pytest

from escrowmq.feedback.answering.query_pool import QueryPool
from escrowmq.feedback.config import AnswererConfig
from escrowmq.feedback.policy import Trouble
from escrowmq.feedback.states import TransactionState
from tests.support.querier import Calls

COMMITTED, UNKNOWN = TransactionState.COMMITTED, TransactionState.UNKNOWN
QUICK = AnswererConfig(query_timeout_s=0.4, query_threads=2, stuck_threads_max=3, checks_per_thread=4)


def test_checks_come_back_later_and_find_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, the check counted as worked on for ever, and each failure took one of the pool's threads."""
    full, start = True, threading.Thread.start

    def started(thread: threading.Thread) -> None:
        if full and thread.name.startswith("escrowmq-querier"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", started)

    async def main() -> None:
        nonlocal full
        pool = QueryPool(Calls(lambda tx, q: COMMITTED), QUICK)
        for _ in range(QUICK.query_threads + QUICK.stuck_threads_max + 1):
            assert await pool.ask("t", "q", 0.05, lambda state: None) == (UNKNOWN, Trouble.BUSY)
        full = False
        assert await pool.ask("t", "q", 2.0, lambda state: None) == (COMMITTED, Trouble.NONE)
        pool.close()

    asyncio.run(main())
