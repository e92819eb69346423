"""One replica's Raft node: pysyncobj's core, guarded, with our own sending, pacing and outcomes.

Does no I/O and reads no clock: the caller delivers messages, ticks, and runs fdatasync
(``SegmentJournal.begin_sync`` ... ``after_sync``); a ``PeerLink`` sends. All calls come from one
thread. The node guarantees its caller:

* an entry is applied, and its proposal answered, only when a majority holds it durably *and* this
  replica's own disk does, so that a checkpoint never runs ahead of the log;
* every proposal ends: applied, certainly not logged, or unknown (``proposals``);
* entries are applied exactly once per start, in order, in chunks per tick.

It counts majorities by the newest configuration of members in its log, committed or not (members.py), and
adopts a new one the moment its entry is appended or cut off.

It never forwards a proposal, never takes a snapshot, and does not change members in pysyncobj's own way:
``pysync`` disables those parts.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from escrowmq.replication.errors import (
    ApplyFailed,
    CorruptLog,
    DamagedEntry,
    DiskFull,
    EscrowMQError,
    MessageTooLarge,
    Overloaded,
    SafetyViolation,
    Superseded,
)
from escrowmq.replication.format.codec import MEMBERSHIP
from escrowmq.replication.format.membership import NOBODY, Members, encode_members, founding, in_order
from escrowmq.replication.format.wire import RaftMessage
from escrowmq.replication.log.peer_marks import Incarnation, Incarnations
from escrowmq.replication.raft.elections import Handover, PreVote, Readiness, Votes
from escrowmq.replication.raft.guards import FollowerGuard, sound_index
from escrowmq.replication.raft.members import Circle, Step, after
from escrowmq.replication.raft.membership_changes import MembershipChanges
from escrowmq.replication.raft.pysync import LEADER, Core
from escrowmq.replication.raft.rejoin import Rejoin
from escrowmq.replication.raft.replicator import LeadCheck, Replicator, quorum_index
from escrowmq.replication.raft.types import Clock, Log, PeerLink, PeerStatus, RaftConfig

# ------------------------------------------------------------------ outcomes of proposals
# The outcome of each proposal: applied, certainly not logged, or unknown. Each one gets an answer.
#
# A proposal is identified by the (index, term) of its entry. While its leadership lasts it is settled by
# being applied; when the leadership ends, too much time has passed, or the node shuts down, its outcome is
# unknown here: the next leader may still commit the entry. The number of entries and bytes that wait for a
# majority is bounded; an entry whose proposer has given up still counts.


#: ``done(result, True)`` applied; ``done(reason, False)`` certainly not logged; ``done(None, None)`` unknown.
OnProposed = Callable[[Any, bool | None], None]
#: Largest command: with its batch it stays far below a frame's 64 MiB (wire.FRAME_BYTES_MAX).
COMMAND_BYTES_MAX = 32 << 20


@dataclass(slots=True)
class _Proposal:
    index: int
    term: int
    deadline: float
    done: OnProposed


class Proposals:
    """Proposals of one node, in index order."""

    def __init__(self, config: RaftConfig) -> None:
        self.outstanding_bytes = 0
        self._config = config
        #: In index order.
        self.waiting: deque[_Proposal] = deque()
        self.sizes: dict[int, int] = {}  # own entries not yet applied: index -> bytes

    def refusal(self, size_bytes: int) -> EscrowMQError | None:
        """Why no command of this size can be accepted now; None: it can."""
        config = self._config
        if size_bytes > COMMAND_BYTES_MAX:
            return MessageTooLarge(size_bytes, COMMAND_BYTES_MAX)
        # One is always accepted: otherwise a command larger than the bound would never get through.
        if len(self.sizes) >= config.outstanding_entries_max or (
            self.sizes and self.outstanding_bytes + size_bytes > config.outstanding_bytes_max
        ):
            return Overloaded("too many entries wait for a majority", 0.05)
        return None

    def add(self, index: int, term: int, size_bytes: int, now: float, done: OnProposed) -> None:
        assert not self.waiting or self.waiting[-1].index < index
        self.sizes[index] = size_bytes
        self.outstanding_bytes += size_bytes
        self.waiting.append(_Proposal(index, term, now + self._config.proposal_timeout_s, done))

    def applied(self, index: int, term: int, result: Any) -> None:
        self.outstanding_bytes -= self.sizes.pop(index, 0)
        waiting = self.waiting
        while waiting and waiting[0].index <= index:
            proposal = waiting.popleft()
            if proposal.index == index and proposal.term == term:
                proposal.done(result, True)
            else:
                proposal.done(None, None)  # skipped: cannot happen while one leadership lasts

    def expire(self, now: float) -> None:
        """Settle as unknown what has waited past its deadline (deadlines are in index order too)."""
        while self.waiting and self.waiting[0].deadline <= now:
            self.waiting.popleft().done(None, None)

    def abandon(self) -> None:
        """Leadership is lost, or the node stops: the outcomes can no longer be known here."""
        self.sizes.clear()
        self.outstanding_bytes = 0
        waiting, self.waiting = self.waiting, deque()
        for proposal in waiting:
            proposal.done(None, None)


# ------------------------------------------------------------------ which peers a replica listens to
# Which peers a replica listens to: more than those that count.
#
# A voter that has not heard of a change yet is needed by one that has, and a new replica must learn of the
# group before its own log says anything. So a replica listens to every member of any configuration that may
# be in force, and to every peer named by somebody who may know. Only peers that the *applied* configuration
# has retired are excluded. A link may be up before its peer is known to be a member; it is adopted when
# that becomes known.


class Change(NamedTuple):
    """Peers that are listened to from now on and were not before, and vice versa; ordered by number."""

    came: tuple[str, ...]
    gone: tuple[str, ...]


class KnownPeers:
    """State of one replica. ``known``: the peers that it listens to now."""

    def __init__(self, self_id: str, told: Iterable[str], possible: Callable[[], list[Members]]) -> None:
        """``told``: the peers named at the start. ``possible()``: the applied configuration, and those after
        it in the log."""
        self._self_id, self._possible = self_id, possible
        self._told = set(told)
        self.known = self.named()

    def told_of(self, peer: str) -> None:
        """Somebody who may know says that ``peer`` belongs to the group."""
        self._told.add(peer)

    def named(self) -> set[str]:
        """The peers to listen to, given the present log."""
        possible = self._possible()
        named = self._told.union(*[members.all for members in possible])
        return {peer for peer in named if peer != self._self_id and not possible[0].retired(peer)}

    def look(self) -> Change:
        """Adopt the present set of peers to listen to; returns what changes."""
        before, self.known = self.known, self.named()
        self._told &= self.known
        return Change(in_order(self.known - before), in_order(before - self.known))

    def retired(self, peers: Iterable[str]) -> list[str]:
        """Those of ``peers`` that were members and certainly are no longer."""
        return [peer for peer in peers if self._possible()[0].retired(peer)]


# ------------------------------------------------------------------ node


__all__ = ["COMMAND_BYTES_MAX", "PeerLink", "PeerStatus", "RaftConfig", "RaftNode", "check_fit"]

NOT_FOR_LEARNERS = frozenset(("request_vote", "pre_vote", "timeout_now"))


def check_fit(journal: Log, applied_index: int) -> None:
    """Raise CorruptLog if a state whose last applied index is ``applied_index`` does not fit the log."""
    applied_index = max(1, applied_index)
    if len(journal) and not journal.first_index <= applied_index <= journal.last_index:
        raise CorruptLog(
            f"the checkpoint is at {applied_index}, but the log holds {journal.first_index} to "
            f"{journal.last_index}; restore the replica from a peer"
        )


class RaftNode:
    """See the module's docstring. ``apply(index, term, command)`` gets ``b""`` for an entry without a
    command."""

    def __init__(
        self,
        self_id: str,
        peers: Sequence[str],
        journal: Log,
        link: PeerLink,
        apply: Callable[[int, int, bytes], Any],
        *,
        clock: Clock,
        rng: random.Random,
        config: RaftConfig | None = None,
        applied_index: int = 1,
        no_vote_until_caught_up: bool = False,
        marks: Incarnations | None = None,
        drop_link: Callable[[str], None] = lambda peer: None,
        joining: bool = False,
        on_peers: Callable[[frozenset[str]], None] = lambda peers: None,
    ) -> None:
        """``peers``: the other founders; for a replica that came later (``joining``), those that may tell it
        of the group. ``on_peers``: called with the set of peers to keep links to, whenever it changes
        (at first: differs from ``peers``). ``applied_index``: last index applied to the recovered state.
        ``no_vote_until_caught_up``: the disk was lost; see ``rejoin``, and remember it on disk until
        ``rejoining`` is False. ``marks``: the incarnations of the peers (None: kept in memory).
        ``drop_link(peer)``: close the link to a process that was replaced. Raises CorruptLog if state and
        log do not fit together."""
        self.id, self.config = self_id, config or RaftConfig()
        others = {peer for peer in peers if peer != self_id}
        self._journal, self._apply, self._clock = journal, apply, clock
        self._link, self._on_peers = link, on_peers
        applied_index = max(1, applied_index)  # entry 1 is pysyncobj's own and has no command
        check_fit(journal, applied_index)
        journal.members.begin(0, NOBODY if joining else founding([self_id, *others]))
        self._member_edits = journal.members.edits
        self._circle = Circle(self_id, journal.members.since(applied_index))
        self.guard = FollowerGuard(journal)
        self._linked: set[str] = set()  # peers whose link is up
        self._connected: set[str] = set()  # those of them that are listened to
        self.proposals = Proposals(self.config)
        self._closed = self.has_unsent = False  # the latter: something was proposed since the last ``flush``
        self.too_far_behind = False  # the leader's log starts after ours ends: copy a checkpoint from a peer
        voters = self._circle.voters
        self._core = Core(
            self_id, voters, journal, self, self.config, clock=clock, rng=rng, applied_index=applied_index
        )
        self._cap = self._capped_own = 0  # see _commit_cap, and our own part in it
        self.readiness = Readiness(self._core, journal, self.config.election_min_s)
        self.replicator = Replicator(
            self._circle, self._core, journal, link, self._connected, clock, self.config
        )
        self.clocks = self.replicator.clocks
        self._handover = Handover(
            self._core, journal, self.replicator, self._connected, self._circle, self.config, self.send
        )
        self.marks = Incarnations() if marks is None else marks
        quiet_s, behind = self.config.election_min_s, self.readiness.more_to_apply
        self._prevote = PreVote(self._circle, self._core, journal, self.send, clock, quiet_s, behind)
        self._rejoin = Rejoin(
            no_vote_until_caught_up and (joining or bool(self._circle.may_vote)),
            rng.getrandbits(63),
            self._circle,
            self._core,
            journal,
            self.send,
            self._forget_match,
            self_id=self_id,
            marks=self.marks,
            drop=drop_link,
        )
        link_of = self._rejoin.link
        self._changes = MembershipChanges(self._circle, self._core, journal, self.marks, link_of, self.send)
        self._votes = Votes(self._circle, self._core, self.marks, self._rejoin.learn, link_of)
        self._handlers = self._all_handlers()
        self.known_peers = KnownPeers(self_id, others, self._possible)
        if self.known_peers.known != others:
            self._on_peers(self.heard)

    def _all_handlers(self) -> dict[str, Callable[[str, RaftMessage], object]]:
        return {
            "append_entries": self._on_append,
            "next_node_idx": self.replicator.answered,
            "request_vote": self._core.receive,
            "response_vote": self._votes.given,
            "timeout_now": self._core.receive,
            "pre_vote": self._prevote.asked,
            "pre_vote_granted": self._prevote.granted,
            "stale_term": self._on_stale_term,
            "rejoin": self._rejoin.asked,
            "rejoin_answer": self._rejoin.answered,
            "superseded": self._on_superseded,
            "marks": self._rejoin.told,
            "marks_held": self._changes.held,
        }

    # -------------------------------------------------------------- what is
    @property
    def is_leader(self) -> bool:
        return self._core.role == LEADER

    @property
    def ready(self) -> bool:
        """It leads, and has applied the entry that opened its term, so its state holds everything committed.
        Any thread."""
        core = self._core
        if core.role != LEADER:
            return False
        noop = core.noop_index
        return noop is not None and core.applied_index >= noop

    @property
    def members(self) -> Members:
        """The configuration in force."""
        return self._circle.members

    @property
    def members_applied(self) -> bool:
        """Whether that configuration is certainly committed, so that no earlier one can come back."""
        return self._changes.last_change_applied()

    @property
    def peers(self) -> tuple[str, ...]:
        """The other members."""
        return self._circle.peers

    @property
    def heard(self) -> frozenset[str]:
        """Peers to keep links to: all that may be members, and those that this replica was told of."""
        return frozenset(self.known_peers.known)

    @property
    def leader_id(self) -> str | None:
        return self._core.leader_id()

    @property
    def term(self) -> int:
        return self._core.term

    @property
    def commit_index(self) -> int:
        return self._core.commit_index

    @property
    def applied_index(self) -> int:
        return self._core.applied_index

    @property
    def outstanding_bytes(self) -> int:
        """Bytes of own proposals that are not yet applied."""
        return self.proposals.outstanding_bytes

    @property
    def rejoining(self) -> bool:
        """Whether it is still a learner because its disk was lost (see ``rejoin``)."""
        return self._rejoin.active

    @property
    def can_apply(self) -> bool:
        """Whether no entry that is still to be applied is damaged. A replica with such an entry votes, since
        its log's end is sound, but does not campaign: it could not do a leader's work."""
        journal = self._journal
        return not journal.damaged or journal.damaged_after(self._core.applied_index) is None

    def progress(self) -> list[PeerStatus]:
        """The followers, for status pages; empty unless this replica leads."""
        return self.replicator.status()

    def check_lead(self) -> LeadCheck:
        return self.replicator.check_lead()

    def leads_since(self, check: LeadCheck) -> bool:
        return self.replicator.leads_since(check)

    # -------------------------------------------------------------- proposing
    def propose(self, command: bytes, done: OnProposed) -> None:
        """Append ``command`` (its first byte is 0) if leader; calls ``done`` exactly once, perhaps
        immediately.

        ``done(result, True)``: applied. ``done(reason, False)``: certainly not logged; the reason is None
        if this replica does not lead (or is handing over), else Overloaded, DiskFull or MessageTooLarge.
        ``done(None, None)``: unknown.
        """
        assert command[0] == 0, "a command starts with its type byte, REGULAR"
        if self._closed or self._core.role != LEADER or self._handover.under_way:
            done(None, False)
            return
        refusal = self.proposals.refusal(len(command))
        if self.readiness.disk_full:
            refusal = DiskFull("the leader's disk is full; free some space, nothing is lost")
        if refusal is not None:
            done(refusal, False)
            return
        index = self._core.append(command)
        self.has_unsent = True
        self.proposals.add(index, self._core.term, len(command), self._clock(), done)

    def change_members(self, step: Step, change_id: str, done: OnProposed) -> None:
        """Take one step of a membership change, if leader and if the rules now allow it (members.py).

        ``done`` as for ``propose``; a refusal is ChangeNotYet or ChangeRefused. The step is in force when
        this returns, and applied later.
        """
        if self._closed or self._core.role != LEADER or self._handover.under_way:
            done(None, False)
            return
        why = self._changes.refusal(step)
        command = encode_members(after(self.members, step, change_id)) if why is None else b""
        refusal = self.proposals.refusal(len(command)) if why is None else why.error(step)
        if self.readiness.disk_full:
            refusal = DiskFull("the leader's disk is full; free some space, nothing is lost")
        if refusal is not None:
            done(refusal, False)
            return
        index = self._core.append(command)
        self.has_unsent = True
        self.proposals.add(index, self._core.term, len(command), self._clock(), done)
        self._follow_members()

    def caught_up(self, learner: str) -> bool:
        """As leader: whether this learner may become a voter."""
        return self._changes.caught_up(learner) and self._changes.knows_the_marks(learner)

    def transfer_leadership(self, to: str | None = None) -> None:
        """Hand over to ``to`` (default: the most advanced peer), as soon as it holds the whole log.

        Until then proposals are refused as by a follower; after ``transfer_timeout_s`` they flow again.
        """
        if self.is_leader:
            self._handover.begin(to, self._clock())

    @property
    def transferring(self) -> bool:
        return self._handover.under_way

    def close(self) -> None:
        """Settle every proposal as unknown; nothing more is sent or applied."""
        self._closed = True
        self.proposals.abandon()

    # -------------------------------------------------------------- being driven
    def tick(self) -> bool:
        """Call it after every batch of deliveries, proposals or syncs, and at least every 20 ms. Returns
        whether another one right away would apply more."""
        if self._closed:
            return False
        core, journal, circle, now = self._core, self._journal, self._circle, self._clock()
        readiness = self.readiness
        if self._rejoin.active:
            self._rejoin.tick(now)
        if not circle.votes or (journal.damaged and not self.can_apply):
            core.postpone_election()
        elif circle.learners and core.role == LEADER:
            self._changes.watch(now)
        if core.election_deadline < now and core.role != LEADER:
            self._prevote.tick(now, self._connected)
        # K: of its own log, too, it counts and applies only what its fdatasync has covered.
        sound = sound_index(journal, core.commit_index) if journal.damaged else journal.durable_index
        if core.matches_changed or sound != self._capped_own:
            core.matches_changed, self._capped_own = False, sound
            self._cap = self._commit_cap(sound) if core.role == LEADER else 0
        core.tick(self._cap, sound)
        if self._member_edits != journal.members.edits:
            self._follow_members()  # a damaged entry was mended
        if core.role == LEADER:
            sender = self.replicator
            if journal.last_index > sender.sent_last or core.commit_index > sender.sent_commit:
                sender.flush()
                self.has_unsent = False
            if now >= self._handover.due:
                self._handover.tick(now, lacks_room=readiness.disk_full or readiness.short_of_room)
        waiting = self.proposals.waiting
        if waiting and waiting[0].deadline <= now:
            self.proposals.expire(now)
        return core.applied_index < core.commit_index and readiness.more_to_apply()

    def wake_in_s(self) -> float | None:
        """Seconds until the next tick, if it is due before the regular one; else None."""
        notify_at = self.replicator.notify_at
        return None if notify_at is None else max(0.0, notify_at - self._clock())

    def flush(self) -> None:
        """Send what was proposed since the last tick (a tick does this too)."""
        self.has_unsent = False
        if self._core.role == LEADER and self._journal.last_index > self.replicator.sent_last:
            self.replicator.flush()

    def deliver(self, peer: str, message: RaftMessage) -> None:
        """A message from ``peer``, decoded. Unknown types and senders are ignored."""
        if self._closed or peer not in self.known_peers.known:
            return
        kind = message["type"]
        handler = self._handlers.get(kind)
        if handler is None or (self._rejoin.active and kind in NOT_FOR_LEARNERS):
            return
        if kind != "timeout_now" or self._takes_over():
            handler(peer, message)

    def _takes_over(self) -> bool:
        able = self.can_apply and self._circle.votes
        return able and self.readiness.takes_over(self._clock())

    def connected(self, peer: str) -> None:
        """The link to ``peer`` is up. Each end has made the other's incarnation durable before."""
        self._linked.add(peer)
        if peer not in self.known_peers.known:
            return
        self._connected.add(peer)
        self._rejoin.connected(peer)
        self._core.connected(peer)
        self.replicator.connected(peer)

    def disconnected(self, peer: str) -> None:
        self._linked.discard(peer)
        if peer in self._connected:
            if peer == self._core.leader_id():
                self._prevote.leader_lost()
            self._connected.discard(peer)
            self._core.disconnected(peer)
            self.guard.forget(peer)

    def after_sync(self) -> None:
        """The journal's durable index advanced, or an entry was mended: send the answers that waited for
        it."""
        if self._core.role == LEADER:  # what is held for earlier terms' leaders is dropped later
            return
        for peer, ack in self.guard.release(self._core.term, self._core.commit_index):
            self.send(peer, ack)

    # -------------------------------------------------------------- messages
    def _on_append(self, peer: str, message: RaftMessage) -> None:
        core, guard = self._core, self.guard
        if message["term"] < core.term:
            self.send(peer, {"type": "stale_term", "term": core.term})
            return
        self._prevote.leader_seen_at, self._prevote.asked_term = self._clock(), None
        heartbeat = not message.get("entries")
        proved = guard.admit(message, core.commit_index)
        answer = core.receive(peer, message)
        if self._member_edits != self._journal.members.edits:
            self._follow_members()
        if proved is not None:
            self.too_far_behind = False
            if self._rejoin.active:
                self._rejoin.proved(message["term"], proved)
        elif "log_start" in message:
            self.too_far_behind = True
            index = self._journal.last_index + 1
            answer = {"type": "next_node_idx", "next_node_idx": index, "reset": True, "success": False}
        if answer is not None:
            answer["term"], answer["seq"], answer["counts"] = (
                core.term,
                message["seq"],
                not self._rejoin.active,
            )
            answer = guard.answer(peer, answer, proved, core.commit_index, heartbeat=heartbeat)
            if answer is not None:
                self.send(peer, answer)

    def _on_stale_term(self, peer: str, message: RaftMessage) -> None:
        """A peer is in a later term than our messages: a leader (or candidate) of an old term steps down."""
        if message["term"] > self._core.term and (peer in self._circle.peers or not self._circle.votes):
            self._core.step_down(message["term"])

    def _on_superseded(self, peer: str, message: RaftMessage) -> None:
        """A peer that still had a link to us has met the process that replaced us."""
        by = Incarnation(message["number"], message["disk_id"])
        if by.supersedes(self.marks.own):
            raise Superseded(f"replica {self.id}", by.number)

    # -------------------------------------------------------------- CoreOwner
    def send(self, peer: str, message: RaftMessage) -> bool:
        """To a peer that is connected; False if it is not, or its link drops the message."""
        return peer in self._connected and self._link.send(peer, self.clocks.stamped(message))

    def send_vote(self, peer: str, message: RaftMessage) -> bool:
        return self.send(peer, self._votes.going_out(message))

    def broadcast(self) -> None:
        self.replicator.broadcast()

    def apply_entry(self, index: int) -> bool:
        journal = self._journal
        try:
            term, command = journal.term_at(index), journal.read(index)
        except DamagedEntry:
            return False  # it is being mended from another replica
        assert term is not None
        try:
            result = self._apply(index, term, command if command[0] == 0 else b"")
        except Exception as error:
            self._closed = True
            raise ApplyFailed(f"entry {index} of term {term} could not be applied: {error!r}") from error
        self.proposals.applied(index, term, result)
        if command[0] == MEMBERSHIP:
            if self._journal.members.command(index) != command:  # the log may not know it: note it again
                self._journal.members.note(index, command)
            self._follow_members()
        return True

    def role_changed(self, before: int, after: int) -> None:
        if after == LEADER:
            if not self._circle.votes:
                raise SafetyViolation(f"{self.id} was elected although it is not a voter of its group")
            self.too_far_behind = False
            self._core.forget_matches()
            self._changes.begin()
            self.replicator.begin()
            self._handover.begin_watching(self._clock())
        elif before == LEADER:
            self._core.leadership_ended()
            self._handover.end()
            self.replicator.end()
            self.proposals.abandon()

    def _commit_cap(self, own: int) -> int:
        """As leader: the highest index that a majority holds durably, ``own`` being ours."""
        return quorum_index(own, self._core.match_indexes(self._circle.voters))

    def _forget_match(self, peer: str) -> None:
        self.replicator.forget_match(peer)
        self._changes.forget(peer)

    # -------------------------------------------------------------- members
    def told_of(self, peer: str) -> None:
        """Somebody who may know says that ``peer`` belongs to the group: listen to it."""
        self.known_peers.told_of(peer)
        self._hear()

    def _possible(self) -> list[Members]:
        """The configurations that may be in force: the applied one, and those after it in the log."""
        return self._journal.members.since(self._core.applied_index)

    def _follow_members(self) -> None:
        """The configuration in force may have changed: an entry was appended, cut off, or applied."""
        before, self._member_edits = self._circle.members, self._journal.members.edits
        self._circle.follow(self._possible())
        if self._circle.members != before:
            self._core.follow(self._circle.voters, {*self.known_peers.named(), *self._circle.peers})
            self.replicator.follow()
        self._hear()

    def _hear(self) -> None:
        """Adopt links that were up before their peers were known, and drop peers that are gone."""
        came, gone = self.known_peers.look()
        for peer in came:
            if peer in self._linked:
                self.connected(peer)
        for peer in gone:
            linked = peer in self._linked
            self.disconnected(peer)
            if linked:  # it may be listened to again
                self._linked.add(peer)
            self._rejoin.forget(peer)
        self.marks.forget(self.known_peers.retired(gone))
        if came or gone:
            self._on_peers(self.heard)
