"""Takes parts away from the rule by which a leader hands messages out (``Replicator.leads_since``)."""

from __future__ import annotations

from typing import Any, cast

import pytest

from escrowmq.replication.format.wire import RaftMessage
from escrowmq.replication.raft.replicator import LeadCheck, Replicator
from escrowmq.replication.replica.lease_dispatcher import AcquireRequest, LeaseDispatcher


def an_answer_of_an_earlier_round(patch: pytest.MonkeyPatch) -> None:
    """Whatever a voter has answered in this leadership counts for every round."""

    def believes(self: Replicator, check: LeadCheck) -> bool:
        return all(self.progress[peer].heard_seq > 0 for peer in self._circle.voters)

    patch.setattr(Replicator, "leads_since", believes)


def a_link_that_is_up_again(patch: pytest.MonkeyPatch) -> None:
    """What was lost with a link counts as answered when there is another one."""
    connected = Replicator.connected

    def trust(self: Replicator, peer: str) -> None:
        connected(self, peer)
        if peer in self.progress:
            self.progress[peer].heard_seq = self._seq

    patch.setattr(Replicator, "connected", trust)


def an_answer_of_a_learner(patch: pytest.MonkeyPatch) -> None:
    """A replica that has lost its disk, and with it the later term, counts as a voter."""
    answered = Replicator.answered

    def count(self: Replicator, peer: str, message: RaftMessage) -> None:
        answered(self, peer, message)
        if peer in self.progress and message["term"] == self._core.term:
            self.progress[peer].heard_seq = max(self.progress[peer].heard_seq, message["seq"])

    patch.setattr(Replicator, "answered", count)


def a_leader_that_is_not_ready(patch: pytest.MonkeyPatch) -> None:
    """It hands out before it has applied what its predecessors have committed."""
    attach, acquire = LeaseDispatcher.attach, LeaseDispatcher.acquire
    times: dict[LeaseDispatcher, int] = {}

    def eager(self: LeaseDispatcher, raft: Any) -> None:
        attach(self, raft)
        self._raft = cast(Any, Eager(raft))

    def note(self: LeaseDispatcher, ask: AcquireRequest, now_ms: int) -> None:
        times[self] = now_ms
        acquire(self, ask, now_ms)

    def serve(self: LeaseDispatcher) -> None:
        if self._raft is not None and self._raft.ready and self in times:
            self.step(times[self])

    patch.setattr(LeaseDispatcher, "attach", eager)
    patch.setattr(LeaseDispatcher, "acquire", note)
    patch.setattr(LeaseDispatcher, "resign", serve)


class Eager:
    """A node that is ready as soon as it leads."""

    def __init__(self, raft: Any) -> None:
        self._raft, self.check_lead, self.leads_since = raft, raft.check_lead, raft.leads_since

    @property
    def ready(self) -> bool:
        return bool(self._raft.is_leader)
