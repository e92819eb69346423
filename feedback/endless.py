"""A loop that survives its errors: a failing step costs a pause, never the loop.

RocketMQ's scanner dies, or stalls every topic, at a single exception; here a loop continues after one. It
must never swallow a cancellation.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable

from escrowmq.feedback.policy import RETRY
from escrowmq.replication.errors import Unavailable

log = logging.getLogger(__name__)


def _always() -> bool:
    return True


async def endless(
    step: Callable[[], Awaitable[None]],
    counts: Counter[str],
    what: str,
    more: Callable[[], bool] = _always,
) -> None:
    """Run ``step`` repeatedly until cancelled, or while there is ``more`` to do; after a failure it pauses
    for 0.1 s, doubling up to 2 s."""
    failures = 0
    while more():
        try:
            await step()
            failures = 0
            continue
        except Unavailable:
            counts["unavailable"] += 1
        except Exception:
            counts["errors"] += 1
            log.exception("%s: an error; the loop continues", what)
        await asyncio.sleep(RETRY.pause_s(failures))
        failures += 1
