"""What a poll takes from a consumer: records that come again after ``nack``, then what was fetched.

There is one way for each form of the result, so that all of them advance positions alike. Messages without
a tag that is wanted are passed over here, as if they had been handed out. Every method runs under the
consumer's lock.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from escrowmq.actors.client.consumer_groups import TopicPartition
from escrowmq.actors.client.values import Deserialize
from escrowmq.actors.consumer.positions import HandOut, PartitionState, Positions
from escrowmq.actors.consumer.records import Chunk, StreamRecord
from escrowmq.actors.consumer.statistics import Counted
from escrowmq.replication.errors import EscrowMQError, Overloaded
from escrowmq.replication.format.packing import UNPACKED_BYTES
from escrowmq.replication.model import ConsumerRecord

if TYPE_CHECKING:
    import pyarrow as pa


# ------------------------------------------------------------------------------------------------------------
# Records that a handler could not process yet, waiting to be delivered again.
#
# Kept as simple as possible: this consumer keeps a nacked record, and ``poll`` returns it after its delay;
# until then no commit without explicit offsets goes past it. So if this consumer dies or loses the partition
# first, the next reader starts at that record: it and everything after it is delivered again. Attempts are
# not counted, and there is no dead-letter topic. A consumer with ``retry`` keeps a record here only until its
# failure is durable elsewhere.
#
# Pure: takes ``now``. Bounded by ``limit``.

#: Nacked records that one consumer keeps: a handler that fails for all of them should stop, not queue them.
NACKED_MAX = 10_000
#: Times that no longer count and are kept, beside as many as records wait.
STALE_MAX = 100


class Redelivery:
    """Nacked records by due time, and the lowest offset of each partition."""

    def __init__(self, limit: int = NACKED_MAX) -> None:
        self._limit = limit
        self.due: list[tuple[float, str, int, int]] = []  # a heap: due time, topic, partition, offset
        self._records: dict[TopicPartition, dict[int, tuple[float, ConsumerRecord]]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, record: ConsumerRecord, due: float) -> None:
        """Keeps a record until ``due`` (infinity: until it is discarded); repeated for a record, the new time
        counts. Raises Overloaded at the limit."""
        waiting = self._records.setdefault((record.topic, record.partition), {})
        if record.offset not in waiting:
            if self._count >= self._limit:
                raise Overloaded(f"{self._limit} nacked records wait for redelivery; let them drain", 1.0)
            self._count += 1
        waiting[record.offset] = due, record
        if due < float("inf"):
            heapq.heappush(self.due, (due, record.topic, record.partition, record.offset))
            self._tidy()

    def discard(self, record: ConsumerRecord) -> bool:
        """Forgets a record. False: it was forgotten before, with its partition."""
        waiting = self._records.get((record.topic, record.partition), {})
        if record.offset not in waiting:
            return False
        del waiting[record.offset]
        self._count -= 1
        if not self._count:
            self.due.clear()
        return True

    def take(self, now: float, limit: int, skip: Collection[TopicPartition] = ()) -> list[ConsumerRecord]:
        """Due records, at most ``limit``; those of partitions in ``skip`` (paused) continue to wait."""
        records: list[ConsumerRecord] = []
        held: list[tuple[float, str, int, int]] = []
        while self.due and len(records) < limit and self.due[0][0] <= now:
            entry = heapq.heappop(self.due)
            due, topic, partition, offset = entry
            waiting = self._records.get((topic, partition), {})
            if offset not in waiting or waiting[offset][0] != due:
                continue  # dropped, or nacked again with another delay
            if (topic, partition) in skip:
                held.append(entry)
                continue
            records.append(waiting.pop(offset)[1])
            self._count -= 1
        for entry in held:
            heapq.heappush(self.due, entry)
        return records

    def next_due(self) -> float | None:
        """When the next record may come back (possibly too early)."""
        return self.due[0][0] if self.due else None

    def floor(self, tp: TopicPartition) -> int | None:
        """The lowest offset of a partition that still waits; commits stop before it."""
        waiting = self._records.get(tp)
        return min(waiting) if waiting else None

    def drop(self, tp: TopicPartition) -> None:
        """Forgets a partition's records: it was reassigned, or the application sought elsewhere."""
        self._count -= len(self._records.pop(tp, ()))
        if not self._count:
            self.due.clear()

    def _tidy(self) -> None:
        """Removes what no longer counts from the heap once it is most of it: a record may be nacked again and
        again, or sought away from, long before its time, which can be years ahead."""
        if len(self.due) <= 2 * self._count + STALE_MAX:
            return
        self.due = [
            (due, topic, partition, offset)
            for (topic, partition), waiting in self._records.items()
            for offset, (due, _) in waiting.items()
            if due < float("inf")
        ]
        heapq.heapify(self.due)


#: Messages that are passed over before others may take the lock: 10 ms.
PASSED_MAX = 10_000


class RecordDrain:
    """Takes messages out of one consumer. ``wake_fetch`` is called when there is room to fetch again.
    ``deserialize``: what becomes of the values of records. ``tags``: the only ones wanted; None: all."""

    #: The last call stopped only because it had passed over many messages: more may be there.
    interrupted = False
    #: Adds what is known of a record's past; None: a consumer without ``retry``.
    with_past: Callable[[ConsumerRecord], StreamRecord] | None = None

    def __init__(
        self,
        positions: Positions,
        redelivery: Redelivery,
        counted: Counted,
        wake_fetch: Callable[[], None],
        deserialize: Deserialize | None = None,
        tags: frozenset[bytes] | None = None,
    ) -> None:
        self._positions, self._redelivery, self._counted = positions, redelivery, counted
        self._wake_fetch, self._deserialize, self._tags = wake_fetch, deserialize, tags

    @property
    def deserializes(self) -> bool:
        """Whether the values of records are something else than bytes."""
        return self._deserialize is not None

    def records(self, limit: int, now: float) -> list[ConsumerRecord]:
        """At most ``limit`` records that are available at ``now``."""
        again = self._again(limit, now)
        records = list(again)
        room = UNPACKED_BYTES

        def add(state: PartitionState, chunk: Chunk, left: int) -> int:
            nonlocal room
            if room <= 0:
                return 0
            start = chunk.next
            part = chunk.take(state.topic, state.partition, left, room, self._deserialize, self._tags)
            records.extend(part if self.with_past is None else map(self.with_past, part))
            room = room - chunk.unpacked if records else UNPACKED_BYTES
            return chunk.next - start

        self._fetched(limit, now, again, add, lambda: len(records))
        return records

    def batches(self, limit: int, now: float) -> list[pa.RecordBatch]:
        """The same messages as record batches, which have ``limit`` rows in total at most."""
        from escrowmq.actors.consumer.arrow_batches import batches_of, tagged, take_batch

        tags = self._tags
        again = self._again(limit, now)
        batches = batches_of(again)
        room = UNPACKED_BYTES

        def add(state: PartitionState, chunk: Chunk, left: int) -> int:
            nonlocal room
            if room <= 0:
                return 0
            batch = take_batch(state, chunk, left, room)
            kept = batch if tags is None else tagged(batch, tags)
            if kept.num_rows:
                batches.append(kept)
            room = room - chunk.unpacked if batches else UNPACKED_BYTES
            return int(batch.num_rows)

        self._fetched(limit, now, again, add, lambda: sum(batch.num_rows for batch in batches))
        return batches

    def resume(self, now: float) -> None:
        """Goes on with partitions whose pause is over."""
        if self._positions.resume(now):
            self._wake_fetch()

    def _again(self, limit: int, now: float) -> list[ConsumerRecord]:
        self.resume(now)
        if not self._redelivery:
            return []
        paused = {state.tp for state in self._positions.states() if state.paused}
        return self._redelivery.take(now, limit, paused)

    def _fetched(
        self, limit: int, now: float, again: list[ConsumerRecord], add: HandOut, wanted: Callable[[], int]
    ) -> None:
        """``wanted`` counts what was handed out so far; with tags, that may be less than was taken. ``again``
        are the records that come again, if the caller gets any."""
        count, passed, self.interrupted = len(again), 0, False
        while count < limit:
            try:
                taken = self._positions.hand_out(limit - count, add)
            except EscrowMQError:
                # Records that come again would be lost with the error. The next poll meets it, if another
                # replica's copy is damaged as well, and always if a value cannot be read.
                if not again:
                    raise
                break
            except BaseException:
                for record in again:
                    self._redelivery.add(record, now)
                self._wake_fetch()
                raise
            count = wanted()
            if self._tags is None or count or not taken:
                break
            passed += taken
            if passed >= PASSED_MAX:
                self.interrupted = True
                break
        if self._positions.starved:
            self._wake_fetch()
        self._counted.records += count
