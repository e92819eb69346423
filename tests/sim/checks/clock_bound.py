"""How far the group's time can be at most, by the clocks of its replicas.

Leaders go by the lower median of the voters' clocks. So no release may be in an entry with a later time than
the lower median of the furthest that each clock has ever been ahead: a leader that goes by its own clock is
found as ``early``.
"""

from __future__ import annotations

from collections.abc import Sequence

from escrowmq.replication.format.codec import Op
from escrowmq.replication.format.operation import OpType
from tests.sim.clients.workload import Cluster
from tests.sim.environment.world import WALL_S, Violation

#: What is told goes on for a second, by clocks that may jump.
TOLERANCE_MS = 2_000


class ClockBound:
    """Watches one broker group."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._ahead_s: dict[str, float] = {}  # by replica: the furthest that its clock was ever ahead

    def look(self) -> None:
        """Note where the clocks are now. Call it often."""
        for replica in self._cluster.replicas:
            known = self._ahead_s.get(replica.address, replica.wall_ahead_s)
            self._ahead_s[replica.address] = max(known, replica.wall_ahead_s)

    def entry(self, index: int, now_ms: int, ops: Sequence[Op]) -> None:
        """An entry is applied by the first replica. Raises Violation."""
        self.look()
        ahead_ms = now_ms - (WALL_S + self._cluster.world.now) * 1000
        if len(self._ahead_s) != len(self._cluster.replicas) or self._cluster.replicas[0].members_change:
            return  # the voters are not known here
        clocks = sorted(self._ahead_s.values())
        reached_ms = clocks[(len(clocks) - 1) // 2] * 1000 + TOLERANCE_MS
        if ahead_ms > reached_ms and any(op.type == OpType.RELEASE for op in ops):
            raise Violation(
                f"entry {index} releases {ahead_ms:.0f} ms ahead of the clocks' {reached_ms:.0f}", "early"
            )
