"""Bounds how often one key can wait: all copies of a key are released together, in one entry.

A producer never gives a key twice: its ordinals only rise. So a leader remembers the highest one of each
owner and partition, and looks keys up only where a request goes back behind it. A client that repeats a key
endlessly is refused after ``COPIES_MAX`` copies, and those that were under way then. What is remembered is
of this leader, and bounded: whoever has others' owners push out its own gains one copy by it.
"""

from __future__ import annotations

from typing import Final

from escrowmq.replication.format.codec import Op
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.state.topics import Partition
from escrowmq.replication.timers.record import key_of

#: Messages that may wait under one key.
COPIES_MAX: Final = 16
#: Owners and partitions that are remembered, at most twice as many.
REMEMBERED: Final = 50_000


class RepeatedKeys:
    """What one leader has seen. Used in its thread."""

    def __init__(self, state: StateMachine) -> None:
        self._state = state
        #: Owner and slot -> one above the highest ordinal; two generations.
        self._young: dict[tuple[int, int], int] = {}
        self._old: dict[tuple[int, int], int] = {}

    def too_many(self, op: Op, now_ms: int) -> bool:
        """Whether a SCHEDULED brings one more message for a key under which many wait."""
        topic, number, _, _, _, times, _, owner, first = op.meta[:9]
        partition = self._state.topics.find(topic, number)
        if not isinstance(partition, Partition):
            return False  # apply says what is wrong
        slot = partition.slot
        where = owner, slot
        end = self._young.get(where) or self._old.get(where, 0)
        self._remember(where, max(end, first + len(times)))
        if first >= end:
            return False
        keys = [key_of(ms, slot, owner, n) for n, ms in enumerate(times, first) if ms > now_ms]
        find = self._state.timers.store.find
        return any(len(find(key).living) >= COPIES_MAX for key in keys)

    def _remember(self, where: tuple[int, int], end: int) -> None:
        self._young[where] = end
        if len(self._young) >= REMEMBERED:
            self._old, self._young = self._young, {}

    def forget(self) -> None:
        """Leadership is lost."""
        self._young, self._old = {}, {}
