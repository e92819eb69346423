"""Applies the operations of delayed messages, apart from a PREPARE's and a COMMIT's part in them."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from itertools import groupby
from threading import Lock
from typing import Any

from escrowmq.replication.format.codec import Op
from escrowmq.replication.format.operation import OpType
from escrowmq.replication.format.ops import OF_DELAYED
from escrowmq.replication.format.timer_ops import Cancelled, Release, Scheduled
from escrowmq.replication.model import ResultCode
from escrowmq.replication.state.claims import Claims
from escrowmq.replication.state.dedup import SEQUENCES_KEPT, ProducerMemory
from escrowmq.replication.state.timers import Timers
from escrowmq.replication.state.topics import Partition, TopicTable, is_another
from escrowmq.replication.timers.record import (
    KEY_BYTES,
    LOCATION,
    RECORD,
    key_bytes,
    log_index_of,
    size_of,
    slot_of,
    split,
    tombstone,
)

_record = RECORD.pack

# ------------------------------------------------------------------ compaction
# Applies CARRY: messages that wait are stored anew, so that the segments in which they lay can go.
#
# The new copy has the same key and lies in CARRY's own entry. A tombstone goes with it, which kills the
# copies that CARRY names and no later one: an application may use a transaction's id again, and what that
# has scheduled under the same key may lie in an entry between the old copy and the CARRY. So a carried
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
    for key, same in groupby(split(op.meta.records), key_bytes):
        copies = list(same)
        if key > timers.released and slot_of(key) in slots:
            added.append(tombstone(key, max(map(log_index_of, copies)) + 1, len(copies)))
            moved += copies
        else:
            pos += sum(map(size_of, copies))
            continue
        for copy in copies:
            size = size_of(copy)
            added.append(copy[:KEY_BYTES] + LOCATION.pack(index, pos, size))
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
            OpType.CANCELLED: lambda index, op: self.cancel(now_ms(), op),
            OpType.RELEASE: lambda index, op: self.release(now_ms(), op, references()),
        }

    def scheduled(self, index: int, now_ms: int, op: Op) -> Result:
        """SCHEDULED. Sequence numbers are those of MESSAGE (``StateMachine._message``)."""
        meta: Scheduled = op.meta
        producer, epoch, seq, ordinal = meta.producer, meta.epoch, meta.seq, meta.first_ordinal
        partition = self._topics.find(meta.topic, meta.partition)
        if not isinstance(partition, Partition):
            return [int(partition)]
        if is_another(partition.topic_id, meta.topic_id):
            return [int(ResultCode.OTHER_TOPIC), partition.topic_id]
        if (fenced := self._claims.fenced(producer.removesuffix(OF_DELAYED), epoch, now_ms)) is not None:
            return fenced
        key = (producer, partition.slot)
        recent: tuple[tuple[int, int, int], ...] = ()
        if seq >= 0:
            known = self._producers.get(key)
            if known is None and seq == 0 and self._producers.is_stale(meta.heard_ms):
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
        for time_ms, size in zip(meta.times, meta.sizes, strict=True):
            due = time_ms if time_ms >= 0 else now_ms - time_ms
            records.append(_record(max(due, earliest), slot, meta.owner, ordinal, index, pos, size))
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
        self._timers.pending.append(op.meta.records)

    def cancel(self, now_ms: int, op: Op) -> Result:
        """CANCELLED."""
        meta: Cancelled = op.meta
        self._timers.cancel(now_ms, meta.keys, meta.copies, meta.counts, meta.newest)
        return [0]

    def release(self, now_ms: int, op: Op, references: Sequence[Reference]) -> None:
        """RELEASE, after its references. One that does not go beyond the cursor does nothing: a leader that
        follows its rules never writes it."""
        meta: Release = op.meta
        if meta.key <= self._timers.released:
            return
        self._timers.release(meta.key, meta.counts)
        slots = self._topics.slots
        with self._cut:
            for slot, entry, pos, size, count in references:
                partition = slots.get(slot)
                if partition is not None:  # otherwise the topic was deleted meanwhile
                    partition.index.append(entry, pos, size, count, now_ms)
