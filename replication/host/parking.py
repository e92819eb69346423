"""Long polls: callers wait for news, bounded in number, so that they never hold every thread.

A parked call holds one thread of its concurrency group. Half of the threads may park; further callers are
answered immediately with what there is, and ask again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
#: Maximum wait of one call, whatever its caller asks for: it holds a thread even if its caller is gone.
WAIT_S_MAX = 60.0


class ParkingLot:
    """Bounded waiting room around one kind of news."""

    def __init__(self, places: int, monotonic: Callable[[], float]) -> None:
        self._condition = threading.Condition()
        self._places, self._parked, self._monotonic = places, 0, monotonic
        self._closed = False
        self._sequence = 0

    def wait_for(self, attempt: Callable[[], T | None], wait_s: float) -> T | None:
        """Call ``attempt()`` now and at each piece of news until it returns something, for at most
        ``wait_s``."""
        deadline = self._monotonic() + (wait_s if wait_s <= WAIT_S_MAX else WAIT_S_MAX)
        parked = False
        try:
            while True:
                seen = self._sequence  # before the attempt: news that arrives during it is not missed
                found = attempt()
                left = deadline - self._monotonic()
                if found is not None or left <= 0:
                    return found
                with self._condition:
                    if not parked:
                        if self._parked >= self._places:
                            return None
                        self._parked, parked = self._parked + 1, True
                    if self._closed:
                        return None
                    if seen == self._sequence:
                        self._condition.wait(left)
        finally:
            if parked:
                with self._condition:
                    self._parked -= 1

    def announce(self) -> None:
        """Something changed: wake every waiting caller. Cheap if there is none; does not wait for
        attempts."""
        self._sequence += 1
        if self._parked:
            with self._condition:
                self._condition.notify_all()

    def close(self) -> None:
        """Wake every waiting caller for good; later ones do not wait."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()
