"""Which replica to read from.

Any replica serves reads. A consumer spreads its partitions over the replicas of a group (and
consumers differ by a salt), leaves a replica that stays silent or fails at once, and comes back to
it after a penalty that doubles. Who reads in bulk begins with the followers, since the leader has the
writes to do. Pure: takes ``now``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from escrowmq.replication.calling.backoff import Backoff

#: First and longest time a replica that failed is left alone. The first covers an actor's restart;
#: the longest keeps a cluster that healed from being avoided for more than this.
PENALTY = Backoff(first_s=1.0, longest_s=10.0)
#: Longest silence that is waited for, after doubling: a machine that swaps is slow, not dead.
SILENCE_S_MAX = 4.0
#: What all replicas say for longer than this is believed: that an offset which ought to exist does not, or
#: that there is no such topic. Replicas may be behind for as long as a fail-over (1 to 2 s) or the creation
#: of a topic takes, and for longer on a busy machine; what is believed ends in an error for the application.
LAG_PATIENCE_S = 5.0


@dataclass(slots=True)
class _Health:
    failures: int = 0
    avoid_until: float = 0.0


class ReplicaChoice:
    """Penalties of every replica of every group, and the pick among them."""

    def __init__(
        self,
        replicas: int,
        salt: int = 0,
        last: int | None = None,
        members: Callable[[int], tuple[int, ...]] | None = None,
    ) -> None:
        """Turns go round, from the replica ``salt`` on; ``last`` comes behind all others. ``members``: the
        replicas of a group by now; None: always as many as these."""
        self._founders, self._salt, self._last = tuple(range(replicas)), salt, last
        self._members = members or (lambda gid: self._founders)
        self._rings: dict[int, tuple[tuple[int, ...], list[int]]] = {}  # by group: made of whom
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
        """The replica for this turn: the first not avoided, else the one whose penalty ends first."""
        ring = self._ring(gid)
        first = turn % len(ring)
        order = [*ring[first:], *ring[:first]]
        for rid in order:
            if not self.avoids(gid, rid, now):
                return rid
        return min(order, key=lambda rid: self._health[gid, rid].avoid_until)

    def avoids(self, gid: int, rid: int, now: float) -> bool:
        """Whether this one is left alone now."""
        health = self._health.get((gid, rid))
        return health is not None and health.avoid_until > now

    def failed(self, gid: int, rid: int, now: float) -> None:
        """It was silent too long, or its actor is gone."""
        health = self._health.setdefault((gid, rid), _Health())
        if health.avoid_until > now:
            return  # several calls were under way to it: one failure
        health.avoid_until = now + PENALTY.pause_s(health.failures)
        health.failures += 1

    def answered(self, gid: int, rid: int) -> None:
        """It answered: forgiven."""
        self._health.pop((gid, rid), None)
