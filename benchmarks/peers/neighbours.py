"""How much of the machine other work took meanwhile: a round or a warm-up beside much of it says nothing.

Ours is this process with all that it started: servers, load programs, Ray.
"""

from __future__ import annotations

import os
import time

import psutil

#: A round counts if others kept at most this share of the machine busy: a fifth of a core of two.
OTHERS_MAX = 0.1


class Neighbours:
    """Counts from when it is made."""

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._busy = _busy_s()
        self._own = _own_s()

    def own_s(self) -> float:
        """Processor seconds of ours."""
        return sum(max(0.0, used - self._own.get(pid, 0.0)) for pid, used in _own_s().items())

    def share(self) -> float:
        """The share of all cores that others kept busy, from 0 to 1."""
        seconds = max(0.01, time.monotonic() - self._begin)
        others = _busy_s() - self._busy - self.own_s()
        return min(1.0, max(0.0, others / seconds / (os.cpu_count() or 1)))


def _busy_s() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq)


def _own_s() -> dict[int, float]:
    me = psutil.Process()
    found = {}
    for process in [me, *me.children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        found[process.pid] = float(times.user + times.system)
    return found
