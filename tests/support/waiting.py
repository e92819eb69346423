"""Waiting in real time, bounded: a test that waits in vain fails and says for what."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(
    condition: Callable[[], T], timeout_s: float = 10.0, what: str = "the condition", every_s: float = 0.005
) -> T:
    """The first result of ``condition`` that is true; asked ``every_s`` seconds."""
    deadline = time.monotonic() + timeout_s
    while not (result := condition()):
        assert time.monotonic() < deadline, f"{what} did not come true within {timeout_s} s"
        time.sleep(every_s)
    return result
