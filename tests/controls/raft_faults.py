"""Planted faults in elections, replication and the commit rule.

Random schedules find all but one of them: ``acks-without-term`` needs a directed schedule (ambush.py), with
the random faults still going on around it.
"""

from __future__ import annotations

from typing import Any

import pytest

from escrowmq.replication.format import wire
from escrowmq.replication.format.wire import RaftMessage
from escrowmq.replication.host.restoring import Restoring
from escrowmq.replication.log.datadir import LEARNER
from escrowmq.replication.log.datadir import LOST as LOST_DISK
from escrowmq.replication.log.vote import Record, VoteFile
from escrowmq.replication.raft import node as raft
from escrowmq.replication.raft.elections import PreVote
from escrowmq.replication.raft.node import RaftNode
from escrowmq.replication.raft.pysync import LEADER, Core
from escrowmq.replication.raft.rejoin import Rejoin
from escrowmq.replication.raft.replicator import PeerProgress
from tests.controls.ambush import stale_acknowledgements
from tests.controls.guards import take_away
from tests.controls.planting import plant
from tests.sim.environment import broken_link
from tests.sim.environment.network import SimNetwork
from tests.sim.group.replica import CRASHES_WHILE_COPYING

#: Reports that an acknowledged entry was lost or changed. SafetyViolation comes from the product itself,
#: which refuses to cut committed entries.
LOST = (
    *("early-ack", "false-match", "incomplete-leader", "lost-entry", "acknowledged-twice", "applied-differs"),
    *("commit-fell", "lost-write", "SafetyViolation"),
)
#: Reports that a vote was not kept, or was miscounted.
VOTES = ("voted-twice", "term-fell", "two-leaders", "no-majority")
#: Reports that no leader can commit; the second kind if a majority of disks holds everything.
STUCK = ("stuck", "quorum-lost-needlessly")


def _cut_whatever_is_asked(self: Core, index: int) -> None:
    self._journal.deleteEntriesFrom(index - self._journal.first_index)


@plant("stock-truncation", *LOST, workload="raw", start=2)
def stock_truncation(patch: pytest.MonkeyPatch) -> None:
    """A follower truncates its log at every AppendEntries and acknowledges its own tail, as stock pysyncobj
    does.

    The guards against it are removed, and so is the refusal to cut committed entries.
    """
    take_away(patch, "log-matching", "commit-cap", "ack-cap")
    patch.setattr(Core, "_SyncObj__deleteEntriesFrom", _cut_whatever_is_asked)


@plant("acks-before-fsync", *LOST, workload="raw")
def acks_before_fsync(patch: pytest.MonkeyPatch) -> None:
    """A follower acknowledges entries that only its page cache holds."""
    take_away(patch, "hold-acks")


@plant("leader-counts-itself-early", *LOST, "CorruptLog", workload="raw")
def leader_counts_itself_early(patch: pytest.MonkeyPatch) -> None:
    """A leader counts itself for entries that its own disk does not hold yet."""
    take_away(patch, "self-durable")


@plant(
    "acks-without-term",
    *LOST,
    workload="raw",
    size=5,
    kind="wild",
    conditions=stale_acknowledgements,
    start=1,
)
def acks_without_term(patch: pytest.MonkeyPatch) -> None:
    """A leader counts acknowledgements of an earlier term, although the follower has cut those entries
    since."""
    take_away(patch, "ack-term")


def every_vote_twice(patch: pytest.MonkeyPatch) -> None:
    """Answers to a candidate arrive twice, and half of its requests are lost, so that few replicas vote.

    A network may do both. On the usual network a majority has nearly always voted before a duplicate arrives.
    """
    fly = SimNetwork._fly

    def twice(self: SimNetwork, sender: str, receiver: str, connection: int, frame: bytes) -> None:
        view, header = memoryview(frame)[wire.PREFIX.size :], wire.PREFIX.unpack_from(frame)[1]
        kind = wire.decode(view[:header], view[header:])["type"]
        if kind == "request_vote" and not self.calm and self._stream(sender, receiver).random() < 0.5:
            return
        for _ in range(2 if kind == "response_vote" and not self.calm else 1):
            fly(self, sender, receiver, connection, frame)

    patch.setattr(SimNetwork, "_fly", twice)


@plant(
    "votes-counted-per-delivery",
    *VOTES,
    *LOST,
    workload="raw",
    size=5,
    kind="wild",
    often={"kill": 60, "at-election": 40},
    conditions=every_vote_twice,
)
def votes_counted_per_delivery(patch: pytest.MonkeyPatch) -> None:
    """A vote counts each time it arrives, so one voter whose vote arrives twice makes a majority of five."""
    take_away(patch, "vote-once")


@plant("vote-not-persisted", *VOTES, *LOST, workload="raw")
def vote_not_persisted(patch: pytest.MonkeyPatch) -> None:
    """Term and vote are kept in memory only: after a restart a replica votes a second time."""
    patch.setattr(VoteFile, "_store", lambda self, record: None)


@plant("vote-forgotten-at-restart", *VOTES, *LOST, workload="raw")
def vote_forgotten_at_restart(patch: pytest.MonkeyPatch) -> None:
    """The term survives a restart, but the vote given in it does not."""
    opened = VoteFile.__init__

    def forgetful(self: VoteFile, *args: object, **named: object) -> None:
        opened(self, *args, **named)  # type: ignore[arg-type]
        self._record = Record(self._record.sequence, self._record.term, None)

    patch.setattr(VoteFile, "__init__", forgetful)


@plant("vote-for-a-shorter-log", *LOST, workload="raw", often={"at-election": 40})
def vote_for_a_shorter_log(patch: pytest.MonkeyPatch) -> None:
    """A voter does not compare logs, so a replica that lacks acknowledged entries may become leader."""
    receive, asked = Core.receive, PreVote.asked

    def blind(self: Core, peer: str, message: RaftMessage) -> RaftMessage | None:
        if message["type"] == "request_vote":
            message = {**message, "last_log_term": 1 << 40}
        return receive(self, peer, message)

    patch.setattr(Core, "receive", blind)
    patch.setattr(
        PreVote, "asked", lambda self, peer, message: asked(self, peer, {**message, "last_log_term": 1 << 40})
    )


@plant("commit-of-an-older-term", "old-term-commit", *LOST, workload="raw")
def commit_of_an_older_term(patch: pytest.MonkeyPatch) -> None:
    """A leader commits an older term's entry by counting replicas (Raft, section 5.4.2, figure 8)."""
    tick = Core.tick

    def counting(self: Core, commit_cap: int, apply_limit: int) -> None:
        if self.role == LEADER and commit_cap > self.commit_index:
            self._SyncObj__raftCommitIndex = commit_cap
        tick(self, commit_cap, apply_limit)

    patch.setattr(Core, "tick", counting)


@plant("commit-index-not-capped", *LOST, workload="raw", start=2)
def commit_index_not_capped(patch: pytest.MonkeyPatch) -> None:
    """A follower applies the leader's commit index to its own unmatched tail."""
    take_away(patch, "commit-cap")


@plant("commit-index-falls", "commit-fell", "applied-differs", workload="raw")
def commit_index_falls(patch: pytest.MonkeyPatch) -> None:
    """A follower takes over every message's commit index, even a late one that is lower than its own."""
    receive = Core.receive

    def follow(self: Core, peer: str, message: RaftMessage) -> RaftMessage | None:
        answer = receive(self, peer, message)
        if message["type"] == "append_entries" and message["term"] == self.term and self.role != LEADER:
            self._SyncObj__raftCommitIndex = max(1, message["commit_index"])
        return answer

    patch.setattr(Core, "receive", follow)


@plant("apply-before-commit", "old-term-commit", *LOST, workload="raw")
def apply_before_commit(patch: pytest.MonkeyPatch) -> None:
    """A leader applies and answers entries that its own disk holds, whether a majority does or not."""
    tick = Core.tick

    def eager(self: Core, commit_cap: int, apply_limit: int) -> None:
        if self.role == LEADER:
            self._SyncObj__raftCommitIndex = max(self.commit_index, self._journal.durable_index)
        tick(self, commit_cap, apply_limit)

    patch.setattr(Core, "tick", eager)


@plant(
    "learner-votes-at-once",
    *VOTES,
    *LOST,
    "ghost-counted",
    workload="raw",
    kind="fifo",
    chaos_s=10.0,
    often={"empty-disk": 40},
)
def learner_votes_at_once(patch: pytest.MonkeyPatch) -> None:
    """A replica that lost its disk takes part at once, although it has forgotten its votes and
    acknowledgements."""
    begin = RaftNode.__init__

    def full_member(self: RaftNode, *args: object, **named: object) -> None:
        begin(self, *args, **{**named, "no_vote_until_caught_up": False})  # type: ignore[arg-type]

    patch.setattr(RaftNode, "__init__", full_member)


@plant("wiped-disk-counts-at-once", "counts-at-once", workload="raw", chaos_s=10.0, often={"empty-disk": 40})
def wiped_disk_counts_at_once(patch: pytest.MonkeyPatch) -> None:
    """A replica that has lost its disk copies the leader's log and counts from its start on: nothing says
    that it is a learner."""
    copy = Restoring._copy

    def forgetful(self: Restoring[Any], patience_s: float, *, lost_log: bool, mark: str = LOST_DISK) -> None:
        copy(self, patience_s, lost_log=False)

    patch.setattr(Restoring, "_copy", forgetful)


def crashes_in_most_copies(patch: pytest.MonkeyPatch) -> None:
    """The power fails in nine of ten copies of a leader's log."""
    patch.setitem(CRASHES_WHILE_COPYING, "share", 0.9)


@plant(
    "learner-mark-after-the-copy",
    "counts-at-once",
    workload="raw",
    chaos_s=10.0,
    often={"empty-disk": 60},
    conditions=crashes_in_most_copies,
    start=1,
)
def learner_mark_after_the_copy(patch: pytest.MonkeyPatch) -> None:
    """The mark that makes a replica a learner is written when it has the leader's log. If the power fails in
    between, its log looks like one of a replica that has lost nothing."""
    copy = Restoring._copy

    def late(self: Restoring[Any], patience_s: float, *, lost_log: bool, mark: str = LOST_DISK) -> None:
        copy(self, patience_s, lost_log=False)
        if lost_log:
            self._marks.write(LEARNER, mark)

    patch.setattr(Restoring, "_copy", late)


@plant(
    "learner-for-ever",
    "stuck-learner",
    *STUCK,
    workload="raw",
    kind="fifo",
    chaos_s=10.0,
    often={"empty-disk": 40},
)
def learner_for_ever(patch: pytest.MonkeyPatch) -> None:
    """A replica that lost its disk never becomes a full member again."""
    patch.setattr(Rejoin, "_complete", lambda self: False)


@plant("refusals-ignored", "not-converged", *STUCK, "stuck-learner", workload="raw")
def refusals_ignored(patch: pytest.MonkeyPatch) -> None:
    """A leader does not go back when a follower refuses, so a follower that lacks entries never gets them."""
    patch.setattr(PeerProgress, "refused", lambda self, hint, seq, sent_seq: False)


@plant("quorum-of-less", *VOTES, *LOST, workload="raw", start=2)
def quorum_of_less(patch: pytest.MonkeyPatch) -> None:
    """The commit index is computed with a majority that is one replica too small."""

    def any_other(own: int, others: list[int]) -> int:
        return max(others, default=own)

    patch.setattr(raft, "quorum_index", any_other)
    commit = Core.tick

    def by_cap(self: Core, commit_cap: int, apply_limit: int) -> None:
        if self.role == LEADER and self._journal.term_at(commit_cap) == self.term:
            self._SyncObj__raftCommitIndex = max(self.commit_index, commit_cap)
        commit(self, commit_cap, apply_limit)

    patch.setattr(Core, "tick", by_cap)


def broken_links(patch: pytest.MonkeyPatch) -> None:
    """In every group one directed link is cut for the whole schedule."""
    patch.setattr(broken_link, "SHARE", 1.0)


@plant("commits-with-every-voter", "link-blocks", workload="raw", conditions=broken_links, start=1)
def commits_with_every_voter(patch: pytest.MonkeyPatch) -> None:
    """A leader waits until every voter has an entry, and not only a majority."""

    def least(self: RaftNode, own: int) -> int:
        matches = [self._core.match_index(peer) for peer in self._circle.voters]
        return min(own, *matches) if self._core.role == LEADER else 0

    patch.setattr(RaftNode, "_commit_cap", least)
