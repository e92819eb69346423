"""The one place that knows pysyncobj's internals: its election and commit core, with our parts around it.

pysyncobj 0.3.17 is used unforked. ``Core`` subclasses ``SyncObj`` and replaces, by their mangled
names, the steps that are slow or unsafe: sending, applying, compaction, forwarding. Elections,
votes, terms, the follower's append and the leader's commit rule are pysyncobj's own. Every
private name that we touch is listed in ``PRIVATE_...``; ``tests/replication/raft/test_pysync_contract.py``
checks them against the installed version.

Two module globals of pysyncobj are wrapped, both so that other users of pysyncobj in the same process
see no change: ``createJournal`` also accepts a Journal object, and ``monotonicTime`` asks a clock
that is set per thread (a simulation runs many nodes under virtual time).

This file must never hold policy: ``guards``, ``replicator`` and ``node`` decide what to send, what to hold
back and what to refuse.
"""

from __future__ import annotations

import random
import threading
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol

import pysyncobj.syncobj as stock
from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.journal import Journal
from pysyncobj.node import Node
from pysyncobj.transport import Transport
from pysyncobj.version import VERSION

from escrowmq.replication.errors import SafetyViolation
from escrowmq.replication.format.wire import RaftMessage
from escrowmq.replication.raft.types import Clock, Log, RaftConfig

SUPPORTED_VERSION = "0.3.17"
if VERSION != SUPPORTED_VERSION:
    raise ImportError(
        f"pysyncobj {VERSION} is installed, but this software uses private names of {SUPPORTED_VERSION}; "
        f"install pysyncobj=={SUPPORTED_VERSION}"
    )

FOLLOWER, LEADER = 0, 2
NEVER_S = float(1 << 40)
ROUNDING_S = 1e-6  # more than the rounding error of a sum of two times

#: Methods of SyncObj that Core replaces or calls, then attributes that it reads or writes.
PRIVATE_METHODS = [
    "applyLogEntries", "deleteEntriesFrom", "generateRaftTimeout", "getCurrentLogIndex", "getCurrentLogTerm",
    "getEntries", "onMessageReceived", "onNodeConnected", "onNodeDisconnected", "sendAppendEntries",
    "sendNextNodeIdx", "setCurrentTerm", "setState", "tryLogCompaction",
]  # fmt: skip
PRIVATE_ATTRIBUTES = [
    "connectedNodes", "lastResponseTime", "newAppendEntriesTime", "noopIDx", "otherNodes", "raftCommitIndex",
    "raftCurrentTerm", "raftElectionDeadline", "raftLastApplied", "raftLeader", "raftMatchIndex",
    "raftNextIndex", "raftState", "transferInProgress",
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


# ------------------------------------------------------------------ what goes in through its public seams
class PeerNode(Node):  # type: ignore[misc]
    """A member by its plain id. Its hash ignores PYTHONHASHSEED: sets iterate the same in every run."""

    def __init__(self, id: str, **info: Any) -> None:
        super().__init__(id, **info)
        self._hash = zlib.crc32(id.encode())

    def __hash__(self) -> int:
        return self._hash

    @property
    def address(self) -> str:
        return str(self._id)


class _VotesOut(Transport):  # type: ignore[misc]
    """pysyncobj's transport. The core only sends requests for votes, and votes, through it."""

    ready = True  # stock has a property, and reads it twice in every tick

    def __init__(self, send: Callable[[str, RaftMessage], bool]) -> None:
        super().__init__(None, None, None)
        self._send = send

    def send(self, node: Node, message: RaftMessage) -> bool:
        return self._send(node.id, message)


class _NoPoll:
    """Stock ticks poll sockets; ours belong to the driver."""

    def poll(self, timeout: float) -> None: ...
    def subscribe(self, *_: Any) -> None: ...
    def unsubscribe(self, *_: Any) -> None: ...


class _CappedMatch(dict[Node, int]):
    """matchIndex as the commit step sees it: never above ``cap``, the highest index a quorum holds durably.

    Stock counts the leader itself for every entry it has in memory. The cap is set only while the
    commit step runs; otherwise the true values are visible.
    """

    __slots__ = ("cap",)

    def __init__(self) -> None:
        super().__init__()
        self.cap: int | None = None

    def __getitem__(self, node: Node) -> int:
        match, cap = dict.__getitem__(self, node), self.cap
        return match if cap is None or match < cap else cap


class CoreOwner(Protocol):
    """What the core needs from the node around it."""

    def send_vote(self, peer: str, message: RaftMessage) -> bool: ...
    def broadcast(self) -> None:
        """Send to every peer now: a heartbeat is due."""

    def apply_entry(self, index: int) -> bool:
        """False: its command cannot be read now; a later tick tries again."""

    def role_changed(self, before: int, after: int) -> None: ...


# ------------------------------------------------------------------ the core
class Core(SyncObj):  # type: ignore[misc]
    """pysyncobj's Raft core behind typed methods.

    SyncObj evaluates every attribute of ``self`` during construction, so what the properties below read has a
    value in the class too. They are read several times in each tick, hence without a Python call.
    """

    _SyncObj__raftState = FOLLOWER
    _SyncObj__raftCurrentTerm = _SyncObj__raftCommitIndex = _SyncObj__raftLastApplied = 0
    _SyncObj__raftElectionDeadline = NEVER_S
    _SyncObj__noopIDx: int | None = None
    if TYPE_CHECKING:
        role: int
        term: int
        commit_index: int
        applied_index: int
        noop_index: int | None
        election_deadline: float
    else:
        role = property(attrgetter("_SyncObj__raftState"))
        term = property(attrgetter("_SyncObj__raftCurrentTerm"))
        commit_index = property(attrgetter("_SyncObj__raftCommitIndex"))
        applied_index = property(attrgetter("_SyncObj__raftLastApplied"))
        #: Of the entry that opened this leadership; None: not appended yet, or this does not lead.
        noop_index = property(attrgetter("_SyncObj__noopIDx"))
        election_deadline = property(attrgetter("_SyncObj__raftElectionDeadline"))

    def __init__(
        self,
        self_id: str,
        voters: Sequence[str],
        journal: Log,
        owner: CoreOwner,
        config: RaftConfig,
        *,
        clock: Clock,
        rng: random.Random,
        applied_index: int,
    ) -> None:
        """``voters``: the others that count towards a majority; see ``follow``."""
        self._owner, self._config, self._journal, self._clock, self._rng = owner, config, journal, clock, rng
        self._apply_limit = 0
        #: Whether something changed since the caller's last look on which the commit cap depends: what peers
        #: hold, who votes, or who leads.
        self.matches_changed = True
        self._answer: RaftMessage | None = None
        self._heard_until = float("-inf")  # see _rests
        self._linked: set[str] = set()
        self._peer_nodes: dict[str, PeerNode] = {}
        peer_nodes, votes = [self._node(peer) for peer in voters], _VotesOut(owner.send_vote)
        conf = SyncObjConf(
            autoTick=False,
            appendEntriesUseBatch=True,  # False sends once per command, and needs the leaking pipe notifier
            appendEntriesPeriod=config.heartbeat_s,
            raftMinTimeout=config.election_min_s,
            raftMaxTimeout=config.election_max_s,
            leaderFallbackTimeout=config.leader_fallback_s,
            connectionTimeout=max(5.0, config.election_max_s),
            commandsWaitLeader=False,
            dynamicMembershipChange=False,
            logCompactionMinEntries=1 << 60,
            logCompactionMinTime=NEVER_S,
            fullDumpFile=None,
            journalFile=journal,
            onStateChanged=owner.role_changed,
        )
        with thread_clock(clock):
            super().__init__(PeerNode(self_id), peer_nodes, conf, nodeClass=PeerNode, transport=votes)
        self._poller = _NoPoll()
        self._match = _CappedMatch()
        self._SyncObj__raftMatchIndex = self._match
        self._SyncObj__raftLastApplied = applied_index
        self._SyncObj__raftCommitIndex = max(1, applied_index)

    # -------------------------------------------------------------- driving it
    def tick(self, commit_cap: int, apply_limit: int) -> None:
        """One stock tick: election time-out, commit step, fallback, apply, heartbeat.

        ``commit_cap``: highest index that a quorum holds durably; ``apply_limit``: highest that may be
        applied.
        """
        now = self._clock()
        if self._rests(now, commit_cap, apply_limit):
            return
        before, _thread_clock.read = _thread_clock.read, self._clock
        # A leader commits through entries of its own term. If the cap's entry is of an older term, stock
        # would look at every entry up to it, in every tick until a majority holds the leader's first entry.
        term = self._journal.term_at(commit_cap)
        if term is not None and term < self._SyncObj__raftCurrentTerm:
            commit_cap = 0
        self._match.cap, self._apply_limit = commit_cap, apply_limit
        try:
            self._onTick(0)
        finally:
            self._match.cap = None
            _thread_clock.read = before
        if now >= self._heard_until and self._SyncObj__raftState == LEADER:
            self._heard_until = self._majority_heard_until()

    def _rests(self, now: float, commit_cap: int, apply_limit: int) -> bool:
        """Whether a stock tick would do nothing: no deadline has passed, and nothing can be committed or
        applied. Most ticks are such, and this check takes a tenth of the time of stock's steps."""
        commit, applied = self._SyncObj__raftCommitIndex, self._SyncObj__raftLastApplied
        if applied < commit and applied < apply_limit:
            return False
        if self._SyncObj__raftState != LEADER:
            return bool(now <= self._SyncObj__raftElectionDeadline)
        if now > self._SyncObj__newAppendEntriesTime or now >= self._heard_until:
            return False
        # Without other voters stock looks at each entry after the commit index, whatever the cap is.
        alone = not self._SyncObj__otherNodes
        return bool(commit == self._journal.last_index or (commit_cap <= commit and not alone))

    def _majority_heard_until(self) -> float:
        """Until then a leader does not give up its leadership for lack of answers; later answers extend
        it."""
        needed = (len(self._SyncObj__otherNodes) + 1) // 2
        if not needed:
            return NEVER_S
        answers = sorted(self._SyncObj__lastResponseTime[node] for node in self._SyncObj__otherNodes)
        last: float = answers[-needed]
        return last + self._config.leader_fallback_s - ROUNDING_S

    def receive(self, peer: str, message: RaftMessage) -> RaftMessage | None:
        """Let the core process a message; returns its answer to an AppendEntries (it sends votes itself)."""
        before, _thread_clock.read = _thread_clock.read, self._clock
        self._answer = None
        try:
            self._SyncObj__onMessageReceived(self._peer_nodes.get(peer) or self._node(peer), message)
        finally:
            _thread_clock.read = before
        return self._answer

    def heard(self, peer: str, match: int) -> None:
        """As leader: ``peer`` is alive, and its log equals ours up to ``match`` (0: nothing new is known)."""
        node = self._peer_nodes.get(peer) or self._node(peer)
        self._SyncObj__lastResponseTime[node] = self._clock()
        if match > dict.get(self._match, node, 0):
            self._match[node] = match
            self.matches_changed = True

    def answers(self, peer: str) -> bool:
        """As leader: whether ``peer`` has answered one of the last heartbeats, with answers that count."""
        last = self._SyncObj__lastResponseTime.get(self._node(peer))
        return last is not None and self._clock() - last <= self._config.election_min_s

    def connected(self, peer: str) -> None:
        self._linked.add(peer)
        node = self._node(peer)
        if node in self._SyncObj__otherNodes:  # a learner's link is not a reason to campaign
            self._SyncObj__onNodeConnected(node)

    def disconnected(self, peer: str) -> None:
        self._linked.discard(peer)
        if peer in self._peer_nodes:
            self._SyncObj__onNodeDisconnected(self._node(peer))

    def follow(self, voters: Sequence[str], known: Collection[str]) -> None:
        """Count majorities by these others from now on. What is known of the logs of ``known`` stays; a new
        voter is treated as if it had just been heard from, as at the start of a leadership. Stock's own
        mechanism (entries with pickled nodes, behind a check that never holds) stays disabled."""
        before: set[Node] = self._SyncObj__otherNodes  # type: ignore[has-type]
        nodes = {self._node(peer) for peer in voters}
        self._SyncObj__otherNodes = nodes
        self._heard_until = float("-inf")
        self.matches_changed = True
        self._SyncObj__connectedNodes = {node for node in nodes if node.id in self._linked}
        for node in nodes - before:
            self._match.setdefault(node, 0)
            self._SyncObj__lastResponseTime[node] = self._clock()
        for peer in [peer for peer in self._peer_nodes if peer not in known]:
            node = self._peer_nodes.pop(peer)
            for table in (self._match, self._SyncObj__lastResponseTime, self._SyncObj__raftNextIndex):
                table.pop(node, None)

    def forget_matches(self) -> None:
        """A leadership begins: stock forgets what it knew of the voters, and knows nothing of learners."""
        self._match.clear()
        self.matches_changed = True

    def leadership_ended(self) -> None:
        """Forget the entry that opened it. Stock keeps its index, and changes its role for the next
        leadership before it appends that one's entry: in between, other threads would take the old entry for
        it."""
        self._SyncObj__noopIDx = None
        self.matches_changed = True

    def _node(self, peer: str) -> PeerNode:
        node = self._peer_nodes.get(peer)
        if node is None:
            node = self._peer_nodes[peer] = PeerNode(peer)
        return node

    def append(self, command: bytes) -> int:
        """Append a command in the current term (leader only); returns its index."""
        index = self._journal.last_index + 1
        self._journal.add(command, index, self._SyncObj__raftCurrentTerm)
        return index

    def step_down(self, term: int) -> None:
        """Become a follower; a higher term is adopted first (durably, like a vote)."""
        if term > self._SyncObj__raftCurrentTerm:
            self._SyncObj__setCurrentTerm(term, None)
        self._SyncObj__setState(FOLLOWER)
        self._SyncObj__raftLeader = None

    def postpone_election(self) -> None:
        self._SyncObj__raftElectionDeadline = self._clock() + self._SyncObj__generateRaftTimeout()

    def hold_election(self, for_s: float) -> None:
        """Make it due no sooner than in ``for_s``."""
        due = self._clock() + for_s
        self._SyncObj__raftElectionDeadline = max(self._SyncObj__raftElectionDeadline, due)

    def hasten_election(self) -> None:
        """Make it due within half of the range of time-outs from now, unless it is due sooner."""
        within = (self._config.election_max_s - self._config.election_min_s) / 2
        due = self._clock() + within * self._rng.random()
        self._SyncObj__raftElectionDeadline = min(self._SyncObj__raftElectionDeadline, due)

    def campaign_at_next_tick(self) -> None:
        self._SyncObj__raftElectionDeadline = 0.0

    # -------------------------------------------------------------- reading it
    def leader_id(self) -> str | None:
        node: PeerNode | None = self._SyncObj__raftLeader
        return None if node is None else str(node.id)

    def match_index(self, peer: str) -> int:
        return dict.get(self._match, self._node(peer), 0)

    def match_indexes(self, peers: Iterable[str]) -> list[int]:
        match, nodes = self._match.get, self._peer_nodes  # dict's own: no cap
        return [match(nodes[peer], 0) if peer in nodes else 0 for peer in peers]

    def forget_match(self, peer: str) -> None:
        self._match[self._node(peer)] = 0
        self.matches_changed = True

    def election_due(self, now: float) -> bool:
        return bool(self._SyncObj__raftElectionDeadline < now and self._SyncObj__raftState != LEADER)

    def transfer_requested(self) -> bool:
        """Whether the leader told this node to take over (its election must not be delayed)."""
        return bool(self._SyncObj__transferInProgress)

    # -------------------------------------------------------------- replaced steps
    def _SyncObj__getCurrentLogIndex(self) -> int:  # stock reads a whole entry for this
        return self._journal.last_index

    def _SyncObj__getCurrentLogTerm(self) -> int:
        return self._journal.last_term

    def _SyncObj__getEntries(self, index: int, count: int | None = None, max_bytes: int | None = None) -> Any:
        """Stock reads the first entry for its index. ``max_bytes`` is for stock's sender, which is replaced.

        While the cap is set, the caller is the commit step. Without other voters it has no matchIndex to look
        at, and would commit everything in memory: so it gets no entry after the cap.
        """
        first, cap = self._journal.first_index, self._match.cap
        if index < first or (cap is not None and index > cap):
            return []
        return self._journal[index - first : None if count is None else index - first + count]

    def _SyncObj__sendNextNodeIdx(
        self, node: Node, reset: bool = False, nextNodeIdx: int | None = None, success: bool = False
    ) -> None:
        """Stock sends it; here ``receive`` returns it, because the node caps it and may hold it back."""
        index = self._journal.last_index + 1 if nextNodeIdx is None else nextNodeIdx
        self._answer = {"type": "next_node_idx", "next_node_idx": index, "reset": reset, "success": success}

    def _SyncObj__generateRaftTimeout(self) -> float:  # stock uses the process-wide random
        low, high = self._config.election_min_s, self._config.election_max_s
        return low + (high - low) * self._rng.random()

    def _SyncObj__sendAppendEntries(self) -> None:  # stock: unpaced, pickled parts, whole tails copied
        self._SyncObj__newAppendEntriesTime = self._clock() + self._config.heartbeat_s
        self._owner.broadcast()

    def _SyncObj__applyLogEntries(self) -> bool:
        """Stock applies the whole backlog in one tick, and repeats for ever a command that raised."""
        index = self._SyncObj__raftLastApplied
        stop = min(self._SyncObj__raftCommitIndex, self._apply_limit, index + self._config.apply_chunk)
        if index >= stop:
            return False
        deadline = self._clock() + self._config.apply_budget_s
        while index < stop:
            index += 1
            self._SyncObj__raftLastApplied = index
            if not self._owner.apply_entry(index):
                self._SyncObj__raftLastApplied = index - 1
                break
            if self._clock() >= deadline:
                break
        return False

    def _SyncObj__deleteEntriesFrom(self, index: int) -> None:
        if index <= self._SyncObj__raftCommitIndex:
            raise SafetyViolation(
                f"asked to cut the log at {index}, but it is committed up to {self._SyncObj__raftCommitIndex}"
            )
        self._journal.deleteEntriesFrom(index - self._journal.first_index)

    def _SyncObj__tryLogCompaction(self) -> None:
        """Retention is ours (whole segments); pysyncobj's snapshots clear the log before they rewrite it."""

    def _checkCommandsToApply(self) -> None:
        """Proposals are appended by ``append``: no queue, and nothing is ever forwarded to another node."""

    def _applyCommand(self, command: bytes, callback: Any, commandType: int | None = None) -> None:
        """All stock ways into the log (membership, code version, utility messages) are disabled."""
        if callable(callback):
            callback(None, stock.FAIL_REASON.REQUEST_DENIED)
