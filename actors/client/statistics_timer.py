"""Gives an application its client's statistics at intervals, in a separate thread.

The thread that talks to brokers does not do this, as it runs no application code: a callback that blocks
delays only its own next turn.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from escrowmq.replication.errors import ConfigError

log = logging.getLogger(__name__)

#: At shorter intervals the callback itself would be a load.
INTERVAL_S_MIN = 0.1
#: A year: what threads cannot wait for would end this one.
INTERVAL_S_MAX = 365 * 86_400.0
#: How long ``close`` waits for a callback that is running.
CLOSE_WAIT_S = 1.0

S = TypeVar("S")


class StatisticsTimer(Generic[S]):
    """Calls ``callback(take())`` every ``interval_s`` seconds until it is closed. Exceptions are logged."""

    def __init__(self, callback: Callable[[S], object], interval_s: float, take: Callable[[], S]) -> None:
        """Raises ConfigError for an invalid callback or interval."""
        if not callable(callback):
            raise ConfigError(f"statistics_callback must be callable, not {callback!r}")
        given: object = interval_s  # whatever type the application passes
        if not isinstance(given, int | float) or not INTERVAL_S_MIN <= given <= INTERVAL_S_MAX:
            raise ConfigError(
                f"statistics_interval_s must be {INTERVAL_S_MIN} s to a year, not {interval_s!r}"
            )
        self._callback, self._interval_s, self._take = callback, interval_s, take
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="escrowmq-statistics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops the calls. Waits at most a second for one that is running. The callback may call this."""
        self._ended.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_WAIT_S)

    def _run(self) -> None:
        while not self._ended.wait(self._interval_s):
            try:
                self._callback(self._take())
            except BaseException:  # also SystemExit, which would end the thread without a word
                log.exception("a statistics_callback failed; it is called again in %g s", self._interval_s)
