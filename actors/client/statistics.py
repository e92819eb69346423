"""What clients count: latencies in a fixed number of buckets, and a timer that hands statistics over."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from escrowmq.replication.errors import ConfigError
from escrowmq.replication.metrics import Histogram

# ------------------------------------------------------------------------------------------------------------
# Latencies of the last minutes in a fixed number of buckets, and their percentiles.
#
# Each bucket ends 1.25 times later than the one before, so a percentile is accurate to within a quarter, and
# a minute of any load takes as much memory as one call. One thread observes; any thread may ask.

#: 100 us to 2 minutes.
BOUNDS_S = tuple(0.0001 * 1.25**i for i in range(64))
#: At any time, an answer covers the last one or two periods of this length.
PERIOD_S = 60.0


class RecentLatencies:
    """``observe`` costs a look-up in 64 numbers: for calls and batches, never for each message."""

    __slots__ = ("_earlier", "_now", "_since")

    def __init__(self) -> None:
        self._now, self._earlier = Histogram(BOUNDS_S), Histogram(BOUNDS_S)
        self._since = float("-inf")

    def observe(self, latency_s: float, now: float) -> None:
        """Records one latency that ended at ``now``."""
        if now - self._since >= PERIOD_S:
            self._turn(now)
        self._now.observe(latency_s)

    def quantiles(self, now: float, *shares: float) -> list[float | None]:
        """The latencies below which the given shares (0.5, 0.99) lie, in seconds; None: there were none."""
        age = now - self._since
        parts = () if age >= 2 * PERIOD_S else (self._now,) if age >= PERIOD_S else (self._now, self._earlier)
        whole = Histogram.sum(BOUNDS_S, parts)
        return [_quantile(whole.counts, share) for share in shares]

    def _turn(self, now: float) -> None:
        fresh = now - self._since < 2 * PERIOD_S
        self._earlier = self._now if fresh else Histogram(BOUNDS_S)
        self._now, self._since = Histogram(BOUNDS_S), now


def _quantile(counts: list[int], share: float) -> float | None:
    wanted = share * sum(counts)
    if not wanted:
        return None
    below = 0
    for i, count in enumerate(counts):
        if below + count >= wanted:
            low = BOUNDS_S[i - 1] if i else 0.0
            high = BOUNDS_S[min(i, len(BOUNDS_S) - 1)]
            return low + (high - low) * (wanted - below) / count
        below += count
    return BOUNDS_S[-1]


# ------------------------------------------------------------------------------------------------------------
# Gives an application its client's statistics at intervals, in a separate thread.
#
# The thread that talks to brokers does not do this, as it runs no application code: a callback that blocks
# delays only its own next turn.

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
