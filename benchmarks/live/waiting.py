"""Waiting for what a running cluster comes to by itself."""

from __future__ import annotations

import time
from collections.abc import Callable

from escrowmq import EscrowMQError


def until(condition: Callable[[], bool], what: str, timeout_s: float = 180.0, every_s: float = 0.2) -> None:
    """Until it holds; an error of the cluster means that it does not. Raises TimeoutError."""
    deadline = time.monotonic() + timeout_s
    last: object = None
    while time.monotonic() < deadline:
        try:
            if condition():
                return
        except EscrowMQError as error:
            last = error
        time.sleep(every_s)
    raise TimeoutError(f"not within {timeout_s:g} s: {what} {last or ''}")
