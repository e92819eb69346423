"""Starts and ends Workers as Spark wants executors, so that unused resources are free in Ray.

Spark's dynamic allocation decides how many executors it wants and gives back idle ones. It asks the Master,
which can only use existing Workers. A thread in the driver follows the wanted number: it starts an actor for
every wanted executor, and ends Workers without executors. An actor for which Ray has no room waits; the
session continues with the executors that it has.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

log = logging.getLogger(__name__)

#: Spark itself adjusts the number once per second (spark.dynamicAllocation.schedulerBacklogTimeout).
LOOK_EVERY_S = 1.0
#: A Worker without an executor may be about to get one, so it is ended only after this many such looks.
IDLE_LOOKS = 3
#: Number of looks that may fail in a row before scaling ends.
FAILURES_MAX = 10


class Workers(Protocol):
    """The set of Workers that is scaled."""

    def executors_by_worker(self) -> dict[str, int | None]:
        """The number of executors of each Worker; None for one that has not started or does not answer."""

    def add_worker(self) -> None:
        """Ask Ray for one more Worker."""

    def remove_worker(self, worker: str) -> None:
        """End one Worker."""


class Scaler:
    """Decides which Workers to add and to remove. :meth:`look` must be called regularly."""

    def __init__(self, workers: Workers, least: int, most: int) -> None:
        self._workers, self._least, self._most = workers, least, most
        self._idle_looks: dict[str, int] = {}

    def look(self, target: int) -> None:
        """Adjust the Workers. ``target``: the number of executors that Spark wants now."""
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
    """The Workers in the order of removal: those that have not even started come first."""
    return sorted(spare, key=lambda worker: running[worker] is not None)


class ScalingThread:
    """Calls the scaler once per second, until it is stopped or the session has ended."""

    def __init__(self, scaler: Scaler, target: Callable[[], int]) -> None:
        self._scaler, self._target = scaler, target
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spark-scaling", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop scaling; no further change is made after this returns."""
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
                if failures == FAILURES_MAX:  # the session or Ray has ended
                    log.info("Spark's executors are no longer scaled: %r", error)
                    return


def executors_wanted(spark: Any) -> int:
    """The number of executors that Spark's dynamic allocation wants, from its own gauge."""
    manager = spark.sparkContext._jsc.sc().executorAllocationManager().get()
    gauges = manager.executorAllocationManagerSource().metricRegistry().getGauges()
    return int(gauges.get("executors.numberTargetExecutors").getValue())
