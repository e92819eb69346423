"""Runs the application's querier in a bounded pool, with a time limit per check.

The querier is foreign code: it may raise, hang for ever, or return nonsense, for some checks and not for
others. Python cannot end a thread. So a slow thread is replaced at once, and no check waits long behind
another one's slow database. A hanging thread is written off, up to a bound; beyond it the producer takes no
more checks until some return. All threads are daemons: a hanging querier must never keep the
application's process from ending.

A querier that has ``query_statuses`` gets many checks in one call. When that raises, hangs or returns
nonsense, each of them is asked individually, so that one bad check spoils no other, and the next calls take
fewer.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from escrowmq.feedback.config import AnswererConfig
from escrowmq.feedback.policy import Trouble
from escrowmq.feedback.states import AnotherTable, TransactionState, TxStatusQuerier

log = logging.getLogger(__name__)

QueryOutcome = tuple[TransactionState, Trouble]
_RAISED: QueryOutcome = (TransactionState.UNKNOWN, Trouble.RAISED)
_ELSEWHERE: QueryOutcome = (TransactionState.UNKNOWN, Trouble.ELSEWHERE)
#: A call for many checks gets this share of the time for one; then each is asked individually.
BATCH_TIME = 0.5


@dataclass(slots=True, eq=False)
class _Call:
    """One call of the querier, for one check or many. Guarded by the pool's lock: ``slow``: its thread was
    replaced; ``written_off``: it hangs; ``finished``."""

    jobs: Sequence[_Job]
    slow: bool = False
    written_off: bool = False
    finished: bool = False


@dataclass(slots=True, eq=False)
class _Job:
    """One check that waits for a thread. Guarded by the pool's lock: ``call``, once a thread has taken it,
    and ``given_up``, if its caller stopped waiting before that. ``answered`` is None if its batch failed."""

    tx_id: str
    query_id: str
    alone: bool
    started: asyncio.Future[None]
    answered: asyncio.Future[QueryOutcome | None]
    call: _Call | None = None
    given_up: bool = False


@dataclass(slots=True)
class _Threads:
    """The number of threads, of slow ones that were replaced, and of slow ones that were written off."""

    all: int = 0
    slow: int = 0
    stuck: int = 0


class QueryPool:
    """``ask`` is called in one event loop; the querier runs in the pool's threads."""

    def __init__(self, querier: TxStatusQuerier, config: AnswererConfig) -> None:
        self._querier, self._config = querier, config
        self._many = type(querier).query_statuses is not TxStatusQuerier.query_statuses
        self._batch = config.query_batch if self._many else 1
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = _Threads()
        self._pending = 0
        self._closed = False
        #: What the querier said last when its connection led to another table.
        self.led_elsewhere = ""

    @property
    def fence(self) -> bytes:
        """The table that the querier answers from, as far as it is known."""
        return self._querier.fence

    @property
    def room(self) -> int:
        """Checks that may be taken now."""
        config = self._config
        healthy = min(
            config.query_threads, config.query_threads + config.stuck_threads_max - self._threads.stuck
        )
        return max(healthy * self._checks_per_thread - self._pending, 0)

    @property
    def full_room(self) -> int:
        """``room`` of an idle pool."""
        return self._config.query_threads * self._checks_per_thread

    @property
    def stuck(self) -> int:
        """Threads whose query timed out and has not returned."""
        return self._threads.stuck

    @property
    def _checks_per_thread(self) -> int:
        config = self._config
        return max(config.checks_per_thread, config.query_batch) if self._many else config.checks_per_thread

    async def ask(
        self, tx_id: str, query_id: str, start_within_s: float, late: Callable[[TransactionState], None]
    ) -> QueryOutcome:
        """The querier's answer; UNKNOWN with a trouble if there is none.

        Given up as BUSY if no thread is free within ``start_within_s``. ``late`` is called with the eventual
        answer of a query that timed out, in the event loop.
        """
        timeout_s = self._config.query_timeout_s
        self._pending += 1
        try:
            if self._many:
                outcome = await self._attempt(
                    self._job(tx_id, query_id, alone=False), start_within_s, BATCH_TIME * timeout_s, None
                )
                if outcome is not None:
                    return outcome
                start_within_s = BATCH_TIME * timeout_s
            outcome = await self._attempt(
                self._job(tx_id, query_id, alone=True), start_within_s, timeout_s, late
            )
            assert outcome is not None
            return outcome
        finally:
            self._pending -= 1

    def _job(self, tx_id: str, query_id: str, *, alone: bool) -> _Job:
        loop = asyncio.get_running_loop()
        return _Job(tx_id, query_id, alone, loop.create_future(), loop.create_future())

    async def _attempt(
        self,
        job: _Job,
        start_within_s: float,
        timeout_s: float,
        late: Callable[[TransactionState], None] | None,
    ) -> QueryOutcome | None:
        """Give one check to a thread; None: its batch failed."""
        self._grow()
        self._jobs.put(job)
        await asyncio.wait({job.started}, timeout=start_within_s)
        with self._lock:
            call = job.call
            if call is None:
                job.given_up = True
                return TransactionState.UNKNOWN, Trouble.BUSY
        patience_s = min(self._config.query_slow_s, timeout_s)
        await asyncio.wait({job.answered}, timeout=patience_s)
        if not job.answered.done() and self._is_slow(call):
            self._grow()
            await asyncio.wait({job.answered}, timeout=timeout_s - patience_s)
        if job.answered.done() or not self._write_off(call):
            return await job.answered
        if late is None:
            return None

        def tell_late(answered: asyncio.Future[QueryOutcome | None]) -> None:
            said = answered.result()
            if said is not None:
                late(said[0])

        job.answered.add_done_callback(tell_late)
        return TransactionState.UNKNOWN, Trouble.TIMED_OUT

    def close(self) -> None:
        """Starts no more queries. A thread ends when its query does."""
        with self._lock:
            self._closed = True
            threads = self._threads.all
        for _ in range(threads):
            self._jobs.put(None)

    # ---------------------------------------------------------------- threads

    def _grow(self) -> None:
        """Start another thread, if waiting checks would not be taken soon by the working ones."""
        with self._lock:
            config, threads = self._config, self._threads
            healthy = threads.all - threads.slow
            if self._closed or healthy >= min(config.query_threads, self._pending):
                return
            if threads.all >= config.query_threads + config.stuck_threads_max:
                return
            threads.all += 1
            number = threads.all
        try:
            self._start(number)
        except RuntimeError as error:  # no room for another one now: the next check tries again
            self._ended()
            log.error("no thread for checks: %s; what those that run cannot take comes back later", error)

    def _start(self, number: int) -> None:
        threading.Thread(target=self._work, name=f"escrowmq-querier-{number}", daemon=True).start()

    def _is_slow(self, call: _Call) -> bool:
        """From now on its thread is surplus; False if the call has just ended."""
        with self._lock:
            if call.finished:
                return False
            if not call.slow:
                call.slow = True
                self._threads.slow += 1
            return True

    def _write_off(self, call: _Call) -> bool:
        """The query hangs; False if it has just ended."""
        with self._lock:
            if call.finished:
                return False
            if call.written_off:
                return True
            call.written_off = True
            self._threads.stuck += 1
            stuck = self._threads.stuck
            if len(call.jobs) > 1:
                self._batch = max(self._batch // 2, 1)
        first = call.jobs[0]
        log.error(
            "%s has not answered for %g s (%d such calls hang); %s. Give the querier's own calls a time-out",
            f"query_status({first.tx_id!r}, {first.query_id!r})"
            if first.alone
            else f"query_statuses of {len(call.jobs)} checks",
            self._config.query_timeout_s * (1 if first.alone else BATCH_TIME),
            stuck,
            "the check is repeated later" if first.alone else "each is asked individually",
        )
        if stuck >= self._config.stuck_threads_max + self._config.query_threads:
            log.error("all threads for checks hang: this producer takes no more checks until some return")
        self._grow()
        return True

    def _work(self) -> None:
        while not self._serve():
            pass
        self._ended()

    def _ended(self) -> None:
        with self._lock:
            self._threads.all -= 1

    def _serve(self) -> bool:
        """Make one call of the querier. Returns whether the thread must end."""
        jobs, ended = self._take()
        if not jobs:
            return ended
        call = jobs[0].call
        assert call is not None
        outcomes = self._query(jobs)
        with self._lock:
            call.finished = True
            self._threads.slow -= call.slow
            self._threads.stuck -= call.written_off
            surplus = self._threads.all - self._threads.slow > self._config.query_threads
        for job, outcome in zip(jobs, outcomes, strict=True):
            _tell(job.answered, outcome)
        return ended or surplus  # its replacement has its place

    def _take(self) -> tuple[list[_Job], bool]:
        """The jobs for one call of the querier, and whether the pool is closing."""
        jobs: list[_Job] = []
        job = self._jobs.get()
        while job is not None:
            with self._lock:
                if not job.given_up and not self._closed:
                    jobs.append(job)
            if job.alone or len(jobs) >= self._batch:
                break
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                break
            if job is not None and job.alone and jobs:
                self._jobs.put(job)  # it needs a call of its own
                break
        with self._lock:
            jobs = [job for job in jobs if not job.given_up]
            call = _Call(jobs)
            for taken in jobs:
                taken.call = call
        for taken in jobs:
            _tell(taken.started, None)
        return jobs, job is None

    def _query(self, jobs: Sequence[_Job]) -> Sequence[QueryOutcome | None]:
        if jobs[0].alone:
            return [self._query_one(jobs[0])]
        outcomes = self._query_many(jobs)
        with self._lock:
            if outcomes is None:
                self._batch = max(self._batch // 2, 1)
            elif len(jobs) >= self._batch:
                self._batch = min(self._batch * 2, self._config.query_batch)
        return outcomes or [None] * len(jobs)

    def _query_one(self, job: _Job) -> QueryOutcome:
        try:
            state: Any = self._querier.query_status(job.tx_id, job.query_id)
        except AnotherTable as error:
            self.led_elsewhere = str(error)
            return _ELSEWHERE
        except BaseException:  # SystemExit, too, or a cancelled task of the querier's own: see _query_many
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

    def _query_many(self, jobs: Sequence[_Job]) -> list[QueryOutcome] | None:
        """None: the call failed as a whole."""
        asked = [(job.tx_id, job.query_id) for job in jobs]
        try:
            states: Any = list(self._querier.query_statuses(asked))
        except AnotherTable:  # each is asked individually: a querier may have several tables
            return None
        except BaseException:  # a thread that it ended would count as hanging for ever
            log.exception("query_statuses of %d checks raised; each is asked individually", len(jobs))
            return None
        if len(states) != len(jobs) or not all(isinstance(state, TransactionState) for state in states):
            log.error(
                "query_statuses of %d checks returned %d values, %.200s; it must return a TransactionState "
                "for each. Each is asked individually",
                *(len(jobs), len(states), states),
            )
            return None
        return [(state, Trouble.NONE) for state in states]


def _tell(future: asyncio.Future[Any], value: object) -> None:
    """Set a future's result from another thread; if the loop has ended, it is not needed any more."""

    def set_result() -> None:
        if not future.done():
            future.set_result(value)

    try:
        future.get_loop().call_soon_threadsafe(set_result)
    except RuntimeError:
        return
