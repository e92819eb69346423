"""Runs the parts of all clients and brokers of a cluster in memory, and keeps its time.

There are no threads. A caller's thread runs all parts until none has anything left to do, so a call has had
all its effects when it returns. Time stands still meanwhile. It moves on

- when the test moves it (``advance``),
- when the thread that created the cluster waits (``poll`` with nothing to read): time jumps to the next
  event, or to the end of the wait,
- when a request gets no answer, as in a planned failure: time jumps to the next attempt, or to the deadline,
- while another thread or an event loop waits: at the speed of real time.

One thread at a time runs parts. Application code (queriers) runs when the parts are at rest, with no lock
held.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from escrowmq.actors.client.background import Step
from escrowmq.actors.client.wakeup import ObservableCondition, Wakeup

#: Limit of steps at one point in time. More than that is an endless loop.
STEPS_MAX = 1_000_000
NEVER = float("inf")


class Stage:
    """See the module's text. The ``Background`` of all clients. Thread-safe."""

    def __init__(self, start_s: float) -> None:
        """``start_s``: the time at which it begins, in seconds since the epoch."""
        self._start_s, self._now = start_s, 0.0
        #: Held while parts run.
        self.lock = threading.RLock()
        self._moved = threading.Condition(threading.Lock())
        self._workers: list[StagedWorker] = []
        self._jobs: deque[Callable[[], None]] = deque()
        self._depth = 0
        self._stepping: StagedWorker | None = None
        self._held = _Held()
        self._owner = threading.get_ident()
        #: Whether the call that a broker executes now has no time left to wait (parking.py).
        self.no_waiting = False

    # ------------------------------------------------------------ Background

    @property
    def clock(self) -> Callable[[], float]:
        """See ``Background``."""
        return self.now

    def worker(
        self,
        step: Step,
        name: str,
        waited_for: Callable[[], bool] | None = None,
        *,
        blocks: bool = False,
        wakeup: Wakeup | None = None,
    ) -> StagedWorker:
        """See ``Background``. Nothing here waits for sockets."""
        return StagedWorker(self, step, name, waited_for, blocks=blocks)

    def condition(self, lock: threading.Lock | None = None) -> StagedCondition:
        """See ``Background``."""
        return StagedCondition(self, lock)

    def passed(self, until: float) -> None:
        """See ``Background``."""
        self.advance_to(until)

    # ------------------------------------------------------------ time

    def now(self) -> float:
        """Seconds since its time began."""
        return self._now

    def wall_s(self) -> float:
        """See ``Background``."""
        return self._start_s + self._now

    def wall_ms(self) -> int:
        """Milliseconds since the epoch. (Rounded: the sum of two floats may be slightly too low, and would
        then be a millisecond early.)"""
        return round(self.wall_s() * 1000)

    def advance_to(self, target: float) -> None:
        """Run everything that is due until ``target``, in order."""
        self.run()
        while (due := self._next_due()) <= target:
            self._move_to(due)
            self.run()
        self._move_to(target)
        self.run()

    def wait(self, news: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until ``news()`` is true, for at most ``timeout_s``. Returns whether it is. The caller must
        hold no lock."""
        self.run()
        deadline = self._now + timeout_s
        if threading.get_ident() != self._owner:
            return self._wait_really(news, deadline, timeout_s)
        while not news():
            due = self._next_due()
            self._move_to(min(due, deadline))
            self.run()
            if due > deadline:
                break
        return news()

    def _wait_really(self, news: Callable[[], bool], deadline: float, timeout_s: float) -> bool:
        ends = time.monotonic() + timeout_s
        with self._moved:
            while not news() and self._now < deadline and (left := ends - time.monotonic()) > 0:
                self._moved.wait(left)
        if not news():
            self.advance_to(deadline)
        return news()

    def _move_to(self, when: float) -> None:
        with self.lock:
            self._now = max(self._now, when)

    def _next_due(self) -> float:
        with self.lock:
            return min((worker.wake for worker in self._workers), default=NEVER)

    # ------------------------------------------------------------ running

    def later(self, job: Callable[[], None]) -> None:
        """Run application code when the parts are at rest."""
        self._jobs.append(job)

    def run(self) -> None:
        """Run parts until none has anything to do. While the caller holds a condition, nothing runs; the
        parts run when it is released."""
        if self._held.depth:
            return
        with self.lock:
            below = self._stepping
            if below is not None and not below.blocks:
                return  # called by a part: the loop that runs this part runs the others afterwards
            self._depth += 1
            try:
                self._run_parts()
            finally:
                self._depth, self._stepping = self._depth - 1, below
            outermost = self._depth == 0
        if outermost:
            while self._jobs:
                _carry_out(self._jobs.popleft())
            with self._moved:
                self._moved.notify_all()

    def _run_parts(self) -> None:
        steps = 0
        while True:
            ready = [worker for worker in self._workers if worker.ready(self._now)]
            for worker in ready:
                if worker.ready(self._now):
                    self._stepping = worker
                    worker.go()
                    self._stepping = None
                    steps += 1
            assert steps < STEPS_MAX, f"goes round in circles: {[worker.name for worker in ready]}"
            if ready:
                continue
            if not any(worker.waited_for() for worker in self._workers):
                return
            due = self._next_due()
            if due == NEVER:
                return
            self._move_to(due)

    def add(self, worker: StagedWorker) -> None:
        """Run this worker from now on."""
        with self.lock:
            self._workers.append(worker)

    def remove(self, worker: StagedWorker) -> None:
        """Stop running this worker: it has ended."""
        with self.lock:
            if worker in self._workers:
                self._workers.remove(worker)

    @property
    def held(self) -> _Held:
        """How many conditions this thread holds."""
        return self._held


class _Held(threading.local):
    depth = 0


class StagedWorker(Wakeup):
    """Runs one part when the stage says so. Its own wake-up."""

    __slots__ = ("_part_waited_for", "_stage", "_step", "_stepping", "_woken", "blocks", "name", "wake")

    def __init__(
        self,
        stage: Stage,
        step: Step,
        name: str,
        waited_for: Callable[[], bool] | None = None,
        *,
        blocks: bool = False,
    ) -> None:
        super().__init__()
        self._stage, self._step, self.name, self.blocks = stage, step, name, blocks
        self._part_waited_for = waited_for
        self._woken, self._stepping = True, False
        #: When its next step is due at the latest.
        self.wake = NEVER

    @property
    def wakeup(self) -> Wakeup:
        """See ``Worker``."""
        return self

    def start(self) -> None:
        """See ``Worker``."""
        self._stage.add(self)
        self._stage.run()

    def join(self) -> None:
        """See ``Worker``."""
        self._stage.run()

    def set(self) -> None:
        """See ``Wakeup``: the part has run when this returns, unless the caller holds a condition."""
        self._woken = True
        self._stage.run()

    def clear(self) -> None:
        """See ``Wakeup``."""
        self._woken = False

    def ready(self, now: float) -> bool:
        """Whether it has something to do and is not running already, further down this call stack."""
        return (self._woken or self.wake <= now) and not self._stepping

    def waited_for(self) -> bool:
        """Whether a caller waits for something that happens only when time moves on."""
        return not self._stepping and self._part_waited_for is not None and self._part_waited_for()

    def go(self) -> None:
        """Run one step."""
        self._woken, self._stepping, self.wake = False, True, NEVER
        try:
            wake = self._step()
        except BaseException:
            self._stage.remove(self)
            raise
        finally:
            self._stepping = False
        if wake is None:
            self._stage.remove(self)
        else:
            self.wake = wake


class StagedCondition(ObservableCondition):
    """Releasing it runs the parts that were woken meanwhile. Waiting on it lets time pass."""

    def __init__(self, stage: Stage, lock: threading.Lock | None = None) -> None:
        super().__init__(lock)
        self._stage = stage
        self._told = 0

    def __enter__(self) -> bool:
        entered = super().__enter__()
        self._stage.held.depth += 1
        return entered

    def __exit__(self, *exc: object) -> None:
        self._stage.held.depth -= 1
        super().__exit__(*exc)  # type: ignore[arg-type]
        self._stage.run()

    def notify_all(self) -> None:
        """See ``ObservableCondition``."""
        self._told += 1
        super().notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for a notification. Returns whether there was one."""
        told = self._told
        saved = self._release_save()  # type: ignore[attr-defined]
        held, self._stage.held.depth = self._stage.held.depth, 0
        try:
            return self._stage.wait(lambda: self._told != told, NEVER if timeout is None else timeout)
        finally:
            self._stage.held.depth = held
            self._acquire_restore(saved)  # type: ignore[attr-defined]


def _carry_out(job: Callable[[], None]) -> None:
    """Application code meets no running event loop, as in the threads of a real client: it may call
    ``asyncio.run``, as the querier of an ``AsyncFence`` does."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        job()
        return
    with ThreadPoolExecutor(1, "escrowmq-querier") as pool:
        pool.submit(job).result()
