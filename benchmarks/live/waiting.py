"""Waits until a running cluster reaches a state."""

from __future__ import annotations

import time
from collections.abc import Callable

from escrowmq import EscrowMQError


def until(condition: Callable[[], bool], what: str, timeout_s: float = 180.0, every_s: float = 0.2) -> None:
    """Wait until ``condition()`` is true; an EscrowMQError counts as false. Raises TimeoutError.

    ``what``: the state that is waited for, for the error.
    """
    deadline = time.monotonic() + timeout_s
    last: object = None
    while time.monotonic() < deadline:
        try:
            if condition():
                return
        except EscrowMQError as error:
            last = error
        time.sleep(every_s)
    raise TimeoutError(f"waited {timeout_s:g} s in vain for {what} {last or ''}")
