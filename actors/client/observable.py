"""A condition that also calls listeners: for waiters that are not threads, such as an event loop."""

from __future__ import annotations

import threading
from collections.abc import Callable


class ObservableCondition(threading.Condition):
    """``notify_all`` also calls every listener: under the lock, so listeners must neither block nor raise."""

    def __init__(self, lock: threading.Lock | None = None) -> None:
        super().__init__(lock)
        self.listeners: list[Callable[[], None]] = []

    def wait(self, timeout: float | None = None) -> bool:
        """As a condition's, and never an OverflowError: a longer time is as long as a lock can wait."""
        return super().wait(None if timeout is None else min(timeout, threading.TIMEOUT_MAX))

    def notify_all(self) -> None:
        """Wakes waiting threads, and calls the listeners."""
        super().notify_all()
        for listener in tuple(self.listeners):
            listener()


def wait_out(condition: threading.Condition, clock: Callable[[], float], seconds: float) -> None:
    """Waits so long, by a clock that may be a test's."""
    until = clock() + seconds
    with condition:
        while (left_s := until - clock()) > 0:
            condition.wait(left_s)
