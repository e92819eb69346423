"""Planted faults in the replicated state and in what the leader decides: transactions, order, offsets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from escrowmq.replication.format.codec import ENVELOPE, Op, decode_command, encode_command
from escrowmq.replication.format.operation import OpType
from escrowmq.replication.replica import admission
from escrowmq.replication.replica.admission import Admission, ComposedEntry, References
from escrowmq.replication.replica.agenda import AT_ONCE
from escrowmq.replication.replica.entry_writing import Submission
from escrowmq.replication.replica.fetching import FetchRequest, FetchResult
from escrowmq.replication.replica.replica import Raft, Replica
from escrowmq.replication.state import topics
from escrowmq.replication.state.dedup import ProducerMemory
from escrowmq.replication.state.index import PartitionIndex
from escrowmq.replication.state.machine import OK, GroupOperations, Result, StateMachine
from escrowmq.replication.state.open_tx import OpenTx, Run
from escrowmq.replication.state.transactions import (
    COMMITTED,
    ROLLED_BACK,
    AppTransactions,
    TransactionTable,
)
from tests.controls.planting import plant
from tests.controls.raft_faults import STUCK
from tests.controls.scenes import FORGETFUL, FORGETFUL_OF_PRODUCERS, world

EARLY = ("G1a", "precommitted-read", "invented-decision")
REFERENCES = (OpType.REF_MESSAGE, OpType.TX_MESSAGE)


# ------------------------------------------------------------------ answers to clients
@plant("deduplication-off", "duplicate", "nonmonotonic-send", "wrong-place")
def deduplication_off(patch: pytest.MonkeyPatch) -> None:
    """Sequence numbers of producers are not checked: a batch that is sent again is stored again."""
    message = StateMachine._message

    def again(self: StateMachine, index: int, op: Op) -> Result:
        return message(self, index, op._replace(meta=msgspec.structs.replace(op.meta, seq=-1)))

    rewire(patch, OpType.MESSAGE, again)


@plant(
    "settled-forgotten",
    "duplicate",
    "committed-twice",
    "unresolved",
    "unstable-outcome",
    "prepared-lost",
    "lost-write",
)
def settled_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A transaction's outcome is forgotten at once: a PREPARE that is sent again opens it again."""

    def settle(self: AppTransactions, run: Run, outcome: int) -> None:
        self.open.take_run(run)
        for record in run:
            self.open_by_topic[record.topic] -= 1

    patch.setattr(AppTransactions, "settle", settle)


@plant("conflicts-answered-as-done", "both-decided", "unstable-outcome", "G1a", "lost-write", start=3)
def conflicts_answered_as_done(patch: pytest.MonkeyPatch) -> None:
    """A client that asks for the opposite outcome of a settled transaction is told that it is done."""
    patch.setattr(admission, "decide_result", lambda table, tx_id, wanted: None)


@plant(
    "two-decisions-in-flight",
    "both-decided",
    "duplicate",
    "committed-twice",
    "unstable-outcome",
    "G1a",
    "ApplyFailed",
    start=11,
)
def two_decisions_in_flight(patch: pytest.MonkeyPatch) -> None:
    """A transaction whose decision is under way may get a second decision, which is then carried out too."""
    write = Admission._write_decision

    def forgetful(self: Admission, *args: Any) -> None:
        self._deciding.clear()
        write(self, *args)

    whole = StateMachine._settle

    def settle(
        self: StateMachine, table: Any, app: str, tx_ids: Sequence[str], by: str, outcome: int
    ) -> Result:
        known = [tx_id for tx_id in dict.fromkeys(tx_ids) if tx_id in table.open]
        return whole(self, table, app, known, by, outcome)

    patch.setattr(Admission, "_write_decision", forgetful)
    patch.setattr(StateMachine, "_settle", settle)


@plant("commits-what-grows", "lost-write", groups=3, start=2700087, long=True)
def commits_what_grows(patch: pytest.MonkeyPatch) -> None:
    """An operator commits a transaction while a further part of it is written and not applied yet."""
    patch.setattr(Admission, "_growing_of", lambda self, app, tx_ids: set())


@plant("decisions-left-behind", "unbounded")
def decisions_left_behind(patch: pytest.MonkeyPatch) -> None:
    """A leader keeps an empty set for every app for which it ever wrote a decision."""
    ended = Admission.ended

    def keeps(self: Admission, entry: ComposedEntry, *, decided: bool) -> None:
        ended(self, entry, decided=decided)
        for app, _ in entry.deciding:
            self._deciding.setdefault(app, set())

    patch.setattr(Admission, "ended", keeps)


@plant("openings-left-behind", "unbounded")
def openings_left_behind(patch: pytest.MonkeyPatch) -> None:
    """A leader keeps a zero counter for every app and topic with which anything was ever prepared."""
    ended = Admission.ended

    def keeps(self: Admission, entry: ComposedEntry, *, decided: bool) -> None:
        ended(self, entry, decided=decided)
        for key, _ in entry.opening:
            self._opening.setdefault(key, 0)

    patch.setattr(Admission, "ended", keeps)


# ------------------------------------------------------------------ when messages become readable
@plant("offsets-at-prepare", *EARLY, "torn", start=1)
def offsets_at_prepare(patch: pytest.MonkeyPatch) -> None:
    """A message gets its offset, and becomes readable, when it is prepared and not when it is committed."""
    prepare = StateMachine._prepare

    def early(self: StateMachine, index: int, op: Op, attached: Sequence[Op]) -> Result:
        known = set(self.transactions.app(op.meta.app).open)
        result = prepare(self, index, op, attached)
        table = self.transactions.app(op.meta.app)
        for tx_id in op.meta.tx_ids:
            if tx_id not in known and tx_id in table.open:
                _index_all(self, table.open[tx_id])
        return result

    def settle_only(self: StateMachine, index: int, op: Op) -> Result:
        self._pending_refs = []
        app, tx_ids, by = op.meta.app, op.meta.tx_ids, op.meta.by
        return self._settle(self.transactions.app(app), app, tx_ids, by, COMMITTED)

    patch.setattr(StateMachine, "_prepare", early)
    rewire(patch, OpType.COMMIT, settle_only)


@plant(
    "ref-and-commit-apart",
    *EARLY,
    "torn",
    "duplicate",
    "committed-twice",
    "lost-write",
    "unresolved",
    passing_over=STUCK,
    start=2,
)
def ref_and_commit_apart(patch: pytest.MonkeyPatch) -> None:
    """References go into one entry and their COMMIT into the next: a crash between them tears a
    transaction."""
    propose = Replica._propose

    def in_two(self: Replica, raft: Raft, entry: ComposedEntry) -> None:
        *references, rest = _split(entry)
        for part in references:
            raft.propose(part.command, lambda results, outcome: None)
        propose(self, raft, rest)

    patch.setattr(Replica, "_propose", in_two)
    handlers = (StateMachine._ref_message, StateMachine._tx_message)
    for kind, handler in zip(REFERENCES, handlers, strict=True):
        rewire(patch, kind, _at_once(handler))


def _split(entry: ComposedEntry) -> list[ComposedEntry]:
    """An entry of the references alone, and one of everything else."""
    frames: list[tuple[Op, bytes]] = []
    start = ENVELOPE.size
    for op in entry.ops:
        end = op.body_pos + op.body_size
        frames.append((op, bytes(entry.command[start:end])))
        start = end
    references = [frame for op, frame in frames if op.type in REFERENCES]
    if not references:
        return [entry]
    others = [frame for op, frame in frames if op.type not in REFERENCES]
    first = encode_command(references, len(references), entry.now_ms)
    second = encode_command(others, len(others), entry.now_ms)
    nobody: dict[str, Any] = {"slots": [], "submissions": [], "deciding": [], "opening": [], "growing": []}
    return [
        replace(entry, command=first, ops=decode_command(first)[1], **nobody),
        replace(entry, command=second, ops=decode_command(second)[1]),
    ]


def _at_once(handler: Callable[..., None]) -> Callable[..., None]:
    """Put references into the index when they are applied, whatever happens to their COMMIT."""

    def take(self: StateMachine, index: int, op: Op) -> None:
        handler(self, index, op)
        refs, self._pending_refs = self._pending_refs, []
        _append(self, refs)

    return take


@plant("torn-by-partition", "torn", "lost-write", "inconsistent-offsets", blind=("state-differs",), start=1)
def torn_by_partition(patch: pytest.MonkeyPatch) -> None:
    """A commit becomes readable at once in all partitions but the last, and in the last with the next
    commit."""
    late: dict[int, list[Any]] = {}

    def commit(self: StateMachine, index: int, op: Op) -> Result:
        app, tx_ids, by = op.meta.app, op.meta.tx_ids, op.meta.by
        refs, self._pending_refs = self._pending_refs, []
        result = self._settle(self.transactions.app(app), app, tx_ids, by, COMMITTED)
        if result is OK:
            last = max((ref[0] for ref in refs), default=0)
            _append(self, [*late.pop(id(self), []), *(ref for ref in refs if ref[0] != last)])
            late[id(self)] = [ref for ref in refs if ref[0] == last]
        return result

    rewire(patch, OpType.COMMIT, commit)


@plant("rollback-leaves-messages", "G1a")
def rollback_leaves_messages(patch: pytest.MonkeyPatch) -> None:
    """A rollback settles the transaction, but its messages become readable anyway."""

    def rollback(self: StateMachine, index: int, op: Op) -> Result:
        app, tx_ids, by = op.meta.app, op.meta.tx_ids, op.meta.by
        table = self.transactions.app(app)
        records = [table.open[tx_id] for tx_id in tx_ids if tx_id in table.open]
        result = self._settle(table, app, tx_ids, by, ROLLED_BACK)
        if result is OK:
            for record in records:
                _index_all(self, record)
        return result

    rewire(patch, OpType.ROLLBACK, rollback)


@plant("commit-drops-a-reference", "torn", "lost-write", start=3)
def commit_drops_a_reference(patch: pytest.MonkeyPatch) -> None:
    """The entry of a COMMIT lacks the references of the last partition."""
    whole = References.of
    patch.setattr(References, "of", lambda self, *told: whole(self, *told)[:-1])


@plant(
    "reads-of-uncommitted",
    "inconsistent-offsets",
    "lost-write",
    "G1a",
    "duplicate",
    "committed-twice",
    "wrong-place",
    start=1,
)
def reads_of_uncommitted(patch: pytest.MonkeyPatch) -> None:
    """A reader also gets plain messages of entries that are in the log but not committed."""
    committed = Replica.fetch

    def dirty(self: Replica, requests: Sequence[FetchRequest], max_bytes: int) -> list[FetchResult]:
        return [
            _with_tail(self, result, request[2])
            for request, result in zip(requests, committed(self, requests, max_bytes), strict=True)
        ]

    patch.setattr(Replica, "fetch", dirty)


def _with_tail(replica: Replica, result: FetchResult, offset: int) -> FetchResult:
    topic, number, code, start, end, runs, blob = result
    at = runs[-1][0] + runs[-1][1] if runs else offset
    if code or at != end:
        return result
    runs, blob = list(runs), bytes(blob)
    for index in range(replica.state.applied_index + 1, replica.journal.last_index + 1):
        command = replica.journal.read(index)
        for op in decode_command(command)[1] if command[0] == 0 else ():
            if op.type == OpType.MESSAGE and (op.meta.topic, op.meta.partition) == (topic, number):
                runs.append((at, op.meta.count, 0, op.body_size))
                at += op.meta.count
                blob += command[op.body_pos : op.body_pos + op.body_size]
    return topic, number, code, start, max(at, end), runs, blob


# ------------------------------------------------------------------ equal replicas, order, bounds, retention
@plant("state-of-its-own", "state-differs")
def state_of_its_own(patch: pytest.MonkeyPatch) -> None:
    """A replica adds a number that differs between replicas to the time of an entry."""
    apply_ops, seen = StateMachine.apply_ops, []

    def own(self: StateMachine, index: int, now_ms: int, ops: Sequence[Op]) -> list[Result]:
        if self not in seen:
            seen.append(self)
        return apply_ops(self, index, now_ms + seen.index(self), ops)

    patch.setattr(StateMachine, "apply_ops", own)


@plant("messages-in-the-wrong-order", "nonmonotonic-send", start=3)
def messages_in_the_wrong_order(patch: pytest.MonkeyPatch) -> None:
    """A commit refers to the messages of a transaction in reverse order."""
    references = References.of

    def backwards(self: References, runs: Sequence[Run], *told: Any) -> list[bytes]:
        turned = [r._replace(refs=sum(reversed(_references(r)), ())) for run in runs for r in run]
        tx_ids = [tx_id for run in runs for tx_id in run.tx_ids]
        return references(self, [Run(tx_ids, None, turned)], *told)

    patch.setattr(References, "of", backwards)


@plant("group-offsets-twice", "lost-offset", "state-differs")
def group_offsets_twice(patch: pytest.MonkeyPatch) -> None:
    """Each commit of a group's offsets is applied a second time after the next one."""
    plain = GroupOperations.offsets
    before: dict[tuple[object, ...], Op] = {}

    def again(self: GroupOperations, index: int, op: Op) -> Result:
        result = plain(self, index, op)
        key = (self, op.meta.group, op.meta.topic, *op.meta.offsets[::2])
        if key in before:
            plain(self, index, before[key])
        before[key] = op
        return result

    patch.setattr(GroupOperations, "offsets", again)


@plant("requests-without-bound", "unbounded", start=1)
def requests_without_bound(patch: pytest.MonkeyPatch) -> None:
    """A leader accepts every request, however many are waiting."""

    def anything(self: Admission, submission: Submission) -> bool:
        self.queue.append(submission)
        self.queued_bytes += submission.size
        self._duty.due = AT_ONCE
        return True

    patch.setattr(Admission, "offer", anything)


@plant(
    "retention-drops-a-prepare",
    "lost-write",
    "torn",
    "unresolved",
    "OffsetGone",
    "gap",
    chaos_s=10.0,
    start=5,
    often={"snapshot": 60, "roll": 60, "retention": 60},
    long=True,
)
def retention_drops_a_prepare(patch: pytest.MonkeyPatch) -> None:
    """Retention keeps what can be read, but not what open transactions refer to."""
    patch.setattr(TransactionTable, "oldest_index", lambda self: None)


@plant(
    "retention-drops-what-is-live",
    "lost-write",
    "torn",
    "gap",
    "poll-skip",
    "OffsetGone",
    chaos_s=10.0,
    start=8,
    long=True,
    often={"snapshot": 60, "roll": 60, "retention": 60},
)
def retention_drops_what_is_live(patch: pytest.MonkeyPatch) -> None:
    """Retention keeps what snapshots and open transactions need, but not what can still be read."""
    patch.setattr(PartitionIndex, "oldest_log_index", lambda self: None)
    patch.setattr(PartitionIndex, "_forget", lambda self, log_index: None)


# ------------------------------------------------------------------ forgotten ids
@plant(
    *("late-copies-open", "committed-twice", "G1a", "unstable-outcome", "both-decided"),
    groups=2,
    chaos_s=10.0,
    conditions=world(FORGETFUL),
    start=1,
)
def late_copies_open(patch: pytest.MonkeyPatch) -> None:
    """A copy of a PREPARE that arrives after its transaction was forgotten opens it again."""
    patch.setattr(StateMachine, "_note_turn", lambda self: None)


@plant(
    *("late-messages-stored", "duplicate", "nonmonotonic-send"),
    groups=2,
    conditions=world(FORGETFUL_OF_PRODUCERS),
    start=2,
)
def late_messages_stored(patch: pytest.MonkeyPatch) -> None:
    """A copy of a producer's first batch that arrives after the producer was forgotten is stored again."""
    patch.setattr(ProducerMemory, "is_stale", lambda self, heard_ms: False)


# ------------------------------------------------------------------ helpers
def rewire(patch: pytest.MonkeyPatch, kind: OpType, handler: Callable[..., Any]) -> None:
    """Replace the handler of one operation. A StateMachine binds its handlers in ``__init__``."""
    made = StateMachine.__init__

    def init(self: StateMachine, gid: int, groups: int) -> None:
        made(self, gid, groups)
        self._handlers[kind] = handler.__get__(self)

    patch.setattr(StateMachine, "__init__", init)


def _append(state: StateMachine, refs: Sequence[Sequence[int]]) -> None:
    for slot, entry, pos, size, count in refs:
        if slot in state.topics.slots:
            state.topics.slots[slot].index.append(entry, pos, size, count, state.now_ms)


def _index_all(state: StateMachine, record: OpenTx) -> None:
    _append(state, _references(record))


def _references(record: OpenTx) -> list[tuple[int, ...]]:
    return [record.refs[at : at + 5] for at in range(0, len(record.refs), 5)]


@plant(
    "goes-by-its-name",
    "unexpected-answer",
    groups=2,
    conditions=world({"firsts": {"t": 1, "u": 0}}),
)
def goes_by_its_name(patch: pytest.MonkeyPatch) -> None:
    """A group hosts the partitions that the topic's name would give it, whatever the topic's first group
    is."""
    patch.setattr(topics, "first_group", lambda info: sum(info.name.encode()))
