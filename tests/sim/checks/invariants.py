"""The invariants that must hold at every moment of a simulation.

* A replica's term never decreases, and it votes once per term, even across restarts.
* One leader per term (Election Safety), and a majority of the voters named in its log voted for it.
* A leader's log holds every entry acknowledged in an earlier term (Leader Completeness).
* An index is applied with the same term and command on all replicas, always (State Machine Safety),
  and the state after it has the same hash.
* A leader commits only up to an entry of its own term (Raft, section 5.4.2), and entries that it believes to
  be on a follower are on that follower's disk.
* An acknowledged entry is durable on a majority of the voters with which its leader committed it.
* When a new voter starts to count, it has all entries that the leader had when it was added as a learner.
* A replica's commit index never decreases, and its own disk has what it has applied.
* A replica that knows of a damaged entry that it has yet to apply does not stand for election.
* At the end a group has a leader, in particular if each entry has a majority of sound copies.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from escrowmq.replication.format.membership import Members
from escrowmq.replication.log.journal import SegmentJournal
from escrowmq.replication.log.member_history import MemberHistory
from escrowmq.replication.raft.node import RaftNode
from tests.sim.environment.world import Violation

NO_BALLOT: tuple[int, str | None] = (0, None)


class Observed(Protocol):
    """A replica as the checker sees it."""

    name: str
    up: bool
    learner: bool
    incarnation: int

    @property
    def node(self) -> RaftNode: ...
    @property
    def journal(self) -> SegmentJournal: ...


class Checker:
    """Records what was acknowledged and raises Violation as soon as something contradicts it.

    ``blind``: kinds of violations to ignore. Only the controls use it, if one invariant always fails before
    another one that has to be tested as well.
    """

    blind: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.elections = 0
        self.acknowledged: dict[int, int] = {}  # index -> term of the entry
        self.acknowledged_to = 0  # the highest of these indexes
        self._leaders: dict[int, str] = {}
        self._leading_terms: dict[int, Observed] = {}
        self._votes: dict[int, dict[str, str]] = {}  # term -> voter -> candidate
        self._ballots: dict[str, tuple[int, str | None]] = {}  # replica -> its latest term and vote
        self._replicas: dict[str, Observed] = {}
        self._applied: dict[int, bytes] = {}
        self._digests: dict[int, bytes] = {}
        #: (leader, peer) -> last verified: match, the leader's term, the peer's process and log
        self._matched: dict[tuple[str, str], tuple[int, int, int, int]] = {}
        self._members: dict[str, Members] = {}  # each leader's members at its last step
        #: For each leader: its earlier configurations, and the commit index when each ended.
        self._ended: dict[str, list[tuple[int, Members]]] = {}
        self._seen: dict[str, tuple[int, int, int]] = {}  # replica -> incarnation, term led, commit index
        self._unfit: dict[str, int] = {}  # replica -> the incarnation that cannot apply its log

    # -------------------------------------------------------------- as it happens
    def applied(self, replica: Observed, index: int, term: int, command: bytes, digest: bytes | None) -> None:
        entry = hashlib.sha1(b"%d " % term + command).digest()
        if self._applied.setdefault(index, entry) != entry:
            self._broken(
                "applied-differs",
                f"{replica.name} applies another entry at {index} than was applied there before",
            )
        if digest is not None and self._digests.setdefault(index, digest) != digest:
            self._broken(
                "state-differs",
                f"the state of {replica.name} after entry {index} differs from another replica's",
            )

    def rebuilt(self, replica: Observed, has: bytes | None, would_have: bytes | None) -> None:
        """Compare the state of ``replica`` with the one that a restart would build from its disk."""
        if has is None or has != would_have:
            self._broken(
                "state-differs",
                f"the state of {replica.name} differs from the one that its disk leads to",
            )

    def acknowledge(self, replicas: Iterable[Observed], index: int, term: int) -> None:
        if self.acknowledged.setdefault(index, term) != term:
            self._broken("acknowledged-twice", f"two different entries were acknowledged at {index}")
        self.acknowledged_to = max(self.acknowledged_to, index)
        voters = self._voters(index, term)
        # Replicas that are down, or whose disk was lost after they acknowledged, cannot be checked here.
        holders = sum(
            not r.up or r.learner or _holds_durably(r.journal, index, term)
            for r in replicas
            if r.name in voters
        )
        if 2 * holders <= len(voters):
            self._broken(
                "early-ack", f"entry {index} was acknowledged while only {holders} replicas hold it durably"
            )

    def _voters(self, index: int, term: int) -> tuple[str, ...]:
        """The voters with which the leader of ``term`` committed the entry, according to its log.

        An entry may be applied and acknowledged when the next configuration is already in the log. For a term
        without a leader: the voters of the last leader.
        """
        leader = self._leading_terms.get(term) or self._leading_terms[max(self._leading_terms)]
        members: Members = leader.node.members
        if leader.name not in self._members:
            return members.voters
        last = self._seen[leader.name][2], self._members[leader.name]
        for committed, then in (*self._ended[leader.name], last):
            if index <= committed:
                return then.voters
        return members.voters

    def look(self, replica: Observed) -> None:
        """Check ``replica``; called after each of its steps."""
        node, name = replica.node, replica.name
        self._replicas[name] = replica
        journal = replica.journal
        ballot = (journal.getCurrentTerm(), journal.getVotedForNodeId())
        if replica.learner or self._ballots.get(name, NO_BALLOT) != ballot:
            self._voted(replica)
        commit, leads = node.commit_index, node.term if node.is_leader else 0
        seen, now = self._seen.get(name), (replica.incarnation, leads, commit)
        if leads or seen != now:
            self._moved(replica, seen, now)
            self._seen[name] = now
        if journal.damaged_after(node.applied_index) is not None:
            self._unfit[name] = replica.incarnation
        elif name in self._unfit:
            del self._unfit[name]

    def _moved(self, replica: Observed, seen: tuple[int, int, int] | None, now: tuple[int, int, int]) -> None:
        """Check a change of (incarnation, term that it leads, commit index)."""
        incarnation, leads, commit = now
        if seen is not None and seen[0] == incarnation:
            if commit < seen[2]:
                self._broken(
                    "commit-fell", f"the commit index of {replica.name} fell from {seen[2]} to {commit}"
                )
            if leads == seen[1] != 0:
                self._leading(replica, commit if commit > seen[2] else 0)
                if replica.node.members is not self._members[replica.name]:
                    self._changed(replica)
            if leads and leads != seen[1]:
                self._elected(replica, leads)
        elif leads:
            self._elected(replica, leads)

    def look_at_ghost(self, ghost: Observed) -> None:
        """Check a process whose replica was replaced; called after each of its steps.

        Until each peer has met its successor, it may vote and lead, once per term; its votes are recorded
        separately from those of the successor.
        """
        node, name = ghost.node, f"{ghost.name}~"
        term, candidate = ghost.journal.getCurrentTerm(), ghost.journal.getVotedForNodeId()
        if candidate is not None:
            self._votes.setdefault(term, {}).setdefault(name, candidate)
        if not node.is_leader:
            return
        leads = self._leaders.setdefault(node.term, name)
        self._leading_terms.setdefault(node.term, ghost)
        if leads not in (name, ghost.name):
            self._broken(
                "two-leaders", f"{leads} and the predecessor of {ghost.name} both lead term {node.term}"
            )

    def _voted(self, replica: Observed) -> None:
        """Check the vote on the replica's disk, unless the replica lost its disk (see raft/rejoin.py)."""
        if replica.learner:
            self._ballots.pop(replica.name, None)
            return
        journal = replica.journal
        ballot = term, candidate = journal.getCurrentTerm(), journal.getVotedForNodeId()
        known, before = self._ballots.get(replica.name, NO_BALLOT)
        if ballot == (known, before):
            return
        if term < known:
            self._broken("term-fell", f"the term of {replica.name} fell from {known} to {term}")
        elif term == known and before not in (None, candidate):
            self._broken("voted-twice", f"{replica.name} voted for {before} and {candidate} in term {term}")
        self._ballots[replica.name] = ballot
        if candidate == replica.name and self._unfit.get(replica.name) == replica.incarnation:
            self._broken(
                "unfit-candidate",
                f"{replica.name} stands for election in term {term}, and cannot apply its log: "
                f"entry {journal.damaged_after(replica.node.applied_index)} is damaged",
            )
        if candidate is not None:
            self._votes.setdefault(term, {}).setdefault(replica.name, candidate)

    def _leading(self, replica: Observed, committed: int) -> None:
        """Check a step of a leader. ``committed``: its commit index, if that increased."""
        journal, term = replica.journal, replica.node.term
        if committed and journal.term_at(committed) != term:
            self._broken(
                "old-term-commit",
                f"{replica.name}, leading term {term}, commits up to entry {committed} of term "
                f"{journal.term_at(committed)}",
            )
        for peer, progress in replica.node.replicator.progress.items():
            other = self._replicas.get(peer)
            if other is None:
                continue
            match = progress.match
            # An entry that was durable in one process stays so until it truncates its log.
            claim = (match, term, other.incarnation, other.journal.generation)
            if self._matched.get((replica.name, peer)) == claim:
                continue
            if other.learner or not other.up or other.node.term > term:
                continue  # it follows a later leader and may have truncated what it acknowledged
            entry_term = journal.term_at(match)  # None: removed by retention, or missing
            beyond = match > journal.last_index
            if beyond or (entry_term is not None and not _holds_durably(other.journal, match, entry_term)):
                self._broken(
                    "false-match",
                    f"{replica.name}, leading term {term}, takes {peer} to hold entry {match}, "
                    "which it does not",
                )
            self._matched[replica.name, peer] = claim

    def _changed(self, replica: Observed) -> None:
        """Check a leader whose configuration has changed since its last step."""
        members, history = replica.node.members, replica.journal.members
        before, self._members[replica.name] = self._members[replica.name], members
        self._ended[replica.name].append((self._seen[replica.name][2], before))
        for name in set(members.voters) - set(before.voters):
            other, since = self._replicas.get(name), _learner_since(history, name)
            term = replica.journal.term_at(since)
            if other is None or not other.up or other.learner or term is None:
                continue
            if not _holds_durably(other.journal, since, term):
                self._broken(
                    "early-promotion",
                    f"{replica.name} makes {name} a voter, whose disk does not even hold entry {since}, "
                    "which made it a learner",
                )

    def _elected(self, replica: Observed, term: int) -> None:
        self.elections += 1
        if self._leaders.setdefault(term, replica.name) != replica.name:
            self._broken("two-leaders", f"{self._leaders[term]} and {replica.name} both lead term {term}")
        self._leading_terms[term] = replica
        self._members[replica.name], self._ended[replica.name] = replica.node.members, []
        voters, given = replica.node.members.voters, self._votes.get(term, {})
        votes = sum(
            candidate == replica.name for name, candidate in given.items() if name.rstrip("~") in voters
        )
        if 2 * votes <= len(voters):
            self._broken("no-majority", f"{replica.name} leads term {term} by {votes} votes")
        journal = replica.journal
        for index, entry_term in self.acknowledged.items():
            if entry_term < term and index >= journal.first_index and journal.term_at(index) != entry_term:
                self._broken(
                    "incomplete-leader",
                    f"acknowledged entry {index} is lost: {replica.name}, elected in term {term}, lacks it",
                )

    def _broken(self, kind: str, text: str) -> None:
        if kind not in self.blind:
            raise Violation(text, kind)

    # -------------------------------------------------------------- at the end
    def end(
        self,
        replicas: list[Observed],
        missing: Sequence[str] = (),
        all_sound: Callable[[], bool] = lambda: False,
    ) -> None:
        """Check the end, after the calm, with every replica up: nothing acknowledged is missing, one leads.

        ``missing``: what the group still lacked although there was time. ``all_sound``: whether a
        majority of voters keeps each acknowledged entry on their disks, whatever their processes do.
        """
        if not any(r.up and r.node.ready for r in replicas):
            if all_sound():
                self._broken(
                    "quorum-lost-needlessly",
                    "no leader after the calm, although each entry has a majority of sound copies",
                )
            self._broken("stuck", "no leader after the calm: the group is stuck")
        learners = [r.name for r in replicas if r.node.rejoining]
        if learners:
            self._broken("stuck-learner", f"still learning after the calm: {', '.join(learners)}")
        positions = {r.name: r.node.applied_index for r in replicas}
        if len(set(positions.values())) != 1:
            self._broken("not-converged", f"the replicas did not converge after the calm: {positions}")
        for replica in replicas:
            journal = replica.journal
            for index, term in self.acknowledged.items():
                if index >= journal.first_index and journal.term_at(index) != term:
                    self._broken(
                        "lost-entry", f"acknowledged entry {index} is missing on {replica.name} at the end"
                    )
        if missing:
            self._broken("stuck", f"the group is stuck long after the calm: {'; '.join(missing)}")


def _holds_durably(journal: SegmentJournal, index: int, term: int) -> bool:
    return index < journal.first_index or (index <= journal.durable_index and journal.term_at(index) == term)


def _learner_since(history: MemberHistory, name: str) -> int:
    """The entry that made ``name``, a voter since the newest one, a learner."""
    since = history.newest_index
    while since:
        index, members = history.dated(since - 1)
        if index >= since or members is None or name not in members.learners:
            break
        since = index
    return since
