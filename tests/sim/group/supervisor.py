"""The supervisor in a simulation: the product's own ``decide``, with the input it would have, and the ghosts
that it creates.

The supervisor stops seeing a replica's node: the machine is suspended, cut off, dead, or only its raylet
hangs. After a while it has the replica rebuilt on another machine, as a further incarnation. The process on
the old machine (a ghost) lives on, resumes, or restarts. From then on two hosts have the same name
(network.py).

This module then checks that, once the successor is a full member, no full member counts a vote or an
acknowledgement of its predecessor (``ghost-counted``). It does not matter what the predecessor believes of
itself, except that it must lead no term in which another replica was elected.

A supervisor may act on an outdated view: it decides on what it saw, and starts the replacement later. By
then the replica may have come back, and members may have changed. If the group has so few voters by then that
it needs the replica's disk, the supervisor does nothing: an empty replica in its place would be a majority
lost, which nothing survives (docs/reliability.md). For a short time there may be two
supervisors, as after the loss of the head node: an old one that still looks and acts, and its successor,
which counts a node as missing only since its own start. They share the state on disk; where that is lost,
they use the same incarnation number twice.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from escrowmq.cluster.supervisor.member_steps import Condition, Node, ReplicaKey, Seat, Seen, decide
from escrowmq.cluster.supervisor.supervisor import newest, possible_voters
from escrowmq.replication.calling.answers import MembersReport, ReplicaReport
from escrowmq.replication.format.wire import RaftMessage
from escrowmq.replication.host.replica_process import is_recorded
from tests.sim.environment.world import Violation
from tests.sim.faults.damage import knows_less, others_have_all
from tests.sim.faults.plan import GHOST
from tests.sim.group.broker_app import number_of

if TYPE_CHECKING:
    from tests.sim.group.replica import SimReplica
    from tests.sim.group.simulation import Simulation

LOOK_EVERY_S = 0.1
REPLACE_AFTER_S = 0.4
ANNOUNCE_EVERY_S = 0.2
#: Approximate time from a supervisor's look to the resulting replacement; most supervisors are quick.
ACTS_AFTER_S: dict[str, tuple[float, ...]] = {"supervisors": (0.0, 0.0, 0.0, 0.3, 1.5, 3.0)}
#: Share of the schedules in which a second supervisor begins, when it does at the latest, for about how long
#: the old one still acts, and how often the new one lacks the state of the old one.
TWO, BEGINS_S, OVERLAPS_S, FORGETS = 0.3, 6.0, (0.5, 2.0, 5.0), 0.3
#: The fate of a process that the supervisor does not see: it continues as before, is paused, is cut off from
#: the others, or has lost power and comes back.
FATES = ("unseen", "unseen", "paused", "cut-off", "cut-off", "dead")


@dataclass(slots=True)
class _Process:
    """One supervisor. ``late_s``: the time from a look to the resulting replacement."""

    began_at: float
    late_s: float
    ends_at: float = math.inf
    acting: bool = False  # the replacement that results from its last look is still to come


class Supervisor:
    """The group's supervisor, or two of them. It does nothing before the first fault of its kind."""

    def __init__(self, simulation: Simulation) -> None:
        self._sim = simulation
        self._rng = simulation.world.stream(f"supervisors{simulation.prefix}")
        self.first = _Process(simulation.world.now, self._rng.choice(ACTS_AFTER_S["supervisors"]))
        self._forgets = False  # a new supervisor lacks the incarnations that the old one has counted
        self._missing: dict[str, float] = {}  # address -> since when its node is out of sight
        self._looking = False
        self._full: dict[str, int] = {}  # name -> the highest incarnation that was a full member
        #: Candidate -> the newest term in which a ghost voted for it, and that ghost.
        self._ghost_votes: dict[str, tuple[int, str]] = {}
        #: Process of a successor -> the peers that have recorded it.
        self._have_recorded: dict[tuple[str, int], set[str]] = {}
        self.replaced = 0
        self.let_be = 0  # replicas that it decided to replace, and that their group needed by then
        self._told: MembersReport | None = None

    # -------------------------------------------------------------- the fault
    def lose_sight(self, rng: random.Random) -> str:
        """The supervisor no longer sees a replica's node, for longer than it takes to replace the replica."""
        sim, victim = self._sim, rng.choice(self._sim.replicas)
        if victim.address in self._missing:
            return ""
        fate = rng.choice(FATES)
        lasts_s = REPLACE_AFTER_S + rng.random() * rng.choice((0.5, 3.0))
        self._missing[victim.address] = sim.world.now
        if fate == "paused" and victim.up:
            victim.paused_until = sim.world.now + lasts_s
        elif fate == "cut-off":
            sim.network.isolate(victim.address)
            sim.world.later(lasts_s, sim.network.release, victim.address)
        elif fate == "dead":
            victim.crash(power=rng.random() < 0.7)
            sim.world.later(lasts_s, victim.start)
        sim.world.later(lasts_s + 2.0, self._missing.pop, victim.address, None)
        sim.happened(f"the supervisor sees nothing of {victim.address}: {fate} for {lasts_s:.2f} s")
        if not self._looking:
            self._looking = True
            sim.world.later(LOOK_EVERY_S, self._look, self.first)
            sim.world.later(ANNOUNCE_EVERY_S, self._announce)
            if self._rng.random() < TWO:
                sim.world.later(BEGINS_S * self._rng.random(), self._another_begins)
        return victim.address

    def _another_begins(self) -> None:
        sim, rng = self._sim, self._rng
        self.first.ends_at = sim.world.now + rng.choice(OVERLAPS_S) * (0.5 + rng.random())
        self._forgets = rng.random() < FORGETS
        another = _Process(sim.world.now, rng.choice(ACTS_AFTER_S["supervisors"]))
        sim.happened(f"a second supervisor begins; the first one ends at {self.first.ends_at:.2f}")
        sim.world.later(LOOK_EVERY_S, self._look, another)

    def _may_lose(self, victim: SimReplica, late: bool = False) -> bool:
        """Whether enough sound copies would remain; a supervisor cannot see that itself. See damage.py.

        It must be asked again at the moment of the loss: since a look, which is then ``late``, members may
        have changed, and another replica may have been replaced, which knows nothing yet.
        """
        replicas = self._sim.replicas
        if not self._sim.leaves_a_majority(victim):
            return False
        if late or any(r.spoilt or r.given_up for r in replicas):
            lost = sum(knows_less(r) or r is victim for r in replicas)
            if 2 * lost >= len(replicas):
                return False
        return others_have_all(self._sim, victim)

    # -------------------------------------------------------------- the supervisor
    def _look(self, process: _Process) -> None:
        sim, now = self._sim, self._sim.world.now
        if now >= process.ends_at:
            return
        sim.world.later(LOOK_EVERY_S, self._look, process)
        for replica in sim.replicas:
            if replica.up and not replica.learner:
                self._full[replica.name] = max(self._full.get(replica.name, 0), replica.own.number)
        if process.acting:
            return
        by_key = {_key(r): r for r in sim.replicas}
        seats = {key: Seat(*key, r.address, r.own.number) for key, r in by_key.items()}
        nodes = [_node(r.address) for r in sim.replicas if r.address not in self._missing]
        nodes.append(_node("spare"))
        voters = possible_voters(self._report(r) for r in sim.replicas)
        for start in decide(seats, self._seen(process), nodes, now, REPLACE_AFTER_S, voters):
            victim = by_key[start.seat.key]
            if not start.moved or not self._may_lose(victim):
                continue
            if not process.late_s:
                self._replace(victim, start.seat.incarnation)
                continue
            victim.given_up += 1
            process.acting = True
            late_s = process.late_s * (0.5 + self._rng.random())
            sim.world.later(late_s, self.act, process, victim, start.seat.incarnation)

    def act(self, process: _Process, victim: SimReplica, number: int) -> None:
        """Act on an old look: meanwhile the victim may have come back, another supervisor may have replaced
        it, it may no longer be a member, and the group may need its disk."""
        process.acting = False
        victim.given_up -= 1
        sim = self._sim
        there = next((replica for replica in sim.replicas if replica.name == victim.name), None)
        if sim.world.now >= process.ends_at or there is None:
            return
        if there is not victim and not self._forgets:  # its name is taken, and nothing is started
            return
        if self._may_lose(there, late=True):
            self._replace(there, number)
        else:
            self.let_be += 1

    def tells_of_a_group(self, replica: SimReplica) -> bool:
        """What a starting replica is told by the product's rule. The record may lag: the group counts as one
        that has had a leader once a client has an answer."""
        seat = Seat(*_key(replica), "", replica.own.number)
        return seat.has_a_group({seat.gid} if self._sim.checker.acknowledged else ())

    def members(self) -> MembersReport | None:
        """The members in the newest configuration that was ever seen."""
        told = newest(self._report(replica) for replica in self._sim.replicas).get(0)
        if told is not None and (self._told is None or told.version > self._told.version):
            self._told = told
        return self._told

    def _report(self, replica: SimReplica) -> ReplicaReport | None:
        """Its report to the supervisor, as far as members are concerned."""
        seen = replica.address not in self._missing
        if not (seen and replica.up and self._goes_on(replica)):
            return None
        return ReplicaReport(gid=0, rid=number_of(replica.name), role="", members=members_of(replica))

    def _seen(self, process: _Process) -> dict[ReplicaKey, Seen]:
        now = self._sim.world.now
        seen: dict[ReplicaKey, Seen] = {}
        for replica in self._sim.replicas:
            since = self._missing.get(replica.address)
            if since is not None:
                state = Seen(Condition.GONE, max(since, process.began_at))
            elif replica.superseded:
                state = Seen(Condition.SUPERSEDED, superseded_by=replica.superseded_by)
            elif not replica.up:
                state = Seen(Condition.STARTING)
            elif now < replica.paused_until:
                state = Seen(Condition.SILENT)
            else:
                state = Seen(Condition.LEARNING if replica.learner else Condition.RUNNING)
            seen[_key(replica)] = state
        return seen

    def _replace(self, ghost: SimReplica, number: int) -> None:
        sim = self._sim
        address = f"{ghost.name}#{number}"
        while address in sim.network.hosts:  # this incarnation number was used before
            address += "+"
        successor = type(ghost)(sim, ghost.name, number, address)
        successor.forgotten = True
        successor.joining, successor.doubled = ghost.joining, ghost.own.number == number
        sim.replicas[sim.replicas.index(ghost)] = successor
        sim.ghosts.append(ghost)
        sim.network.add(successor.address, successor)
        self.replaced += 1
        sim.struck(GHOST, ghost.address)
        sim.world.later(0.01, successor.start)

    def _announce(self) -> None:
        """As host/replica_process.py: a successor tells its peers, from its start on, even while it copies,
        and those that join later. (If members never change, all are told again and again; that changes
        nothing.)"""
        sim = self._sim
        sim.world.later(ANNOUNCE_EVERY_S, self._announce)
        for one in sim.replicas:
            opening = not one.up and one.opening
            if not one.own.number or not (one.up or opening) or not self._goes_on(one):
                continue
            told = self._have_recorded.setdefault((one.address, one.incarnation), set())
            for peer in sim.replicas:
                if sim.operators.begun and peer.name in told:
                    continue
                if peer.up and self._goes_on(peer) and sim.network.reaches(one.address, peer.address):
                    peer.guarded(partial(_note, peer, one))
                    recorded = peer.marks.of(one.name) if peer is not one and peer.up else None
                    if one.up and one.guarded(partial(is_recorded, one.own, recorded)):
                        told.add(peer.name)
                    elif opening and recorded is not None and recorded.supersedes(one.own):
                        one.superseded_by = recorded.number
                        one.give_up(f"{peer.name} has recorded another process, before it was open")
                        break

    def _goes_on(self, replica: SimReplica) -> bool:
        return self._sim.world.now >= replica.paused_until

    # -------------------------------------------------------------- what must hold
    def check_counted(self, receiver: SimReplica, sender: SimReplica, message: RaftMessage) -> None:
        """Check, before ``receiver`` gets ``message``, that it does not count a predecessor's message."""
        if not self.replaced or receiver in self._sim.ghosts or receiver.learner:
            return
        if sender.own.number >= self._full.get(sender.name, 0):
            return
        kind, node = message["type"], receiver.node
        if message.get("term") != node.term:
            return
        told = (
            f"{receiver.address} counts what {sender.address} says ({kind}, term {node.term}), and "
            f"incarnation {self._full[sender.name]} of it is a full member"
        )
        if kind == "response_vote" and not node.is_leader:
            self._ghost_votes[receiver.address] = node.term, told
        elif kind == "next_node_idx" and node.is_leader and message["success"] and message["counts"]:
            raise Violation(told, "ghost-counted")

    def check_elected(self, leader: SimReplica) -> None:
        """Check, after a message, that ``leader`` leads no term in which a predecessor voted for it.

        (A candidate that has counted such a vote learns with another vote about the successor, and then no
        longer counts it.)
        """
        given = self._ghost_votes.get(leader.address)
        if given is not None and leader.up and leader.node.is_leader and leader.node.term == given[0]:
            raise Violation(given[1], "ghost-counted")

    def look_at_ghost(self, ghost: SimReplica) -> None:
        """Check a replaced process; called after each of its steps."""
        self._sim.checker.look_at_ghost(ghost)


def members_of(replica: SimReplica) -> MembersReport:
    """The members according to the replica's log."""
    members = replica.node.members
    return MembersReport(
        version=members.version,
        voters=[number_of(name) for name in members.voters],
        learners=[number_of(name) for name in members.learners],
        highest=members.highest,
        change_id=members.change_id,
        applied=replica.node.members_applied,
    )


def _note(peer: SimReplica, moved: SimReplica) -> None:
    """Record a successor at ``peer``, as the broker's ``peer_moved`` does."""
    if peer is not moved:
        peer.marks.learn([(moved.name, *moved.own)])
        peer.links.drop(moved.name)


def _key(replica: SimReplica) -> ReplicaKey:
    return 0, number_of(replica.name)


def _node(name: str) -> Node:
    return Node(name, name, "")
