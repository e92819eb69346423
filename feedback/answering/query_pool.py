"""Runs the application's querier in a bounded pool, with a time limit per check.

The querier is foreign code: it may raise, hang for ever, or answer nonsense. Python cannot end a
thread, so one that hangs is written off and replaced, up to a bound; beyond it the producer takes no
more checks until some return. All threads are daemons: a hanging querier must never keep the
application's process from ending.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from escrowmq.feedback.config import AnswererConfig
from escrowmq.feedback.policy import Trouble
from escrowmq.feedback.states import TransactionState, TxStatusQuerier

log = logging.getLogger(__name__)

QueryOutcome = tuple[TransactionState, Trouble]
_RAISED: QueryOutcome = (TransactionState.UNKNOWN, Trouble.RAISED)


@dataclass(slots=True, eq=False)
class _Job:
    """One query. The flags are guarded by the pool's lock: taken by a thread, given up before that,
    written off after it, finished."""

    tx_id: str
    query_id: str
    started: asyncio.Future[None]
    answered: asyncio.Future[QueryOutcome]
    taken: bool = False
    given_up: bool = False
    written_off: bool = False
    finished: bool = False


class QueryPool:
    """``ask`` is called in one event loop; the querier runs in the pool's threads."""

    def __init__(self, querier: TxStatusQuerier, config: AnswererConfig) -> None:
        self._querier, self._config = querier, config
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = self._stuck = self._pending = 0
        self._closed = False

    @property
    def room(self) -> int:
        """Checks that may be taken now."""
        config = self._config
        healthy = min(config.query_threads, config.query_threads + config.stuck_threads_max - self._stuck)
        return max(healthy * config.checks_per_thread - self._pending, 0)

    @property
    def full_room(self) -> int:
        """``room`` of an idle pool."""
        return self._config.query_threads * self._config.checks_per_thread

    @property
    def stuck(self) -> int:
        """Threads whose query timed out and has not returned."""
        return self._stuck

    async def ask(
        self, tx_id: str, query_id: str, start_within_s: float, late: Callable[[TransactionState], None]
    ) -> QueryOutcome:
        """What the querier says; UNKNOWN with a trouble if it does not.

        Given up as BUSY when no thread is free within ``start_within_s``. ``late`` gets what a query
        that timed out says in the end, in the event loop.
        """
        loop = asyncio.get_running_loop()
        job = _Job(tx_id, query_id, loop.create_future(), loop.create_future())
        self._pending += 1
        try:
            self._grow()
            self._jobs.put(job)
            await asyncio.wait({job.started}, timeout=start_within_s)
            with self._lock:
                if not job.taken:
                    job.given_up = True
                    return TransactionState.UNKNOWN, Trouble.BUSY
            await asyncio.wait({job.answered}, timeout=self._config.query_timeout_s)
            if job.answered.done() or not self._write_off(job):
                return await job.answered
            job.answered.add_done_callback(lambda answered: late(answered.result()[0]))
            return TransactionState.UNKNOWN, Trouble.TIMED_OUT
        finally:
            self._pending -= 1

    def close(self) -> None:
        """No more queries are started. Threads end when their query does."""
        with self._lock:
            self._closed = True
            threads = self._threads
        for _ in range(threads):
            self._jobs.put(None)

    # ---------------------------------------------------------------- threads

    def _grow(self) -> None:
        with self._lock:
            healthy = self._threads - self._stuck
            wanted = min(self._config.query_threads, self._pending)
            if self._closed or healthy >= wanted:
                return
            if self._threads >= self._config.query_threads + self._config.stuck_threads_max:
                return
            self._threads += 1
            number = self._threads
        threading.Thread(target=self._work, name=f"escrowmq-querier-{number}", daemon=True).start()

    def _write_off(self, job: _Job) -> bool:
        """The query hangs; False if it has just ended."""
        with self._lock:
            if job.finished:
                return False
            job.written_off = True
            self._stuck += 1
            stuck = self._stuck
        log.error(
            "query_status(%r, %r) has not answered for %g s (%d such queries hang); the check is repeated "
            "later. Give the querier's own calls a time-out",
            job.tx_id,
            job.query_id,
            self._config.query_timeout_s,
            stuck,
        )
        if stuck >= self._config.stuck_threads_max + self._config.query_threads:
            log.error("all threads for checks hang: this producer takes no more checks until some return")
        self._grow()
        return True

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                break
            with self._lock:
                if job.given_up or self._closed:
                    continue
                job.taken = True
            _tell(job.started, None)
            outcome = self._query(job)
            with self._lock:
                job.finished = True
                if job.written_off:
                    self._stuck -= 1
                surplus = self._threads - self._stuck > self._config.query_threads
            _tell(job.answered, outcome)
            if surplus:
                break  # its replacement has its place
        with self._lock:
            self._threads -= 1

    def _query(self, job: _Job) -> QueryOutcome:
        try:
            state: Any = self._querier.query_status(job.tx_id, job.query_id)
        except Exception:
            log.exception("query_status(%r, %r) raised; counts as UNKNOWN", job.tx_id, job.query_id)
            return _RAISED
        if not isinstance(state, TransactionState):
            log.error(
                "query_status(%r, %r) returned %r; it must return a TransactionState. Counts as UNKNOWN",
                job.tx_id,
                job.query_id,
                state,
            )
            return _RAISED
        return state, Trouble.NONE


def _tell(future: asyncio.Future[Any], value: object) -> None:
    """Set a future's result from another thread; a loop that has ended needs no answer."""

    def set_result() -> None:
        if not future.done():
            future.set_result(value)

    try:
        future.get_loop().call_soon_threadsafe(set_result)
    except RuntimeError:
        return
