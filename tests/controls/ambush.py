"""A directed schedule: old acknowledgements reach a leader that was deposed, cut its log and leads again.

Random schedules do not produce this, because many things must happen in one order within a second. This
module directs the network and a leadership transfer step by step, each as soon as the group allows it. The
random faults continue meanwhile; if one of them interferes, the sequence starts over:

1. a leader and one follower are cut off; the follower acknowledges entries that no majority gets;
2. the others elect another leader, and the partition ends: both cut these entries from their logs;
3. that leader transfers leadership to the first one, and the follower is cut off again;
4. while the old leader's log grows again, the follower's old acknowledgements arrive a second time.

A network that delays and duplicates, also across connections, may deliver a frame twice; the wild network
does. None of this harms a group whose leader checks the term of an acknowledgement.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from escrowmq.replication.format import wire
from tests.sim.environment.network import Link
from tests.sim.faults import plan as faultplan
from tests.sim.group.replica import SimReplica
from tests.sim.group.simulation import Simulation

LOOK_EVERY_S = 0.01
STEP_MAX_S = 2.0  # after that it starts over
FIRST_S = 0.7  # most groups have their first leader by then
FAULTS_EVERY_S = 3.0  # the random ones: rare enough that an attempt can finish


def stale_acknowledgements(patch: pytest.MonkeyPatch) -> None:
    """Every simulation is ambushed while this patch lasts."""
    patch.setattr(faultplan, "MEAN_PAUSE_S", FAULTS_EVERY_S)
    run = Simulation.run

    def ambushed(self: Simulation) -> object:
        ambush, traced = Ambush(self), self.traced

        def heard(receiver: str, sender: str, message: wire.Message) -> None:
            ambush.heard(receiver, sender, message)
            traced(receiver, sender, message)

        patch.setattr(self, "traced", heard)
        self.world.later(FIRST_S, ambush.look)
        return run(self)

    patch.setattr(Simulation, "run", ambushed)


@dataclass(slots=True)
class _Victims:
    """The leader of one attempt, the follower cut off with it, and that follower's acknowledgements."""

    leader: SimReplica
    follower: SimReplica
    term: int  # the term in which it led first
    processes: tuple[int, int]
    acks: dict[int, bytes] = field(default_factory=dict)  # index -> frame, as they arrived

    def alive(self) -> bool:
        """Whether both run, and neither has restarted."""
        now = (self.leader.incarnation, self.follower.incarnation)
        return self.leader.up and self.follower.up and now == self.processes


class Ambush:
    """The ambush of one simulation: checks every few milliseconds, until the calm, which step is possible."""

    def __init__(self, simulation: Simulation) -> None:
        self._sim, self._rng = simulation, simulation.world.stream("ambush")
        self._victims: _Victims | None = None
        self._step: Callable[[_Victims], None] = self._others_elect
        self._deadline = 0.0
        self._blocked: list[Link] = []

    def heard(self, receiver: str, sender: str, message: wire.Message) -> None:
        """A message is about to be read: keep it if it acknowledges entries of the first leadership."""
        victims = self._victims
        if (
            victims is not None
            and self._step == self._others_elect
            and (receiver, sender) == (victims.leader.name, victims.follower.name)
            and (message["type"], message.get("term")) == ("next_node_idx", victims.term)
            and message["success"]
        ):
            victims.acks[message["next_node_idx"] - 1] = b"".join(wire.encode(message))

    def look(self) -> None:
        """Take the next step if the group has reached it."""
        sim, victims = self._sim, self._victims
        if sim.calm:
            return
        if victims is not None and (not victims.alive() or sim.world.now > self._deadline):
            self._unblock()
            self._victims = victims = None
        if victims is None:
            self._begin()
        else:
            self._step(victims)
        sim.world.later(LOOK_EVERY_S, self.look)

    # -------------------------------------------------------------- the steps
    def _begin(self) -> None:
        sim = self._sim
        leading = [r for r in sim.replicas if r.up and r.node.ready]
        followers = [r for r in sim.replicas if r.up and not r.node.is_leader and not r.node.rejoining]
        if len(leading) != 1 or len(followers) < len(sim.replicas) // 2 + 2:
            return
        leader, follower = leading[0], self._rng.choice(followers)
        processes = (leader.incarnation, follower.incarnation)
        self._victims = _Victims(leader, follower, leader.node.term, processes)
        side = {leader.name, follower.name}
        self._block([(a, b) for a in sim.names for b in sim.names if (a in side) != (b in side)])
        self._next(self._others_elect, f"{leader.name} and {follower.name} are cut off")

    def _others_elect(self, victims: _Victims) -> None:
        if self._successor(victims) is not None and victims.acks:
            self._unblock()
            self._next(self._hand_over, "the others have a leader, the partition ends")

    def _hand_over(self, victims: _Victims) -> None:
        """Wait until both have cut what the new leader never had."""
        leader = self._successor(victims)
        if leader is None:
            return
        if all(r.journal.last_term == leader.node.term for r in (victims.leader, victims.follower)):
            leader.node.transfer_leadership(victims.leader.name)
            leader.kick()
            self._next(self._lead_again, f"{leader.name} hands over to {victims.leader.name}")

    def _lead_again(self, victims: _Victims) -> None:
        leader = victims.leader
        if leader.node.is_leader and leader.node.term > victims.term:
            pair = leader.name, victims.follower.name
            self._block([pair, pair[::-1]])
            self._next(self._echo, f"{leader.name} leads again, old acknowledgements are on their way")

    def _echo(self, victims: _Victims) -> None:
        """Deliver each old acknowledgement once, when the leader's log reaches the index that it claims."""
        leader = victims.leader
        for index in [index for index in victims.acks if index <= leader.journal.last_index]:
            leader.links.arrive(victims.follower.name, victims.acks.pop(index))

    # -------------------------------------------------------------- helpers
    def _successor(self, victims: _Victims) -> SimReplica | None:
        for replica in self._sim.replicas:
            leads = replica.up and replica is not victims.leader and replica.node.ready
            if leads and replica.node.term > victims.term:
                return replica
        return None

    def _next(self, step: Callable[[_Victims], None], what: str) -> None:
        self._step, self._deadline = step, self._sim.world.now + STEP_MAX_S
        self._sim.happened(f"ambush: {what}")

    def _block(self, links: list[Link]) -> None:
        self._blocked = links
        self._sim.network.block(links)

    def _unblock(self) -> None:
        self._sim.network.unblock(self._blocked)
        self._blocked = []
