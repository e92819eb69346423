"""How much processor time searching may take from a replica.

On average a twentieth of a core. What was not used is saved up, to ten minutes' worth: so the first question
after a while is answered at full speed (half a minute of work reads some fifteen million messages), and
somebody who asks all day cannot slow the replica down.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

#: Seconds of work that may be saved up: 5 % of ten minutes.
SAVED_S = 30.0


class WorkBudget:
    """Thread-safe. ``share``: of one core, above 0."""

    def __init__(self, share: float, clock: Callable[[], float]) -> None:
        self._share, self._clock = share, clock
        self._lock = threading.Lock()
        self._left_s, self._at = SAVED_S, clock()

    def spend(self, seconds: float) -> None:
        """So much processor time was used."""
        with self._lock:
            now = self._clock()
            self._left_s = min(self._left_s + (now - self._at) * self._share, SAVED_S) - seconds
            self._at = now

    def pause_s(self) -> float:
        """How long to wait before more work; 0: none is needed."""
        with self._lock:
            earned = (self._clock() - self._at) * self._share
            return max(-(self._left_s + earned) / self._share, 0.0)
