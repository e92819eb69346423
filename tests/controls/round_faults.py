"""Planted faults in what share groups rely on when leaders change, or clocks.

The other parts of the rule of confirmed rounds (``Replicator.leads_since``) are taken away in
tests/replication/replica/test_confirmed_rounds.py: random schedules hardly ever show these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from escrowmq.replication.format import share_ops
from escrowmq.replication.format.wire import RaftMessage
from escrowmq.replication.model import ResultCode
from escrowmq.replication.raft.replicator import LeadCheck, Replicator
from escrowmq.replication.replica.entry_writing import EntryWriter, Submission
from escrowmq.replication.replica.lease_dispatcher import AcquireRequest, LeaseDispatcher, ReadIndex
from escrowmq.replication.replica.replica import Replica
from escrowmq.replication.replica.share_admission import ShareAdmission, ranges_of
from escrowmq.replication.state.topics import Partition
from tests.controls.planting import plant
from tests.controls.share_faults import shared

#: What a message that failed, and comes back although it also stays, is reported as.
TWICE = ("acked-again", "retried-twice", "over-attempts")
RANGES_FEW = 2
LATER_MS = 100


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


class Eager:
    """A node that is ready as soon as it leads."""

    def __init__(self, raft: Any) -> None:
        self._raft, self.check_lead, self.leads_since = raft, raft.check_lead, raft.leads_since

    @property
    def ready(self) -> bool:
        return bool(self._raft.is_leader)


@plant("hands-out-before-it-is-ready", "acked-again", "double-lease", conditions=shared, start=17)
def hands_out_before_it_is_ready(patch: pytest.MonkeyPatch) -> None:
    """A new leader hands out before it has applied what its predecessors have committed."""
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


@plant("reads-unconfirmed", "stale-read", often={"pause": 150}, start=2)
def reads_unconfirmed(patch: pytest.MonkeyPatch) -> None:
    """Whoever believes to lead answers what only a leader may, without a majority's word."""
    patch.setattr(ReadIndex, "ask", lambda self, done: done(True))


@plant("nack-in-two-entries", *TWICE, "dead-letter-lost", conditions=shared, start=9)
def nack_in_two_entries(patch: pytest.MonkeyPatch) -> None:
    """The copy of a message that has failed is in one entry, and that its original is final in another."""
    pump = Replica.pump
    waiting: dict[ShareAdmission, list[tuple[int, bytes, Partition]]] = {}

    def split(
        self: ShareAdmission,
        writer: EntryWriter,
        submission: Submission,
        number: int,
        partition: Partition,
        offsets: Sequence[int],
        answer: Any,
        audited: str = "",
    ) -> None:
        submission.results[number] = answer
        if not offsets:
            return
        group, ranges = submission.units[number].ops[0].meta.group, ranges_of(offsets)
        self._note(writer, group, partition, ranges)
        self._finishing(writer).ranges.pop()  # it stays under way until the second entry
        self._finishing(writer).answers.append((submission, number, answer))
        writer.own(submission, number, share_ops.group_settings(group, {}))  # asks, and changes nothing
        frame = share_ops.share_ack(
            group, partition.topic, partition.number, ranges, partition.topic_id, audited
        )
        waiting.setdefault(self, []).append((writer.now_ms + LATER_MS, frame, partition))

    def second(self: Replica, now_ms: int) -> None:
        shares = self.admission.shares
        if not self._leads:
            waiting.pop(shares, None)
        for due_ms, frame, partition in waiting.pop(shares, ()):
            if self.group_ms(now_ms) < due_ms:
                waiting.setdefault(shares, []).append((due_ms, frame, partition))
            elif partition.slot in self.state.topics.slots:
                self._submit_own(frame, partition)
        pump(self, now_ms)

    patch.setattr(ShareAdmission, "_finish", split)
    patch.setattr(Replica, "pump", second)


@plant("acks-beyond-the-bound-dropped", *TWICE, "stuck", conditions=shared, start=6)
def acks_beyond_the_bound_dropped(patch: pytest.MonkeyPatch) -> None:
    """Acks of a group that has too many final ranges in a partition are answered, and forgotten."""
    ack = ShareAdmission.ack

    def drop(self: ShareAdmission, writer: EntryWriter, submission: Submission, number: int) -> None:
        op = submission.units[number].ops[0]
        partition = self._partition(op)
        pair = self._state.shares.get(op.meta.group, partition) if isinstance(partition, Partition) else None
        if pair is not None and op.meta.ranges and pair.ranges >= RANGES_FEW:
            submission.results[number] = [int(ResultCode.OK)]
        else:
            ack(self, writer, submission, number)

    patch.setattr(ShareAdmission, "ack", drop)


@plant("leases-by-the-groups-time", "double-lease", conditions=shared, start=45, often={"clock-wall": 40})
def leases_by_the_groups_time(patch: pytest.MonkeyPatch) -> None:
    """Leases end when the group's time says so, which wall clocks set ahead."""
    patch.setattr(Replica, "monotonic_ms", lambda self: self.time.ms)
