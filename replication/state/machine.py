"""The replicated state: applies the operations of committed entries, the same way on every replica.

Deterministic by construction: no clock, no randomness, no configuration; time comes from the entry.
An operation that cannot be done is applied as a refused one, with a result code. ``apply`` raises only
for an entry that cannot be decoded, which means that this replica must stop, since the others may have
applied it.

Work per entry touches small tables and runs of partition indexes, never message bodies.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from escrowmq.replication.errors import UnknownVersion
from escrowmq.replication.format.codec import Op, decode_command
from escrowmq.replication.format.operation import OpType
from escrowmq.replication.format.ops import (
    TWINS,
    Checked,
    Commit,
    DeleteGroup,
    GroupOffsetsOp,
    MessageOp,
    Prepare,
    PrepareExtra,
    RefMessage,
    Rollback,
    TxDone,
    TxMessage,
)
from escrowmq.replication.format.settings import SHARE, STREAM, Settings
from escrowmq.replication.format.share_ops import (
    ALTERED,
    ANY_NUMBER,
    DELETED,
    EARLIEST,
    LATEST,
    Forward,
    GroupSettingsOp,
    Places,
    ShareAck,
)
from escrowmq.replication.metrics import Counts
from escrowmq.replication.model import NO_ID, ResultCode
from escrowmq.replication.state.claims import Claims
from escrowmq.replication.state.decided import ACROSS_MAX
from escrowmq.replication.state.dedup import SEQUENCES_KEPT, ProducerMemory
from escrowmq.replication.state.due_queue import DueQueue, next_due_ms
from escrowmq.replication.state.group_offsets import Attempts, DeletedGroups, GroupOffsets
from escrowmq.replication.state.held_letters import HeldLetters
from escrowmq.replication.state.held_offsets import HeldOffsets
from escrowmq.replication.state.open_tx import Block, Entry, OpenTx, Rows, refs_of
from escrowmq.replication.state.shares import Group, Shares
from escrowmq.replication.state.timer_operations import TimerOperations
from escrowmq.replication.state.timers import TimedRows, Timers
from escrowmq.replication.state.topic_operations import TopicOperations
from escrowmq.replication.state.topics import Partition, TopicTable, is_another
from escrowmq.replication.state.transactions import (
    COMMITTED,
    ROLLED_BACK,
    STATE_OF,
    AppTransactions,
    TransactionTable,
    another,
    refused_ids,
    standings,
    with_home_indexes,
)
from escrowmq.replication.timers.record import RECORD

# ------------------------------------------------------------------------------------------------------------
# Applies operations on consumer groups: offsets, what share groups have finished, settings, deletion; and the
# messages that a leader forwards for them.

# ------------------------------------------------------------------ group operations


#: Remembers who has done something: who, the app or group, to what, and what it was.
Audit = Callable[[str, str, str, str], None]
_record = RECORD.pack
#: What a PREPARE may hold besides its messages; behind everything else that is attached to it.
HOLDING = (OpType.PRE_OFFSETS, OpType.PRE_LETTERS)


def out_of_range(partition: Partition) -> Result:
    """The result for an offset that is not in the partition: which range there is, the end excluded."""
    return [int(ResultCode.OUT_OF_RANGE), [partition.index.start, partition.index.end]]


class GroupOperations:
    """Changes the tables of one group's state."""

    def __init__(
        self,
        topics: TopicTable,
        deleted: DeletedGroups,
        group_offsets: GroupOffsets,
        held: HeldOffsets,
        attempts: Attempts,
        shares: Shares,
        timers: Timers,
        settings: Callable[[], Settings],
        audit: Audit,
        passed: Callable[[str, str, Sequence[int]], None],
    ) -> None:
        """``passed``: see ``HeldOffsets``."""
        self._passed = passed
        self._topics, self._group_offsets, self._deleted = topics, group_offsets, deleted
        self._attempts, self._shares, self._timers, self._settings = attempts, shares, timers, settings
        self._held, self._audit = held, audit

    def offsets(self, index: int, op: Op) -> Result:
        """GROUP_OFFSETS."""
        meta: GroupOffsetsOp = op.meta
        return self._move(meta.group, meta.topic, meta.offsets)

    def _move(self, group: str, topic: str, flat: Sequence[int]) -> Result:
        if topic not in self._topics.topics:
            return [int(ResultCode.UNKNOWN_TOPIC), [topic]]
        if self._shares.groups and self._shares.settings(group).kind == SHARE:
            return [int(ResultCode.GROUP_KIND), SHARE]
        if (pending := self._held.pending(group, topic, flat[::2])) is not None:
            return pending
        self._group_offsets.commit(group, topic, flat)
        self._passed(group, topic, flat)
        self._group_offsets.keep(self._settings().groups_kept, self._held.holders)
        return [0]

    def places(self, index: int, op: Op) -> Result:
        """PLACES."""
        meta: Places = op.meta
        result = self._move(meta.group, meta.topic, [n for at, n in enumerate(meta.places) if at % 3 < 2])
        if result == [0]:
            self._attempts.note(meta.group, meta.topic, meta.places)
        return result

    def delete(self, index: int, op: Op) -> Result:
        """DELETE_GROUP. Topics of the group are deleted like others."""
        meta: DeleteGroup = op.meta
        group = meta.group
        for topic, held in self._held.holders.get(group, {}).items():
            return [int(ResultCode.OFFSETS_PENDING), [group, topic, min(held)]]
        self._deleted.add(group, meta.generation)
        self._attempts.drop_group(group)
        known = self._shares.drop_group(group)
        if not (self._group_offsets.drop_group(group) or known):
            return [int(ResultCode.DUPLICATE)]
        if meta.by:
            self._audit(meta.by, group, "", DELETED)
        return [0]

    def settings(self, index: int, op: Op) -> Result:
        """GROUP_SETTINGS. Raises UnknownVersion for a setting that this software does not know."""
        meta: GroupSettingsOp = op.meta
        group, values, number = meta.group, meta.settings, meta.number
        known = self._shares.groups.get(group, Group())
        settings = known.settings.changed(values)
        code = ResultCode.OK
        if values:
            code = self._refusal(known, number)
            streams = group in self._group_offsets or group in self._held.holders
            kind = known.settings.kind or (STREAM if streams else "")
            if kind and settings.kind not in ("", kind):
                return [int(ResultCode.GROUP_KIND), kind]
        if values and code == ResultCode.OK:
            if self._topics.gid == 0:
                number = index
            known = self._shares.groups[group] = Group(settings, max(number, known.number))
            if meta.by:
                changed = ", ".join(f"{name}={value}" for name, value in sorted(values.items()))
                self._audit(meta.by, group, changed, ALTERED)
        return [int(code), [known.settings.values(), known.number]]

    def _refusal(self, known: Group, number: int) -> ResultCode:
        if number == ANY_NUMBER:
            return ResultCode.OK
        if self._topics.gid == 0:
            return ResultCode.OK if number == known.number else ResultCode.RETRY
        return ResultCode.OK if number > known.number else ResultCode.DUPLICATE

    def ack(self, index: int, op: Op) -> Result:
        """SHARE_ACK."""
        meta: ShareAck = op.meta
        group, ranges, create = meta.group, meta.ranges, meta.create
        partition = self._topics.find(meta.topic, meta.partition)
        if not isinstance(partition, Partition):
            return [int(partition)]
        if is_another(partition.topic_id, meta.topic_id):
            return [int(ResultCode.OTHER_TOPIC), partition.topic_id]
        if create in (EARLIEST, LATEST):
            return self._begin(group, partition, create)
        if ranges[-1] >= partition.index.end:
            return out_of_range(partition)
        if not self._shares.add(group, partition, ranges):
            return [int(ResultCode.UNKNOWN_SHARE)]
        if create:
            outcome, _, by = create.partition(" ")
            self._audit(by, group, f"{meta.topic}/{meta.partition}@{ranges[0]}-{ranges[-1]}", outcome)
        return [0]

    def _begin(self, group: str, partition: Partition, create: str) -> Result:
        kind = self._shares.settings(group).kind
        if kind == STREAM:
            return [int(ResultCode.GROUP_KIND), kind]
        known = self._shares.get(group, partition)
        if known is not None:
            return [int(ResultCode.DUPLICATE), known.start]
        index = partition.index
        return [
            0,
            self._shares.begin(group, partition, index.start if create == EARLIEST else index.end).start,
        ]

    def forward(self, index: int, now_ms: int, op: Op) -> None:
        """FORWARD: readable at once, or a timer."""
        meta: Forward = op.meta
        partition = self._topics.find(meta.topic, meta.partition)
        if not isinstance(partition, Partition):
            return  # a leader that follows its rules never writes it
        slot, pos, earliest = partition.slot, op.body_pos, self._timers.earliest_ms(now_ms)
        records: list[bytes] = []
        later = 0
        for time_ms, size in zip(meta.times, meta.sizes, strict=True):
            if time_ms:
                records.append(_record(max(time_ms, earliest), slot, index, pos, index, pos, size))
                later += size
            else:
                partition.index.append(index, pos, size, 1, now_ms)
            pos += size
        if records:
            counts = slot, index // self._timers.counts.block_entries, len(records), later
            self._timers.keep(records, counts, now_ms)


# ------------------------------------------------------------------------------------------------------------
# Small parts of applying a PREPARE: where its messages are, and whether it comes too late.

#: What follows a PREPARE and is no message.
_WITHOUT_MESSAGES = frozenset((OpType.PRE_OFFSETS, OpType.PRE_LETTERS))


def is_simple(home_group: int, extra: PrepareExtra, timed: Sequence[TimedRows]) -> bool:
    """Whether a PREPARE is about transactions of this group alone, schedules nothing, and somebody is asked:
    then they may form a block."""
    alone = home_group < 0 and not extra.participants and not extra.home_index
    return alone and not timed and not extra.on_timeout


def refusal_of_repeated(record: OpenTx, extra: PrepareExtra) -> list[object] | None:
    """Why a PREPARE does not take over an open transaction, or None. It is a late copy, or may be one. One of
    another fence is another database's transaction that happens to have the same id.
    """
    if extra.fence and record.fence and extra.fence != record.fence:
        return [int(ResultCode.TX_CONFLICT), "PREPARE"]
    return [int(ResultCode.STALE), None] if is_overtaken(record, extra) else None


def is_overtaken(record: OpenTx, extra: PrepareExtra) -> bool:
    """Whether a PREPARE may have been sent before the one, by another instance, under which this
    transaction is open: its sender had heard of nothing later. A sender that is still alive sends it again
    with what it has heard since. (For a branch, no check asks the owner.)"""
    return (
        record.instance != extra.instance and record.home_group < 0 and extra.heard_ms <= record.prepared_ms
    )


def rows_of(
    topics: TopicTable, attached: Sequence[Op]
) -> tuple[list[Rows], list[TimedRows], list[object] | None]:
    """Where the messages that follow a PREPARE are, those with a time apart, and the reason to refuse them,
    or None."""
    found: list[Rows] = []
    timed: list[TimedRows] = []
    for pre in attached:
        if pre.type in _WITHOUT_MESSAGES:
            continue
        meta = pre.meta
        partition = topics.find(meta.topic, meta.partition)
        if not isinstance(partition, Partition):
            return found, timed, [int(partition), [meta.topic, meta.partition]]
        if is_another(partition.topic_id, meta.topic_id):
            where = [meta.topic, meta.partition, partition.topic_id]
            return found, timed, [int(ResultCode.OTHER_TOPIC), where]
        if pre.type == OpType.PRE_SCHEDULED:
            columns = meta.txs, meta.sizes, meta.times, meta.ordinals
            timed.append((partition.slot, pre.body_pos, *columns))
        else:
            found.append((partition.slot, pre.body_pos, meta.txs, meta.sizes))
    return found, timed, None


# ------------------------------------------------------------------ checks
# Applies CHECKED: a check of open transactions was answered without a decision.


def count_check(state: StateMachine, checked: Checked) -> Result:
    """The result of CHECKED."""
    app, tx_ids, reason = checked.app, checked.tx_ids, checked.reason
    now_ms, due_queue, table = state.now_ms, state.due, state.transactions.look(app)
    for tx_id in tx_ids:
        record = table.open.get(tx_id)
        if record is None:
            continue  # settled meanwhile: nothing to count
        record = record._replace(checked_ms=now_ms)
        if reason:
            table.open.replace(tx_id, record._replace(due_ms=-1, parked_for=reason))
            table.parked.add(tx_id)
            due_queue.forget(app, tx_id)
            continue
        topic = state.topics.topics.get(record.topic)
        checks = record.checks + 1
        due = next_due_ms(now_ms, checks, topic.info if topic else None)
        table.open.replace(tx_id, record._replace(checks=checks, due_ms=due))
        (table.parked.add if due < 0 else table.parked.discard)(tx_id)
        due_queue.forget(app, tx_id)
        due_queue.schedule(app, (tx_id,), due)
    return [0]


# ------------------------------------------------------------------------------------------------------------
# What a group tells those who look for a stable cut through several groups.
#
# A cut is stable if of every transaction all parts lie below it, or none. Nothing here is replicated: the
# answer to CUT goes to its client alone. After a start from a snapshot, a decision may have been taken at any
# entry before it, so the snapshot's own index counts as one: then the client asks once more.


class StableCuts:
    """``decided_index``: of the newest entry here that committed a transaction over several groups, as their
    home. ``asked_ms``: when a cut was last asked for, in the group's time."""

    def __init__(self, topics: TopicTable, transactions: TransactionTable) -> None:
        # Not its ``across``: restoring a snapshot makes a new one.
        self._topics, self._transactions = topics, transactions
        self._seen = 0
        self.decided_index = 0
        self.asked_ms = -1

    def restored(self, index: int) -> None:
        """The state is that of a snapshot at ``index``."""
        self.decided_index, self._seen = index, self._transactions.across.added

    def committed(self, index: int) -> None:
        """Entry ``index`` has a COMMIT; call it after each."""
        if self._transactions.across.added != self._seen:
            self.decided_index, self._seen = index, self._transactions.across.added

    def cut(self, index: int, now_ms: int, op: Op) -> list[object]:
        """Apply CUT: a ``GroupCut``, or UNKNOWN_TOPIC with the names of topics that do not exist."""
        self.asked_ms = now_ms
        names: Sequence[str] = op.meta.topics
        unknown = [name for name in names if name not in self._topics.topics]
        if unknown:
            return [int(ResultCode.UNKNOWN_TOPIC), unknown]
        found = []
        for name in names:
            topic = self._topics.topics[name]
            flat: list[int] = []
            for number, partition in topic.partitions.items():
                flat += (number, partition.index.end)
            found.append([topic.info.topic_id, flat])
        return [0, [index, self.decided_index, self._transactions.across.decided, found]]


Result = list[Any]
OK: Result = [int(ResultCode.OK)]


def _only_clients_send_it(index: int, op: Op) -> Result:
    return [int(ResultCode.MALFORMED), "only clients send it"]


#: Fewer transactions of one PREPARE get a record each: a block has no fewer objects.
BLOCK_MIN = 2
#: The highest format level whose log entries this software can read.
LEVEL_MAX = 1


class StateMachine:
    """Topics, transactions, deduplication, partition indexes and group offsets of one broker group."""

    def __init__(self, gid: int, groups: int) -> None:
        self.gid, self.groups = gid, groups
        #: Format level of the group: it rises with LEVEL. Operations of a higher one are not admitted.
        self.level = 1
        self.settings = Settings()
        #: Whatever settled later than this is remembered; -1: everything is. A PREPARE whose client had heard
        #: of nothing later may be a copy of a forgotten one, and opens nothing.
        self.forgotten_ms = -1
        self.turned_ms = -1  # when settled transactions were last forgotten
        self.topics = TopicTable(gid, groups)
        self.transactions = TransactionTable()
        self.due = DueQueue(self.transactions)
        self.stable = StableCuts(self.topics, self.transactions)
        self.counts = Counts()  # counts what is applied; not part of the state
        self.producers = ProducerMemory(self.settings.producers_generation)
        self.group_offsets = GroupOffsets()
        self.deleted_groups = DeletedGroups()
        #: Held while a commit's messages become readable, and by readers while they look up the ends of
        #: partitions: so a call for several partitions sees all of a transaction or nothing.
        self.cut = threading.Lock()
        self.applied_index = 0
        self.now_ms = 0
        self.first_index = 1  # oldest entry that retention has left
        self.members: tuple[int, bytes] | None = None  # in snapshots: the configuration's entry and its index
        self._pending_refs: list[tuple[int, int, int, int, int]] = []
        self.timers, self.shares, self.attempts = Timers(), Shares(), Attempts()
        self.claims = Claims()
        self.held = HeldOffsets(self.topics, self.group_offsets, self.shares, self.attempts.passed)
        of_all = self.group_offsets, self.held, self.attempts, self.shares, self.timers
        around = lambda: self.settings, lambda *act: self.transactions.record_act(self.now_ms, *act)
        self.letters = HeldLetters(self.topics, self.shares, around[1])
        operations = TopicOperations(self.topics, self.producers, self.letters, *of_all)
        of_groups = GroupOperations(self.topics, self.deleted_groups, *of_all, *around, self.attempts.passed)
        timed = TimerOperations(self.topics, self.producers, self.timers, self.cut, self.claims)
        self._handlers: dict[int, Callable[[int, Op], Result | None]] = {
            OpType.MESSAGE: self._message,
            OpType.REF_MESSAGE: self._ref_message,
            OpType.TX_MESSAGE: self._tx_message,
            OpType.COMMIT: self._commit,
            OpType.ROLLBACK: self._rollback,
            OpType.CHECKED: lambda index, op: count_check(self, op.meta),
            OpType.CREATE_TOPIC: operations.create,
            OpType.ALTER_TOPIC: operations.alter,
            OpType.DELETE_TOPIC: operations.delete,
            OpType.GROUP_OFFSETS: of_groups.offsets,
            OpType.RETAIN: self._retain,
            OpType.TRIM: operations.trim,
            OpType.LEVEL: self._raise_level,
            OpType.SETTINGS: self._settings,
            OpType.TX_DONE: self._done,
            OpType.INQUIRE: lambda index, op: standings(self.transactions, op.meta),
            OpType.CUT: lambda index, op: self.stable.cut(index, self.now_ms, op),
            OpType.DELETE_GROUP: of_groups.delete,
            OpType.FORWARD: lambda index, op: of_groups.forward(index, self.now_ms, op),
            OpType.SHARE_ACK: of_groups.ack,
            OpType.GROUP_SETTINGS: of_groups.settings,
            OpType.PLACES: of_groups.places,
            **timed.handlers(lambda: self.now_ms, self._take_pending),
            OpType.CLAIM: lambda index, op: self.claims.claim(op.meta, self.now_ms),
            # A leader that follows its rules writes what these mean, and never these.
            **dict.fromkeys((OpType.CANCEL, OpType.NACK, OpType.SHARE_REPLY), _only_clients_send_it),
        }

    # -------------------------------------------------------------- entries

    def apply(self, index: int, command: bytes) -> list[Result]:
        """Apply a committed entry; one result per client-visible operation (see ``apply_ops``)."""
        assert index == self.applied_index + 1 or self.applied_index == 0, (index, self.applied_index)
        if not command:  # a leader's no-op
            self.applied_index = index
            return []
        now_ms, ops = decode_command(command)
        return self.apply_ops(index, now_ms, ops)

    def apply_ops(self, index: int, now_ms: int, ops: Sequence[Op]) -> list[Result]:
        """As ``apply``, for an entry that is already decoded (the leader's own).

        REF_MESSAGE, TX_MESSAGE and PRE_MESSAGE have no result of their own; their COMMIT or PREPARE has one.
        """
        if now_ms > self.now_ms:
            self.transactions.given.pass_time(now_ms - self.now_ms)
            self.now_ms = now_ms
        results: list[Result] = []
        at, end = 0, len(ops)
        self._pending_refs.clear()
        while at < end:
            op = ops[at]
            if op.type == OpType.PREPARE:
                attached = op.meta.attached
                results.append(self._prepare(index, op, ops[at + 1 : at + 1 + attached]))
                at += attached
            else:
                result = self._handlers[op.type](index, op)
                if result is not None:
                    results.append(result)
            at += 1
        self.applied_index = index
        return results

    # -------------------------------------------------------------- plain messages

    def _message(self, index: int, op: Op) -> Result:
        meta: MessageOp = op.meta
        producer, epoch, seq, count = meta.producer, meta.epoch, meta.seq, meta.count
        partition = self.topics.find(meta.topic, meta.partition)
        if not isinstance(partition, Partition):
            return [int(partition)]
        if meta.topic_id not in (NO_ID, partition.topic_id):
            return [int(ResultCode.OTHER_TOPIC), partition.topic_id]
        if (fenced := self.claims.fenced(producer, epoch, self.now_ms)) is not None:
            return fenced
        if seq < 0:
            base = partition.index.append(index, op.body_pos, op.body_size, count, self.now_ms)
            return [0, [base, self.now_ms]]
        producers = self.producers
        key = (producer, partition.slot)
        known = producers.get(key)
        expected = 0
        recent: tuple[tuple[int, int, int], ...] = ()
        if known is None:
            if seq == 0 and producers.is_stale(meta.heard_ms):
                return [int(ResultCode.STALE), self.now_ms]
        elif epoch < known[0]:
            return [int(ResultCode.FENCED), known[0]]
        elif epoch == known[0]:
            expected, recent = known[1], known[2]
        if seq != expected:
            for done, base, time_ms in recent:
                if done == seq:
                    return [int(ResultCode.DUPLICATE), [base, time_ms]]
            return [int(ResultCode.OUT_OF_SEQUENCE), expected]
        base = partition.index.append(index, op.body_pos, op.body_size, count, self.now_ms)
        now = (epoch, seq + 1, (*recent[1 - SEQUENCES_KEPT :], (seq, base, self.now_ms)))
        if producers.set(key, now):
            producers.note_turn(self.now_ms)
        return [0, [base, self.now_ms]]

    # -------------------------------------------------------------- prepare

    def _prepare(self, index: int, op: Op, attached: Sequence[Op]) -> Result:
        meta: Prepare = op.meta
        app, topic, tx_ids, query_ids = meta.app, meta.topic, meta.tx_ids, meta.query_ids
        part, digests, home_group, extra = meta.part, meta.digests, meta.home_group, meta.extra
        rows, timed, nowhere = rows_of(self.topics, attached)
        if nowhere is not None:
            return nowhere
        if (known := self.topics.topics.get(topic)) is None:
            return [int(ResultCode.UNKNOWN_TOPIC), [topic]]
        claim, at_home = extra.claim, home_group < 0
        if claim and (no := self.claims.refusal(app, tx_ids[0], claim, at_home, self.now_ms)) is not None:
            return no
        participants = tuple(extra.participants) if extra.participants else ()
        holds = bool(attached) and attached[-1].type in HOLDING  # nearly never
        refusal = self._refusal_of_new(extra, len(tx_ids))
        if holds and refusal is None:
            refusal = self.held.refusal(attached) or self.letters.refusal(attached)
        table = self.transactions.app(app)
        now, timeout = self.now_ms, meta.timeout_ms or known.info.transaction_timeout_ms
        if not part and refusal is None and len(tx_ids) >= BLOCK_MIN and is_simple(home_group, extra, timed):
            block = Block(index, topic, tx_ids, query_ids, digests, rows, now, timeout, extra)
            if table.knows_none(tx_ids) and table.open.add(block):
                self._opened(app, table, tx_ids, block)
                return [0, index] if extra.given else OK
        due, refs = now + timeout, refs_of(index, rows, len(tx_ids))
        timers = self.timers.of_transactions(index, timed, len(tx_ids)) if timed else None
        opened, settled, decided = table.open, table.settled, table.decided
        open_young, open_old, gone = opened.young, opened.old, opened.gone
        old, young, given_old, given_young = settled.old, settled.young, table.given.old, table.given.young
        problems, fresh = list[list[Any]](), list[str]()
        record = tuple.__new__  # the constructor of a named tuple costs another call: 0.3 us for each
        instance, parts, given, home_index = extra.instance, extra.parts, extra.given, extra.home_index
        fence = extra.fence
        for i, tx_id in enumerate(tx_ids):
            if (
                part == 0
                and tx_id not in open_young
                and (tx_id not in open_old or tx_id in gone)
                and tx_id not in young
                and tx_id not in old
                and tx_id not in given_young
                and tx_id not in given_old
                and (not decided or tx_id not in decided)
            ):
                if refusal is not None:
                    problems.append([i, *refusal])
                    continue
                open_young[tx_id] = record(OpenTx, (
                    index, topic, tx_id if query_ids is None else query_ids[i], now, timeout, home_group, 0,
                    due, (digests[i],), refs[i], index, instance, home_index[i] if home_index else -1,
                    participants, parts, given, "", 0, timers[i] if timers else (), fence,
                ))  # fmt: skip
                fresh.append(tx_id)
            else:
                home = home_group, home_index[i] if home_index else -1
                timed_refs = timers[i] if timers else ()
                problem = self._prepare_again(
                    index, app, table, tx_id, part, digests[i], refs[i], extra, home, timed_refs
                )
                if problem is not None:
                    problems.append([i, *problem])
        if fresh:
            self._opened(app, table, fresh, open_young[fresh[0]])
            if holds:
                self.held.opened(app, fresh[0], attached)
                self.letters.opened(app, fresh[0], attached)
            self.transactions.note_unattended(app, fresh, extra.on_timeout)
            if claim and at_home:
                self.claims.opened(app, fresh, claim, alone=bool(extra.on_timeout))
        if participants or (extra.given and at_home):
            return with_home_indexes(table, tx_ids, problems, index, all_fresh=len(fresh) == len(tx_ids))
        return [int(ResultCode.PARTIAL), problems] if problems else OK

    def _opened(self, app: str, table: AppTransactions, tx_ids: Sequence[str], like: Entry) -> None:
        """These, which are ``like`` that one, are in the table of open transactions from now on."""
        self.counts.prepared += len(tx_ids)
        self.transactions.opened(table, len(tx_ids), like)
        self.due.schedule(app, tx_ids, like.due_ms)
        table.open.age()

    def _refusal_of_new(self, extra: PrepareExtra, count: int) -> Result | None:
        """Why this PREPARE may open nothing new, or None. Must be called before a table is looked up: it may
        forget ids, and with them whole apps, whose tables would then be detached."""
        if extra.heard_ms <= self.forgotten_ms != -1:
            return [int(ResultCode.STALE), None]
        if extra.given:
            self.transactions.forget_given(self.now_ms)  # otherwise nothing would, while all are refused
            if extra.heard_ms <= self.transactions.given.forgotten_ms != -1:
                return [int(ResultCode.STALE), None]
            if not self.transactions.given.has_room(self.settings):
                return [int(ResultCode.TOO_MANY_IDS), self.settings.remember_ids_max]
        if extra.participants and not self.transactions.across.has_room(count):
            return [int(ResultCode.TOO_MANY_OPEN), ACROSS_MAX]
        return None

    def _prepare_again(
        self,
        index: int,
        app: str,
        table: AppTransactions,
        tx_id: str,
        part: int,
        digest: int,
        refs: tuple[int, ...],
        extra: PrepareExtra,
        home: tuple[int, int],
        timers: tuple[int, ...],
    ) -> Result | None:
        """A part that is not the first of a new transaction: next part, repetition, or conflict.

        Its sender becomes the transaction's owner, and this entry its newest PREPARE, so that a check
        that began under an older one rolls nothing back. A late copy of an earlier owner's PREPARE takes
        nothing from the present owner.
        """
        record = table.open.get(tx_id)
        if record is None:
            mark = table.mark(tx_id)
            if mark is None:
                return [int(ResultCode.UNKNOWN_TX), None]  # a later part of an unknown transaction
            state = STATE_OF[mark & 3].value
            same = part > 0 or mark >> 2 == digest
            return [int(ResultCode.DUPLICATE if same else ResultCode.TX_CONFLICT), state]
        if (problem := another(record, *home, tuple(extra.participants))) is not None:
            return problem
        again = part < len(record.digests)
        if part > len(record.digests) or (again and record.digests[part] != digest):
            return [int(ResultCode.TX_CONFLICT), "PREPARE"]
        if (problem := refusal_of_repeated(record, extra)) is not None:
            return problem
        newest = index
        if record.newest_index % TWINS == index:
            # Both senders are told this index, so no rollback under it may pass.
            newest = index + TWINS if again else record.newest_index
        fence = extra.fence or record.fence
        record = record._replace(newest_index=newest, instance=extra.instance, fence=fence)
        if not again:
            record = record._replace(digests=(*record.digests, digest), refs=(*record.refs, *refs))
            if timers:
                record = record._replace(timers=(*record.timers, *timers))
        else:
            table.parked.discard(tx_id)
            record = self._restart_checks(app, tx_id, record)
            if part == 0:  # no other one says what follows
                alone = self.transactions.still_unattended(app, tx_id, extra.on_timeout)
                self.claims.prepared_again(app, tx_id, extra.claim, alone=alone)
        # The same part again: its first copy counts, and this one's bytes are never referred to.
        table.open.replace(tx_id, record)
        return None

    def _restart_checks(self, app: str, tx_id: str, record: OpenTx) -> OpenTx:
        """It was prepared again: a local transaction runs from now on, so its checks start over too."""
        due = self.now_ms + record.timeout_ms
        self.due.forget(app, tx_id)
        self.due.schedule(app, (tx_id,), due)
        return record._replace(prepared_ms=self.now_ms, checks=0, due_ms=due, checked_ms=0)

    # -------------------------------------------------------------- commit and rollback

    def _ref_message(self, index: int, op: Op) -> None:
        meta: RefMessage = op.meta
        partition = self.topics.find(meta.topic, meta.partition)
        slot = partition.slot if isinstance(partition, Partition) else -1
        it = iter(meta.references)
        self._pending_refs.extend((slot, *ref) for ref in zip(it, it, it, it, strict=True))

    def _tx_message(self, index: int, op: Op) -> None:
        meta: TxMessage = op.meta
        partition = self.topics.find(meta.topic, meta.partition)
        slot = partition.slot if isinstance(partition, Partition) else -1
        self._pending_refs.append((slot, index, op.body_pos, op.body_size, meta.count))

    def _take_pending(self) -> list[tuple[int, int, int, int, int]]:
        refs, self._pending_refs = self._pending_refs, []
        return refs

    def _commit(self, index: int, op: Op) -> Result:
        """All or nothing: every id is open (the leader ensured that), or the whole entry is refused."""
        meta: Commit = op.meta
        app, tx_ids, by = meta.app, meta.tx_ids, meta.by
        table = self.transactions.look(app)
        refs, self._pending_refs = self._pending_refs, []
        result = self._settle(table, app, tx_ids, by, COMMITTED)
        self.stable.committed(index)
        if self.timers.pending:
            self.timers.decided(self.topics.slots, self.now_ms, committed=result is OK)
        if result is OK:
            slots = self.topics.slots
            with self.cut:
                for slot, entry, pos, size, count in refs:
                    partition = slots.get(slot)
                    if partition is not None:  # otherwise the topic was deleted meanwhile
                        partition.index.append(entry, pos, size, count, self.now_ms)
        return result

    def _rollback(self, index: int, op: Op) -> Result:
        meta: Rollback = op.meta
        table = self.transactions.look(meta.app)
        if meta.home_index:
            return self._rollback_branches(table, meta)
        if meta.newest_index:
            return self._rollback_under(table, meta.app, meta.tx_ids, meta.by, meta.newest_index)
        return self._settle(table, meta.app, meta.tx_ids, meta.by, ROLLED_BACK)

    def _rollback_under(
        self, table: AppTransactions, app: str, tx_ids: Sequence[str], by: str, newest: Sequence[int]
    ) -> Result:
        """A check's ROLLBACK: transactions prepared again since the check began stay open, answered RETRY."""
        opened = table.open
        pairs = zip(tx_ids, newest, strict=True)
        still = [t for t, index in pairs if (record := opened.get(t)) is None or record.newest_index == index]
        if len(still) == len(tx_ids):
            return self._settle(table, app, tx_ids, by, ROLLED_BACK)
        if still:
            self._settle(table, app, still, by, ROLLED_BACK)
        return [int(ResultCode.PARTIAL), refused_ids(table, tx_ids, ROLLED_BACK)]

    def _rollback_branches(self, table: AppTransactions, meta: Rollback) -> Result:
        """Home's rollback. Under another home index, or that of another home, an id is another
        transaction, which stays as it is; so does one that was prepared again, if that is a condition.

        An id that is neither open nor remembered here is remembered as rolled back from now on (the leader
        leaves out ids that need not be), so that a PREPARE that is still under way does not open it.
        """
        app, tx_ids, by, newest, home_group = (
            meta.app,
            meta.tx_ids,
            meta.by,
            meta.newest_index,
            meta.home_group,
        )
        still, unknown = [], []
        for i, (tx_id, index) in enumerate(zip(tx_ids, meta.home_index, strict=True)):
            record = table.open.get(tx_id)
            if record is not None:
                as_newest = not newest or record.newest_index == newest[i]
                if as_newest and record.is_under(home_group, index):
                    still.append(tx_id)
            elif table.mark(tx_id) is None:
                unknown.append(tx_id)
        if still:
            self._settle(table, app, still, by, ROLLED_BACK)
        if unknown and self.transactions.remember(self.now_ms, app, unknown, ROLLED_BACK):
            self._note_turn()
        problems = refused_ids(self.transactions.look(app), tx_ids, ROLLED_BACK)
        return [int(ResultCode.PARTIAL), problems] if problems else OK

    def _done(self, index: int, op: Op) -> Result:
        meta: TxDone = op.meta
        if self.transactions.done(self.now_ms, meta.app, meta.tx_ids, meta.home_indexes, meta.group):
            self._note_turn()
        return OK

    def _settle(
        self, table: AppTransactions, app: str, tx_ids: Sequence[str], by: str, outcome: int
    ) -> Result:
        runs = table.open.runs_of(tx_ids)
        if runs is None:
            # A leader that follows its rules never writes this; if one did, none of it takes effect.
            return [int(ResultCode.PARTIAL), refused_ids(table, tx_ids, outcome)]
        if outcome == COMMITTED:
            self.timers.forget_cancelled(app, runs)
        if self.transactions.settle(self.now_ms, table, app, tx_ids, runs, outcome, by):
            self._note_turn()
        if self.claims.any_open:
            self.claims.settled(app, tx_ids, outcome == COMMITTED)
        if self.held.by_tx and self.held.settled(app, tx_ids, committed=outcome == COMMITTED):
            self.group_offsets.keep(self.settings.groups_kept, self.held.holders)
        if self.letters.by_tx:
            self.letters.settled(app, tx_ids, committed=outcome == COMMITTED)
        if self.due.has_leases():
            for tx_id in tx_ids:
                self.due.forget(app, tx_id)
        self.counts.decide(outcome, by, len(tx_ids))
        self.transactions.record_decision(self.now_ms, by, app, tx_ids, outcome)
        return OK

    def _note_turn(self) -> None:
        """What settled up to the previous turn is now forgotten."""
        self.forgotten_ms, self.turned_ms = self.turned_ms, self.now_ms

    # -------------------------------------------------------------- the rest

    def _raise_level(self, index: int, op: Op) -> Result:
        level: int = op.meta.level
        if level > LEVEL_MAX:
            raise UnknownVersion(f"format level {level}; this software knows up to {LEVEL_MAX}: upgrade it")
        self.level = max(self.level, level)
        return [0, self.level]

    def _settings(self, index: int, op: Op) -> Result:
        self.set_settings(self.settings.changed(op.meta.values))
        self.group_offsets.keep(self.settings.groups_kept, self.held.holders)
        return [0, self.settings.values()]

    def set_settings(self, settings: Settings) -> None:
        """Put these into force; also used for a snapshot's."""
        self.settings = settings
        self.transactions.settings = settings
        self.producers.generation = settings.producers_generation

    def _retain(self, index: int, op: Op) -> Result:
        first: int = op.meta.first_index
        oldest = self.transactions.oldest_index()
        waiting = self.timers.counts.oldest_index()
        bound = min(first, index, index if oldest is None else oldest, index if waiting is None else waiting)
        if bound > self.first_index:
            self.first_index = self.topics.cuts.floor = bound
        return [0, self.first_index]
