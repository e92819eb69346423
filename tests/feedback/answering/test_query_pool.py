"""The querier in its pool: it may raise, hang, lie; real threads, short time-outs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from escrowmq.feedback.answering.query_pool import QueryPool
from escrowmq.feedback.config import AnswererConfig
from escrowmq.feedback.policy import Trouble
from escrowmq.feedback.states import TransactionState
from tests.support.querier import Calls

COMMITTED, UNKNOWN = TransactionState.COMMITTED, TransactionState.UNKNOWN
QUICK = AnswererConfig(query_timeout_s=0.15, query_threads=2, stuck_threads_max=3, checks_per_thread=4)


def ask(pool: QueryPool, tx_id: str, start_within_s: float = 2.0, late: Any = lambda state: None) -> Any:
    return pool.ask(tx_id, "q-" + tx_id, start_within_s, late)


def test_the_querier_s_word_is_passed_on() -> None:
    async def main() -> None:
        pool = QueryPool(Calls(lambda tx, q: COMMITTED if (tx, q) == ("t", "q-t") else UNKNOWN), QUICK)
        assert await ask(pool, "t") == (COMMITTED, Trouble.NONE)
        pool.close()

    asyncio.run(main())


@pytest.mark.parametrize("lie", ["COMMITTED", None, True, 1])
def test_anything_but_a_state_counts_as_unknown(lie: object, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        pool = QueryPool(Calls(lambda tx, q: lie), QUICK)
        assert await ask(pool, "t") == (UNKNOWN, Trouble.RAISED)
        pool.close()

    asyncio.run(main())
    assert "must return a TransactionState" in caplog.text


def test_a_querier_that_raises_counts_as_unknown_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def broken(tx_id: str, query_id: str) -> None:
        raise KeyError("no such table")

    async def main() -> None:
        pool = QueryPool(Calls(broken), QUICK)
        for _ in range(5):
            assert await ask(pool, "t") == (UNKNOWN, Trouble.RAISED)
        pool.close()

    asyncio.run(main())
    assert "no such table" in caplog.text


def test_a_querier_that_hangs_stalls_nobody_else_and_its_late_word_is_heard() -> None:
    release = threading.Event()

    def hang_on_h(tx_id: str, query_id: str) -> TransactionState:
        if tx_id.startswith("h"):
            release.wait(10)
        return COMMITTED

    async def main() -> None:
        pool = QueryPool(Calls(hang_on_h), QUICK)
        heard: list[TransactionState] = []
        hanging = [asyncio.create_task(ask(pool, f"h{i}", late=heard.append)) for i in range(2)]
        await asyncio.sleep(0.02)
        start = time.monotonic()
        assert await ask(pool, "t") == (COMMITTED, Trouble.NONE)
        assert time.monotonic() - start < 1.0
        assert await asyncio.gather(*hanging) == [(UNKNOWN, Trouble.TIMED_OUT)] * 2
        assert pool.stuck == 2
        release.set()
        for _ in range(200):
            if len(heard) == 2 and pool.stuck == 0:
                break
            await asyncio.sleep(0.01)
        assert heard == [COMMITTED] * 2 and pool.stuck == 0
        assert await ask(pool, "t") == (COMMITTED, Trouble.NONE)
        pool.close()

    asyncio.run(main())


def test_threads_are_bounded_and_no_check_is_taken_when_all_hang() -> None:
    release = threading.Event()

    def hang(tx_id: str, query_id: str) -> TransactionState:
        release.wait(20)
        return COMMITTED

    async def main() -> None:
        before = set(threading.enumerate())  # others' threads may end meanwhile
        pool = QueryPool(Calls(hang), QUICK)
        assert pool.room == 8
        outcomes = await asyncio.gather(*(ask(pool, f"t{i}", start_within_s=1.0) for i in range(12)))
        assert outcomes.count((UNKNOWN, Trouble.TIMED_OUT)) == 5
        assert outcomes.count((UNKNOWN, Trouble.BUSY)) == 7, "never called, so never counted"
        assert pool.room == 0 and len(set(threading.enumerate()) - before) == 5
        release.set()
        for _ in range(200):
            if pool.room == 8:
                break
            await asyncio.sleep(0.01)
        assert pool.room == 8
        assert await ask(pool, "t") == (COMMITTED, Trouble.NONE)
        pool.close()

    asyncio.run(main())


def test_a_hanging_querier_does_not_keep_the_process_from_ending() -> None:
    script = """
import asyncio, time
from escrowmq.feedback.config import AnswererConfig
from escrowmq.feedback.answering.query_pool import QueryPool
from escrowmq.feedback.states import TxStatusQuerier
class Hangs(TxStatusQuerier):
    def query_status(self, tx_id, query_id):
        time.sleep(1000)
async def main():
    pool = QueryPool(Hangs(), AnswererConfig(query_timeout_s=0.1))
    print(await pool.ask("t", "q", 1.0, lambda state: None))
    pool.close()
asyncio.run(main())
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert "TIMED_OUT" in done.stdout
