"""What a leader tracks and checks before it changes the group's members (members.py has the rules and the
reasons).

It exists for one leadership, as the replicator does: with a new leader a learner's rounds start again.

A replica that lost its disk asks all voters before it counts again (rejoin.py), but it does not ask learners.
So a learner may still have its link with a process that was replaced. If it became a voter, it would count
that process's messages, and two majorities would exist. Therefore it becomes a voter only when it has told
the leader that every incarnation that the leader knows, or a newer one, is on its disk; by then it has closed
its links to older ones. Of a replica that is replaced later it learns in one of two ways. If the leader has
already met the new incarnation, the learner knows it too. Otherwise the leader's answer to that replica names
a last index at or after the entry that makes the learner a voter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from escrowmq.replication.format.membership import Members
from escrowmq.replication.format.wire import RaftMessage
from escrowmq.replication.log.peer_marks import Incarnation, Incarnations
from escrowmq.replication.raft.members import ROUNDS, Act, Circle, Refusal, Rounds, Step, not_yet, refusal
from escrowmq.replication.raft.pysync import LEADER, Core
from escrowmq.replication.raft.types import Log

#: How often a learner is sent the marks that it has not confirmed.
TELL_EVERY_S: Final = 0.1


class MembershipChanges:
    """State of one replica; used only while it leads."""

    def __init__(
        self,
        circle: Circle,
        core: Core,
        journal: Log,
        marks: Incarnations,
        link: Callable[[str], Incarnation | None],
        send: Callable[[str, RaftMessage], bool],
    ) -> None:
        """``link``: which incarnation of a peer our link leads to."""
        self._circle, self._core, self._journal = circle, core, journal
        self._marks, self._link, self._send = marks, link, send
        self._rounds: dict[str, Rounds] = {}
        #: Learner -> which incarnation of it reported the marks on its disk, and these marks.
        self._held: dict[str, tuple[Incarnation | None, dict[str, Incarnation]]] = {}
        self._tell_at = float("-inf")

    def begin(self) -> None:
        """Leadership begins, or ends."""
        self._rounds, self._held = {}, {}

    def forget(self, replica: str) -> None:
        """It lost its disk: what it had reached no longer counts."""
        self._rounds.pop(replica, None)
        self._held.pop(replica, None)

    def watch(self, now: float) -> None:
        """To be called at every tick while there are learners."""
        last, learners = self._journal.last_index, self._circle.learners
        for replica in learners:
            rounds = self._rounds.get(replica)
            if rounds is None:
                self._rounds[replica] = Rounds(last)
            else:
                rounds.look(self._core.match_index(replica), last)
        for replica in [replica for replica in (*self._rounds, *self._held) if replica not in learners]:
            self.forget(replica)
        if now >= self._tell_at:
            self._tell_at = now + TELL_EVERY_S
            for replica in learners:
                if not self.knows_the_marks(replica):
                    self._send(replica, {"type": "marks", "marks": self._marks.all()})

    def held(self, replica: str, message: RaftMessage) -> None:
        """A learner reports which incarnations are on its disk."""
        if replica in self._circle.learners and self._core.role == LEADER:
            held = {peer: Incarnation(number, disk_id) for peer, number, disk_id in message["marks"]}
            self._held[replica] = self._marks.of(replica), held

    # -------------------------------------------------------------- the rules
    def refusal(self, step: Step) -> Refusal | None:
        """Why the leader refuses this step; None: it accepts it."""
        why = refusal(self._circle.members, step, self._circle.id)
        if why is None and not self.own_term_applied():
            why = not_yet("this leader has not yet applied an entry of its own term; it soon will")
        if why is None and not self.last_change_applied():
            why = not_yet("the previous change is not applied yet; most voters have to store it")
        if why is None and step.act is Act.REMOVE and not self.go_on_without(step.replica):
            why = not_yet(
                f"without {step.replica} the voters have no sound majority; another voter has to catch up"
            )
        if why is None and step.act is Act.PROMOTE and not self.caught_up(step.replica):
            why = not_yet(f"{step.replica} has not caught up yet; it has to run and to copy the log")
        if why is None and step.act is Act.PROMOTE and not self.knows_the_marks(step.replica):
            why = not_yet(f"{step.replica} has not confirmed yet which replicas were replaced")
        return why

    def own_term_applied(self) -> bool:
        noop = self._core.noop_index
        return noop is not None and self._core.applied_index >= noop

    def last_change_applied(self) -> bool:
        return self._core.applied_index >= self._journal.members.newest_index

    def go_on_without(self, replica: str) -> bool:
        """Whether a majority of the remaining voters, including this leader, has an entry of this leadership
        on disk, and still answers. A voter that has lost its disk acknowledges nothing that counts until it
        has learned everything (its match is then forgotten). A configuration that needs it for a majority
        would be in force in this log, yet could neither be committed nor elect a leader, although the voter
        to be removed has everything. What a voter stored before it fell silent proves nothing: it may come
        back without its disk. Nor does what a process says that was replaced, from the moment on at which
        this leader has heard of the successor: the successor may not even have asked yet."""
        noop = self._core.noop_index
        staying = [voter for voter in self._circle.voters if voter != replica]
        sound = 1 + sum(
            noop is not None
            and self._core.match_index(voter) >= noop
            and self._core.answers(voter)
            and not self.was_replaced(voter)
            for voter in staying
        )
        return 2 * sound > 1 + len(staying)

    def was_replaced(self, replica: str) -> bool:
        """Whether our link still leads to a process that was replaced."""
        return self._link(replica) != self._marks.of(replica)

    def caught_up(self, replica: str) -> bool:
        """Whether this learner's disk has reached the leader's last index in the required number of rounds,
        and it still answers: a voter that is away makes every majority harder to reach."""
        rounds = self._rounds.get(replica)
        return rounds is not None and rounds.done >= ROUNDS and self._core.answers(replica)

    def knows_the_marks(self, replica: str) -> bool:
        """Whether this learner's disk has every mark, or a newer one, that ours has for the voters."""
        who, held = self._held.get(replica, (None, {}))
        if who != self._marks.of(replica):
            held = {}
        for peer in self._circle.may_vote:
            known = self._marks.of(peer)
            if peer != replica and known is not None and (peer not in held or known.supersedes(held[peer])):
                return False
        return True


# ------------------------------------------------------------------ newcomers
# Whether a replica that starts empty, with a number higher than the founders', may start as one that has
# promised nothing. Pure.
#
# Either it never voted, or it has lost the disk with its votes and acknowledgements. It has a copy of a
# leader's log, which says whether it is a voter. That is not enough: the leader may have been deposed
# without knowing it yet. In the log of that leader's successor the new replica may have become a voter,
# have voted, have acknowledged entries, and have lost its disk, all within the second for which a leader
# without followers carries on. If it started as if nothing had happened, it could form a majority with
# replicas that have heard of none of this, and what was committed with its help would be lost.
#
# So it asks a leader, and only one that a majority has answered after the question. By then no leader had
# been elected in a later term, not even with the vote of the lost disk, since every majority of voters
# without the new replica shares another voter with every majority that includes it. A replica that does not
# get this answer waits like one that lost its disk.


def votes_in(replica: str, configurations: Iterable[Members]) -> bool:
    """Whether it is a voter in any of these."""
    return any(replica in members.voters for members in configurations)


def has_promised_nothing(
    replica: str, copied: Iterable[Members], ask_leader: Callable[[], bool | None]
) -> bool | None:
    """``copied``: the configurations in the log that it has copied. ``ask_leader()``: whether it is never a
    voter in the log of a leader that was confirmed after the question; None: there is no such leader now.
    Returns None in that case too."""
    return ask_leader() if not votes_in(replica, copied) else False
