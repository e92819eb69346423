"""How a replica that lost its disk takes part again without breaking its earlier promises.

It may have voted in terms, and acknowledged entries, that it no longer knows. So it begins as a
learner: it follows and stores, but neither votes nor campaigns, and its acknowledgements steer the
leader's sending without counting towards a majority. It is a full member again when

* every other voter has told it its term since it started (whatever it promised before, it
  promised to one of them, in a term that this one knows by now), and none of these terms is above
  that of the leader it follows; and
* its disk holds, undamaged, everything that this leader had in its log when it answered: that includes all
  that can have been committed with the lost replica's help.

Voters of a configuration that may come back, because the one in force is not known to be committed, are
asked too: such a voter may campaign with a vote that the lost replica promised to it, and win. Once the
change is committed it cannot any more, since a majority has a log that is ahead of its own.

It is safe because *all* others are asked, not a majority (cf. Michael et al., Recovering Shared Objects
Without Stable Storage, 2017). Each of them has, before it answered, put this learner's incarnation on its
disk (log/peer_marks.py) and closed the connection of any earlier process with the same id: from then on no
acknowledgement and no vote of that process counts there, even if it is still alive. Everything that it had
helped to commit until then is at or below the last index of the leader's answer. While one of the others is
down the learner waits; the rest of the group continues.

The learner's own marks were lost with its disk, so it might talk to a process of another replica that was
itself replaced. So an answer carries the marks of the answering replica, the learner makes the highest of
each durable, and an answer from an incarnation below them does not count. If two replicas are replaced at the
same time, each hears of the other in this way, from any third one.

A voter that is named only in an entry that no replica here holds cannot be asked. It hears of this replica
with the votes that it is given (elections.py).

The caller must remember on disk that the replica is a learner until ``active`` is False.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from escrowmq.replication.errors import Superseded
from escrowmq.replication.format.membership import in_order
from escrowmq.replication.format.wire import RaftMessage
from escrowmq.replication.log.peer_marks import Incarnation, Incarnations
from escrowmq.replication.raft.guards import sound_index
from escrowmq.replication.raft.members import Circle
from escrowmq.replication.raft.pysync import LEADER, Core
from escrowmq.replication.raft.types import Log

ASK_EVERY_S = 0.1


class _Answer(NamedTuple):
    """A peer's answer: its term, and the incarnation that answered (None: see ``Rejoin._links``)."""

    term: int
    incarnation: Incarnation | None


class Rejoin:
    """The learner's side, and the answers that every replica gives to learners."""

    def __init__(
        self,
        active: bool,
        nonce: int,
        circle: Circle,
        core: Core,
        journal: Log,
        send: Callable[[str, RaftMessage], bool],
        forget_match: Callable[[str], None],
        *,
        self_id: str,
        marks: Incarnations,
        drop: Callable[[str], None],
    ) -> None:
        """``nonce``: a fresh random number, so that answers to an earlier start do not count.
        ``forget_match(peer)``: as leader, no longer count what that peer acknowledged before.
        ``marks``: the newest incarnations of the peers. ``drop(peer)``: close the link to an older one.
        """
        self.active = active
        self._nonce, self._circle, self._core, self._journal, self._send = nonce, circle, core, journal, send
        self._forget_match = forget_match
        self._self_id, self._marks, self._drop = self_id, marks, drop
        #: Peer -> the incarnation at the other end of its link when the link came up; None: it has shown
        #: none. Over TCP every peer shows one in the greeting; a link within one process may lack it.
        self._links: dict[str, Incarnation | None] = {}
        self._learners: dict[str, int] = {}  # peers that asked: the nonce of their latest start
        self._answers: dict[str, _Answer] = {}
        self._target: tuple[str, int, int] | None = None  # leader, its term, its last index at its answer
        self._proved = (0, 0)  # term, index: up to here our log equals that of the term's leader
        self._ask_at = float("-inf")

    def proved(self, term: int, index: int) -> None:
        """The current leader's message proved that our logs are identical up to ``index``."""
        if self.active:
            self._proved = max(self._proved, (term, index))

    def connected(self, peer: str) -> None:
        """The link to ``peer`` is up; the peer has already made our incarnation durable.

        What a process acknowledged that has been replaced since does not count for its successor."""
        before, now = self._links.get(peer), self._marks.of(peer)
        self._links[peer] = now
        if before is not None and now != before:
            self._forget_match(peer)

    def tick(self, now: float) -> None:
        """Ask all that have not answered, and the leader until it has; finish when the conditions are met."""
        if not self.active:
            return
        self._core.postpone_election()
        if self._complete():
            self.active = False
            return
        if now >= self._ask_at:
            self._ask_at = now + ASK_EVERY_S
            leader = self._core.leader_id()
            for peer in in_order(self._circle.may_vote):
                if not self._answered(peer) or (peer == leader and not self._target_is_current()):
                    self._ask(peer)

    def _ask(self, peer: str) -> None:
        self._send(peer, {"type": "rejoin", "nonce": self._nonce, "term": self._core.term})

    def asked(self, peer: str, message: RaftMessage) -> None:
        """A learner asks. Our term is already on disk; the last index matters only if we lead."""
        leads = self._core.role == LEADER
        if self._learners.get(peer) != message["nonce"]:
            self._learners[peer] = message["nonce"]
            self._forget_match(peer)
        answer = {
            "type": "rejoin_answer",
            "nonce": message["nonce"],
            "term": self._core.term,
            "last_index": self._journal.last_index if leads else 0,
            "marks": self._marks.all(),
        }
        self._send(peer, answer)

    def answered(self, peer: str, message: RaftMessage) -> None:
        """Raises Superseded if the answer shows that we were replaced, and the disk's errors."""
        if not self.active or message["nonce"] != self._nonce:
            return
        self.learn(message["marks"])
        link = self._links.get(peer)
        if link != self._marks.of(peer):
            return  # from a process that was replaced
        known = self._answers.get(peer)
        term = (
            message["term"]
            if known is None or known.incarnation != link
            else max(known.term, message["term"])
        )
        self._answers[peer] = _Answer(term, link)
        if message["last_index"]:
            self._target = (peer, message["term"], message["last_index"])

    def told(self, peer: str, message: RaftMessage) -> None:
        """A leader says which replicas were replaced, before it makes us a voter: tell it what is on our disk
        now. Raises as ``answered``."""
        self.learn(message["marks"])
        self._send(peer, {"type": "marks_held", "marks": self._marks.all()})

    def forget(self, peer: str) -> None:
        """The peer is no longer a member."""
        for table in (self._links, self._learners, self._answers):
            table.pop(peer, None)

    def link(self, peer: str) -> Incarnation | None:
        """The incarnation of ``peer`` at the other end of the link; None: no link yet, or it has shown
        none."""
        return self._links.get(peer)

    def learn(self, marks: Sequence[tuple[str, int, str]]) -> None:
        """Adopt what a peer says of the incarnations, and drop links to older ones. Raises
        Superseded, and the disk's errors."""
        for peer, number, disk_id in marks:
            if peer == self._self_id and Incarnation(number, disk_id).supersedes(self._marks.own):
                raise Superseded(f"replica {self._self_id}", number)
        heard = self._circle.may_vote.union(self._circle.peers)
        for peer in self._marks.learn(mark for mark in marks if mark[0] in heard):
            if self._target is not None and self._target[0] == peer:
                self._target = None
            self._drop(peer)

    def _answered(self, peer: str) -> bool:
        """Whether the newest known incarnation of ``peer`` has answered."""
        answer = self._answers.get(peer)
        return answer is not None and answer.incarnation == self._marks.of(peer)

    def _target_is_current(self) -> bool:
        target = self._target
        return target is not None and target[:2] == (self._core.leader_id(), self._core.term)

    def _complete(self) -> bool:
        if not all(map(self._answered, self._circle.may_vote)) or not self._target_is_current():
            return False
        assert self._target is not None
        _, term, last = self._target
        # Nothing hidden by a damaged entry counts: it may have been acknowledged with this replica's help.
        sound = sound_index(self._journal, self._core.commit_index)
        held = self._proved[0] == term and min(self._proved[1], sound) >= last
        return held and max((self._answers[peer].term for peer in self._circle.may_vote), default=0) <= term
