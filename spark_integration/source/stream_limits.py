"""How much one micro-batch takes: a limit shared out over partitions, and the wait for enough.

Pure. The shares follow the lags, as in Kafka's source, so partitions arrive at their ends together. Other
than there, the limit is never exceeded, and yet no partition starves: as long as the limit allows, each one
that has anything gets at least one; if not even that is possible, they take turns.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)


def share_out(sizes: Mapping[Key, int], limit: int, turn: int = 0) -> dict[Key, int]:
    """``limit`` in proportion to ``sizes``: every share is at most its size, their sum min(limit, all).

    ``turn``: any number that moves on from batch to batch; decides who is served if ``limit`` is less than
    the number of partitions.
    """
    waiting = {key: size for key, size in sizes.items() if size > 0}
    total = sum(waiting.values())
    shares = dict.fromkeys(sizes, 0)
    if total <= limit:
        return shares | waiting
    if limit <= len(waiting):
        keys = list(waiting)
        return shares | {keys[(turn + i) % len(keys)]: 1 for i in range(limit)}
    left, rest = limit - len(waiting), total - len(waiting)
    floors = {key: (size - 1) * left // rest for key, size in waiting.items()}
    lost = left - sum(floors.values())  # less than one for each; given to those that lost most
    by_loss = sorted(waiting, key=lambda key: (waiting[key] - 1) * left % rest, reverse=True)
    for key in by_loss[:lost]:
        floors[key] += 1
    return shares | {key: 1 + more for key, more in floors.items()}


class BatchDelay:
    """Whether a micro-batch is still put off because there are too few messages, as Kafka's source does."""

    def __init__(self, min_offsets: int | None, max_delay_s: float) -> None:
        self._min_offsets, self._max_delay_s = min_offsets, max_delay_s
        self._last: float | None = None

    def waits(self, messages: int, now: float) -> bool:
        """Asked with what is there. The first batch of a run never waits; "no" starts the delay anew."""
        if (
            self._min_offsets is not None
            and messages < self._min_offsets
            and self._last is not None
            and now - self._last < self._max_delay_s
        ):
            return True
        self._last = now
        return False
