"""Asking before campaigning, so that a replica that was cut off does not depose a healthy leader.

Raft thesis, section 9.6. When its election time-out expires, a replica first asks whether the
others would vote for it in the next term. They agree if its log is not behind theirs and they themselves have
not heard from a leader for a minimum election time-out. Only with a majority does the
real election start, and only then is the term raised. An agreement promises nothing and is not
recorded: safety depends on the real vote alone.

When a leader dies, its links break at all followers at once, so they ask at nearly the same time. Two that
both campaign split the vote, and the next attempt begins only after a whole time-out. So who agrees waits for
a moment before it asks; and of two that ask each other with equal logs, the one with the lower id goes first.
"""

from __future__ import annotations

from collections.abc import Callable

from escrowmq.replication.format.wire import RaftMessage
from escrowmq.replication.raft.members import Circle
from escrowmq.replication.raft.pysync import LEADER, Core
from escrowmq.replication.raft.types import Clock, Log

#: A replica with committed entries still to apply looks again this often, and stands for election once it has
#: applied them: as a leader it could not answer anything before, and another one may be ready now. That ends,
#: since nobody commits more without a leader.
APPLY_FIRST_S = 0.01

#: Part of the minimum election time-out for which a replica gives way to one with which it agreed: time for
#: two synced votes and their messages. Below 1, or the other one's next attempt would come first again.
GIVE_WAY = 0.5


class PreVote:
    """The asking and answering sides of one replica."""

    def __init__(
        self,
        circle: Circle,
        core: Core,
        journal: Log,
        send: Callable[[str, RaftMessage], bool],
        clock: Clock,
        quiet_s: float,
        more_to_apply: Callable[[], bool],
    ) -> None:
        self._circle, self._core, self._journal, self._send, self._clock = circle, core, journal, send, clock
        self._quiet_s = quiet_s  # a leader heard from more recently than this is assumed to be alive
        self._more_to_apply = more_to_apply
        self._leader_seen_at = float("-inf")
        self._agreed: set[str] = set()
        self._asked_term: int | None = None
        self._asked_at = float("-inf")

    def leader_seen(self) -> None:
        """A current leader's message arrived."""
        self._leader_seen_at = self._clock()
        self._asked_term = None

    def leader_lost(self) -> None:
        """The connection to the leader broke: its process died, or its network reset it.

        This is known long before a time-out, so ask soon; but not all at the same instant, or the candidates
        would split the vote. Nothing is at risk: if only this one link failed, the others
        still hear the leader and do not agree.
        """
        self._leader_seen_at = float("-inf")
        self._core.hasten_election()

    def tick(self, now: float, connected: set[str]) -> None:
        """Before a due election, ask first. A replica that is not a voter (yet, or any more) never
        campaigns."""
        core, circle = self._core, self._circle
        if not core.election_due(now) or core.transfer_requested():
            return
        if not circle.votes:
            core.postpone_election()
            return
        if self._more_to_apply():
            core.hold_election(APPLY_FIRST_S)
            return
        if connected.isdisjoint(circle.voters):
            return
        if self._asked_term == core.term + 1 and self._majority():
            self._asked_term = None
            return  # the core may campaign in this very tick
        core.postpone_election()
        self._asked_term, self._asked_at, self._agreed = core.term + 1, now, set()
        for peer in circle.voters:
            self._ask(peer)

    def _ask(self, peer: str) -> None:
        last = {"last_log_index": self._journal.last_index, "last_log_term": self._journal.last_term}
        self._send(peer, {"type": "pre_vote", "term": self._asked_term, **last})

    def asked(self, peer: str, message: RaftMessage) -> None:
        """Agree, or stay silent. A replica in a later term says so, or the asker could never catch up."""
        core, journal = self._core, self._journal
        if message["term"] <= core.term:
            self._send(peer, {"type": "stale_term", "term": core.term})
            return
        leader_alive = core.role == LEADER or self._clock() - self._leader_seen_at < self._quiet_s
        theirs = message["last_log_term"], message["last_log_index"]
        ours = journal.last_term, journal.last_index
        if leader_alive or theirs < ours:
            return
        if theirs == ours and self._goes_first(peer):
            self._ask(peer)  # it may have heard the leader until now, and been silent the first time
            return
        self._asked_term = None
        core.hold_election(self._quiet_s * GIVE_WAY)
        self._send(peer, {"type": "pre_vote_granted", "term": message["term"]})

    def _goes_first(self, peer: str) -> bool:
        """Whether this replica asks too just now, and has the lower id. It does not insist for long, because
        it may be unable to reach a majority."""
        asks = self._asked_term == self._core.term + 1
        return asks and self._circle.id < peer and self._clock() - self._asked_at < self._quiet_s * GIVE_WAY

    def granted(self, peer: str, message: RaftMessage) -> None:
        if message["term"] == self._asked_term == self._core.term + 1 and peer in self._circle.voters:
            self._agreed.add(peer)
            if self._majority():
                self._core.campaign_at_next_tick()

    def _majority(self) -> bool:
        return (len(self._agreed) + 1) * 2 > len(self._circle.voters) + 1
