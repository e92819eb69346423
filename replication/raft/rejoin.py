"""How a replica that lost its disk takes part again without breaking what it had promised.

It may have voted in terms, and acknowledged entries, that it no longer knows. So it begins as a
learner: it follows and stores, but neither votes nor campaigns, and its acknowledgements steer the
leader's sending without counting towards a majority. It is a full member again when

* every other member has told it its term since it started (whatever it had promised before, it had
  promised to one of them, in a term that this one knows by now), and none of these terms is above
  that of the leader it follows; and
* its disk holds everything that this leader had in its log when it said so: all that can have been
  committed with the lost replica's help is in there.

Asking *all* others, not a majority, is what makes it safe without a new identity: no answer to the
lost replica's old messages can be outstanding, since each of the others has closed the connection
they came on (cf. Michael et al., Recovering Shared Objects Without Stable Storage, 2017). While one
of them is down the learner waits; the group goes on with the others.

The caller must remember on disk that the replica is a learner until ``active`` is False.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from escrowmq.replication.format.wire import RaftMessage
from escrowmq.replication.raft.pysync import LEADER, Core
from escrowmq.replication.raft.types import Log

ASK_EVERY_S = 0.1


class Rejoin:
    """The learner's side, and the answers that every replica gives to learners."""

    def __init__(
        self,
        active: bool,
        nonce: int,
        peers: Sequence[str],
        core: Core,
        journal: Log,
        send: Callable[[str, RaftMessage], bool],
        forget_match: Callable[[str], None],
    ) -> None:
        """``nonce``: a fresh random number, so that answers to an earlier start do not count.
        ``forget_match(peer)``: as leader, count no longer what that peer acknowledged before.
        """
        self.active = active and bool(peers)
        self._nonce, self._peers, self._core, self._journal, self._send = nonce, peers, core, journal, send
        self._forget_match = forget_match
        self._learners: dict[str, int] = {}  # peers that asked: the nonce of their latest start
        self._terms: dict[str, int] = {}
        self._target: tuple[str, int, int] | None = None  # leader, its term, its last index then
        self._proved = (0, 0)  # term, index: up to here our log is that of the term's leader
        self._ask_at = float("-inf")

    def proved(self, term: int, index: int) -> None:
        """The current leader's message showed that our logs are the same up to ``index``."""
        if self.active:
            self._proved = max(self._proved, (term, index))

    def tick(self, now: float) -> None:
        """Ask those who have not answered, and the leader until it has; finish when all is there."""
        if not self.active:
            return
        self._core.postpone_election()
        if self._complete():
            self.active = False
            return
        if now >= self._ask_at:
            self._ask_at = now + ASK_EVERY_S
            leader = self._core.leader_id()
            for peer in self._peers:
                if peer not in self._terms or (peer == leader and not self._target_is_current()):
                    self._send(peer, {"type": "rejoin", "nonce": self._nonce, "term": self._core.term()})

    def asked(self, peer: str, message: RaftMessage) -> None:
        """A learner asks. Our term is on disk already; the last index matters only if we lead."""
        leads = self._core.role() == LEADER
        if self._learners.get(peer) != message["nonce"]:
            self._learners[peer] = message["nonce"]
            self._forget_match(peer)
        self._send(
            peer,
            {
                "type": "rejoin_answer",
                "nonce": message["nonce"],
                "term": self._core.term(),
                "last_index": self._journal.last_index if leads else 0,
            },
        )

    def answered(self, peer: str, message: RaftMessage) -> None:
        if not self.active or message["nonce"] != self._nonce:
            return
        self._terms[peer] = max(self._terms.get(peer, 0), message["term"])
        if message["last_index"]:
            self._target = (peer, message["term"], message["last_index"])

    def _target_is_current(self) -> bool:
        target = self._target
        return target is not None and target[:2] == (self._core.leader_id(), self._core.term())

    def _complete(self) -> bool:
        if len(self._terms) < len(self._peers) or not self._target_is_current():
            return False
        assert self._target is not None
        _, term, last = self._target
        held = self._proved[0] == term and min(self._proved[1], self._journal.durable_index) >= last
        return held and max(self._terms.values()) <= term
