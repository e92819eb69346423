"""Messages that wait for their time, as replicated state: up to which key they are released, how many wait.

The records themselves are in the timer store, which only a leader reads. Replicated are the cursor, which is
the key of the last released one, and the number of those that wait, by partition and by block of log indexes:
so retention knows the oldest entry that holds one of them without a look into the store.

Nothing gets in behind the cursor: a message whose time is past when it becomes effective waits for the
time of its entry, and at least for the millisecond after the last release.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from threading import Lock
from typing import Any, NamedTuple

from escrowmq.replication.format.codec import Op, OpType
from escrowmq.replication.format.timer_ops import OF_DELAYED, owner_of
from escrowmq.replication.model import ResultCode
from escrowmq.replication.state.claims import SEQUENCES_KEPT, Claims, ProducerMemory
from escrowmq.replication.state.open_tx import Run
from escrowmq.replication.state.topics import Partition, TopicTable
from escrowmq.replication.state.transactions import TwoGenerations
from escrowmq.replication.timers.record import (
    KEY,
    KEY_BYTES,
    PLACE,
    RECORD,
    deliver_ms_of,
    key_bytes,
    log_index_of,
    size_of,
    slot_of,
    split,
    tombstone,
)
from escrowmq.replication.timers.store import TimerStore

#: Log indexes of one block.
BLOCK_ENTRIES = 4_096
#: Rows of one PRE_SCHEDULED: slot, position of its body, and the columns of ``timer_ops.pre_scheduled``.
TimedRows = tuple[int, int, Sequence[int], Sequence[int], Sequence[int], Sequence[int]]
#: Cancelled keys that are remembered, at least: 20 s of a leader's full speed.
CANCELLED_KEPT = 100_000
#: Slot, block, timers and bytes, and so on.
FlatCounts = Sequence[int]

_key, _record = KEY.pack, RECORD.pack
_fields = RECORD.iter_unpack


def records_of(timers: Sequence[int], owner: int, now_ms: int) -> Iterator[bytes]:
    """The records of what a transaction has scheduled, once it is committed at ``now_ms``."""
    it = iter(timers)
    for slot, log_index, pos, size, time_ms, ordinal in zip(it, it, it, it, it, it, strict=True):
        yield _record(due_ms(time_ms, now_ms), slot, owner, ordinal, log_index, pos, size)


def due_ms(time_ms: int, now_ms: int) -> int:
    """When a message that becomes effective at ``now_ms`` is due; negative times are delays."""
    return max(time_ms if time_ms >= 0 else now_ms - time_ms, now_ms)


class FrozenCounts(NamedTuple):
    """The counts at one moment. ``blocks``: timers and their bytes, by block and slot."""

    blocks: dict[int, dict[int, tuple[int, int]]]
    total: int

    def parts(self) -> Iterator[list[int]]:
        """Slot, block, timers, bytes, and so on: block by block."""
        for block, slots in sorted(self.blocks.items()):
            yield [n for slot, counts in sorted(slots.items()) for n in (slot, block, *counts)]


class TimerCounts:
    """How many timers wait, and their bytes, by block of log indexes and slot."""

    __slots__ = ("_blocks", "_bytes", "_frozen", "block_entries", "total")

    def __init__(self) -> None:
        self.total = 0
        self.block_entries = BLOCK_ENTRIES  # part of the format; simulated logs are shorter than a block
        self._blocks: dict[int, dict[int, tuple[int, int]]] = {}
        self._bytes: dict[int, int] = {}  # by block
        self._frozen: set[int] = set()  # blocks that a snapshot may read: copied before they change

    def add(self, slot: int, block: int, timers: int, size: int) -> None:
        """So many more wait; fewer if they are negative."""
        slots = self._changing(block)
        known, known_size = slots.get(slot, (0, 0))
        self.total += timers
        if known + timers:
            slots[slot] = known + timers, known_size + size
            self._bytes[block] = self._bytes.get(block, 0) + size
            return
        slots.pop(slot, None)
        if slots:
            self._bytes[block] -= known_size
        else:
            self._forget(block)

    def forget(self, slots: Iterable[int]) -> None:
        """The partitions of these slots are deleted."""
        gone = set(slots)
        for block in [block for block, by_slot in self._blocks.items() if not gone.isdisjoint(by_slot)]:
            by_slot = self._changing(block)
            for slot in by_slot.keys() & gone:
                timers, size = by_slot.pop(slot)
                self.total -= timers
                self._bytes[block] -= size
            if not by_slot:
                self._forget(block)

    def _changing(self, block: int) -> dict[int, tuple[int, int]]:
        """What waits in a block, by slot, to be changed."""
        slots = self._blocks.setdefault(block, {})
        if block in self._frozen:
            self._frozen.discard(block)
            slots = self._blocks[block] = slots.copy()
        return slots

    def _forget(self, block: int) -> None:
        """Nothing waits there any more."""
        del self._blocks[block]
        self._bytes.pop(block, None)
        self._frozen.discard(block)

    def freeze(self) -> FrozenCounts:
        """All of it as it is now, to be read by any thread. Costs what there are of blocks, however many
        partitions they have."""
        self._frozen = set(self._blocks)
        return FrozenCounts(self._blocks.copy(), self.total)

    @property
    def total_bytes(self) -> int:
        """Of all that wait."""
        return sum(list(self._bytes.values()))  # a copy in one step: another thread may ask

    def has(self, slot: int, block: int) -> bool:
        """Whether any waits there."""
        return slot in self._blocks.get(block, {})

    def oldest_index(self) -> int | None:
        """No timer is in an entry with a lower index; None: none waits."""
        oldest = min(list(self._blocks), default=None)  # a copy in one step: another thread may ask
        return None if oldest is None else max(oldest * self.block_entries, 1)

    def sizes(self) -> list[tuple[int, int]]:
        """First index of each block in which any wait, and their bytes; oldest first."""
        return [(block * self.block_entries, size) for block, size in sorted(self._bytes.items())]

    def of(self, records: Iterable[bytes]) -> list[int]:
        """How many these are: slot, block, timers, bytes, and so on."""
        counts: dict[tuple[int, int], list[int]] = {}
        for _, slot, _, _, index, _, size in map(RECORD.unpack, records):
            known = counts.setdefault((slot, index // self.block_entries), [0, 0])
            known[0] += 1
            known[1] += size
        return list(chain.from_iterable((*where, *known) for where, known in counts.items()))

    def flat(self) -> list[int]:
        """All of it: slot, block, timers, bytes, and so on."""
        return [n for part in FrozenCounts(self._blocks, self.total).parts() for n in part]


class Timers:
    """See the module's docstring. Changed only by applying entries."""

    def __init__(self) -> None:
        self.store = TimerStore()
        self.counts = TimerCounts()
        #: Whether any transaction has ever scheduled something here; not part of the state.
        self.in_transactions = False
        #: Records of TIMERs whose COMMIT follows.
        self.pending: list[bytes] = []
        #: Keys that were cancelled, so that a request that is repeated when their time is past gets the same
        #: answer. Part of the state.
        self.cancelled: TwoGenerations[bytes, bool] = TwoGenerations(CANCELLED_KEPT)

    def of_transactions(self, log_index: int, rows: Iterable[TimedRows], count: int) -> list[tuple[int, ...]]:
        """``OpenTx.timers`` of each of ``count`` transactions of one PREPARE."""
        self.in_transactions = True
        found: list[tuple[int, ...]] = [()] * count
        for slot, pos, txs, sizes, times, ordinals in rows:
            for tx, size, time_ms, ordinal in zip(txs, sizes, times, ordinals, strict=True):
                found[tx] = (*found[tx], slot, log_index, pos, size, time_ms, ordinal)
                pos += size
        return found

    @property
    def released(self) -> bytes:
        """The key of the last released timer."""
        return self.store.cursor

    def earliest_ms(self, now_ms: int) -> int:
        """Before this time nothing can be due that becomes effective in an entry of that time."""
        return max(deliver_ms_of(self.released) + 1, now_ms)

    def keep(self, records: Sequence[bytes], counts: FlatCounts, now_ms: int) -> None:
        """These wait from now on. None may be due before ``earliest_ms``."""
        self._add(counts, 1)
        self.store.add(b"".join(records), now_ms)
        if self.cancelled:
            for record in records:  # an application has used a transaction's id again
                self.cancelled.old.pop(record[:KEY_BYTES], None)
                self.cancelled.young.pop(record[:KEY_BYTES], None)

    def forget_cancelled(self, app: str, runs: Iterable[Run]) -> None:
        """These are committed. If an id was used again for a time that has passed, its messages are readable
        at once, under another key than the one that was cancelled: so that one says nothing any more."""
        if not self.cancelled:
            return
        for run in runs:
            for tx_id, record in zip(run.tx_ids, run.records, strict=False):  # none in a block is delayed
                it = iter(record.timers)
                for slot, _, _, _, time_ms, ordinal in zip(it, it, it, it, it, it, strict=True):
                    if time_ms >= 0:
                        key = _key(time_ms, slot, owner_of(app, tx_id), ordinal)
                        self.cancelled.old.pop(key, None)
                        self.cancelled.young.pop(key, None)

    def decided(self, slots: Mapping[int, object], now_ms: int, *, committed: bool) -> None:
        """The COMMIT behind the pending TIMERs is applied."""
        pending, self.pending = self.pending, []
        if not committed:
            return
        earliest, kept = self.earliest_ms(now_ms), list[bytes]()
        for time_ms, slot, owner, ordinal, index, pos, size in _fields(b"".join(pending)):
            if slot in slots:  # else the topic was deleted meanwhile
                kept.append(_record(max(time_ms, earliest), slot, owner, ordinal, index, pos, size))
        if kept:
            self.keep(kept, self.counts.of(kept), now_ms)

    def release(self, key: bytes, counts: FlatCounts) -> None:
        """Everything up to this key is released."""
        self._add(counts, -1)
        self.store.release(key)

    def cancel(
        self,
        index: int,
        now_ms: int,
        keys: bytes,
        copies: Sequence[int],
        counts: FlatCounts,
        newest: Sequence[int] = (),
    ) -> None:
        """The CANCEL of entry ``index``. ``copies``: how often each key is stored; ``newest``: the highest
        index of these, () if CANCEL does not tell. What is prepared under the same key, and committed later,
        lies above it and perhaps below the CANCEL: it must live."""
        self._add(counts, -1)
        each = [keys[at : at + KEY.size] for at in range(0, len(keys), KEY.size)]
        ends = [last + 1 for last in newest] or [index] * len(each)
        tombstones = [tombstone(key, end, n) for key, end, n in zip(each, ends, copies, strict=True)]
        self.store.add(b"".join(tombstones), now_ms)
        for key in each:
            self.cancelled.set(key, True)

    def move(self, counts: FlatCounts, index: int) -> None:
        """So many that were elsewhere are stored anew in entry ``index``."""
        it, block = iter(counts), index // self.counts.block_entries
        for slot, old, timers, size in zip(it, it, it, it, strict=True):
            self.counts.add(slot, old, -timers, -size)
            self.counts.add(slot, block, timers, size)

    def _add(self, counts: FlatCounts, sign: int) -> None:
        it = iter(counts)
        for slot, block, timers, size in zip(it, it, it, it, strict=True):
            if sign > 0 or self.counts.has(slot, block):  # else the topic was deleted meanwhile
                self.counts.add(slot, block, sign * timers, sign * size)

    def restore(self, released: bytes, counts: FlatCounts) -> None:
        """From a snapshot."""
        self.store.cursor = released
        self._add(counts, 1)

    def restore_cancelled(self, *generations: bytes) -> None:
        """From a snapshot: the keys of the old generation, and of the young one."""
        tables = self.cancelled.old, self.cancelled.young
        for table, keys in zip(tables, generations, strict=True):
            table.update((keys[at : at + KEY_BYTES], True) for at in range(0, len(keys), KEY_BYTES))


# ------------------------------------------------------------------ operations
# Applies the operations of delayed messages, apart from a PREPARE's and a COMMIT's part in them.


# ------------------------------------------------------------------ compaction
# Applies CARRY: messages that wait are stored anew, so that the segments in which they lay can go.
#
# The new copy has the same key and lies in CARRY's own entry. A tombstone goes with it, which kills the
# copies that CARRY names and no later one: an application may use a transaction's id again, and what that
# has scheduled under the same key may lie in an entry between the old place and the CARRY. So a carried
# message is a message like any other to all that read the store: to merges, snapshots, releases and
# cancellations.
#
# What is left out here, though a leader that follows its rules never carries it: what is released already,
# and what is of a deleted topic.


def carry(timers: Timers, slots: Container[int], index: int, now_ms: int, op: Op) -> None:
    """The CARRY of entry ``index``. ``slots``: of the partitions that there are."""
    pos = op.body_pos
    moved: list[bytes] = []
    added: list[bytes] = []
    for key, same in groupby(split(op.meta[0]), key_bytes):
        copies = list(same)
        if key > timers.released and slot_of(key) in slots:
            added.append(tombstone(key, max(map(log_index_of, copies)) + 1, len(copies)))
            moved += copies
        else:
            pos += sum(map(size_of, copies))
            continue
        for copy in copies:
            size = size_of(copy)
            added.append(copy[:KEY_BYTES] + PLACE.pack(index, pos, size))
            pos += size
    timers.move(timers.counts.of(moved), index)
    timers.store.add(b"".join(added), now_ms)


# ------------------------------------------------------------------ timer operations


Result = list[Any]
#: Slot, log index, position, bytes and messages.
Reference = tuple[int, int, int, int, int]
#: The base offset of messages that have none yet.
NO_OFFSET = -1


class TimerOperations:
    """Changes the tables of one group's state. ``cut``: see ``StateMachine``."""

    def __init__(
        self, topics: TopicTable, producers: ProducerMemory, timers: Timers, cut: Lock, claims: Claims
    ) -> None:
        self._topics, self._producers, self._timers, self._cut = topics, producers, timers, cut
        self._claims = claims

    def handlers(
        self, now_ms: Callable[[], int], references: Callable[[], Sequence[Reference]]
    ) -> dict[int, Callable[[int, Op], Result | None]]:
        """What applies each type of operation. ``references``: takes those before a RELEASE."""
        return {
            OpType.SCHEDULED: lambda index, op: self.scheduled(index, now_ms(), op),
            OpType.TIMER: self.timer,
            OpType.CARRY: lambda index, op: carry(self._timers, self._topics.slots, index, now_ms(), op),
            OpType.CANCEL: lambda index, op: self.cancel(index, now_ms(), op),
            OpType.RELEASE: lambda index, op: self.release(now_ms(), op, references()),
        }

    def scheduled(self, index: int, now_ms: int, op: Op) -> Result:
        """SCHEDULED. Sequence numbers are those of MESSAGE (``StateMachine._message``)."""
        topic, number, producer, epoch, seq, times, sizes, owner, ordinal, heard_ms, topic_id = op.meta
        partition = self._topics.find(topic, number)
        if not isinstance(partition, Partition):
            return [int(partition)]
        if topic_id != partition.topic_id:
            return [int(ResultCode.OTHER_TOPIC), partition.topic_id]
        if (fenced := self._claims.fenced(producer.removesuffix(OF_DELAYED), epoch, now_ms)) is not None:
            return fenced
        key = (producer, partition.slot)
        recent: tuple[tuple[int, int, int], ...] = ()
        if seq >= 0:
            known = self._producers.get(key)
            if known is None and seq == 0 and self._producers.is_stale(heard_ms):
                return [int(ResultCode.STALE), now_ms]
            if known is not None and epoch < known[0]:
                return [int(ResultCode.FENCED), known[0]]
            expected, recent = known[1:] if known is not None and epoch == known[0] else (0, ())
            if seq != expected:
                for done, base, time_ms in recent:
                    if done == seq:
                        return [int(ResultCode.DUPLICATE), [base, time_ms]]
                return [int(ResultCode.OUT_OF_SEQUENCE), expected]
        slot, pos, earliest = partition.slot, op.body_pos, self._timers.earliest_ms(now_ms)
        records: list[bytes] = []
        for time_ms, size in zip(times, sizes, strict=True):
            due = time_ms if time_ms >= 0 else now_ms - time_ms
            records.append(_record(max(due, earliest), slot, owner, ordinal, index, pos, size))
            pos, ordinal = pos + size, ordinal + 1
        counts = slot, index // self._timers.counts.block_entries, len(records), op.body_size
        self._timers.keep(records, counts, now_ms)
        if seq >= 0:
            done_now = (*recent[1 - SEQUENCES_KEPT :], (seq, NO_OFFSET, now_ms))
            if self._producers.set(key, (epoch, seq + 1, done_now)):
                self._producers.note_turn(now_ms)
        return [0, [NO_OFFSET, now_ms]]

    def timer(self, index: int, op: Op) -> None:
        """TIMER: its records wait for their COMMIT."""
        self._timers.pending.append(op.meta[0])

    def cancel(self, index: int, now_ms: int, op: Op) -> Result:
        """CANCEL as the leader writes it."""
        self._timers.cancel(index, now_ms, *op.meta)
        return [0]

    def release(self, now_ms: int, op: Op, references: Sequence[Reference]) -> None:
        """RELEASE, after its references. One that does not go beyond the cursor does nothing: a leader that
        follows its rules never writes it."""
        key, _, counts = op.meta
        if key <= self._timers.released:
            return
        self._timers.release(key, counts)
        slots = self._topics.slots
        with self._cut:
            for slot, entry, pos, size, count in references:
                partition = slots.get(slot)
                if partition is not None:  # otherwise the topic was deleted meanwhile
                    partition.index.append(entry, pos, size, count, now_ms)
