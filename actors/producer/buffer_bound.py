"""How much a producer takes on: so many bytes at most, and at most what is answered in time.

A bound in bytes alone does not bound time: 32 MiB are a second for a fast group and a minute for one that a
thousand clients share, and whoever waits for a minute had better been told at once. So the producer looks at
how long what is answered now has waited since it was taken on. Pure: times are passed in.
"""

from __future__ import annotations

#: Not less than this, whatever is measured: some requests' worth of small messages.
BYTES_MIN = 16 << 10


class BufferBound:
    """Bytes that may be buffered and under way. Used by one thread; ``limit`` may be read by any.

    It is changed once per round trip: only an answer to what was taken on after the last change shows what
    that change did. Waits above the target cut it, to what is there now at most. Shorter ones raise it, not
    sooner than a quarter of the target after the last change: a buffer that has yet to fill shows short
    waits, whatever its bound. It is raised below the target too, if gently: where calls are what costs, more
    bytes in each wait no longer.
    """

    def __init__(self, bytes_max: int, target_s: float) -> None:
        self.limit = self._max = bytes_max
        self._min = min(BYTES_MIN, bytes_max)
        self._target_s = target_s
        self._changed = float("-inf")

    def answered(self, taken_on: float, now: float, buffered: int) -> None:
        """What was taken on at that time has its answer; ``buffered`` bytes are there, it included."""
        waited = now - taken_on
        if taken_on < self._changed or (self.limit == self._max and waited <= self._target_s):
            return
        if waited > self._target_s:
            self.limit = max(self._min, int(min(self.limit, buffered) * self._target_s / waited))
            self._changed = now
        elif now - self._changed >= self._target_s / 4:
            factor = 2 if waited < self._target_s / 2 else 1.25
            self.limit = min(self._max, int(factor * self.limit))
            self._changed = now
