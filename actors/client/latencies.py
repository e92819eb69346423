"""Latencies of the last minutes in a fixed number of buckets, and their percentiles.

Each bucket ends 1.25 times later than the one before, so a percentile is accurate to within a quarter, and a
minute of any load takes as much memory as one call. One thread observes; any thread may ask.
"""

from __future__ import annotations

from escrowmq.replication.metrics import Histogram

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
