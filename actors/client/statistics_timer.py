"""Telling an application its client's statistics now and then, in a thread of their own.

Not in the thread that talks to brokers, which runs no code of the application: a callback that blocks is late
with its own next turn and keeps nothing else from going on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from escrowmq.replication.errors import ConfigError

log = logging.getLogger(__name__)

#: More often, the callback would be a load of its own.
INTERVAL_S_MIN = 0.1
#: How long ``close`` waits for a callback that is running.
CLOSE_WAIT_S = 1.0

S = TypeVar("S")


class StatisticsTimer(Generic[S]):
    """Calls ``callback(take())`` every ``interval_s``, until it is closed. What that raises is logged."""

    def __init__(self, callback: Callable[[S], object], interval_s: float, take: Callable[[], S]) -> None:
        """Raises ConfigError."""
        if not callable(callback):
            raise ConfigError(f"statistics_callback must be callable, not {callback!r}")
        given: object = interval_s  # whatever the application says that it is
        if not isinstance(given, int | float) or not given >= INTERVAL_S_MIN:
            raise ConfigError(
                f"statistics_interval_s must be at least {INTERVAL_S_MIN} s, not {interval_s!r}"
            )
        self._callback, self._interval_s, self._take = callback, interval_s, take
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="escrowmq-statistics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """No more calls. Waits for one that is running, a second at most. May be called by the callback."""
        self._ended.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_WAIT_S)

    def _run(self) -> None:
        while not self._ended.wait(self._interval_s):
            try:
                self._callback(self._take())
            except Exception:
                log.exception("a statistics_callback failed; it is called again in %g s", self._interval_s)
