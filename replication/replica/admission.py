"""What the leader decides before an entry is written: group commit, references, limits.

Requests wait in one bounded queue. ``compose`` takes as many as fit into one entry. Clients' frames
go in unchanged; only COMMIT and ROLLBACK are rewritten. For a COMMIT the leader looks up where the
transactions' messages are and writes REF_MESSAGEs (or TX_MESSAGEs, where the body is in another segment than
the one being written) and the COMMIT into the same entry, so that it is all or nothing.

A decision is taken only on transactions that are open in the applied state and have no other
decision in flight, so an applied entry never meets a transaction that is already settled. Ids that do not
qualify are answered after the entry was applied, when the state holds their outcome.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence, Set
from functools import partial
from itertools import chain
from typing import Any, Final

from escrowmq.replication.format import ops as build
from escrowmq.replication.format.codec import Op
from escrowmq.replication.format.operation import OpType
from escrowmq.replication.format.ops import BY_HOME, HOLD_MS_MAX, Commit, Prepare, Rollback
from escrowmq.replication.format.settings import SHARE
from escrowmq.replication.format.timer_ops import Scheduled
from escrowmq.replication.format.timer_ops import timer as build_timer
from escrowmq.replication.model import ResultCode
from escrowmq.replication.replica.agenda import AT_ONCE, Duty
from escrowmq.replication.replica.compaction import AHEAD_MS, Compaction
from escrowmq.replication.replica.copies import Rows
from escrowmq.replication.replica.entry_writing import (
    COPY_BYTES_MAX,
    ComposedEntry,
    EntryWriter,
    LeftOut,
    Submission,
    TopicsUnderWay,
)
from escrowmq.replication.replica.releases import (
    NEVER,
    LogBehindBodies,
    LogReader,
    NobodyReads,
    PrefetchedBodies,
    Releases,
    references_of,
)
from escrowmq.replication.replica.share_admission import ShareAdmission
from escrowmq.replication.state.machine import Result, StateMachine
from escrowmq.replication.state.open_tx import TIMER_FIELDS, Run
from escrowmq.replication.state.topics import Partition
from escrowmq.replication.state.transactions import COMMITTED, ROLLED_BACK, AppTransactions, decide_result
from escrowmq.replication.timers.record import key_of

# ------------------------------------------------------------------ repeated keys
# Bounds how often one key can wait: all copies of a key are released together, in one entry.
#
# A producer never gives a key twice: its ordinals only rise. So a leader remembers the highest one of each
# owner and partition, and looks keys up only where a request goes back behind it. A client that repeats a
# key endlessly is refused after ``COPIES_MAX`` copies, and those that were under way then. What is
# remembered is of this leader, and bounded: whoever has others' owners push out its own gains one copy by
# it.


#: Messages that may wait under one key.
COPIES_MAX: Final = 16
#: Owners and partitions that are remembered, at most twice as many.
REMEMBERED: Final = 50_000


class RepeatedKeys:
    """What one leader has seen. Used in its thread."""

    def __init__(self, state: StateMachine) -> None:
        self._state = state
        #: Owner and slot -> one above the highest ordinal; two generations.
        self._young: dict[tuple[int, int], int] = {}
        self._old: dict[tuple[int, int], int] = {}

    def too_many(self, op: Op, now_ms: int) -> bool:
        """Whether a SCHEDULED brings one more message for a key under which many wait."""
        meta: Scheduled = op.meta
        times, owner, first = meta.times, meta.owner, meta.first_ordinal
        partition = self._state.topics.find(meta.topic, meta.partition)
        if not isinstance(partition, Partition):
            return False  # apply says what is wrong
        slot = partition.slot
        where = owner, slot
        end = self._young.get(where) or self._old.get(where, 0)
        self._remember(where, max(end, first + len(times)))
        if first >= end:
            return False
        keys = [key_of(ms, slot, owner, n) for n, ms in enumerate(times, first) if ms > now_ms]
        find = self._state.timers.store.find
        return any(len(find(key).living) >= COPIES_MAX for key in keys)

    def _remember(self, where: tuple[int, int], end: int) -> None:
        self._young[where] = end
        if len(self._young) >= REMEMBERED:
            self._old, self._young = self._young, {}

    def forget(self) -> None:
        """Leadership is lost."""
        self._young, self._old = {}, {}


# ------------------------------------------------------------------ references
# What stands before a COMMIT or a RELEASE in its entry: where the messages are that it makes readable.


class References:
    """Builds them at the leader. ``copy_bytes``: smaller messages are copied instead of referred to."""

    def __init__(self, state: StateMachine, log: LogReader, topics: TopicsUnderWay, copy_bytes: int) -> None:
        self._state, self._log, self._topics, self._copy_bytes = state, log, topics, copy_bytes

    def of(self, runs: Sequence[Run], writer: EntryWriter) -> list[bytes]:
        """REF_MESSAGE and TX_MESSAGE frames: as few as preserve the order within each partition, with
        adjacent messages joined. Both kinds alternate within a partition only where copied and referenced
        messages do."""
        segment = self._log.segment_start(self._log.last_index)
        return self.frames(
            chain.from_iterable(map(partial(self._references, segment), runs)), segment, writer
        )

    def frames(self, references: Iterable[Sequence[int]], segment: int, writer: EntryWriter) -> list[bytes]:
        """See ``of``. ``references``: each flat as ``OpenTx.refs``."""
        budget = writer.copy_budget
        by_slot: dict[int, list[tuple[bool, list[int]]]] = {}  # copied?, quadruples as in ``reference``
        for refs in references:
            for at in range(0, len(refs), 5):
                slot, entry, pos, size, count = refs[at : at + 5]
                copy = (entry < segment or size <= self._copy_bytes) and size <= budget
                if copy:
                    budget -= size
                pieces = by_slot.get(slot)
                if pieces is None:
                    by_slot[slot] = [(copy, [entry, pos, size, count])]
                    continue
                copied, flat = pieces[-1]
                if copied is not copy:
                    pieces.append((copy, [entry, pos, size, count]))
                elif flat[-4] == entry and flat[-3] + flat[-2] == pos:
                    flat[-2] += size
                    flat[-1] += count
                else:
                    flat += (entry, pos, size, count)
        writer.copy_budget = budget
        slots, frames = self._state.topics.slots, []
        for slot, pieces in by_slot.items():
            if slot in slots and slot not in self._topics.deleting:  # else the topic is gone: drop them
                topic, number = slots[slot].topic, slots[slot].number
                for copied, flat in pieces:
                    build_one = self._copied if copied else build.reference
                    frames.append(build_one(topic, number, flat))
        return frames

    def _references(self, segment: int, run: Run) -> Iterable[tuple[int, ...]]:
        """Where the messages are, in the order of the transactions: a reference for each, or one for a whole
        block that is referred to and not copied."""
        block = run.block
        if block is not None and block.log_index >= segment:
            spans = block.spans() if block.smallest > self._copy_bytes else None
            if spans is not None:
                return [(slot, block.log_index, *span) for slot, *span in spans]
        return run.refs()

    def _copied(self, topic: str, number: int, flat: Sequence[int]) -> bytes:
        pieces = [flat[at : at + 4] for at in range(0, len(flat), 4)]
        rows = b"".join(self._log.read_range(entry, pos, size) for entry, pos, size, _ in pieces)
        return build.copied(topic, number, sum(count for *_, count in pieces), rows)


# ------------------------------------------------------------------ commits that wait for each other
# Keeps commits over several groups waiting for a moment, so that somebody finds a stable cut beside them.
#
# Without it, a cut could not be found where such commits never pause. Only homes' commits wait: what is
# decided already must reach its branches. A hold ends with the cut that asked for it, and takes at most a
# fifth of the time, so commits are never kept away. Requests that wait count in the leader's queue. Not
# replicated: if it is lost with the leadership, the cut takes one more try.


#: After a hold, none begins for so many times its length.
REST = 4


class CommitHold:
    """Pure; ``now_ms`` is the group's time. ``until_ms``: when the hold ends; None: there is none."""

    def __init__(self) -> None:
        self.until_ms: int | None = None
        self._began_ms = self._next_ms = 0
        self.held: deque[Submission] = deque()

    def __len__(self) -> int:
        return len(self.held)

    def ask(self, hold_ms: int, now_ms: int) -> list[Submission]:
        """A CUT is written: begin a hold of ``hold_ms``, if one is due, or end the present one (0). Returns
        the requests to be taken up, oldest first."""
        if hold_ms == 0:
            return self.end(now_ms)
        if self.until_ms is None and now_ms >= self._next_ms:
            self._began_ms, self.until_ms = now_ms, now_ms + min(hold_ms, HOLD_MS_MAX)
        return []

    def end(self, now_ms: int) -> list[Submission]:
        """There is no hold any more; returns what was held."""
        if self.until_ms is not None:
            self.until_ms, self._next_ms = None, now_ms + REST * max(now_ms - self._began_ms, 0)
        held, self.held = list(self.held), deque()
        return held

    def over(self, now_ms: int) -> list[Submission]:
        """What was held, if the hold's time is over."""
        return self.end(now_ms) if self.until_ms is not None and now_ms >= self.until_ms else []

    def keeps(self, submission: Submission) -> bool:
        """Whether the request waits, and it does from now on. Call it only during a hold."""
        if any(
            unit.ops[0].type == OpType.COMMIT
            and (meta := unit.ops[0].meta).home_index
            and meta.home_group < 0
            for unit in submission.units
        ):
            self.held.append(submission)
            return True
        return False


# ------------------------------------------------------------------ admission


#: Maximum bytes of requests in one entry: beyond it latency grows and throughput does not
#: (measured: 256 KB to 1 MB per entry is the plateau).
ENTRY_BYTES_MAX = 1 << 20


_COMMITS = frozenset((OpType.GROUP_OFFSETS, OpType.PLACES))


class Admission:
    """The leader's queue and its decisions. One thread."""

    def __init__(
        self,
        state: StateMachine,
        log: LogReader,
        duty: Duty,
        *,
        open_max: int,
        queue_bytes_max: int,
        copy_bytes: int,
        timers_max: int,
        carry_ahead_ms: int = AHEAD_MS,
        bodies: PrefetchedBodies | None = None,
    ) -> None:
        """``duty``: calls ``compose``. ``bodies``: see ``PrefetchedBodies``; None: they are read here."""
        bodies = bodies or NobodyReads()
        copied_from = LogBehindBodies(log, bodies)
        self._state, self._log, self._duty = state, log, duty
        self._open_max, self.queue_bytes_max = open_max, queue_bytes_max
        self.queue: deque[Submission] = deque()
        self.queued_bytes = 0
        # All three hold only what is under way: apps and topics come and go.
        self._deciding: dict[str, set[str]] = {}  # app -> ids
        self._growing: dict[str, Counter[str]] = {}  # app -> parts of an id, in entries not yet applied
        self._opening: dict[tuple[str, str], int] = {}  # (app, topic) -> in entries not yet applied
        self._topics = TopicsUnderWay(state)
        self._references = References(state, copied_from, self._topics, copy_bytes)
        self.releases = Releases(state, timers_max, bodies)
        self.shares = ShareAdmission(state, Rows(log), self._topics, self.releases)
        self.hold = CommitHold()
        self._repeated = RepeatedKeys(state)
        self.carrying = Compaction(state, self.releases, copied_from.read_range, bodies, duty, carry_ahead_ms)
        #: Entries that were given up, in the order of the log: each is applied, or the leadership ends.
        self._unsure: deque[ComposedEntry] = deque()
        self._last_ms = 0
        #: PREPAREs refused by the limit of open transactions.
        self.too_many_open = 0

    def offer(self, submission: Submission) -> bool:
        """Queue a request; False when the queue is full (nothing was done)."""
        if self.queued_bytes + submission.size > self.queue_bytes_max and self.waiting():
            return False
        self.queue.append(submission)
        self.queued_bytes += submission.size
        self._duty.due = AT_ONCE
        return True

    def waiting(self) -> int:
        """Requests not yet in an entry."""
        return len(self.queue) + len(self.hold)

    def fail_all(self, status: tuple[Any, ...]) -> None:
        """Answer all waiting requests; none of them was done."""
        queue, self.queue = [*self.hold.end(self._last_ms), *self.queue], deque()
        self.queued_bytes = 0
        for submission in queue:
            submission.done(status)

    def compose(self, now_ms: int) -> ComposedEntry | None:
        """The next entry, from as many waiting requests as fit; None when nothing waits."""
        due = now_ms >= self.releases.next_ms
        carries = self.carrying.is_active and self.carrying.is_due(now_ms)
        if self.hold.until_ms is not None:
            self._take_up(self.hold.over(now_ms))
        if not self.queue and not due and not carries:
            return None
        self._last_ms = now_ms = max(now_ms, self._last_ms, self._state.now_ms)
        writer, topics = EntryWriter(now_ms), self._topics
        if due:
            self._write_release(writer)
        if self.queue:
            self.releases.pace.requests_ms = now_ms
        if carries and (frame := self.carrying.write(writer.now_ms, topics.deleting, writer.timed)):
            writer.leaders(frame)
        while self.queue and (not writer.submissions or writer.size + self.queue[0].size <= ENTRY_BYTES_MAX):
            if (topics.creating and topics.waits(self.queue[0])) or (
                self.carrying.under_way and self.carrying.waits(self.queue[0])
            ):
                break
            submission = self.queue.popleft()
            if self.hold.until_ms is not None and self.hold.keeps(submission):
                continue
            self.queued_bytes -= submission.size
            writer.submissions.append(submission)
            for number, unit in enumerate(submission.units):
                kind, meta = unit.ops[0].type, unit.ops[0].meta
                if kind == OpType.COMMIT:
                    self._write_decision(writer, submission, number, COMMITTED)
                elif kind == OpType.ROLLBACK:
                    self._write_decision(writer, submission, number, ROLLED_BACK)
                elif kind == OpType.PREPARE and not self._room_for(unit.ops[0], writer):
                    submission.results[number] = [int(ResultCode.TOO_MANY_OPEN), self._open_max]
                elif kind == OpType.DELETE_TOPIC and self.shares.needs(meta.name):
                    submission.results[number] = [int(ResultCode.GROUP_KIND), SHARE]
                elif kind == OpType.TRIM and topics.is_another(meta.topic, submission):
                    submission.results[number] = [int(ResultCode.UNKNOWN_TOPIC)]
                elif kind in _COMMITS and topics.is_another(meta.topic, submission):
                    submission.results[number] = [int(ResultCode.UNKNOWN_TOPIC), [meta.topic]]
                elif kind == OpType.CANCEL:
                    self._write_cancel(writer, submission, number)
                elif kind == OpType.SHARE_ACK:
                    self.shares.ack(writer, submission, number)
                elif kind == OpType.SHARE_REPLY:
                    self.shares.reply(writer, submission, number)
                elif kind == OpType.NACK:
                    self.shares.nack(writer, submission, number)
                elif kind == OpType.GROUP_SETTINGS:
                    self.shares.settings(writer, submission, number)
                elif kind == OpType.DELETE_GROUP:
                    self.shares.deletion(writer, submission, number)
                elif (
                    unit.ops[-1].type == OpType.PRE_LETTERS
                    and (no := self.shares.preparing(writer, unit.ops)) is not None
                ):
                    submission.results[number] = no
                elif schedules(unit.ops) and (most := self._scheduled_at_most(unit.ops, now_ms)):
                    submission.results[number] = [int(ResultCode.TOO_MANY_SCHEDULED), most]
                else:
                    if kind == OpType.CUT:
                        self._take_up(self.hold.ask(meta.hold_ms, now_ms))
                    elif kind == OpType.SCHEDULED:
                        writer.schedule(self.releases, meta.times)
                    elif kind == OpType.DELETE_TOPIC:
                        writer.deleting += topics.note_deletion(meta.name, meta.topic_id)
                    elif kind == OpType.CREATE_TOPIC:
                        writer.note_creation(*topics.note_creation(meta))
                    writer.verbatim(submission, number, unit)
        return writer.finish() if writer.submissions or writer.frames else None

    def due_times(self) -> list[int]:
        """The group's times at which ``compose`` has something to write without a request."""
        times = []
        if self.releases.next_ms != NEVER and (release_ms := self.releases.wake_ms()) is not None:
            times.append(release_ms)
        if self.carrying.is_active and (carry_ms := self.carrying.wake_ms()) is not None:
            times.append(carry_ms)
        if self.hold.until_ms is not None:
            times.append(self.hold.until_ms)
        return times

    def _take_up(self, held: Sequence[Submission]) -> None:
        """Put requests that waited for a cut before all others."""
        self.queue.extendleft(reversed(held))

    def _scheduled_at_most(self, ops: Sequence[Op], now_ms: int) -> int:
        """The limit, of the group or of one key, that does not admit what these schedule; 0: none."""
        if self.releases.is_full():
            most = self.releases.timers_max
        elif ops[0].type == OpType.SCHEDULED and self._repeated.too_many(ops[0], now_ms):
            most = COPIES_MAX
        else:
            return 0
        return 0 if self._is_known(ops[0]) else most

    def _is_known(self, op: Op) -> bool:
        """Whether it is sent again, because its answer was lost: it brings nothing new, and must not be told
        that nothing was done."""
        meta = op.meta
        if op.type == OpType.PREPARE:
            opened = self._state.transactions.look(meta.app).open
            return not meta.part and all(tx_id in opened for tx_id in meta.tx_ids)
        partition = self._state.topics.find(meta.topic, meta.partition)
        if not isinstance(partition, Partition):
            return True  # apply says what is wrong
        known = self._state.producers.get((meta.producer, partition.slot))
        return known is not None and meta.epoch == known[0] and bool(meta.seq < known[1])

    def _write_release(self, writer: EntryWriter) -> None:
        """What is due, before everything else in the entry: what that schedules or cancels comes later."""
        budget = COPY_BYTES_MAX // 2 if self.queue else COPY_BYTES_MAX
        segment = self._log.segment_start(self._log.last_index)
        records = self.releases.due(writer.now_ms, beside=bool(self.queue), copied=budget, segment=segment)
        if records:
            frames = self._references.frames(references_of(records), segment, writer)
            for frame in frames:
                writer.leaders(frame)
            frame, writer.timing = self.releases.written(records, len(frames), writer.now_ms)
            writer.leaders(frame)

    def _write_cancel(self, writer: EntryWriter, submission: Submission, number: int) -> None:
        timing = writer.timed()
        meta = submission.units[number].ops[0].meta
        frame, answer = self.releases.cancel(meta, self._topics.deleting, timing)
        submission.results[number] = answer
        if frame is not None:
            timing.answers.append((submission, number, answer))
            writer.own(submission, number, frame)

    def _timers(self, runs: Sequence[Run], app: str, writer: EntryWriter) -> list[bytes]:
        """The TIMER of what these transactions have scheduled, if any."""
        records: list[bytes] = []
        for run in runs:
            for tx_id, record in zip(run.tx_ids, run.records, strict=False):  # none in a block has any
                if record.timers:
                    writer.schedule(self.releases, record.timers[4::TIMER_FIELDS])
                    records += self.releases.records(app, tx_id, record, writer.now_ms)
        return [build_timer(b"".join(records))] if records else []

    def _room_for(self, op: Op, writer: EntryWriter) -> bool:
        """Whether the limit admits this PREPARE, counting all that are about to be open."""
        meta: Prepare = op.meta
        app, topic, tx_ids = meta.app, meta.topic, meta.tx_ids
        if meta.part:  # opens nothing
            self._growing.setdefault(app, Counter()).update(tx_ids)
            writer.growing.append((app, tx_ids))
            return True
        table = self._state.transactions.look(app)
        opened, opening = table.open_by_topic.get(topic, 0), self._opening.get((app, topic), 0)
        new = len(tx_ids)
        if opened + opening + new > self._open_max:
            new -= sum(tx_id in table.open for tx_id in tx_ids)  # sent again: its answer was lost
            if new and opened + opening + new > self._open_max:
                self.too_many_open += 1
                return False
        if new:
            self._opening[app, topic] = opening + new
            writer.opening.append(((app, topic), new))
        return True

    def _write_decision(self, writer: EntryWriter, submission: Submission, number: int, outcome: int) -> None:
        meta: Commit | Rollback = submission.units[number].ops[0].meta
        app, tx_ids, by = meta.app, meta.tx_ids, meta.by
        table = self._state.transactions.look(app)
        deciding = self._deciding.get(app) or set()
        valid: Sequence[str] = tx_ids
        runs = table.open.runs_of(tx_ids)
        if runs is not None and len(runs) == 1:
            valid = runs[0].tx_ids  # the table's own strings: the hashes of these are known
        if (
            runs is None
            or not deciding.isdisjoint(valid)
            or meta.home_index
            or by != build.BY_PRODUCER
            or (
                self._state.groups > 1
                and any(record.home_index >= 0 for run in runs for record in run.records)
            )
        ):
            if outcome == COMMITTED and by != build.BY_PRODUCER:
                deciding = deciding | self._growing_of(app, tx_ids)
            valid, refused = sift(table, meta, outcome, deciding)
            together = isinstance(meta, Commit) and meta.references == build.TOGETHER
            if together and (refused or self._hindered(app, tx_ids, deciding)):
                valid = []
            runs = table.open.runs_of(valid) if outcome == COMMITTED else []
            submission.left_out[number] = LeftOut(
                app, outcome, tx_ids, set(valid), refused, bool(meta.home_index)
            )
        if valid:
            self._deciding.setdefault(app, set()).update(valid)
            writer.deciding.append((app, valid))
        if isinstance(meta, Rollback):
            writer.own(submission, number, _of_these(meta, valid).frame())
            return
        assert runs is not None, "a leader commits what is open"
        self.shares.committing(writer, app, valid)
        references = self._references.of(runs, writer)
        if self._state.timers.in_transactions:
            references += self._timers(runs, app, writer)
        writer.commit(submission, number, references, app, valid, by)

    def _growing_of(self, app: str, tx_ids: Sequence[str]) -> Set[str]:
        """Those of which a further part is written and not applied yet. A commit of somebody who does not
        know of that part would leave it out, and its sender would be told that it was prepared."""
        growing = self._growing.get(app, ())
        return {tx_id for tx_id in tx_ids if tx_id in growing}

    def _hindered(self, app: str, tx_ids: Sequence[str], deciding: set[str]) -> bool:
        """Whether one of these can never be committed, or is about to be decided by another request."""
        table = self._state.transactions.look(app)
        return any(t in deciding or (t not in table.open and table.outcome(t) != COMMITTED) for t in tx_ids)

    def forget_decisions(self) -> None:
        """Leadership is lost. Not to be called before: an entry whose proposal timed out may still be applied
        in this term, and until then its transactions must not get a second decision."""
        self._deciding.clear()
        self._growing.clear()
        self._topics.forget()
        self.releases.forget()
        self.shares.forget()
        self.carrying.forget()
        self._repeated.forget()
        self._unsure.clear()
        self._last_ms = 0  # what came of its entries is in the log, and their time with it

    def ended(self, entry: ComposedEntry, *, decided: bool) -> None:
        """The entry's proposal has ended. ``decided``: it is applied, or certainly in no log, so its
        transactions may be decided again, and its topics deleted or created. Otherwise it was given up: they
        may not, until it is applied after all, or leadership is lost."""
        for key, count in entry.opening:
            left = self._opening[key] - count
            if left:
                self._opening[key] = left
            else:
                del self._opening[key]
        if decided:
            self._let_go(entry)
        elif (
            entry.deciding
            or entry.growing
            or entry.deleting
            or entry.creating
            or entry.timing
            or entry.finishing
        ):
            self._unsure.append(entry)

    def pause(self, entry: ComposedEntry) -> None:
        """The log takes no entry now: this one is certainly not in it."""
        if entry.timing is not None:
            self.releases.pause(entry.now_ms)
            if entry.timing.carried:
                self.carrying.again(entry.now_ms)

    def applied_late(self, command: bytes) -> None:
        """An entry that nobody waits for is applied: perhaps the first of those that were given up. It is
        recognised by its content, since the log may have read it from the disk again."""
        if self._unsure and self._unsure[0].command == command:
            self._let_go(self._unsure.popleft())

    def _let_go(self, entry: ComposedEntry) -> None:
        if entry.timing is not None:
            self.releases.ended(entry.timing)
            self.carrying.ended(entry.timing)
        if entry.finishing is not None:
            self.shares.ended(entry.finishing)
        for app, tx_ids in entry.deciding:
            deciding = self._deciding.get(app)
            if deciding is not None:
                deciding.difference_update(tx_ids)
                if not deciding:
                    del self._deciding[app]
        for app, tx_ids in entry.growing:
            growing = self._growing.get(app)
            if growing is not None:
                growing.subtract(tx_ids)
                self._growing[app] = growing = +growing
                if not growing:
                    del self._growing[app]
        if entry.creating:
            self._topics.created(entry.creating)
        if entry.deleting:
            self._topics.deleted(entry.deleting)

    def applied(self, entry: ComposedEntry, results: Sequence[Result]) -> None:
        """The entry is applied: answer its requests."""
        self.ended(entry, decided=True)
        for (submission, number), result in zip(entry.slots, results, strict=True):
            if number in submission.left_out:
                result = self._with_left_out(submission, number, result)
            submission.results[number] = result
        if entry.timing is not None:
            self.releases.count(entry.timing)
            self.carrying.count(entry.timing)
            for submission, number, answer in entry.timing.answers:
                submission.results[number] = answer
        if entry.finishing is not None:
            self.shares.count(entry.finishing)
        for submission in entry.submissions:
            if submission.tells_time:
                submission.done(("ok", submission.results, self._state.now_ms))
            else:
                submission.done(("ok", submission.results))

    def _with_left_out(self, submission: Submission, number: int, result: Result) -> Result:
        left = submission.left_out[number]
        table = self._state.transactions.look(left.app)
        problems: list[list[Any]] = []
        for i, tx_id in enumerate(left.tx_ids):
            if tx_id in table.open:
                problems.append([i, *left.refused.get(tx_id, (int(ResultCode.RETRY), None))])
            elif tx_id not in left.included or result[0] != ResultCode.OK:
                problem = decide_result(table, tx_id, left.outcome)
                if problem is not None:
                    problems.append([i, *problem])
                elif left.across:
                    problems.append([i, int(ResultCode.DUPLICATE), None])
        return [int(ResultCode.PARTIAL), problems] if problems else [int(ResultCode.OK)]


def sift(
    table: AppTransactions, meta: Commit | Rollback, outcome: int, deciding: Set[str]
) -> tuple[list[str], dict[str, tuple[int, Any]]]:
    """Which transactions of a decision go into the entry, and why others that are open do not.

    - A decision that names a home group and home indexes does nothing to a record with others. A branch of
      the same home with a lower index belongs to an older transaction, which will soon be rolled back
      (RETRY). In any other case the decided transaction is not here, and its decision need not be sent again
      (UNKNOWN_TX).
    - Only a decision that names its home index decides a branch.
    - A committer other than the producer (a check, an operator) commits only what has all its parts here, and
      over several groups only under the home index, which it has looked up in all of them.
    - What a home group rolls back and is not known here is included too: it is remembered from then on.
    """
    by, home_index, home_group = meta.by, meta.home_index, meta.home_group
    from_home = by.startswith(BY_HOME)
    looks = outcome == COMMITTED and by != build.BY_PRODUCER and not from_home
    valid: dict[str, None] = {}
    refused: dict[str, tuple[int, Any]] = {}
    for i, tx_id in enumerate(meta.tx_ids):
        if tx_id in deciding or tx_id in valid:
            continue
        record = table.open.get(tx_id)
        if record is None:
            if from_home and home_index and outcome == ROLLED_BACK and table.mark(tx_id) is None:
                valid[tx_id] = None
            continue
        if home_index and not record.is_under(home_group, home_index[i]):
            older = record.home_group == home_group and 0 <= record.home_index < home_index[i]
            refused[tx_id] = (int(ResultCode.RETRY if older else ResultCode.UNKNOWN_TX), None)
        elif from_home and by != f"{BY_HOME}{record.home_group}":
            refused[tx_id] = (int(ResultCode.UNKNOWN_TX), None)
        elif not home_index and record.home_index >= 0:
            refused[tx_id] = (int(ResultCode.TX_CONFLICT), "PREPARE")
        elif looks and (record.missing_parts or (record.participants and not home_index)):
            refused[tx_id] = (int(ResultCode.NOT_PREPARED), None)
        else:
            valid[tx_id] = None
    return list(valid), refused


def schedules(ops: Sequence[Op]) -> bool:
    """Whether a SCHEDULED, or a PREPARE with a PRE_SCHEDULED."""
    return ops[0].type == OpType.SCHEDULED or any(op.type == OpType.PRE_SCHEDULED for op in ops[1:])


def _of_these(meta: Rollback, valid: Sequence[str]) -> Rollback:
    """A client's ROLLBACK as it is in the log: of these transactions only."""
    if valid is meta.tx_ids:
        return meta
    index_of = {tx_id: at for at, tx_id in enumerate(meta.tx_ids)}
    at = [index_of[tx_id] for tx_id in valid]
    newest, home = (
        [column[n] for n in at] if column else [] for column in (meta.newest_index, meta.home_index)
    )
    return Rollback(meta.app, list(valid), meta.by, newest, home, meta.home_group)
