"""Puts the exporter together, for a cluster that this process has joined."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from escrowmq.actors.client.ray_calls import RayFeedbackProcesses
from escrowmq.actors.client.router import Router
from escrowmq.cluster.exporter.findings import Found
from escrowmq.cluster.exporter.looking import WAIT_S, Looks
from escrowmq.cluster.exporter.series import Key, Series, Value
from escrowmq.cluster.handle import Cluster
from escrowmq.replication.errors import EscrowMQError

# ------------------------------------------------------------------------------------------------------------
# Looks at the cluster every few seconds and keeps the last result, so a reader never waits for a broker.
#
# One thread looks; another (serving.py) answers readers from the result that is kept here.

log = logging.getLogger(__name__)

#: Seconds between looks. Prometheus scrapes every 15 s or more; a look costs a replica a millisecond or two.
EVERY_S = 5.0
#: Number of looks that may be missed before the last result counts as out of date.
MISSED_MAX = 3
#: Longest wait for the thread in ``close``; a look has a time limit.
END_S = 10.0


class Looking(Protocol):
    """Something that can look at the cluster; see ``Looks``."""

    def look(self) -> Found: ...


class Watching:
    """A thread that looks, from ``start`` to ``close``. Its other methods are thread-safe."""

    def __init__(
        self,
        looks: Looking,
        every_s: float = EVERY_S,
        *,
        seen: Callable[[Mapping[Key, Value]], None] = lambda series: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``seen`` is called with the series of each look, in the thread that looks. ``clock`` must be
        monotonic: a wall clock may be set back, and would then hide that looks hang."""
        self._looks, self._every_s, self._seen, self._clock = looks, every_s, seen, clock
        self._series = Series()
        self._found: Found | None = None
        self._looked_at = 0.0
        self._last: Mapping[Key, Value] = {}
        self._trouble = "it has not looked yet"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="exporter-look", daemon=True)

    def start(self) -> None:
        """Start the thread; it begins with the first look."""
        self._thread.start()

    def close(self) -> None:
        """End the thread, after the look in progress."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(END_S)

    def series(self) -> Mapping[Key, Value]:
        """The series of the last look, never changed afterwards. Empty before the first look."""
        return self._last

    def trouble(self) -> str | None:
        """Why the last result is out of date; None if it is recent."""
        found = self._found
        if found is None:
            return self._trouble
        age = self._clock() - self._looked_at
        if age <= MISSED_MAX * self._every_s + found.took_s:
            return None
        return f"the last look ended {age:.0f} s ago: {self._trouble}"

    def not_ready(self) -> list[str]:
        """Why the cluster cannot accept all work, as of the last look; empty if it can."""
        trouble, found = self.trouble(), self._found
        if trouble is not None or found is None:
            return [trouble or self._trouble]
        leaderless = [gid for gid in found.members if found.leader(gid) is None]
        return [f"group {gid} has no leader" for gid in leaderless]

    def look(self) -> None:
        """Look once, now. Called by the thread, or directly if it is never started."""
        found = self._looks.look()
        self._last = self._series.of(found)
        self._looked_at, self._found = self._clock(), found
        self._seen(self._last)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.look()
                self._trouble = "a look takes too long"
            except Exception as error:  # the next look may succeed; ``trouble`` says if none does
                log.exception("a look at the cluster failed")
                self._trouble = repr(error)
            self._stop.wait(self._every_s)


class Exporter:
    """Looks at a cluster regularly from ``start`` to ``close``. Close it before the cluster."""

    def __init__(
        self,
        cluster: Cluster,
        every_s: float = EVERY_S,
        *,
        seen: Callable[[Mapping[Key, Value]], None] = lambda series: None,
    ) -> None:
        """``seen`` is called with the series of each look."""

        def supervisor() -> bool:
            try:
                cluster.health()
            except EscrowMQError:
                return False
            return True

        self._router = Router(cluster.info, name="escrowmq-exporter")
        self._feedback = RayFeedbackProcesses(cluster.info.namespace)
        self._looks = Looks(self._router, self._feedback, supervisor, wait_s=min(WAIT_S, every_s))
        self.watching = Watching(self._looks, every_s, seen=seen)

    def start(self) -> None:
        """Start looking."""
        self.watching.start()

    def close(self) -> None:
        """Stop looking."""
        self.watching.close()
        self._looks.close()
        self._feedback.close()
        self._router.close()
