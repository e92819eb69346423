"""One replica's Raft node: pysyncobj's core, guarded, with our own sending, pacing and outcomes.

Does no I/O and reads no clock of its own: the caller delivers messages, ticks, and runs fdatasync
(``SegmentJournal.begin_sync`` ... ``after_sync``); a ``PeerLink`` sends. All calls come from one
thread. What the node promises its caller:

* an entry is applied, and its proposal answered, only when a majority holds it durably *and* this
  replica's own disk does, so that a checkpoint never runs ahead of the log;
* every proposal ends: applied, surely not logged, or unknown (``proposals``);
* entries are applied exactly once per start, in order, in chunks per tick.

It never forwards a proposal, never changes the membership, and never takes a snapshot: those parts
of pysyncobj are closed in ``pysync``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from escrowmq.replication.errors import ApplyFailed, CorruptLog, DiskFull, EscrowMQError, MessageTooLarge, Overloaded
from escrowmq.replication.guards import ALL_GUARDS, FollowerGuard, Guard, VoteGuard
from escrowmq.replication.prevote import PreVote
from escrowmq.replication.progress import PeerProgress, quorum_index
from escrowmq.replication.proposals import Done, Proposals
from escrowmq.replication.pysync import LEADER, Clock, Core, CoreTiming, Message

if TYPE_CHECKING:
    from escrowmq.replication.journal import SegmentJournal

#: Largest command: with its batch it stays far below a frame's 64 MiB (wire.FRAME_BYTES_MAX).
COMMAND_BYTES_MAX = 32 << 20


@dataclass(frozen=True, slots=True)
class RaftConfig:
    """Timing and limits of one group; the same on all of its replicas."""

    election_min_s: float = 0.3  # 6 heartbeats: fail-over in about half a second, no election for a short stall
    election_max_s: float = 0.6  # spread of a whole minimum, so that split votes are rare
    heartbeat_s: float = 0.05  # must stay below election_min_s / 3 (pysyncobj checks it)
    leader_fallback_s: float = 1.0  # stock: 30 s, for which an isolated leader would keep its clients waiting
    send_batch_bytes: int = 1 << 20  # one AppendEntries; larger only delays the first ack
    window_bytes: int = 4 << 20  # per peer, not yet acknowledged; more only adds latency (measured)
    apply_chunk: int = 256  # entries per tick: messages are served in between
    apply_budget_s: float = 0.02  # and time per tick, well below an election time-out
    commit_notify_s: float = 0.004  # an idle leader tells followers the commit index after this
    proposal_timeout_s: float = 10.0  # then the outcome is unknown to the proposer
    outstanding_entries_max: int = 16_384  # proposals not yet applied; beyond: Overloaded
    outstanding_bytes_max: int = 64 << 20
    transfer_timeout_s: float = 1.0  # a handover that takes longer is given up, and proposals flow again


class PeerLink(Protocol):
    """How messages leave. ``send`` may drop; ``room`` is False while a peer's buffer is full."""

    def send(self, peer: str, message: Message) -> bool: ...
    def room(self, peer: str) -> bool: ...


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """A follower as its leader sees it."""

    peer: str
    connected: bool
    match_index: int
    next_index: int
    in_flight_bytes: int
    too_far_behind: bool


class RaftNode:
    """See the module's text. ``apply(index, term, command)`` gets ``b""`` for entries that are not commands."""

    def __init__(
        self,
        self_id: str,
        peers: Sequence[str],
        journal: SegmentJournal,
        link: PeerLink,
        apply: Callable[[int, int, bytes], Any],
        *,
        clock: Clock,
        rng: random.Random,
        config: RaftConfig | None = None,
        applied_index: int = 1,
        on_state: Callable[[], None] | None = None,
        guards: frozenset[Guard] = ALL_GUARDS,
    ) -> None:
        self.id, self.peers, self.config = self_id, tuple(p for p in peers if p != self_id), config or RaftConfig()
        self._journal, self._link, self._apply, self._clock, self._on_state = journal, link, apply, clock, on_state
        if len(journal) and not journal.first_index - 1 <= applied_index <= journal.last_index:
            raise CorruptLog(
                f"the checkpoint stands at {applied_index}, but the log holds {journal.first_index} to "
                f"{journal.last_index}; restore the replica from a peer"
            )
        self._guard, self._votes = FollowerGuard(journal, guards), VoteGuard(guards)
        self._ack_term, self._keep_next = Guard.ACK_TERM in guards, Guard.KEEP_NEXT in guards
        self._self_durable = Guard.SELF_DURABLE in guards
        self._connected: set[str] = set()
        self._progress: dict[str, PeerProgress] = {}
        self._proposals = Proposals()
        self._sizes: dict[int, int] = {}  # own entries not yet applied: index -> bytes
        self.outstanding_bytes = 0
        self._seq = 0  # of AppendEntries, so that a refusal can be told from one of an older message
        self._sent_last = self._sent_commit = 0
        self._notify_at: float | None = None
        self._transfer: tuple[str | None, float] | None = None
        self._closed = False
        self.too_far_behind = False  # the leader's log starts after ours ends: copy a checkpoint from a peer
        self.disk_full = False  # set by the caller while its syncs find no room
        self._reported: tuple[Any, ...] = ()
        cfg = self.config
        timing = CoreTiming(
            cfg.election_min_s, cfg.election_max_s, cfg.heartbeat_s, cfg.leader_fallback_s,
            cfg.apply_chunk, cfg.apply_budget_s,
        )  # fmt: skip
        self._core = Core(
            self_id, self.peers, journal, self, timing, clock=clock, rng=rng, applied_index=max(1, applied_index)
        )
        self._prevote = PreVote(self.peers, self._core, journal, self._send, clock, cfg.election_min_s)
        self._handlers: dict[str, Callable[[str, Message], None]] = {
            "append_entries": self._on_append,
            "next_node_idx": self._on_ack,
            "request_vote": self._core.receive,
            "response_vote": self._on_vote,
            "timeout_now": self._core.receive,
            "pre_vote": self._prevote.asked,
            "pre_vote_granted": self._prevote.granted,
            "stale_term": self._on_stale_term,
        }

    # -------------------------------------------------------------- what is
    @property
    def is_leader(self) -> bool:
        return self._core.role() == LEADER

    @property
    def ready(self) -> bool:
        """Leader, and has applied the entry that opened its term: its state holds all that was committed."""
        noop = self._core.noop_index()
        return self._core.role() == LEADER and noop is not None and self._core.applied_index() >= noop

    @property
    def leader_id(self) -> str | None:
        return self._core.leader_id()

    @property
    def term(self) -> int:
        return self._core.term()

    @property
    def commit_index(self) -> int:
        return self._core.commit_index()

    @property
    def applied_index(self) -> int:
        return self._core.applied_index()

    def progress(self) -> list[PeerStatus]:
        """The followers, for status pages; empty unless leader."""
        if not self.is_leader:
            return []
        first = self._journal.first_index
        return [
            PeerStatus(p, p in self._connected, s.match, s.next, s.in_flight_bytes, s.next <= first)
            for p, s in self._progress.items()
        ]

    # -------------------------------------------------------------- proposing
    def propose(self, command: bytes, done: Done) -> None:
        """Append ``command`` (its first byte is 0) if leader; ``done`` is called exactly once, maybe at once.

        ``done(result, True)``: applied. ``done(reason, False)``: surely not logged; the reason is None
        where this is not the leader (or is handing over), else Overloaded, DiskFull or MessageTooLarge.
        ``done(None, None)``: unknown.
        """
        assert command[0] == 0, "a command starts with its type byte, REGULAR"
        if self._closed or self._core.role() != LEADER or self._transfer is not None:
            done(None, False)
            return
        refusal = self._refusal(len(command))
        if refusal is not None:
            done(refusal, False)
            return
        index = self._core.append(command)
        self._sizes[index] = len(command)
        self.outstanding_bytes += len(command)
        self._proposals.add(index, self._core.term(), self._clock() + self.config.proposal_timeout_s, done)

    def _refusal(self, size: int) -> EscrowMQError | None:
        cfg = self.config
        if size > COMMAND_BYTES_MAX:
            return MessageTooLarge(size, COMMAND_BYTES_MAX)
        if self.disk_full:
            return DiskFull("the leader's disk is full; free some space, nothing is lost")
        if len(self._sizes) >= cfg.outstanding_entries_max or (
            self.outstanding_bytes + size > cfg.outstanding_bytes_max
        ):
            return Overloaded("too many entries wait for a majority", 0.05)
        return None

    def transfer_leadership(self, to: str | None = None) -> None:
        """Hand over to ``to`` (default: the most advanced peer), as soon as it holds the whole log.

        Until then proposals are refused as to a follower; after ``transfer_timeout_s`` they flow again.
        """
        if self.is_leader and self._transfer is None:
            self._transfer = (to, self._clock() + self.config.transfer_timeout_s)

    @property
    def transferring(self) -> bool:
        return self._transfer is not None

    def close(self) -> None:
        """Settle every proposal as unknown; nothing more is sent or applied."""
        self._closed = True
        self._forget_proposals()

    # -------------------------------------------------------------- being driven
    def tick(self) -> None:
        """Once after every batch of deliveries, proposals or syncs, and at least every 20 ms."""
        if self._closed:
            return
        now = self._clock()
        self._prevote.tick(now, self._connected)
        self._core.tick(self._commit_cap())
        self.flush()
        if self._transfer is not None:
            self._advance_transfer(now)
        self._proposals.expire(now)
        self._report()

    def more_to_apply(self) -> bool:
        """Whether another tick at once would apply more."""
        return self._core.applied_index() < min(self._core.commit_index(), self.apply_limit())

    def wake_in_s(self) -> float | None:
        """When the next tick is due earlier than the regular one: seconds, or None."""
        if self._notify_at is None:
            return None
        return max(0.0, self._notify_at - self._clock())

    def deliver(self, peer: str, message: Message) -> None:
        """A message from ``peer``, decoded. Unknown types and senders are ignored."""
        if self._closed or peer not in self.peers:
            return
        handler = self._handlers.get(message["type"])
        if handler is not None:
            handler(peer, message)
            self._report()

    def connected(self, peer: str) -> None:
        if peer not in self.peers:
            return
        self._connected.add(peer)
        self._core.connected(peer)
        if peer in self._progress:
            self._progress[peer].rewind(self._progress[peer].match + 1)
            if self.is_leader:
                self._replicate(peer, heartbeat=True)

    def disconnected(self, peer: str) -> None:
        if peer in self._connected:
            self._connected.discard(peer)
            self._core.disconnected(peer)
            self._guard.forget(peer)

    def after_sync(self) -> None:
        """The journal's durable index advanced: send the acknowledgements that waited for it."""
        for peer, ack in self._guard.release(self._core.term()):
            self._send(peer, ack)

    # -------------------------------------------------------------- messages
    def _on_append(self, peer: str, message: Message) -> None:
        core = self._core
        if message["term"] < core.term():
            self._send(peer, {"type": "stale_term", "term": core.term()})
            return
        self._prevote.leader_seen()
        self._guard.admit(message, core.commit_index())
        core.receive(peer, message)
        if self._guard.done():
            self.too_far_behind = False
        elif "log_start" in message:
            self.too_far_behind = True
            last = self._journal.last_index
            self.send(peer, {"type": "next_node_idx", "next_node_idx": last + 1, "reset": True, "success": False})

    def _on_ack(self, peer: str, message: Message) -> None:
        core, term = self._core, message["term"]
        if self._ack_term and term != core.term():
            return
        if core.role() != LEADER:
            return
        state, index = self._progress[peer], message["next_node_idx"] - 1
        core_ack = {"type": "next_node_idx", "next_node_idx": index + 1, "reset": False, "success": False}
        if message["success"]:
            core_ack["success"] = state.accepted(index, self._keep_next)
        elif message["reset"] and state.refused(min(index, self._journal.last_index) + 1, message["seq"], self._seq):
            self._replicate(peer, heartbeat=state.next > self._journal.first_index)
        core.receive(peer, core_ack)  # every answer counts as a sign of life, a success as a match too
        if message["success"]:
            self._replicate(peer)

    def _on_vote(self, peer: str, message: Message) -> None:
        if message["term"] == self._core.term() and self._votes.admit(peer, message["term"]):
            self._core.receive(peer, message)

    def _on_stale_term(self, peer: str, message: Message) -> None:
        """A peer is in a later term than our messages: a leader (or candidate) of an old term gives way."""
        if message["term"] > self._core.term():
            self._core.step_down(message["term"])

    # -------------------------------------------------------------- CoreOwner
    def send(self, peer: str, message: Message) -> bool:
        """The core's own messages: votes, acknowledgements."""
        if message["type"] == "next_node_idx":
            answer = self._guard.answer(peer, message, self._core.term(), self._core.commit_index())
            return answer is None or self._send(peer, answer)
        return self._send(peer, message)

    def broadcast(self) -> None:
        for peer in self.peers:
            self._replicate(peer, heartbeat=True)
        self._note_sent()

    def apply_limit(self) -> int:
        return self._journal.durable_index if self._self_durable else self._journal.last_index

    def apply_entry(self, index: int) -> None:
        journal = self._journal
        term, command = journal.term_at(index), journal.read(index)
        assert term is not None
        try:
            result = self._apply(index, term, command if command[0] == 0 else b"")
        except Exception as error:
            self._closed = True
            raise ApplyFailed(f"entry {index} of term {term} could not be applied: {error!r}") from error
        size = self._sizes.pop(index, None)
        if size is not None:
            self.outstanding_bytes -= size
        self._proposals.applied(index, term, result)

    def role_changed(self, before: int, after: int) -> None:
        if after == LEADER:
            next_index = self._journal.last_index + 1
            self._progress = {peer: PeerProgress(next_index) for peer in self.peers}
            self._sent_last, self._sent_commit, self.too_far_behind = next_index - 1, 0, False
        elif before == LEADER:
            self._transfer = self._notify_at = None
            self._progress = {}
            self._forget_proposals()

    # -------------------------------------------------------------- sending
    def _replicate(self, peer: str, heartbeat: bool = False) -> None:
        """Send what fits the peer's window; with ``heartbeat`` at least one message, maybe an empty one."""
        if peer not in self._connected:
            return
        journal, state, cfg = self._journal, self._progress[peer], self.config
        if state.next <= journal.first_index:
            if heartbeat:
                self._send_append(peer, {"serialized": None, "log_start": journal.first_index})
            return
        last = journal.last_index
        while (
            not state.probing
            and state.next <= last
            and state.in_flight_bytes < cfg.window_bytes
            and self._link.room(peer)
        ):
            entries = journal.batch(state.next, cfg.send_batch_bytes)
            previous = state.next - 1
            state.sent(entries[-1][1], sum(len(entry[0]) for entry in entries))
            self._send_entries(peer, previous, entries)
            heartbeat = False
        if heartbeat:
            self._send_entries(peer, state.next - 1, ())

    def _send_entries(self, peer: str, previous: int, entries: Sequence[tuple[bytes, int, int]]) -> None:
        self._send_append(
            peer,
            {"prevLogIdx": previous, "prevLogTerm": self._journal.term_at(previous), "entries": entries},
        )

    def _send_append(self, peer: str, message: Message) -> None:
        self._seq += 1
        message["type"], message["seq"] = "append_entries", self._seq
        message["term"], message["commit_index"] = self._core.term(), self._core.commit_index()
        self._send(peer, message)

    def _send(self, peer: str, message: Message) -> bool:
        return peer in self._connected and self._link.send(peer, message)

    def flush(self) -> None:
        """New entries go out at once; a new commit index alone waits a moment for entries to ride on."""
        if self._core.role() != LEADER:
            return
        if self._journal.last_index > self._sent_last:
            for peer in self.peers:
                self._replicate(peer)
            self._note_sent()
        elif self._core.commit_index() > self._sent_commit:
            now = self._clock()
            if self._notify_at is None:
                self._notify_at = now + self.config.commit_notify_s
            elif now >= self._notify_at:
                self.broadcast()

    def _note_sent(self) -> None:
        self._sent_last, self._sent_commit = self._journal.last_index, self._core.commit_index()
        self._notify_at = None

    # -------------------------------------------------------------- the rest
    def _commit_cap(self) -> int:
        if self._core.role() != LEADER:
            return 0
        own = self._journal.durable_index if self._self_durable else self._journal.last_index
        return quorum_index(own, [self._core.match_index(peer) for peer in self.peers])

    def _advance_transfer(self, now: float) -> None:
        assert self._transfer is not None
        target, deadline = self._transfer
        if now >= deadline or not self.peers:
            self._transfer = None
            return
        candidates = [p for p in self._connected if target is None or p == target]
        if not candidates:
            return
        best = max(candidates, key=lambda p: (self._progress[p].match, p))
        if self._progress[best].match == self._journal.last_index:
            self._core.send_timeout_now(best)

    def _forget_proposals(self) -> None:
        self._sizes.clear()
        self.outstanding_bytes = 0
        self._proposals.abandon()

    def _report(self) -> None:
        state = (self.is_leader, self.ready, self.leader_id, self.term, self.too_far_behind)
        if state != self._reported:
            self._reported = state
            if self._on_state is not None:
                self._on_state()
