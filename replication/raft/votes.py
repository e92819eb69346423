"""Votes sent and received: each counts once, and votes of replaced processes do not count.

A replica that lost its disk counts again once every voter that it knows of refuses its old process
(rejoin.py). It cannot know all of them. A past leader may have made a learner a voter, in an entry that
no other replica holds, or holds any more. If that voter still has its link with the old process, it could be
elected with the vote of that process and of replicas that have heard of no later leader, while the others
commit with the successor: two majorities.

So a vote carries the incarnations that the voter knows, and in a term in which a candidate has counted the
vote of a replaced process it counts no further one. A voter that the successor has asked reports it with
every vote from then on. A voter that had voted before has answered the successor with the term of this vote,
or a later one: then the successor waits for a leader of such a term, so for the candidate itself or for one
that the candidate cannot pass. In every group of four and more the candidate needs a vote of one of these. In
a group of three the candidate and the old process are enough; but then the group was one of two before, and
in a group of two no replica is ever replaced (cluster/placement.py).

Incarnations are requested only in groups whose members have changed: there all replicas know these messages.
Elsewhere a request and a vote are as they always were, for peers with older software.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from escrowmq.replication.format.wire import RaftMessage
from escrowmq.replication.log.peer_marks import Incarnation, Incarnations
from escrowmq.replication.raft.guards import VoteGuard
from escrowmq.replication.raft.members import Circle
from escrowmq.replication.raft.pysync import Core

Marks = Sequence[tuple[str, int, str]]


class Votes:
    """State of one replica, as a voter and as a candidate."""

    def __init__(
        self,
        circle: Circle,
        core: Core,
        marks: Incarnations,
        learn: Callable[[Marks], None],
        link: Callable[[str], Incarnation | None],
    ) -> None:
        """``learn``: adopt what a peer says of incarnations. ``link(peer)``: its incarnation at the other end
        of the link, None: not known."""
        self._circle, self._core, self._marks = circle, core, marks
        self._learn, self._link = learn, link
        self._guard = VoteGuard()
        self._term = 0
        self._counted: dict[str, Incarnation | None] = {}  # in that term: voter -> its process
        self._with_marks = False  # the candidate being answered has asked for the marks

    # -------------------------------------------------------------- as a voter
    def asked(self, peer: str, message: RaftMessage) -> None:
        """A candidate wants our vote."""
        self._with_marks = "marks" in message
        self._core.receive(peer, message)

    # -------------------------------------------------------------- both
    def going_out(self, message: RaftMessage) -> RaftMessage:
        """A request or a vote of the core's, as it is sent."""
        if message["type"] == "request_vote":
            return {**message, "marks": []} if self._marks_are_known() else message
        return {**message, "marks": self._marks.all()} if self._with_marks else message

    def _marks_are_known(self) -> bool:
        return self._circle.members.version > 1

    # -------------------------------------------------------------- as a candidate
    def given(self, peer: str, message: RaftMessage) -> None:
        """A vote for us. Raises Superseded if it shows that we were replaced; also the disk's errors."""
        term = message["term"]
        if peer not in self._circle.voters or term != self._core.term:
            return
        if "marks" in message:
            self._learn(message["marks"])
        elif self._marks_are_known():
            return  # answers a request sent before members changed
        if not self._guard.admit(peer, term):
            return
        if term != self._term:
            self._term, self._counted = term, {}
        self._counted[peer] = self._link(peer)
        if not any(map(self._is_gone, self._counted)):
            self._core.receive(peer, message)

    def _is_gone(self, peer: str) -> bool:
        """Whether the process that voted in this name has been replaced."""
        counted, known = self._counted[peer], self._marks.of(peer)
        return counted is not None and known is not None and known.supersedes(counted)
