"""Disks with a reserve, whose free space hovers around it.

A replica that has less than the reserve free refuses new work; as leader it hands over to one that has room.
One that is asked and has little room declines, unless its leader insists. The simulated disks have
plenty until the fault ``scarce-room`` strikes one of them; then the product's own rule
(raft/elections.py) judges it.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tests.sim.environment.world import Violation

if TYPE_CHECKING:
    from tests.sim.group.replica import SimReplica
    from tests.sim.group.simulation import Simulation

RESERVE_BYTES = 1_000
#: Free space in parts of the reserve: without room, with little, and with enough to lead.
LEVELS = (0.3, 0.6, 0.99, 1.1, 1.24, 1.3)
PLENTY = 4.0
#: How long a disk hovers, and how often its free space changes meanwhile.
HOVERS_S = (3.0, 12.0)
CHANGES = (0, 0, 0, 2)
#: A leader without room asks after two seconds, and again after four, eight and sixteen more. On a good
#: network its first question is enough.
PATIENCE_S, GOOD_PATIENCE_S = 20.0, 5.0


class Rooms:
    """The disks of one simulated group."""

    def __init__(self, simulation: Simulation) -> None:
        self._sim = simulation
        self._hovers, self._hovering = 0, dict[str, int]()
        self._since: dict[str, tuple[int, float]] = {}  # leader without room -> incarnation, since when

    def hover(self, rng: random.Random) -> str:
        """The free space of a disk changes for a while."""
        world = self._sim.world
        leading = [r for r in self._sim.replicas if r.up and r.node.is_leader]
        victims = leading[:1] if leading and rng.random() < 0.6 else [rng.choice(self._sim.replicas)]
        if (
            rng.random() < 0.2
        ):  # so that none of those who are asked has room, and the leader insists or stays
            victims = list(self._sim.replicas)
        ends_s = rng.choice(HOVERS_S) * (0.5 + rng.random() / 2)
        self._hovers += 1
        for victim in victims:
            self._hovering[victim.name] = self._hovers
            victim.disk.spare = self._level(rng)
            for _ in range(rng.choice(CHANGES)):
                world.later(ends_s * rng.random(), self._change, victim, self._hovers, self._level(rng))
            world.later(ends_s, self._change, victim, self._hovers, int(PLENTY * RESERVE_BYTES))
        return "+".join(victim.name for victim in victims)

    def _level(self, rng: random.Random) -> int:
        return int(rng.choice(LEVELS) * RESERVE_BYTES)

    def _change(self, victim: SimReplica, hover: int, free: int) -> None:
        if self._hovering[victim.name] == hover:  # else a later one has begun
            victim.disk.spare = free

    def look(self, replica: SimReplica) -> None:
        """At each tick of a replica, as the broker does ten times a second."""
        if replica.disk.spare is None:
            return
        if self._sim.calm:
            replica.disk.spare = int(PLENTY * RESERVE_BYTES)
        replica.node.readiness.look_at_room(replica.disk.spare, RESERVE_BYTES)
        self._check_used(replica)

    def _check_used(self, leader: SimReplica) -> None:
        """A leader does not stay without room while a follower could take over: new work would be refused for
        as long."""
        node, now = leader.node, self._sim.world.now
        idle = [r for r in self._sim.replicas if r is not leader and self._could_lead(leader, r)]
        if not (node.is_leader and node.readiness.short_of_room and idle):
            self._since.pop(leader.name, None)
            return
        incarnation, since = self._since.setdefault(leader.name, (leader.incarnation, now))
        if incarnation != leader.incarnation:
            self._since[leader.name] = leader.incarnation, now
        elif now - since > PATIENCE_S:
            raise Violation(f"{leader.name} leads without room, and {idle[0].name} has some", "room-unused")

    def _could_lead(self, leader: SimReplica, other: SimReplica) -> bool:
        there = other.up and self._sim.world.now >= other.paused_until and not other.learner
        if not there or other.name not in leader.node.members.voters:
            return False
        free = other.disk.spare
        has_room = free is None or free >= PLENTY * RESERVE_BYTES
        return has_room and self._sim.network.linked(leader.address, other.name) is not None
