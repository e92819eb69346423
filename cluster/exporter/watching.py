"""Looks every few seconds, and keeps what the last look found: a reader never waits for a broker.

Two threads: one looks, the other (serving.py) answers readers out of what is kept here.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from escrowmq.cluster.exporter.findings import Found
from escrowmq.cluster.exporter.series import Key, Series, Value

log = logging.getLogger(__name__)

#: Prometheus scrapes every 15 s or more; a look costs a replica a millisecond or two.
EVERY_S = 5.0
#: So many looks may be missed before what is known counts as old.
MISSED_MAX = 3
#: Longest wait for the thread at the end: a look is bounded.
END_S = 10.0


class Looking(Protocol):
    """What looks: see ``Looks``."""

    def look(self) -> Found: ...


class Watching:
    """A thread that looks. ``start`` it; ``close`` ends it. All else from any thread."""

    def __init__(
        self,
        looks: Looking,
        every_s: float = EVERY_S,
        *,
        seen: Callable[[Mapping[Key, Value]], None] = lambda series: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``seen`` is called with what each look found, in the looking thread. ``clock``: never set back; a
        time of day may be, and would hide that looks hang."""
        self._looks, self._every_s, self._seen, self._clock = looks, every_s, seen, clock
        self._series = Series()
        self._found: Found | None = None
        self._looked_at = 0.0
        self._last: Mapping[Key, Value] = {}
        self._trouble = "it has not looked yet"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="exporter-look", daemon=True)

    def start(self) -> None:
        """Begin; the first look is under way on return."""
        self._thread.start()

    def close(self) -> None:
        """End the thread; a look under way is waited for."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(END_S)

    def series(self) -> Mapping[Key, Value]:
        """Of the last look; nobody changes it any more. Empty before the first one."""
        return self._last

    def trouble(self) -> str | None:
        """Why what is known is old, or None: the exporter does its work."""
        found = self._found
        if found is None:
            return self._trouble
        age = self._clock() - self._looked_at
        if age <= MISSED_MAX * self._every_s + found.took_s:
            return None
        return f"the last look ended {age:.0f} s ago: {self._trouble}"

    def not_ready(self) -> list[str]:
        """Why the cluster does not take all work, as of the last look; []: it does."""
        trouble, found = self.trouble(), self._found
        if trouble is not None or found is None:
            return [trouble or self._trouble]
        leaderless = [gid for gid in found.members if found.leader(gid) is None]
        return [f"group {gid} has no leader" for gid in leaderless]

    def look(self) -> None:
        """Once, now. By ``start``'s thread, or by whoever never starts it."""
        found = self._looks.look()
        self._last = self._series.of(found)
        self._looked_at, self._found = self._clock(), found
        self._seen(self._last)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.look()
                self._trouble = "a look takes too long"
            except Exception as error:  # the next look may go better; until then what is known grows old
                log.exception("a look at the cluster failed")
                self._trouble = repr(error)
            self._stop.wait(self._every_s)
