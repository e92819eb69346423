"""The querier in its pool: it may raise, hang, lie; real threads, short time-outs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from escrowmq.feedback.answering.query_pool import QueryPool
from escrowmq.feedback.config import AnswererConfig
from escrowmq.feedback.policy import Trouble
from escrowmq.feedback.states import TransactionState, TxStatusQuerier
from tests.support.querier import Calls

COMMITTED, UNKNOWN = TransactionState.COMMITTED, TransactionState.UNKNOWN
QUICK = AnswererConfig(query_timeout_s=0.4, query_threads=2, stuck_threads_max=3, checks_per_thread=4)


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


@pytest.mark.parametrize("ends", [SystemExit, asyncio.CancelledError, GeneratorExit])
def test_a_querier_that_ends_its_thread_is_asked_again(
    ends: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    def broken(tx_id: str, query_id: str) -> TransactionState:
        if tx_id == "t":
            raise ends("from a library's depths")
        return COMMITTED

    async def main() -> None:
        pool = QueryPool(Calls(broken), QUICK)
        for _ in range(QUICK.query_threads + QUICK.stuck_threads_max + 1):
            assert await ask(pool, "t") == (UNKNOWN, Trouble.RAISED)
        assert pool.room == pool.full_room and await ask(pool, "u") == (COMMITTED, Trouble.NONE)
        pool.close()

    asyncio.run(main())
    assert "from a library's depths" in caplog.text


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
        assert time.monotonic() - start < 5.0, "it does not wait until they end"
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
        before = set(threading.enumerate())  # threads of others may end or start meanwhile
        pool = QueryPool(Calls(hang), QUICK)
        assert pool.room == 8
        outcomes = await asyncio.gather(*(ask(pool, f"t{i}", start_within_s=2.0) for i in range(12)))
        assert outcomes.count((UNKNOWN, Trouble.TIMED_OUT)) == 5
        assert outcomes.count((UNKNOWN, Trouble.BUSY)) == 7, "never called, so never counted"
        started = [thread.name for thread in threading.enumerate() if thread not in before]
        assert pool.room == 0 and sum(name.startswith("escrowmq-querier") for name in started) == 5
        release.set()
        for _ in range(200):
            if pool.room == 8:
                break
            await asyncio.sleep(0.01)
        assert pool.room == 8
        assert await ask(pool, "t") == (COMMITTED, Trouble.NONE)
        pool.close()

    asyncio.run(main())


def test_answers_wait_neither_for_hanging_queries_nor_for_slow_ones() -> None:
    """When every thread was in a query that hung, the other queries waited for its time-out: 5 s."""
    release = threading.Event()

    def says(tx_id: str, query_id: str) -> TransactionState:
        if tx_id.startswith("h"):
            release.wait(20)
        if tx_id.startswith("r"):
            raise RuntimeError("no connection")
        return COMMITTED

    async def main() -> None:
        pool = QueryPool(Calls(says), AnswererConfig(query_slow_s=0.1))
        hanging = [asyncio.create_task(ask(pool, f"h{i}")) for i in range(8)]
        await asyncio.sleep(0.05)
        start = time.monotonic()
        assert (
            await asyncio.gather(*(ask(pool, f"r{i}") for i in range(4))) == [(UNKNOWN, Trouble.RAISED)] * 4
        )
        assert await ask(pool, "t") == (COMMITTED, Trouble.NONE)
        assert time.monotonic() - start < 4.0 and not any(task.done() for task in hanging)
        release.set()
        assert await asyncio.gather(*hanging) == [(COMMITTED, Trouble.NONE)] * 8, "slow, and no worse"
        pool.close()

    asyncio.run(main())


class InBatches(TxStatusQuerier):
    """A querier that is asked about many at once. ``many`` may raise, hang or lie; ``one`` is for one."""

    def __init__(self, many: Callable[[list[str]], Any], one: Callable[[str], Any]) -> None:
        self.many, self.one = many, one
        self.batches: list[int] = []
        self.alone: list[str] = []

    def query_status(self, tx_id: str, query_id: str) -> TransactionState:
        self.alone.append(tx_id)
        state: TransactionState = self.one(tx_id)
        return state

    def query_statuses(self, checks: list[tuple[str, str]]) -> Sequence[TransactionState]:
        assert all(query_id == "q-" + tx_id for tx_id, query_id in checks)
        self.batches.append(len(checks))
        states: Sequence[TransactionState] = self.many([tx_id for tx_id, _ in checks])
        return states


def test_many_checks_are_asked_in_bounded_batches() -> None:
    def many(ids: list[str]) -> list[TransactionState]:
        time.sleep(0.01)
        return [COMMITTED if tx_id.endswith("0") else UNKNOWN for tx_id in ids]

    async def main() -> None:
        querier = InBatches(many, lambda tx_id: UNKNOWN)
        pool = QueryPool(querier, AnswererConfig(query_batch=50))
        assert pool.room == 200, "room for a batch in every thread"
        outcomes = await asyncio.gather(*(ask(pool, f"t{i}") for i in range(200)))
        assert outcomes == [(COMMITTED if i % 10 == 0 else UNKNOWN, Trouble.NONE) for i in range(200)]
        assert sum(querier.batches) == 200 and max(querier.batches) <= 50 and len(querier.batches) < 20
        assert querier.alone == []
        pool.close()

    asyncio.run(main())


@pytest.mark.parametrize("how", ["raises", "lies", "is short", "hangs"])
def test_a_batch_that_fails_spoils_no_check_of_it(how: str, caplog: pytest.LogCaptureFixture) -> None:
    release = threading.Event()

    def many(ids: list[str]) -> Any:
        if "bad" in ids:
            if how == "raises":
                raise RuntimeError("syntax error")
            if how == "hangs":
                release.wait(20)
            return [None] * len(ids) if how == "lies" else []
        return [COMMITTED] * len(ids)

    def one(tx_id: str) -> TransactionState:
        if tx_id == "bad":
            raise RuntimeError("alone, too")
        return COMMITTED

    async def main() -> None:
        querier = InBatches(many, one)
        pool = QueryPool(querier, AnswererConfig(query_timeout_s=0.4, query_slow_s=0.1, query_batch=16))
        asked = [asyncio.create_task(ask(pool, name)) for name in ("a", "bad", "b", "c")]
        outcomes = await asyncio.gather(*asked)
        assert outcomes[1] == (UNKNOWN, Trouble.RAISED)
        assert [outcomes[i] for i in (0, 2, 3)] == [(COMMITTED, Trouble.NONE)] * 3
        release.set()
        assert await ask(pool, "d") == (COMMITTED, Trouble.NONE)
        pool.close()

    asyncio.run(main())
    assert "each is asked individually" in caplog.text.lower()


def test_batches_become_smaller_while_they_fail_and_larger_again() -> None:
    broken = True

    def many(ids: list[str]) -> list[TransactionState]:
        time.sleep(0.005)
        if broken:
            raise RuntimeError("no connection")
        return [COMMITTED] * len(ids)

    async def main() -> None:
        nonlocal broken
        querier = InBatches(many, lambda tx_id: COMMITTED)
        pool = QueryPool(querier, AnswererConfig(query_batch=32, query_threads=1))
        for _ in range(8):
            await asyncio.gather(*(ask(pool, f"t{i}") for i in range(32)))
        assert querier.batches[-1] == 1, querier.batches
        broken = False
        for _ in range(8):
            await asyncio.gather(*(ask(pool, f"t{i}") for i in range(32)))
        assert max(querier.batches[-5:]) >= 16, querier.batches
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
