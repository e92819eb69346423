"""The leader's sending: what goes to which follower when, and what the answers mean.

pysyncobj's own sender has no window, copies the tail of the log at every send and backs up one
entry per round trip. This one streams batches within a window per peer, probes after a refusal or
a reconnect, and tells followers the commit index with the next entries or a moment later. It
exists for one leadership: a new one starts with fresh progress for every peer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from escrowmq.replication.errors import DamagedEntry
from escrowmq.replication.format.wire import RaftMessage
from escrowmq.replication.raft.members import Circle
from escrowmq.replication.raft.pysync import LEADER, Core
from escrowmq.replication.raft.types import Clock, Log, PeerLink, PeerStatus, RaftConfig

# ------------------------------------------------------------------ the group's clocks
# What a leader knows of the wall clocks of its group, so that one clock that is wrong does not decide.
#
# Each acknowledgement tells its sender's wall clock. The leader takes the lower median of all voters'
# clocks, its own among them: no minority of clocks that are ahead can make it early, and none that are
# behind can make it late while the others answer. A voter of which it has not heard under this leadership
# counts as behind all others; so without some voters it is the lowest clock of a bare majority: rather late
# than early.
#
# A clock is taken to have gone on since it was told, by this replica's monotonic clock, for a second at
# most: that clock may jump, too, when a machine was halted. With heartbeats that are answered, the error is
# that of a message's way.


#: What was told longer ago than this stands still.
GOES_ON_S: Final = 1.0


class GroupClock:
    """The clocks of one group, as one replica hears of them. In the node's thread."""

    def __init__(
        self,
        circle: Circle,
        leads: Callable[[], bool],
        progress: Callable[[], dict[str, PeerProgress]],
        clock: Clock,
    ) -> None:
        """``progress``: of the present leadership."""
        self._circle, self._leads, self.progress, self._clock = circle, leads, progress, clock
        #: This replica's wall clock in ms, to be told to leaders; -1: nobody has given it one.
        self.tell: Callable[[], int] = lambda: -1

    def stamped(self, message: RaftMessage) -> RaftMessage:
        """A message that goes out; an acknowledgement tells the clock."""
        if message["type"] == "next_node_idx":
            message["clock_ms"] = self.tell()
        return message

    def heard(self, state: PeerProgress, told_ms: int) -> None:
        """An acknowledgement has arrived that tells its sender's clock."""
        state.clock_ms, state.clock_s = told_ms, self._clock()

    @property
    def leading(self) -> bool:
        """Whether this replica leads: only then does it hear of the others' clocks."""
        return self._leads()

    def lower_median_ms(self, own_ms: int) -> int | None:
        """The group's time by its clocks. None: too few voters have told theirs."""
        progress, now = self.progress(), self._clock()
        known = [own_ms]
        for peer in self._circle.voters:
            state = progress.get(peer)
            if state is not None and state.clock_ms >= 0:
                known.append(state.clock_ms + int(min(now - state.clock_s, GOES_ON_S) * 1000))
        return lower_median(known, 1 + len(self._circle.voters))

    def monotonic_ms(self) -> int:
        """This replica's monotonic clock."""
        return int(self._clock() * 1000)


def lower_median(known: list[int], voters: int) -> int | None:
    """The lower median of so many clocks, of which these are known; the others count as behind. None: it is
    one of the others."""
    at = (voters - 1) // 2 - (voters - len(known))
    return sorted(known)[at] if at >= 0 else None


# ------------------------------------------------------------------ progress of one follower
# What the leader knows of each follower: where it matches, what is under way, when to probe.
#
# Pure bookkeeping per peer, like etcd's ``tracker``: a peer is probed with empty messages until it has
# accepted one; then entries stream to it within a window of unacknowledged bytes. A message lost on the way
# is noticed because the next heartbeat does not match; the refusal rewinds. Nothing here sends.


@dataclass(slots=True)
class PeerProgress:
    """Flow control of one follower under one leadership. ``match`` < ``next``, always."""

    next: int
    match: int = 0
    probing: bool = True
    in_flight_bytes: int = 0
    rewound_at_seq: int = 0  # refusals of messages up to this one are stale
    heard_seq: int = 0  # the newest message that it has answered in our term, while its answers count
    clock_ms: int = -1  # the wall clock that it told last (-1: none yet), and when it was heard, in s
    clock_s: float = 0.0
    _flights: deque[tuple[int, int]] = field(default_factory=deque)  # (last index, bytes), in order

    def sent(self, last_index: int, size_bytes: int) -> None:
        self.next = last_index + 1
        self._flights.append((last_index, size_bytes))
        self.in_flight_bytes += size_bytes

    def accepted(self, index: int) -> None:
        """A success up to ``index``. What was sent after it is still in flight."""
        self.probing = False
        flights = self._flights
        while flights and flights[0][0] <= index:
            self.in_flight_bytes -= flights.popleft()[1]
        if index >= self.next:
            self.next = index + 1
        self.match = max(self.match, index)

    def refused(self, hint: int, seq: int, sent_seq: int) -> bool:
        """A refusal with the index to try next; False if it answers a message sent before the last rewind."""
        if seq <= self.rewound_at_seq:
            return False
        self.rewound_at_seq = sent_seq
        self.rewind(max(self.match + 1, hint))
        return True

    def rewind(self, next_index: int) -> None:
        """Start again from ``next_index``: nothing counts as in flight, and the peer is probed first."""
        self.next, self.probing, self.in_flight_bytes = next_index, True, 0
        self._flights.clear()


def quorum_index(own: int, others: list[int]) -> int:
    """The highest index that a majority of ``own`` and ``others`` has reached."""
    ranked = sorted([own, *others], reverse=True)
    return ranked[len(ranked) // 2]


# ------------------------------------------------------------------ replicator


class LeadCheck(NamedTuple):
    """The moment of a question whether this replica still leads: its term, and the last message before it."""

    term: int
    seq: int


class Replicator:
    """Sends for one leader, to the members of ``circle`` that are in ``connected``; the node updates both."""

    def __init__(
        self,
        circle: Circle,
        core: Core,
        journal: Log,
        link: PeerLink,
        connected: set[str],
        clock: Clock,
        config: RaftConfig,
    ) -> None:
        self._circle, self._core, self._journal, self._link = circle, core, journal, link
        self._connected, self._clock, self._config = connected, clock, config
        self.progress: dict[str, PeerProgress] = {}
        self.clocks = GroupClock(circle, lambda: core.role == LEADER, lambda: self.progress, clock)
        self._seq = 0  # numbers AppendEntries, so that a refusal of an older message can be recognised
        self.sent_last = self.sent_commit = 0  # last index of the log, and of what is committed
        #: When ``flush`` sends the commit index alone, if nothing else is sent before; None: peers know it.
        self.notify_at: float | None = None

    # -------------------------------------------------------------- leadership
    def begin(self) -> None:
        """Leadership begins; the entry that opens the term is not in the log yet."""
        next_index = self._journal.last_index + 1
        self.progress = {peer: PeerProgress(next_index) for peer in self._circle.peers}
        self.sent_last, self.sent_commit, self.notify_at = next_index - 1, 0, None

    def end(self) -> None:
        self.progress, self.notify_at = {}, None

    def follow(self) -> None:
        """The group's members changed: new ones are probed from the log's end, removed ones get no more."""
        if self.progress or self._core.role == LEADER:
            known, next_index = self.progress, self._journal.last_index + 1
            self.progress = {peer: known.get(peer) or PeerProgress(next_index) for peer in self._circle.peers}

    def status(self) -> list[PeerStatus]:
        first = self._journal.first_index
        return [
            PeerStatus(p, p in self._connected, s.match, s.next, s.in_flight_bytes, s.next <= first)
            for p, s in self.progress.items()
        ]

    def waits_for(self, index: int) -> bool:
        """Whether entry ``index`` is the next one due to some connected follower."""
        return any(s.next == index for peer, s in self.progress.items() if peer in self._connected)

    def most_advanced(self, among: set[str]) -> tuple[str, int] | None:
        """The peer of ``among`` with the greatest match, and that match."""
        matches = [(self._core.match_index(peer), peer) for peer in self.progress if peer in among]
        if not matches:
            return None
        match, peer = max(matches)
        return peer, match

    def holding(self, index: int, among: set[str]) -> list[str]:
        """The peers of ``among`` that hold the log up to ``index``, the greatest id first."""
        return sorted(
            (p for p in self.progress if p in among and self._core.match_index(p) >= index), reverse=True
        )

    # -------------------------------------------------------------- does it still lead
    def check_lead(self) -> LeadCheck:
        """Ask all peers. See ``leads_since``."""
        check = LeadCheck(self._core.term, self._seq)
        if self._core.role == LEADER:
            self.broadcast()
        return check

    def leads_since(self, check: LeadCheck) -> bool:
        """Whether a majority, including this replica, was in our term after ``check``: then no leader had
        been elected in a later term by that time, and everything committed by then is in our log."""
        if self._core.role != LEADER or self._core.term != check.term:
            return False
        heard = [self.progress[peer].heard_seq > check.seq for peer in self._circle.voters]
        return (sum(heard) + 1) * 2 > len(heard) + 1

    # -------------------------------------------------------------- when to send
    def broadcast(self) -> None:
        """A heartbeat to every peer, with entries where there are some."""
        for peer in self._circle.peers:
            self._replicate(peer, heartbeat=True)
        self._note_sent()

    def flush(self) -> None:
        """New entries are sent immediately; a new commit index alone waits briefly for entries to ride on."""
        if self._journal.last_index > self.sent_last:
            for peer in self._circle.peers:
                self._replicate(peer)
            self._note_sent()
        elif self._core.commit_index > self.sent_commit:
            now = self._clock()
            if self.notify_at is None:
                self.notify_at = now + self._config.commit_notify_s
            elif now >= self.notify_at:
                self.broadcast()

    def connected(self, peer: str) -> None:
        """What was in flight on the old connection is lost; probe from what is known to match.

        If nothing is known to match, or only what our log no longer has, probe from the end: the refusal says
        where to continue. From the beginning, the first message would tell a healthy follower, or one that
        has just copied our log, that our log starts after its own ends.
        """
        state, journal = self.progress.get(peer), self._journal
        if state is not None:
            known = state.match >= journal.first_index and state.match > 0
            state.rewind((state.match if known else journal.last_index) + 1)
            self._replicate(peer, heartbeat=True)

    def forget_match(self, peer: str) -> None:
        """The peer lost its disk: what it acknowledged no longer counts."""
        state = self.progress.get(peer)
        if state is not None:
            state.match = 0
            self._core.forget_match(peer)

    def answered(self, peer: str, message: RaftMessage) -> None:
        """A follower's ``next_node_idx``. Ignored unless we lead in the term that it answers."""
        state = self.progress.get(peer)
        if state is None or message["term"] != self._core.term:
            return  # L: it may refer to entries that the follower has cut off since
        index, success = message["next_node_idx"] - 1, message["success"]
        if success:
            state.accepted(index)
        elif message["reset"] and state.refused(self._next_try(state.next, index), message["seq"], self._seq):
            self._replicate(peer, heartbeat=state.next > self._journal.first_index)
        self.clocks.heard(state, message["clock_ms"])
        if message["counts"]:
            if message["seq"] > state.heard_seq:
                state.heard_seq = message["seq"]
            self._core.heard(peer, index if success else 0)
        if success and state.next <= self._journal.last_index:
            self._replicate(peer)

    def _next_try(self, refused_next: int, hint: int) -> int:
        """Where to try after a refusal. ``hint`` is the last index that the follower expects to match.

        Its hint goes back a whole term, perhaps to before our log's start although the logs do meet
        after it: only a follower that refuses our very first entry is too far behind.
        """
        first = self._journal.first_index
        if hint < first < refused_next - 1:
            return first + 1
        return min(hint, self._journal.last_index) + 1

    # -------------------------------------------------------------- sending
    def _replicate(self, peer: str, heartbeat: bool = False) -> None:
        """Send what fits the peer's window; with ``heartbeat`` at least one message, perhaps an empty one."""
        if peer not in self._connected:
            return
        journal, state, config = self._journal, self.progress[peer], self._config
        if state.next <= journal.first_index:
            if heartbeat:
                self._send_append(peer, {"serialized": None, "log_start": journal.first_index})
            return
        last = journal.last_index
        while (
            not state.probing
            and state.next <= last
            and state.in_flight_bytes < config.window_bytes
            and self._link.room(peer)
        ):
            try:
                entries = journal.batch(state.next, config.send_batch_bytes)
            except DamagedEntry:
                break  # it is being mended from another replica; meanwhile the peer gets heartbeats
            previous = state.next - 1
            state.sent(entries[-1][1], sum([len(entry[0]) for entry in entries]))
            term = journal.term_at(previous)
            self._send_append(peer, {"prevLogIdx": previous, "prevLogTerm": term, "entries": entries})
            heartbeat = False
        if heartbeat:
            previous = state.next - 1
            term = journal.term_at(previous)
            self._send_append(peer, {"prevLogIdx": previous, "prevLogTerm": term, "entries": ()})

    def _send_append(self, peer: str, message: RaftMessage) -> None:
        self._seq += 1
        message["type"], message["seq"] = "append_entries", self._seq
        message["term"], message["commit_index"] = self._core.term, self._core.commit_index
        self._link.send(peer, message)

    def _note_sent(self) -> None:
        self.sent_last, self.sent_commit = self._journal.last_index, self._core.commit_index
        self.notify_at = None
