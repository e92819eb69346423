"""How a group changes its members: which step may be taken, and which one comes next. Pure.

One entry changes one thing: a learner is added or dropped, a learner becomes a voter, or a voter is removed.
So any two consecutive configurations differ by at most one voter, and every majority of the one has a member
in common with every majority of the other (Raft thesis, section 4.1). That alone is not enough:

* the previous change must be applied, so that three configurations are never in force at once;
* an entry of the leader's own term must be applied: before that, a deposed leader's change may still be
  committed beside the new one (the defect in the original thesis, corrected in 2015);
* a learner becomes a voter when its disk has twice reached what the leader had when the round began, and it
  still answers. An empty voter counts in the majority immediately, and the group could stall until it is
  filled;
* a voter is removed only if a majority of the remaining ones holds an entry of this leadership, and still
  answers. A voter that lost its disk and is still learning holds nothing that counts; if it were needed, the
  group would stall for good;
* a leader does not remove itself: it hands over first. So a leader always counts itself correctly;
* no number is ever reused. What a removed replica promised, and what was acknowledged in its name, could
  be attributed to a new one with the same number.

Replacing a replica takes three steps: add another one as a learner, make it a voter, and remove the old one.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from escrowmq.replication.errors import ChangeNotYet, ChangeRefused
from escrowmq.replication.format.membership import (
    LEARNERS_MAX,
    VOTERS_MAX,
    Members,
    id_number,
    in_order,
)

#: How often a learner must have reached the leader's last index before it votes.
ROUNDS: Final = 2


class Act(enum.Enum):
    """What a step does. The last three change nothing in the log."""

    ADD = "add as learner"
    PROMOTE = "make a voter"
    REMOVE = "remove"
    DROP = "drop the learner"
    HAND_OVER = "hand over"
    WAIT = "wait for"
    DONE = "done"


class Step(NamedTuple):
    """``replica``: the replica concerned."""

    act: Act
    replica: str = ""

    def __str__(self) -> str:
        return f"{self.act.value} {self.replica}".rstrip()


@dataclass(frozen=True, slots=True)
class Goal:
    """A change as an operator or the supervisor requests it: replicas to make voters, and replicas to remove.

    ``id``: the same for every attempt; the resulting configurations carry it.
    """

    id: str
    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()


def next_step(members: Members, goal: Goal, leader: str, caught_up: Callable[[str], bool]) -> Step:
    """What the leader has to do next. Additions come first, so that the group is never smaller than both
    before and after; a replica to be added that was retired meanwhile is skipped.
    """
    for replica in goal.add:
        if replica in members.voters or members.retired(replica):
            continue
        if replica not in members.learners:
            return Step(Act.ADD, replica)
        return Step(Act.PROMOTE if caught_up(replica) else Act.WAIT, replica)
    for replica in goal.remove:
        if replica in members.learners:
            return Step(Act.DROP, replica)
        if replica in members.voters and replica != leader:
            return Step(Act.REMOVE, replica)
    if leader in goal.remove and len(members.voters) > 1:  # the others to be removed are gone by now
        return Step(Act.HAND_OVER)
    return Step(Act.DONE)


class Refusal(NamedTuple):
    """Why a step is refused, and what to do. ``passes``: it may be accepted later, so it is requested
    again."""

    text: str
    passes: bool

    def error(self, step: Step) -> ChangeNotYet | ChangeRefused:
        """The error for the requester."""
        return (ChangeNotYet if self.passes else ChangeRefused)(f"{step}: {self.text}")


def not_yet(text: str) -> Refusal:
    """The step has to wait."""
    return Refusal(text, True)


def never(text: str) -> Refusal:
    """It is useless to request the step again."""
    return Refusal(text, False)


def refusal(members: Members, step: Step, leader: str) -> Refusal | None:
    """Why ``step`` cannot follow ``members``, whatever the log holds; None: it can."""
    act, replica = step
    if act is Act.ADD:
        if not is_new(members, replica):
            return never(_used_up(members, replica))
        if len(members.learners) >= LEARNERS_MAX:
            return not_yet(
                f"{LEARNERS_MAX} learners are being filled; add the next when one votes or is gone"
            )
    elif act is Act.PROMOTE:
        if replica not in members.learners:
            return never(f"{replica} is not a learner; add it as one first")
        if len(members.voters) >= VOTERS_MAX:
            return not_yet(f"the group has {VOTERS_MAX} voters, which is the maximum; remove one first")
    elif act is Act.REMOVE:
        if replica not in members.voters:
            return never(f"{replica} is not a voter; the voters are {', '.join(members.voters)}")
        if replica == leader:
            return not_yet(f"{replica} leads; it hands over first")
    elif act is Act.DROP:
        if replica not in members.learners:
            return never(f"{replica} is not a learner")
    else:
        return never(f"{step} is not a change")
    return None


def in_vain(members: Members, goal: Goal) -> str:
    """Why no sequence of steps leads from here to ``goal``, and what to request instead; "": it can be
    reached."""
    for replica in goal.add:
        if members.retired(replica):
            return _used_up(members, replica)
    if not {*members.voters, *goal.add} - set(goal.remove):
        return "no voter would be left; add another replica in the same change"
    return ""


def _used_up(members: Members, replica: str) -> str:
    return (
        f"{replica} was a member before, or its number was skipped, and no number is reused; "
        f"the next replica has number {members.highest + 1}"
    )


def is_new(members: Members, replica: str) -> bool:
    """Whether this id was never used, as far as the log can tell."""
    return id_number(replica) > members.highest


def after(members: Members, step: Step, change_id: str) -> Members:
    """The configuration that ``step`` leads to. Only for a step without a ``refusal``."""
    act, replica = step
    voters, learners = set(members.voters), set(members.learners) - {replica}
    if act is Act.ADD:
        learners.add(replica)
    elif act is Act.PROMOTE:
        voters.add(replica)
    elif act is Act.REMOVE:
        voters.discard(replica)
    highest = max(members.highest, id_number(replica))
    return Members(members.version + 1, in_order(voters), in_order(learners), change_id, highest)


class Rounds:
    """How often a learner has reached the index that the leader's log had when the round began."""

    def __init__(self, last_index: int) -> None:
        self.done, self._target = 0, last_index

    def look(self, match: int, last_index: int) -> None:
        """``match``: up to where the learner's disk holds the leader's log."""
        if match >= self._target:
            self.done, self._target = self.done + 1, last_index


class Circle:
    """Which replicas count now, for one replica: shared by the parts of its node, changed by the node alone.

    ``voters``, ``learners`` and ``peers`` (both) are the other replicas; ``votes``: whether this one is a
    voter. ``may_vote``: the other voters of the configuration in force, or of one that is in force again if
    those in the log's tail are cut off.
    """

    __slots__ = ("id", "learners", "may_vote", "members", "peers", "voters", "votes")

    def __init__(self, self_id: str, possible: Sequence[Members]) -> None:
        self.id = self_id
        self.follow(possible)

    def follow(self, possible: Sequence[Members]) -> None:
        """Count by the last of these from now on; the ones before it may come back into force."""
        self.members = members = possible[-1]
        self.may_vote = {replica for one in possible for replica in one.voters} - {self.id}
        self.votes = self.id in members.voters
        self.voters = tuple(replica for replica in members.voters if replica != self.id)
        self.learners = tuple(replica for replica in members.learners if replica != self.id)
        self.peers = self.voters + self.learners
