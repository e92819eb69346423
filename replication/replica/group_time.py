"""The time that a leader writes into entries: never behind its entries, and never standing still.

From format level 9 on it is that of the group's clocks (raft/replicator.py), whichever replica leads. Below,
replicas do not tell their clocks, and it is that of the leader's own.

A leader may find that its time is far behind the last entry, since clocks were far ahead before. Then time
continues from that entry, at half speed until the clocks have caught up: if it stood still, nothing would
come due for as long as they were wrong. So it does while too few of the clocks are known.
"""

from __future__ import annotations

from typing import Final, Protocol

from escrowmq.replication.state.machine import StateMachine

#: From this format level on replicas tell their clocks.
LEVEL_OF_CLOCKS: Final = 9
#: More than this does not pass between two looks: a clock has jumped.
PASSES_MS: Final = 1_000


class Clocks(Protocol):
    """See raft/replicator.py."""

    @property
    def leading(self) -> bool: ...
    def lower_median_ms(self, own_ms: int) -> int | None: ...
    def monotonic_ms(self) -> int: ...


class GroupTime:
    """The time of one replica's group."""

    def __init__(self, state: StateMachine) -> None:
        self._state = state
        self.clocks: Clocks | None = None  # None: only its own counts
        self.ms = 0  # as it was last told
        self._half_ms = 0
        self._read_ms: int | None = None  # the last reading of the clock that tells what has passed
        self._of_the_group = False  # whether ``ms`` is of this leadership, by the group's clocks

    def at(self, own_ms: int) -> int:
        """The time when this machine's wall clock says ``own_ms``. Of a follower it is that clock's, for
        whoever looks; nothing of it is kept for its own leadership."""
        clocks = self.clocks
        if clocks is None or self._state.level < LEVEL_OF_CLOCKS:
            return self._go_on(own_ms, own_ms)
        if not clocks.leading:
            self._of_the_group = False
            return max(own_ms, self._state.now_ms)
        if not self._of_the_group:
            self._of_the_group, self._read_ms, self.ms = True, None, self._state.now_ms
        return self._go_on(clocks.lower_median_ms(own_ms), clocks.monotonic_ms())

    def _go_on(self, clock_ms: int | None, read_ms: int) -> int:
        passed = 0 if self._read_ms is None else min(read_ms - self._read_ms, PASSES_MS)
        self._read_ms = read_ms
        ms = max(self.ms, self._state.now_ms)
        if clock_ms is not None and clock_ms >= ms:
            ms = clock_ms
        elif passed > 0:
            self._half_ms += passed
            ms += self._half_ms // 2
            self._half_ms %= 2
        self.ms = ms
        return ms
