"""Votes on their way out and in: each counts once, and none of a process whose place was taken.

A replica that lost its disk counts again once every voter that it knows of refuses its old process
(rejoin.py). It cannot know of all. A leader of the past may have made a learner a voter, in an entry that
nobody else holds, or holds any more. If that one still has its link with the old process, it could be elected
with the vote of that one and of whoever has heard of no later leader, while the others commit with the
successor: two majorities.

So a vote brings the incarnations that the voter knows, and in a term in which a candidate has counted the
vote of an old process it counts no further one. Who was asked by the successor tells of it with every vote
from then on. Who had voted before has answered the successor with the term of this vote, or a later one: then
the successor waits for a leader of such a term, so for the candidate itself or for one that the candidate
cannot pass. A vote of one of these is needed in every group of four and more. In one of three the candidate
and the old process are enough; but then the group was one of two, and of two none is ever replaced
(cluster/placement.py).

Incarnations are asked for where members have changed: there all know these messages. Elsewhere a request and
a vote are as they always were, for peers with older software.
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
    """Of one replica, as a voter and as a candidate."""

    def __init__(
        self,
        circle: Circle,
        core: Core,
        marks: Incarnations,
        learn: Callable[[Marks], None],
        link: Callable[[str], Incarnation | None],
    ) -> None:
        """``learn``: take over what a peer says of incarnations. ``link(peer)``: which incarnation of it the
        link leads to, None: not known."""
        self._circle, self._core, self._marks = circle, core, marks
        self._learn, self._link = learn, link
        self._guard = VoteGuard()
        self._term = 0
        self._counted: dict[str, Incarnation | None] = {}  # in that term: by which process of that name
        self._with_marks = False  # the candidate that is being answered wants to know them

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
        """A vote for us. Raises Superseded if it shows that our own place was taken; the disk's errors."""
        term = message["term"]
        if peer not in self._circle.voters or term != self._core.term():
            return
        if "marks" in message:
            self._learn(message["marks"])
        elif self._marks_are_known():
            return  # to a question of before members changed
        if not self._guard.admit(peer, term):
            return
        if term != self._term:
            self._term, self._counted = term, {}
        self._counted[peer] = self._link(peer)
        if not any(map(self._is_gone, self._counted)):
            self._core.receive(peer, message)

    def _is_gone(self, peer: str) -> bool:
        """Whether the place of who voted in this name was taken."""
        counted, known = self._counted[peer], self._marks.of(peer)
        return counted is not None and known is not None and known.supersedes(counted)
