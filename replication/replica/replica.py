"""One replica of a broker group, without threads, clock, or network.

Ties the replicated state to the Raft node: as leader it admits requests and proposes entries; on every
replica it applies what is committed, takes checkpoints, and answers questions about the state. All
methods run in one thread (the driver's, or the simulator's), except ``fetch``,
which may run in any. Time is passed in as ``now_ms``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from escrowmq.replication.calling.answers import Leadership, LevelReport, Reply
from escrowmq.replication.errors import DiskFull, EscrowMQError, MessageTooLarge, Overloaded
from escrowmq.replication.format import ops as build
from escrowmq.replication.format.codec import Op, decode_command, decode_ops
from escrowmq.replication.format.ops import BY_CLAIM, BY_TIMEOUT
from escrowmq.replication.log.journal import SegmentJournal
from escrowmq.replication.metrics import Counts
from escrowmq.replication.raft.replicator import LeadCheck
from escrowmq.replication.raft.types import Clock
from escrowmq.replication.replica import compaction, fetching
from escrowmq.replication.replica.admission import Admission
from escrowmq.replication.replica.agenda import AT_ONCE, NEVER, Agenda, Duty
from escrowmq.replication.replica.checkpoints import Checkpoints, Job
from escrowmq.replication.replica.compaction import AHEAD_MS
from escrowmq.replication.replica.entry_writing import AboutTopics, ComposedEntry, Submission
from escrowmq.replication.replica.lease_dispatcher import LeaseDispatcher, ReadIndex
from escrowmq.replication.replica.releases import PrefetchedBodies
from escrowmq.replication.replica.validation import level_needed
from escrowmq.replication.state.machine import LEVEL_MAX, Result, StateMachine
from escrowmq.replication.state.topics import Partition, Topic

# ------------------------------------------------------------------ format levels
# When a group moves to the next format level: once every replica can read what may follow.
#
# A replica stops at an operation that it does not know. So the leader asks every replica of *every* group (a
# transaction may need the level in all of its groups, once its home has accepted it), and one that does not
# answer counts as running older software. The change is irreversible.
#
# Group 0 goes last, so what it answers at a level proves that every other group is at it, too.


def next_level(
    level: int, reports: Sequence[LevelReport | None], ahead: Sequence[LevelReport | None] = ()
) -> int | None:
    """The level to propose in a group of ``level``, or None. ``reports``: the latest reports of all replicas
    of all groups; None where there was no answer. ``ahead``: see ``ahead_of``."""
    wanted = level + 1
    ready = [r is not None and r.known >= wanted and r.applied >= level for r in reports]
    # All of them: one that has not applied it may still answer clients as a leader of the past.
    ready += [r is not None and r.applied >= wanted for r in ahead]
    return wanted if ready and all(ready) else None


def ahead_of(gid: int, found: Mapping[tuple[int, int], LevelReport | None]) -> Sequence[LevelReport | None]:
    """The reports of the replicas that reach a level before this group does, from those of all replicas by
    group and number."""
    return [report for (group, _), report in found.items() if gid == 0 < group]


# ------------------------------------------------------------------ the group's time
# The time that a leader writes into entries: never behind its entries, and never standing still.
#
# It is that of the group's clocks (raft/replicator.py), whichever replica leads.
#
# A leader may find that its time is far behind the last entry, since clocks were far ahead before. Then
# time continues from that entry, at half speed until the clocks have caught up: if it stood still, nothing
# would come due for as long as they were wrong. So it does while too few of the clocks are known.


#: More than this does not pass between two looks: a clock has jumped.
PASSES_MS: Final = 1_000


class Clocks(Protocol):
    """See raft/replicator.py."""

    @property
    def leading(self) -> bool: ...
    def lower_median_ms(self, own_ms: int) -> int | None: ...
    def monotonic_ms(self) -> int: ...


class GroupTime:
    """The time of one replica's group."""

    def __init__(self, state: StateMachine) -> None:
        self._state = state
        self.clocks: Clocks | None = None  # None: only its own counts
        self.ms = 0  # as it was last told
        self._half_ms = 0
        self._read_ms: int | None = None  # the last reading of the clock that tells what has passed
        self.of_the_group = False  # whether ``ms`` is of this leadership, by the group's clocks

    def at(self, own_ms: int) -> int:
        """The time when this machine's wall clock says ``own_ms``. Of a follower it is that clock's, for
        whoever looks; nothing of it is kept for its own leadership."""
        clocks = self.clocks
        if clocks is None:
            return self._go_on(own_ms, own_ms)
        if not clocks.leading:
            self.of_the_group = False
            return max(own_ms, self._state.now_ms)
        if not self.of_the_group:
            self.of_the_group, self._read_ms, self.ms = True, None, self._state.now_ms
        return self._go_on(clocks.lower_median_ms(own_ms), clocks.monotonic_ms())

    def _go_on(self, clock_ms: int | None, read_ms: int) -> int:
        passed = 0 if self._read_ms is None else min(read_ms - self._read_ms, PASSES_MS)
        self._read_ms = read_ms
        ms = max(self.ms, self._state.now_ms)
        if clock_ms is not None and clock_ms >= ms:
            ms = clock_ms
        elif passed > 0:
            self._half_ms += passed
            ms += self._half_ms // 2
            self._half_ms %= 2
        self.ms = ms
        return ms


# ------------------------------------------------------------------ replica


#: When a client asks again if the leader's disk is full: people or retention have to free space first.
DISK_FULL_RETRY_S = 1.0
#: Transactions that are rolled back at a time because nobody is asked about them: a small entry. One that is
#: still open after the second time, since the queue was full, say, is tried again.
UNASKED_MAX, UNASKED_AGAIN_MS = 1_000, 2_000
#: When clients ask again whose requests made too large an entry together; they spread over half to one and a
#: half times this.
APART_S = 0.05
#: When the leader looks again at the group's time for what waits for it: that time may jump ahead.
LOOK_MS: Final = 20
ROUNDING_S: Final = 1e-6  # more than the rounding error of a sum of two times


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one replica (they should be equal on all replicas, but nothing breaks if they differ)."""

    open_transactions_max: int = 2_000_000  # per app and topic: about 1 GB on each replica
    queue_bytes_max: int = 64 << 20  # requests waiting for an entry: 0.2 s of work at full speed
    entries_in_flight: int = 4  # more adds latency, not throughput: waiting requests go into bigger entries
    copy_bytes: int = 0  # messages of at most this many bytes are copied at commit even within the segment
    timers_max: int = 100_000_000  # delayed messages of the group: 4 to 5 GB of files, more are refused
    carry_ahead_ms: int = AHEAD_MS  # delayed messages that can be read sooner are not stored anew
    retention_interval_ms: int = 10_000
    #: A new leader has more urgent work, and its predecessor may have run retention just before.
    retention_pause_ms: int = 5_000
    #: Partitions visited at a time, for retention or a snapshot: a millisecond of the thread that
    #: sends heartbeats. Between two such slices of a snapshot it has ``slice_pause_ms`` for other work.
    slice_visits: int = 256
    slice_pause_ms: int = 10


class Raft(Protocol):
    """What a replica needs from its Raft node."""

    @property
    def ready(self) -> bool: ...
    @property
    def is_leader(self) -> bool: ...
    @property
    def leader_id(self) -> str | None: ...
    @property
    def term(self) -> int: ...
    def propose(self, command: bytes, done: Callable[[Any, bool | None], None]) -> None: ...
    def check_lead(self) -> LeadCheck: ...
    def leads_since(self, check: LeadCheck) -> bool: ...


class Replica:
    """State, admission and checkpoints of one replica."""

    def __init__(
        self,
        *,
        state: StateMachine,
        journal: SegmentJournal,
        checkpoints: Checkpoints,
        limits: Limits,
        start_job: Callable[[Job, Callable[[], None]], None],
        on_due: Callable[[], None] = lambda: None,
        number_of: Callable[[str], int] = int,
        monotonic: Clock,
        bodies: PrefetchedBodies | None = None,
    ) -> None:
        """``start_job(job, done)`` runs ``job.run()`` anywhere, then ``done()`` in this thread;
        ``number_of`` turns a Raft id into the replica number that clients know; ``monotonic``: seconds;
        ``bodies``: whoever reads what releases copy, None: this thread."""
        self.state, self.journal, self.checkpoints, self.limits = state, journal, checkpoints, limits
        #: Whoever runs the replica may add duties before ``attach``: what they submit is written last.
        self.agenda = Agenda()
        self._slices = self.agenda.add(Duty("checkpoint", self._take_slice))
        self._entries = Duty("entries", self._write_entries)
        self.admission = Admission(
            state,
            journal,
            self._entries,
            open_max=limits.open_transactions_max,
            queue_bytes_max=limits.queue_bytes_max,
            copy_bytes=limits.copy_bytes,
            timers_max=limits.timers_max,
            carry_ahead_ms=limits.carry_ahead_ms,
            bodies=bodies,
        )
        self.lease_dispatcher = LeaseDispatcher(state, self._submit_own, self.not_leader)
        self.admission.shares.members = self.lease_dispatcher.members
        self.lease_dispatcher.is_deleting = self.admission.shares.is_deleting
        self.read_index = ReadIndex()
        self._start_job, self._on_due = start_job, on_due
        self._number_of, self._monotonic = number_of, monotonic
        self.raft: Raft | None = None
        self._own: deque[ComposedEntry] = deque()  # proposed by this replica, not yet applied
        self.in_flight = self._rolling_back = 0  # entries; own requests that roll back
        self._next_retention_ms, self._dropped_to = 0, journal.first_index
        self._retention: compaction.RetentionRound | None = None
        self._leads = False
        self._told_ms = 0  # this machine's wall clock, in the present tick
        #: Counts of its own entries, applied as leader. Entries led by others, or redone, count elsewhere: so
        #: each transaction is counted at one replica, and a restart counts none of them again.
        self.led, self._followed = Counts(), state.counts
        self.terms_led = 0
        if state.members is not None:
            journal.members.begin(*state.members)
        self.time = GroupTime(state)

    def attach(self, raft: Raft, clocks: Clocks | None = None) -> None:
        """The node that applies to this replica; once, before anything else. ``clocks``: of its group."""
        self.raft, self.time.clocks = raft, clocks
        self.lease_dispatcher.attach(raft)
        self.agenda.add(self._entries)

    # -------------------------------------------------------------- applying

    def apply(self, index: int, term: int, command: bytes) -> list[Result]:
        """A committed entry, in order; ``b""`` for a leader's no-op."""
        own = self._own
        if own and own[0].command is command:
            entry = own[0]  # decoded when it was composed; not decoded again
            self.state.counts = self.led
            results = self.state.apply_ops(index, entry.now_ms, entry.ops)
            self.state.counts = self._followed
            if self.lease_dispatcher.leases.windows:
                self.lease_dispatcher.applied(entry.ops)
        else:
            results = self.state.apply(index, command)
            if self._leads:
                self.admission.applied_late(command)
                self._entries.due = AT_ONCE
                if self.lease_dispatcher.leases.windows and command:
                    self.lease_dispatcher.applied(decode_command(command)[1])
        checkpoints = self.checkpoints
        may_be_due = checkpoints.wanted_at is not None or self.state.timers.store.young
        if may_be_due and checkpoints.due(index, len(command)):
            self.state.members = self.journal.members.said(index)
            checkpoints.begin(self.state, term)
            self._checkpoint_slice()
            self._slices.due = AT_ONCE
        if self.state.first_index > self._dropped_to:
            self._drop_segments()
        return results

    def _drop_segments(self) -> None:
        """Drop what the group has released, but never what this replica's own older snapshot is redone
        from."""
        snapshot = self.checkpoints.oldest_needed_index()
        bound = 0 if snapshot is None else min(self.state.first_index, snapshot)
        if bound > self._dropped_to:
            self._dropped_to = bound
            self.journal.drop_before(bound)

    def _checkpoint_slice(self) -> None:
        job = self.checkpoints.step(self.state, self.limits.slice_visits)
        if job is not None:
            self._start_job(job, lambda: self._job_done(job))

    def _take_slice(self, now: float) -> float:
        """A slice of what the checkpoints have begun, if it is anything."""
        if not self.checkpoints.busy:
            return NEVER
        self._checkpoint_slice()
        return now + self.limits.slice_pause_ms / 1000

    def _job_done(self, job: Job) -> None:
        self.checkpoints.done(self.state, job)
        self._checkpoint_slice()
        self._slices.due = AT_ONCE

    def drop_damaged(self, name: str) -> bool:
        """See ``Checkpoints.drop_damaged``."""
        self._slices.due = AT_ONCE
        return self.checkpoints.drop_damaged(name)

    # -------------------------------------------------------------- requests

    def submit(
        self,
        request: bytes,
        ops: Sequence[Op],
        done: Callable[[Reply], None],
        about: Mapping[str, Topic | None] | None = None,
    ) -> None:
        """Take a request that ``validation.parse_request`` accepted; calls ``done(status)`` exactly once.
        ``about``: see ``AboutTopics``; None: about whatever topics have its names when it is applied."""
        raft = self.raft
        assert raft is not None
        if not raft.ready:
            done(self.not_leader())
            return
        # Levels only rise, so what is admitted here may be in an entry that is written later.
        if self.state.level < LEVEL_MAX and (needed := level_needed(ops)) > self.state.level:
            done(("unsupported", needed))
            return
        submission = (
            Submission(request, ops, done) if about is None else AboutTopics(request, ops, about, done)
        )
        if not self.admission.offer(submission):
            done(("overloaded", 0.05))

    def not_leader(self) -> Reply:
        """The status that sends a client to another replica."""
        assert self.raft is not None
        leader = None if self.raft.is_leader else self.raft.leader_id
        number = None if leader is None else self._number_of(leader)
        return Leadership(False, number, self.raft.term).refusal()

    def group_ms(self, now_ms: int) -> int:
        """The group's time (replica.py) when this machine's wall clock says ``now_ms``."""
        return self.time.at(now_ms)

    def monotonic_ms(self) -> int:
        """The time by which leases of share groups run, and what this process spreads: no step of a wall
        clock moves it."""
        return int(self._monotonic() * 1000)

    def confirm(self, done: Callable[[bool], None]) -> None:
        """See ``ReadIndex.ask``; at once if this replica does not lead."""
        assert self.raft is not None
        if self.raft.ready:
            self.read_index.ask(done)
        else:
            done(False)

    def pump(self, now_ms: int) -> None:
        """One tick: what is due, after the leadership has begun or ended if it has. ``now_ms``: this
        machine's wall clock."""
        raft = self.raft
        assert raft is not None
        self._told_ms = now_ms
        desk, reads = self.lease_dispatcher, self.read_index
        asked = desk.lead_rounds.waits or desk.parked or reads.rounds.waits
        if not raft.ready:
            # Requests may have come between the moment when it was ready and its first tick as a leader.
            taken = asked or self._entries.due == AT_ONCE
            if self._leads or taken or self.time.of_the_group:
                self._resign(now_ms)
        else:
            if not self._leads:
                self._begin_leading(now_ms)
            if asked:  # each message may be the one that confirms a round
                desk.step(self.monotonic_ms())
                reads.step(raft)
        self.agenda.run(self._monotonic())

    def _begin_leading(self, now_ms: int) -> None:
        self._leads, self._retention = True, None
        self.lease_dispatcher.begin()
        self.admission.shares.leases = self.lease_dispatcher.leases
        self.terms_led += 1
        self._next_retention_ms = self.time.at(now_ms) + self.limits.retention_pause_ms
        self._entries.due = AT_ONCE

    def _resign(self, now_ms: int) -> None:
        """It does not lead, or not yet: forget what only a leader has, and send away who waits."""
        self.group_ms(now_ms)
        self._leads = False
        self.admission.forget_decisions()
        if self.admission.waiting():
            self.admission.fail_all(self.not_leader())
        self.lease_dispatcher.resign()
        self.read_index.resign()

    def _write_entries(self, now: float) -> float:
        """As leader, propose what waits, as far as the window of entries in flight allows. Due when a request
        comes, when an entry ends, and when the group's time reaches that of a delayed message, say."""
        raft = self.raft
        assert raft is not None
        if not self._leads:
            return NEVER
        now_ms = self.time.at(self._told_ms)
        if self.state.claims.overtaken.waiting and not self._rolling_back:
            self._end_overtaken(now_ms)
        while self.in_flight < self.limits.entries_in_flight:
            entry = self.admission.compose(now_ms)
            if entry is None:
                left_ms = min(self.admission.due_times(), default=NEVER) - now_ms
                if left_ms == NEVER:
                    return NEVER
                return now + min(left_ms, LOOK_MS) / 1000 - ROUNDING_S if left_ms > 0 else AT_ONCE
            self._propose(raft, entry)
        return NEVER

    def wake_in_ms(self) -> int | None:
        """In how many milliseconds of the group's time a leader has something to write, if nothing happens
        until then. None: never, or it waits for something else."""
        times = self.admission.due_times() if self._leads else []
        return min((time - self.time.ms for time in times if time > self.time.ms), default=None)

    def _propose(self, raft: Raft, entry: ComposedEntry) -> None:
        self._own.append(entry)
        self.in_flight += 1

        def done(results: Any, outcome: bool | None) -> None:
            self.in_flight -= 1
            self._entries.due = AT_ONCE
            # Proposals end in the order in which they were made, whatever their outcome.
            self._own.remove(entry)
            if outcome:
                self.admission.applied(entry, results)
                return
            self.admission.ended(entry, decided=outcome is False)
            if outcome is False:
                self.admission.pause(entry)
            if not raft.ready:
                self.admission.forget_decisions()
            sent = entry.submissions
            status: Reply = ("unknown",) if outcome is None else self._refused(results, len(sent))
            for submission in sent:
                submission.done(status)

        raft.propose(entry.command, done)

    def _refused(self, reason: EscrowMQError | None, requests: int) -> Reply:
        """The answer to the clients of so many requests whose entry is certainly not logged. It is "not
        leader" only if another replica could take them: otherwise clients would search for a leader that they
        have already found, until their deadlines."""
        if reason is None:
            return self.not_leader()
        if isinstance(reason, Overloaded):
            return "overloaded", reason.retry_after_s
        if isinstance(reason, DiskFull):
            return "disk_full", DISK_FULL_RETRY_S
        if isinstance(reason, MessageTooLarge):
            if requests > 1:  # which of them is too large shows when each is sent alone
                return "overloaded", APART_S
            size, most = reason.size_bytes, reason.limit_bytes
            return "malformed", f"it makes an entry of {size} bytes, but the limit is {most}; send less"
        raise AssertionError(f"no status for {reason!r}")

    def raise_level(
        self, reports: Sequence[LevelReport | None], ahead: Sequence[LevelReport | None] = ()
    ) -> None:
        """Propose the next format level if the reports allow it (see replica.py). Proposing twice is
        harmless."""
        raft = self.raft
        level = next_level(self.state.level, reports, ahead)
        if level is not None and raft is not None and raft.ready:
            frame = build.level(level)
            self.admission.offer(Submission(frame, decode_ops(frame), lambda status: None))

    # -------------------------------------------------------------- timers

    def on_timer(self, now_ms: int) -> None:
        """Called a few times a second: due checks, and from time to time, as leader, retention."""
        now_ms = self.group_ms(now_ms)
        raft = self.raft
        self.state.transactions.tidy()
        self.state.due.tidy()
        if raft is None or not raft.ready:
            self.state.due.resign(
                min(now_ms, self.state.now_ms)
            )  # by a time that the next leader has reached
            self.state.claims.overtaken.resign()
            return
        if self.state.due.advance(now_ms):
            self._on_due()
        if self._leads:
            self.lease_dispatcher.on_timer(self.monotonic_ms())
            self._end_expired(now_ms)
            self._end_overtaken(now_ms)
            self._retain(now_ms)

    def _end_expired(self, now_ms: int) -> None:
        """Roll back what has been open for too long, and about which nobody is asked."""
        self._roll_back(self.state.due.take_expired(UNASKED_MAX, UNASKED_AGAIN_MS, now_ms), BY_TIMEOUT)

    def _end_overtaken(self, now_ms: int) -> None:
        """Roll back what the producers of earlier claims have left open, and about which nobody is asked."""
        taken = self.state.claims.overtaken.take(
            UNASKED_MAX, UNASKED_AGAIN_MS, now_ms, self.state.transactions
        )
        self._roll_back(taken, BY_CLAIM)

    def _roll_back(self, found: Mapping[str, Mapping[str, int]], by: str) -> None:
        """``found``: app -> id -> log index of its newest PREPARE; with a newer one it stays open."""

        def answered(status: Reply) -> None:
            self._rolling_back -= 1

        for app, newest in found.items():
            frame = build.rollback(app, list(newest), by, newest_index=list(newest.values()))
            self._rolling_back += self.admission.offer(Submission(frame, decode_ops(frame), answered))

    def _submit_own(self, frame: bytes, partition: Partition) -> None:
        """A request of this leader itself, about the topic that has that partition."""
        ops, name = decode_ops(frame), partition.topic
        self.admission.offer(AboutTopics(frame, ops, {name: self.state.topics.topics[name]}))

    def _retain(self, now_ms: int) -> None:
        """A slice of the round under way, or of the next one if it is due."""
        if self._retention is None:
            if now_ms < self._next_retention_ms:
                return
            self._next_retention_ms = now_ms + self.limits.retention_interval_ms
            snapshot = self.checkpoints.oldest_needed_index()
            self._retention = compaction.RetentionRound(self.state, now_ms, snapshot)
        look = self._retention
        for frame in look.step(self.limits.slice_visits):
            ops = decode_ops(frame)
            name = ops[0].meta.topic
            self.admission.offer(AboutTopics(frame, ops, {name: self.state.topics.topics[name]}))
        if look.done:
            self._retention = None
            first = max(look.first_needed_index, self.journal.first_index)  # a block may begin before the log
            self.admission.carrying.plan(look.needed_otherwise, self.journal.segments())
            if self.journal.segment_start(first) > self.journal.first_index:
                frame = build.retain(first)
                self.admission.offer(Submission(frame, decode_ops(frame), lambda status: None))

    # -------------------------------------------------------------- reads

    def fetch(
        self,
        requests: Sequence[fetching.FetchRequest],
        max_bytes: int,
        join: fetching.Join = fetching.in_bytes,
    ) -> list[fetching.FetchResult]:
        """Committed messages (see fetching.py). Any thread."""
        return fetching.fetch(self.state, self.journal, requests, max_bytes, join)
