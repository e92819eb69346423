"""Workers come and go with the executors that Spark wants, so that what is not used is free in Ray.

Spark's dynamic allocation decides how many executors it wants and gives back idle ones; it asks the Master,
which can only use the Workers that are there. A thread in the driver follows that number: it starts an
actor for every executor that is wanted, and ends Workers that have none. An actor for which Ray has
no room waits; the session goes on with what it has.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

log = logging.getLogger(__name__)

#: Spark itself changes its mind once a second (spark.dynamicAllocation.schedulerBacklogTimeout).
LOOK_EVERY_S = 1.0
#: A Worker that has no executor may be about to get one: it is ended when so many looks found it so.
IDLE_LOOKS = 3
#: Looks that fail one after the other until there is nothing left to scale.
FAILURES_MAX = 10


class Workers(Protocol):
    """What is scaled: identities of the Workers there are, and the two things to be done."""

    def executors_by_worker(self) -> dict[str, int | None]:
        """How many executors each Worker runs; None for one that has not started or does not answer."""

    def add_worker(self) -> None:
        """Ask Ray for one more."""

    def remove_worker(self, worker: str) -> None:
        """End one."""


class Scaler:
    """The decisions. :meth:`look` is called once in a while, and remembers who was idle before."""

    def __init__(self, workers: Workers, least: int, most: int) -> None:
        self._workers, self._least, self._most = workers, least, most
        self._idle_looks: dict[str, int] = {}

    def look(self, target: int) -> None:
        """``target``: how many executors Spark wants now."""
        running = self._workers.executors_by_worker()
        wanted = min(max(target, self._least), self._most)
        for _ in range(wanted - len(running)):
            self._workers.add_worker()
        self._idle_looks = {
            worker: self._idle_looks.get(worker, 0) + 1 for worker, count in running.items() if not count
        }
        spare = [worker for worker, looks in self._idle_looks.items() if looks >= IDLE_LOOKS]
        for worker in _waiting_first(spare, running)[: max(0, len(running) - wanted)]:
            self._workers.remove_worker(worker)
            del self._idle_looks[worker]


def _waiting_first(spare: Sequence[str], running: dict[str, int | None]) -> list[str]:
    """Those that have not even started cost least to be without."""
    return sorted(spare, key=lambda worker: running[worker] is not None)


class ScalingThread:
    """Looks once a second, until it is stopped or the session has ended."""

    def __init__(self, scaler: Scaler, target: Callable[[], int]) -> None:
        self._scaler, self._target = scaler, target
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spark-scaling", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Return when no further decision will be made."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        failures = 0
        while not self._stopping.wait(LOOK_EVERY_S):
            try:
                self._scaler.look(self._target())
                failures = 0
            except Exception as error:  # Ray or Spark may be busy for a moment; the next look tries again
                failures += 1
                log.debug("a look at Spark's executors failed: %r", error)
                if failures == FAILURES_MAX:  # the session ended by itself, or Ray did
                    log.info("Spark's executors are not scaled any more: %r", error)
                    return


def executors_wanted(spark: Any) -> int:
    """The number that Spark's dynamic allocation aims at, from its own gauge."""
    manager = spark.sparkContext._jsc.sc().executorAllocationManager().get()
    gauges = manager.executorAllocationManagerSource().metricRegistry().getGauges()
    return int(gauges.get("executors.numberTargetExecutors").getValue())
