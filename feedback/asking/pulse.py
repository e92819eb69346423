"""Whether this process itself stood still: stopped, swapped out, or without a processor. Pure: takes ``now``.

What was not heard in such a time says nothing about others, since what they said waits before the process.
"""

from __future__ import annotations

#: Longer than a busy event loop takes for one turn, and far shorter than any silence that means something.
STOOD_STILL_S = 2.0


class Pulse:
    """``beat`` every ``every_s``; ask whether beats are ``missing`` before anything is made of a silence."""

    def __init__(self, every_s: float) -> None:
        self._late_s = every_s + STOOD_STILL_S
        self._beat_at = float("inf")  # until the first one

    def beat(self, now: float) -> None:
        """It goes on."""
        self._beat_at = now

    def missing(self, now: float) -> bool:
        """Whether it stood still until now; told once."""
        if now <= self._beat_at + self._late_s:
            return False
        self._beat_at = now
        return True
