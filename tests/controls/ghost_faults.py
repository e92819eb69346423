"""Planted faults in the protection against a process whose replica was replaced, and in the supervisor's
decision to replace one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import cast

import pytest

from escrowmq.cluster.supervisor import member_steps
from escrowmq.cluster.supervisor.member_steps import Condition, ReplicaKey, Seat, Seen
from escrowmq.replication.log import peer_marks
from escrowmq.replication.log.peer_marks import Incarnations, PeerMarks
from escrowmq.replication.raft.elections import Votes
from escrowmq.replication.raft.membership_changes import MembershipChanges
from escrowmq.replication.raft.rejoin import Rejoin
from tests.controls.member_faults import many_changes, without_looking_who_stays
from tests.controls.planting import plant
from tests.controls.raft_faults import LOST, STUCK, VOTES
from tests.sim.environment.network import SimNetwork
from tests.sim.faults import plan as faultplan
from tests.sim.group import supervisor
from tests.sim.group.replica import SimReplica
from tests.sim.group.supervisor import Supervisor


def many_ghosts(patch: pytest.MonkeyPatch) -> None:
    """In every schedule one supervisor, which acts at once on what it sees, replaces several replicas while
    their processes live on."""
    patch.setitem(supervisor.ACTS_AFTER_S, "supervisors", (0.0,))
    patch.setattr(supervisor, "TWO", 0.0)
    patch.setitem(faultplan.GHOSTS, "per_schedule", (3, 5))


def ghosts_among_the_ignorant(patch: pytest.MonkeyPatch) -> None:
    """Many ghosts (processes whose replica was replaced), each cut off from every replica that has met its
    successor, so that none of them tells it. It reaches only replicas that have not met the successor or have
    forgotten it: none, as long as no replica loses what it has noted."""
    many_ghosts(patch)
    shut = SimNetwork._shut

    def cut_off(self: SimNetwork, a: str, b: str) -> bool:
        return shut(self, a, b) or _knows_better(self, a, b) or _knows_better(self, b, a)

    patch.setattr(SimNetwork, "_shut", cut_off)


def _knows_better(network: SimNetwork, knowing: str, ghost: str) -> bool:
    host, other = (cast(SimReplica, network.hosts[address]) for address in (knowing, ghost))
    mark = host.marks.of(other.name)
    return mark is not None and mark.supersedes(other.own)


@plant(
    "predecessor-counted",
    "ghost-counted",
    *VOTES,
    *LOST,
    workload="raw",
    chaos_s=8.0,
    conditions=many_ghosts,
)
def predecessor_counted(patch: pytest.MonkeyPatch) -> None:
    """Every process with a replica's id is let in: acknowledgements and votes of a replaced process count."""
    patch.setattr(Incarnations, "refuses", lambda self, peer, shown: None)


@plant(
    "mark-after-the-link",
    "ghost-counted",
    *VOTES,
    *LOST,
    workload="raw",
    within=60,
    start=26,
    chaos_s=8.0,
    often={"power-cut": 60},
    conditions=ghosts_among_the_ignorant,
)
def mark_after_the_link(patch: pytest.MonkeyPatch) -> None:
    """A peer's incarnation is written when the link is up, and not synced: a power cut loses it."""

    def store(self: PeerMarks, slot: bytes) -> None:
        for position in peer_marks.SLOT_POSITIONS:
            self._file.write_at(position, slot)

    patch.setattr(PeerMarks, "_store", store)


@plant(
    "learner-without-marks",
    "ghost-counted",
    *VOTES,
    *LOST,
    workload="raw",
    within=200,
    start=186,
    passing_over=(
        "stuck-learner",
    ),  # it waits for a process that never speaks to it: true, but not what this fault is about
    chaos_s=8.0,
    often={"empty-disk": 40},
    conditions=ghosts_among_the_ignorant,
)
def learner_without_marks(patch: pytest.MonkeyPatch) -> None:
    """A replica that lost its disk does not learn which incarnations of its peers were replaced."""
    patch.setattr(Rejoin, "learn", lambda self, marks: None)


@plant(
    "learner-taken-for-a-member",
    *STUCK,
    "stuck-learner",
    "not-converged",
    *LOST,
    workload="raw",
    size=3,
    within=60,
    chaos_s=8.0,
    conditions=many_ghosts,
)
def learner_taken_for_a_member(patch: pytest.MonkeyPatch) -> None:
    """The supervisor counts a replica that still learns as healthy, and moves a second one of three."""

    def well(seat: Seat, voters: Collection[int], seen: Mapping[ReplicaKey, Seen]) -> bool:
        there = (Condition.RUNNING, Condition.LEARNING)
        others = [seen[seat.gid, rid] for rid in voters if rid != seat.rid]
        return 2 * sum(other.condition in there for other in others) > len(voters)

    patch.setattr(member_steps, "_others_are_well", well)


@plant(
    "successor-in-silence",
    "stuck",
    "stuck-learner",
    workload="raw",
    chaos_s=8.0,
    conditions=many_ghosts,
    start=7,
)
def successor_in_silence(patch: pytest.MonkeyPatch) -> None:
    """A successor does not announce itself, and waits forever for another leader than its predecessor."""
    patch.setattr(Supervisor, "_announce", lambda self: None)


def ghosts_amid_changes(patch: pytest.MonkeyPatch) -> None:
    """Learners become voters while replaced processes live on."""
    ghosts_among_the_ignorant(patch)
    many_changes(patch)


@plant(
    "promoted-without-marks",
    "ghost-counted",
    *VOTES,
    *LOST,
    workload="raw",
    within=30,
    start=1230,
    passing_over=("stuck-learner", "not-converged", *STUCK),
    chaos_s=8.0,
    conditions=ghosts_amid_changes,
)
def promoted_without_marks(patch: pytest.MonkeyPatch) -> None:
    """A learner becomes a voter before it has confirmed which processes were replaced, and no vote tells it.

    Random schedules do not find a case where the missing votes alone matter;
    tests/replication/raft/test_promotion_beside_a_ghost.py has one written by hand.
    """
    patch.setattr(MembershipChanges, "knows_the_marks", lambda self, replica: True)
    patch.setattr(Votes, "going_out", lambda self, message: {**message, "marks": []})


@plant(
    "removal-towards-who-is-empty",
    *STUCK,
    workload="raw",
    within=60,
    start=27,
    passing_over=("not-converged",),  # a change that does not end proves less than a group without a leader
    chaos_s=8.0,
    conditions=ghosts_amid_changes,
)
def removal_towards_who_is_empty(patch: pytest.MonkeyPatch) -> None:
    """A leader removes a voter although the remaining majority has lost its disks and has not caught up
    yet."""
    without_looking_who_stays(patch)
