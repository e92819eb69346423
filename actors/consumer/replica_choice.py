"""Which replica to read from.

Any replica serves reads. A consumer spreads its partitions over the replicas of a group (and consumers differ
by a salt), stops using a replica as soon as it fails or stays silent, and returns to it after a penalty that
doubles. Bulk readers start with the followers, since the leader handles the writes. Pure: takes ``now``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from escrowmq.replication.calling.backoff import Backoff

#: First and longest time for which a failed replica is avoided. The first covers an actor's restart; the
#: longest limits how long a cluster that has recovered is still avoided.
PENALTY = Backoff(first_s=1.0, longest_s=10.0)
#: Longest silence to wait for, after doubling: a machine that swaps is slow, not dead.
SILENCE_S_MAX = 4.0
#: If all replicas say for longer than this that an offset which ought to exist does not, or that a topic does
#: not exist, they are believed, and the application gets an error. Replicas may lag for as long as a
#: fail-over (1 to 2 s) or the creation of a topic takes, and longer on a busy machine.
LAG_PATIENCE_S = 5.0


@dataclass(slots=True)
class _Health:
    failures: int = 0
    avoid_until: float = 0.0


class ReplicaChoice:
    """The penalties of every replica of every group, and the choice among the replicas."""

    def __init__(
        self,
        replicas: int,
        salt: int = 0,
        last: int | None = None,
        members: Callable[[int], tuple[int, ...]] | None = None,
    ) -> None:
        """Turns go round, starting at replica ``salt``; ``last`` comes after all others. ``members``: returns
        the present replicas of a group; None: always ``replicas`` of them."""
        self._founders, self._salt, self._last = tuple(range(replicas)), salt, last
        self._members = members or (lambda gid: self._founders)
        self._rings: dict[int, tuple[tuple[int, ...], list[int]]] = {}  # by group: members, their ring
        self._health: dict[tuple[int, int], _Health] = {}

    def _ring(self, gid: int) -> list[int]:
        members = self._members(gid)
        known = self._rings.get(gid)
        if known is not None and known[0] is members:
            return known[1]
        others = [rid for rid in members if rid != self._last]
        first = self._salt % len(others) if others else 0
        ring = [*others[first:], *others[:first], *(rid for rid in members if rid == self._last)]
        self._rings[gid] = members, ring
        return ring

    def pick(self, gid: int, turn: int, now: float) -> int:
        """The replica for this turn: the first not avoided, otherwise the one whose penalty ends first."""
        ring = self._ring(gid)
        first = turn % len(ring)
        order = [*ring[first:], *ring[:first]]
        for rid in order:
            if not self.avoids(gid, rid, now):
                return rid
        return min(order, key=lambda rid: self._health[gid, rid].avoid_until)

    def avoids(self, gid: int, rid: int, now: float) -> bool:
        """Whether this replica is avoided now."""
        health = self._health.get((gid, rid))
        return health is not None and health.avoid_until > now

    def failed(self, gid: int, rid: int, now: float) -> None:
        """The replica was silent for too long, or its actor is gone."""
        health = self._health.setdefault((gid, rid), _Health())
        if health.avoid_until > now:
            return  # several calls to it were under way: they count as one failure
        health.avoid_until = now + PENALTY.pause_s(health.failures)
        health.failures += 1

    def answered(self, gid: int, rid: int) -> None:
        """The replica answered: its penalty is lifted."""
        self._health.pop((gid, rid), None)
