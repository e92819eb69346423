"""Planted faults in how a group changes its members.

A leader must also apply an entry of its own term before it changes members. Random schedules do not find a
case where that matters; tests/scenarios/two_majorities.txt is one written by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from escrowmq.replication.format.membership import Members
from escrowmq.replication.host.member_changes import MemberChanges as BrokerChanges
from escrowmq.replication.raft import members as rules
from escrowmq.replication.raft.members import Circle, Goal
from escrowmq.replication.raft.membership_changes import MembershipChanges
from escrowmq.replication.raft.node import RaftNode
from escrowmq.replication.raft.pysync import Core
from tests.controls.planting import plant
from tests.controls.raft_faults import LOST, STUCK, VOTES
from tests.sim.faults import plan as faultplan
from tests.sim.group import members

#: Certain proof that a group counts wrongly: it elects two leaders or loses what was acknowledged.
SURE = (*VOTES, *LOST)
WRONG = (*SURE, *STUCK, "not-converged")
#: A change that does not finish, or finishes too early.
UNSETTLED = ("not-converged", "stuck-learner", "early-promotion")
#: A group that counts wrongly may also wait forever. That proves less than a promise that is broken.
LATE = (*STUCK, *UNSETTLED)


def many_changes(patch: pytest.MonkeyPatch) -> None:
    """Every schedule changes members several times, now and then two at once; no operator acts on an outdated
    view."""
    patch.setitem(members.LATE_S, "operators", (0.0,))
    patch.setitem(faultplan.CHANGES, "per_schedule", (4, 6))
    patch.setitem(faultplan.CHANGES, "per_group", (2, 3))


def late_operators(patch: pytest.MonkeyPatch) -> None:
    """Every group changes its members several times, and what each operator has seen is seconds old."""
    many_changes(patch)
    patch.setitem(members.LATE_S, "operators", (0.3, 1.0, 3.0))


def without_looking_who_stays(patch: pytest.MonkeyPatch) -> None:
    """Remove voters whatever the state of those that stay, even one that lost its disk, so that more changes
    happen."""
    patch.setattr(MembershipChanges, "go_on_without", lambda self, replica: True)


@plant(
    "two-changes-at-once",
    *SURE,
    workload="raw",
    conditions=many_changes,
    passing_over=LATE,
    within=80,
    start=34,
)
def two_changes_at_once(patch: pytest.MonkeyPatch) -> None:
    """A leader changes members again before the previous change is applied."""
    without_looking_who_stays(patch)
    patch.setattr(MembershipChanges, "last_change_applied", lambda self: True)


@plant(
    "members-taken-at-apply",
    *SURE,
    workload="raw",
    conditions=many_changes,
    passing_over=LATE,
    within=80,
    start=4,
)
def members_taken_at_apply(patch: pytest.MonkeyPatch) -> None:
    """A configuration takes effect when it is applied, not when it is in the log."""
    follow = Circle.follow
    patch.setattr(Circle, "follow", lambda self, possible: follow(self, possible[:1]))


@plant("learner-promoted-early", "early-promotion", *WRONG, workload="raw", conditions=many_changes)
def learner_promoted_early(patch: pytest.MonkeyPatch) -> None:
    """A learner becomes a voter at once, with an empty disk."""
    patch.setattr(MembershipChanges, "caught_up", lambda self, replica: True)


@plant("member-id-used-again", *WRONG, workload="raw", conditions=many_changes)
def member_id_used_again(patch: pytest.MonkeyPatch) -> None:
    """A replica that was removed is added again under its old id, on another disk."""
    patch.setattr(rules, "is_new", lambda members, replica: True)
    patch.setattr(Members, "retired", lambda self, replica: False)


@plant(
    "lone-voter-ahead-of-its-disk",
    *SURE,
    workload="raw",
    conditions=many_changes,
    passing_over=LATE,
    within=300,
    start=504,
)
def lone_voter_ahead_of_its_disk(patch: pytest.MonkeyPatch) -> None:
    """A leader that is the only voter commits what is only in its memory, and tells its learners."""
    without_looking_who_stays(patch)
    entries = Core._SyncObj__getEntries  # type: ignore[attr-defined]

    def uncapped(self: Core, *args: Any) -> Any:
        cap, self._match.cap = self._match.cap, None
        try:
            return entries(self, *args)
        finally:
            self._match.cap = cap

    patch.setattr(Core, "_SyncObj__getEntries", uncapped)


@plant(
    "tail-ignored-at-start",
    *SURE,
    *STUCK,
    workload="raw",
    conditions=many_changes,
    passing_over=UNSETTLED,
    within=80,
    start=134,
)
def tail_ignored_at_start(patch: pytest.MonkeyPatch) -> None:
    """A replica starts with the members of the applied state, and ignores changes later in its log."""
    begin = RaftNode.__init__

    def ignorant(self: RaftNode, *args: object, **named: object) -> None:
        begin(self, *args, **named)  # type: ignore[arg-type]
        applied: Sequence[Members] = self._journal.members.since(self.applied_index)[:1]
        self._circle.follow(applied)
        self._core.follow(self._circle.voters, {*self.known_peers.known, *self._circle.peers})

    patch.setattr(RaftNode, "__init__", ignorant)


@plant("late-step-taken", "late-step", groups=2, start=1, chaos_s=6.0, conditions=late_operators)
def late_step_taken(patch: pytest.MonkeyPatch) -> None:
    """A leader takes a step towards new members although the request was made for members of another
    version."""
    take_step = BrokerChanges._take_step

    def at_any_version(self: BrokerChanges, goal: Goal, version: int, answer: Any) -> None:
        take_step(self, goal, self._running.node.members.version, answer)

    patch.setattr(BrokerChanges, "_take_step", at_any_version)
