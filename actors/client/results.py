"""Results of operations, as lists of one or two elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from escrowmq.actors.client.router import Router, result_of


def outcome(result: Sequence[Any]) -> tuple[int, Any]:
    """The code, and the information that comes with it, if there is any."""
    return result[0], result[1] if len(result) > 1 else None


def submitting(router: Router, timeout_s: float) -> Callable[[int, bytes], tuple[int, Any]]:
    """``submit(gid, operation)``, which waits for the outcome."""

    def submit(gid: int, operation: bytes) -> tuple[int, Any]:
        return outcome(result_of(router.submit(gid, operation, timeout_s), timeout_s)[0])

    return submit
