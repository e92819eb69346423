"""Processes that run the schedules of a run, and that end when the run is stopped from outside.

Each process has its own pipe and shares no lock with another one: if a process is killed, only its schedule
is lost. (A pool of ``multiprocessing`` waits forever for the lock that a killed process held.) The first
SIGTERM or Ctrl-C lets the running schedules finish within ``GRACE_S``; the second one does not. A terminal
and ``timeout`` send these signals to all processes; the workers ignore them.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

GRACE_S = 8.0  # for the schedules still running when the run is stopped; most take less than three
LOOK_S = 0.2  # how often a wait looks whether the run is stopped
T = TypeVar("T")
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class WorkerFailed(Exception):
    """A worker process is gone, or the job it ran raised an exception; the text says which."""


class Ending:
    """Records SIGTERM and Ctrl-C instead of raising: the running code decides where it can stop."""

    def __init__(self) -> None:
        self.asked = 0
        self._since = 0.0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._noted) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _noted(self, number: int, frame: FrameType | None) -> None:
        if not self.asked:
            self._since = time.monotonic()
        # ``timeout`` sends its signal twice, to its child and to the group: that counts as one.
        if not self.asked or time.monotonic() - self._since > 1.0:
            self.asked += 1

    @property
    def at_once(self) -> bool:
        """Whether the running schedules get no more time."""
        return self.asked > 1 or (self.asked == 1 and time.monotonic() - self._since > GRACE_S)


@dataclass(slots=True)
class _Worker:
    process: multiprocessing.process.BaseProcess
    pipe: Connection
    job: int | None = None  # number of its job


class Workers:
    """``count`` processes. Use it in a ``with``: none of them is left at its end."""

    def __init__(self, count: int, ending: Ending) -> None:
        self._count, self._ending = count, ending
        self._workers: list[_Worker] = []
        self._numbers = iter(range(1 << 62))
        self._done: dict[int, Any] = {}

    def __enter__(self) -> Self:
        context = multiprocessing.get_context("spawn")
        for _ in range(self._count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._workers.append(_Worker(process, ours))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.join()
            worker.pipe.close()

    def results(self, jobs: Iterable[Callable[[], T]]) -> Iterator[T]:
        """What the jobs return, in their order. Ends early, with the results so far, when the run is stopped.

        The next job is taken from ``jobs`` only when a process is free. Raises WorkerFailed.
        """
        waiting: Iterator[Callable[[], T]] | None = iter(jobs)
        mine: list[int] = []  # numbers of jobs without a result yet
        while True:
            if self._ending.asked:
                waiting = None
            while waiting is not None and (free := self._free()) is not None:
                job = next(waiting, None)
                if job is None:
                    waiting = None
                else:
                    mine.append(self._start(free, job))
            while mine and mine[0] in self._done:
                yield self._done.pop(mine.pop(0))
            busy = any(worker.job is not None for worker in self._workers)
            if (waiting is None and not (mine and busy)) or self._ending.at_once:
                break
            self._wait()
        for number in mine:  # results that come after a job that did not finish in time
            if number in self._done:
                yield self._done.pop(number)

    def one(self, job: Callable[[], T]) -> T | None:
        """What this job returns, while others continue; None once the run is stopped. Raises WorkerFailed."""
        while (free := self._free()) is None:
            if self._ending.asked:
                return None
            self._wait()
        number = self._start(free, job)
        while number not in self._done:
            if self._ending.asked:
                return None
            self._wait()
        result: T = self._done.pop(number)
        return result

    def _free(self) -> _Worker | None:
        return next((worker for worker in self._workers if worker.job is None), None)

    def _start(self, worker: _Worker, job: Callable[[], object]) -> int:
        worker.job = next(self._numbers)
        try:
            worker.pipe.send(job)
        except BrokenPipeError:
            pass  # it is gone, and ``_wait`` says so
        return worker.job

    def _wait(self) -> None:
        """Wait until a process has finished its job, or for ``LOOK_S``."""
        busy = {worker.pipe: worker for worker in self._workers if worker.job is not None}
        for pipe in multiprocessing.connection.wait(list(busy), LOOK_S):
            worker = busy[pipe]  # type: ignore[index]
            assert worker.job is not None
            try:
                well, result = worker.pipe.recv()
            except (EOFError, ConnectionResetError):
                worker.process.join(1.0)
                if self._ending.asked:  # the signal reached it before it could ignore signals
                    self._workers.remove(worker)
                    continue
                text = f"a process that ran schedules has ended with {worker.process.exitcode}"
                raise WorkerFailed(text) from None
            if not well:
                raise WorkerFailed(result)
            self._done[worker.job], worker.job = result, None


def _work(pipe: Connection) -> None:
    """Run jobs in this process until the pipe is closed."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    while True:
        try:
            job = pipe.recv()
        except EOFError:
            return
        try:
            told = (True, job())
        except Exception:
            told = (False, traceback.format_exc())
        try:
            pipe.send(told)
        except BrokenPipeError:
            return
