"""How much a producer accepts: a number of bytes at most, and only as much as is answered in time.

A bound in bytes alone does not bound time: 32 MiB are a second for a fast group, and a minute for one that a
thousand clients share; a caller that would wait a minute is better told at once. So the producer measures how
long what is answered now has waited since it was accepted. Pure: times are passed in.
"""

from __future__ import annotations

#: Lower bound, whatever is measured: some requests' worth of small messages.
BYTES_MIN = 16 << 10


class BufferBound:
    """Bytes that may be buffered and under way. Used by one thread; ``limit`` may be read by any.

    The bound changes once per round trip: only an answer to what was accepted after the last change shows the
    effect of that change. Waits above the target lower it, to at most what is buffered now. Shorter waits
    raise it, but not sooner than a quarter of the target after the last change: while a buffer is still
    filling, waits are short whatever its bound. It is also raised, more gently, for waits just below the
    target: where calls are the cost, more bytes in each do not wait longer.
    """

    def __init__(self, bytes_max: int, target_s: float) -> None:
        self.limit = self._max = bytes_max
        self._min = min(BYTES_MIN, bytes_max)
        self._target_s = target_s
        self._changed = float("-inf")

    def answered(self, taken_on: float, now: float, buffered: int) -> None:
        """What was accepted at ``taken_on`` has its answer; ``buffered`` bytes are there, including it."""
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
