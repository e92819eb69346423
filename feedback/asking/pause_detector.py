"""Whether this process itself was paused: stopped, swapped out, or without a processor. Pure: takes ``now``.

Silence during such a pause says nothing about others, since their messages wait before the process.
"""

from __future__ import annotations

#: Longer than one turn of a busy event loop, and far shorter than any silence that means something.
STOOD_STILL_S = 2.0


class PauseDetector:
    """Call ``beat`` every ``every_s``; ask whether beats are ``missing`` before drawing conclusions from
    silence."""

    def __init__(self, every_s: float) -> None:
        self._late_s = every_s + STOOD_STILL_S
        self._beat_at = float("inf")  # until the first one

    def beat(self, now: float) -> None:
        """The process is running."""
        self._beat_at = now

    def missing(self, now: float) -> bool:
        """Whether it was paused until now; reported once."""
        if now <= self._beat_at + self._late_s:
            return False
        self._beat_at = now
        return True
