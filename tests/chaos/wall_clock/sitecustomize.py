"""A wall clock that can be set, in every Python process of a round: Python imports a module of this name when
it starts, if its folder is in PYTHONPATH.

``<folder>/<pid>`` has the milliseconds that ``time.time`` of that process is ahead of the machine's clock;
without the file it is right. ``<folder>`` is what ``CHAOS_CLOCKS`` names. A process that has read
the file renames it to ``<pid>.taken``, which counts from then on. The monotonic clock stays as it is, as on a
machine whose date is set.
"""

import os
import time

#: How often a process looks, at most; by the monotonic clock.
LOOK_S = 0.02


class SetClock:
    """``time.time`` and ``time.time_ns`` with an offset."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._looked = float("-inf")
        self._ahead_ns = 0
        self._real_ns = time.time_ns

    def time_ns(self) -> int:
        """Nanoseconds since the epoch, by the clock as it is set."""
        now = time.monotonic()
        if now - self._looked >= LOOK_S:
            self._looked = now
            self._ahead_ns = 1_000_000 * self._set_ms()
        return self._real_ns() + self._ahead_ns

    def time(self) -> float:
        """Seconds since the epoch, by the clock as it is set."""
        return self.time_ns() / 1e9

    def _set_ms(self) -> int:
        path = os.path.join(self._folder, str(os.getpid()))
        taken = path + ".taken"
        try:
            os.replace(path, taken)
        except OSError:
            pass  # nothing new
        try:
            with open(taken) as file:
                return int(file.read())
        except OSError:
            return 0


if _folder := os.environ.get("CHAOS_CLOCKS"):
    _clock = SetClock(_folder)
    time.time, time.time_ns = _clock.time, _clock.time_ns
