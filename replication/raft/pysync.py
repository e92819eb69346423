"""The one place that knows pysyncobj's inside: its election and commit core, with our parts around it.

pysyncobj 0.3.17 stays unforked. ``Core`` subclasses ``SyncObj`` and replaces, by their mangled
names, the steps that are slow or unsafe: sending, applying, compaction, forwarding. Elections,
votes, terms, the follower's append and the leader's commit rule are pysyncobj's own. Everything
private that we touch is named in ``PRIVATE_...``; ``tests/replication/raft/test_pysync_contract.py``
holds it against the installed version.

Two module globals of pysyncobj are wrapped, both so that other users of it in the same process
see no change: ``createJournal`` lets a Journal object pass, and ``monotonicTime`` asks a clock
that is set per thread (a simulation runs many nodes under virtual time).

This file must never hold policy: what to send, what to hold back and what to refuse is decided in
``guards`` and ``raft``.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pysyncobj.syncobj as stock
from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.journal import Journal
from pysyncobj.version import VERSION

from escrowmq.replication.errors import SafetyViolation
from escrowmq.replication.raft.core_parts import CappedMatch, CoreLink, NoPoll, PeerNode
from escrowmq.replication.raft.types import Clock, Message, RaftConfig

if TYPE_CHECKING:
    from escrowmq.replication.log.journal import SegmentJournal

SUPPORTED_VERSION = "0.3.17"
if VERSION != SUPPORTED_VERSION:
    raise ImportError(
        f"pysyncobj {VERSION} is installed, but this software leans on private names of {SUPPORTED_VERSION}; "
        f"install pysyncobj=={SUPPORTED_VERSION}"
    )

FOLLOWER, CANDIDATE, LEADER = 0, 1, 2
NEVER_S = float(1 << 40)

#: Methods of SyncObj that Core replaces or calls, then attributes that it reads or writes.
PRIVATE_METHODS = [
    "applyLogEntries", "deleteEntriesFrom", "generateRaftTimeout", "getCurrentLogIndex", "getCurrentLogTerm",
    "sendAppendEntries", "setCurrentTerm", "setState", "tryLogCompaction",
]  # fmt: skip
PRIVATE_ATTRIBUTES = [
    "newAppendEntriesTime", "noopIDx", "raftCommitIndex", "raftCurrentTerm", "raftElectionDeadline",
    "raftLastApplied", "raftLeader", "raftMatchIndex", "raftState", "transferInProgress",
]  # fmt: skip


# ------------------------------------------------------------------ the two wrapped module globals
class _ThreadClock(threading.local):
    """The clock of the core that runs in this thread; outside any core, pysyncobj's own."""

    read: Clock = staticmethod(stock.monotonicTime)


_thread_clock = _ThreadClock()
_stock_create_journal = stock.createJournal


def _monotonic_time() -> float:
    return _thread_clock.read()


def _create_journal(journal: Any = None) -> Journal:
    return journal if isinstance(journal, Journal) else _stock_create_journal(journal)


stock.monotonicTime = _monotonic_time
stock.createJournal = _create_journal


@contextmanager
def thread_clock(clock: Clock) -> Iterator[None]:
    """Run pysyncobj in this thread under ``clock`` (tests that drive a stock SyncObj by virtual time)."""
    before = _thread_clock.read
    _thread_clock.read = clock
    try:
        yield
    finally:
        _thread_clock.read = before


class CoreOwner(Protocol):
    """What the core asks of the node around it."""

    def send(self, peer: str, message: Message) -> bool: ...
    def broadcast(self) -> None:
        """Send to every peer now: a heartbeat is due."""

    def apply_entry(self, index: int) -> None: ...
    def apply_limit(self) -> int:
        """Highest index that may be applied at present."""

    def role_changed(self, before: int, after: int) -> None: ...


@dataclass(frozen=True, slots=True)
class CoreTiming:
    """Times in seconds, as RaftConfig explains them."""

    election_min_s: float
    election_max_s: float
    heartbeat_s: float
    leader_fallback_s: float
    apply_chunk: int
    apply_budget_s: float

    @classmethod
    def of(cls, config: RaftConfig) -> CoreTiming:
        return cls(
            config.election_min_s,
            config.election_max_s,
            config.heartbeat_s,
            config.leader_fallback_s,
            config.apply_chunk,
            config.apply_budget_s,
        )


# ------------------------------------------------------------------ the core
class Core(SyncObj):  # type: ignore[misc]
    """pysyncobj's Raft core behind typed methods.

    Only methods, no properties: SyncObj evaluates every attribute of ``self`` while it is constructed.
    """

    def __init__(
        self,
        self_id: str,
        peers: Sequence[str],
        journal: SegmentJournal,
        owner: CoreOwner,
        timing: CoreTiming,
        *,
        clock: Clock,
        rng: random.Random,
        applied_index: int,
    ) -> None:
        self._owner, self._timing, self._journal, self._clock, self._rng = owner, timing, journal, clock, rng
        self._peer_nodes = {peer: PeerNode(peer) for peer in peers}
        self._link = CoreLink(owner.send)
        conf = SyncObjConf(
            autoTick=False,
            appendEntriesUseBatch=True,  # False sends once per command, and needs the leaking pipe notifier
            appendEntriesPeriod=timing.heartbeat_s,
            raftMinTimeout=timing.election_min_s,
            raftMaxTimeout=timing.election_max_s,
            leaderFallbackTimeout=timing.leader_fallback_s,
            connectionTimeout=max(5.0, timing.election_max_s),
            commandsWaitLeader=False,
            dynamicMembershipChange=False,
            logCompactionMinEntries=1 << 60,
            logCompactionMinTime=NEVER_S,
            fullDumpFile=None,
            journalFile=journal,
            onStateChanged=owner.role_changed,
        )
        peer_nodes = list(self._peer_nodes.values())
        with thread_clock(clock):
            super().__init__(PeerNode(self_id), peer_nodes, conf, nodeClass=PeerNode, transport=self._link)
        self._poller = NoPoll()
        self._match = CappedMatch()
        self._SyncObj__raftMatchIndex = self._match
        self._SyncObj__raftLastApplied = applied_index
        self._SyncObj__raftCommitIndex = max(1, applied_index)

    # -------------------------------------------------------------- driving it
    def tick(self, commit_cap: int) -> None:
        """One stock tick: election time-out, commit step, fallback, apply, heartbeat."""
        before, _thread_clock.read = _thread_clock.read, self._clock
        self._match.cap = commit_cap
        try:
            self.doTick(0)
        finally:
            self._match.cap = None
            _thread_clock.read = before

    def receive(self, peer: str, message: Message) -> None:
        before, _thread_clock.read = _thread_clock.read, self._clock
        try:
            self._link.receive(self._peer_nodes[peer], message)
        finally:
            _thread_clock.read = before

    def connected(self, peer: str) -> None:
        self._link.connected(self._peer_nodes[peer])

    def disconnected(self, peer: str) -> None:
        self._link.disconnected(self._peer_nodes[peer])

    def append(self, command: bytes) -> int:
        """Append a command of the current term (leader only); its index."""
        index = self._journal.last_index + 1
        self._journal.add(command, index, self._SyncObj__raftCurrentTerm)
        return index

    def send_timeout_now(self, peer: str) -> None:
        """Hand leadership over: the peer starts an election at once (it must hold our whole log)."""
        self._link.send(
            self._peer_nodes[peer], {"type": "timeout_now", "term": self._SyncObj__raftCurrentTerm}
        )

    def step_down(self, term: int) -> None:
        """Follow; a higher term is adopted first (durably, as a vote is)."""
        if term > self._SyncObj__raftCurrentTerm:
            self._SyncObj__setCurrentTerm(term, None)
        self._SyncObj__setState(FOLLOWER)
        self._SyncObj__raftLeader = None

    def postpone_election(self) -> None:
        self._SyncObj__raftElectionDeadline = self._clock() + self._SyncObj__generateRaftTimeout()

    def hasten_election(self) -> None:
        """Due within half of the range of time-outs from now on, unless it is due sooner."""
        within = (self._timing.election_max_s - self._timing.election_min_s) / 2
        due = self._clock() + within * self._rng.random()
        self._SyncObj__raftElectionDeadline = min(self._SyncObj__raftElectionDeadline, due)

    def campaign_at_next_tick(self) -> None:
        self._SyncObj__raftElectionDeadline = 0.0

    # -------------------------------------------------------------- reading it
    def role(self) -> int:
        role: int = self._SyncObj__raftState
        return role

    def term(self) -> int:
        term: int = self._SyncObj__raftCurrentTerm
        return term

    def commit_index(self) -> int:
        index: int = self._SyncObj__raftCommitIndex
        return index

    def applied_index(self) -> int:
        index: int = self._SyncObj__raftLastApplied
        return index

    def leader_id(self) -> str | None:
        node: PeerNode | None = self._SyncObj__raftLeader
        return None if node is None else str(node.id)

    def noop_index(self) -> int | None:
        """Index of the entry that opened this node's latest leadership."""
        index: int | None = self._SyncObj__noopIDx
        return index

    def match_index(self, peer: str) -> int:
        return dict.get(self._match, self._peer_nodes[peer], 0)

    def forget_match(self, peer: str) -> None:
        self._match[self._peer_nodes[peer]] = 0

    def election_due(self) -> bool:
        return bool(
            self._SyncObj__raftState != LEADER and self._SyncObj__raftElectionDeadline < self._clock()
        )

    def transfer_requested(self) -> bool:
        """The leader told this node to take over (its election must not be held up)."""
        return bool(self._SyncObj__transferInProgress)

    # -------------------------------------------------------------- replaced steps
    def _SyncObj__getCurrentLogIndex(self) -> int:  # stock reads a whole entry for it
        return self._journal.last_index

    def _SyncObj__getCurrentLogTerm(self) -> int:
        return self._journal.last_term

    def _SyncObj__generateRaftTimeout(self) -> float:  # stock uses the process-wide random
        low, high = self._timing.election_min_s, self._timing.election_max_s
        return low + (high - low) * self._rng.random()

    def _SyncObj__sendAppendEntries(self) -> None:  # stock: unpaced, pickled parts, whole tails copied
        self._SyncObj__newAppendEntriesTime = self._clock() + self._timing.heartbeat_s
        self._owner.broadcast()

    def _SyncObj__applyLogEntries(self) -> bool:
        """Stock applies the whole backlog in one tick, and repeats a command that raised for ever."""
        index = self._SyncObj__raftLastApplied
        stop = min(
            self._SyncObj__raftCommitIndex, self._owner.apply_limit(), index + self._timing.apply_chunk
        )
        if index >= stop:
            return False
        deadline = self._clock() + self._timing.apply_budget_s
        while index < stop:
            index += 1
            self._SyncObj__raftLastApplied = index
            self._owner.apply_entry(index)
            if self._clock() >= deadline:
                break
        return False

    def _SyncObj__deleteEntriesFrom(self, index: int) -> None:
        if index <= self._SyncObj__raftCommitIndex:
            raise SafetyViolation(
                f"asked to cut the log at {index}, which is committed up to {self._SyncObj__raftCommitIndex}"
            )
        self._journal.deleteEntriesFrom(index - self._journal.first_index)

    def _SyncObj__tryLogCompaction(self) -> None:
        """Retention is ours (whole segments); pysyncobj's snapshots clear the log before they rewrite it."""

    def _checkCommandsToApply(self) -> None:
        """Proposals are appended by ``append``: no queue, and nothing is ever forwarded to another node."""

    def _applyCommand(self, command: bytes, callback: Any, commandType: int | None = None) -> None:
        """All stock ways into the log (membership, code version, utility messages) are closed."""
        if callable(callback):
            callback(None, stock.FAIL_REASON.REQUEST_DENIED)
