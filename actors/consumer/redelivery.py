"""Records that a handler could not process yet, waiting to be delivered again.

Kept as simple as possible: this consumer keeps a nacked record, and ``poll`` returns it after its delay;
until then no commit without explicit offsets goes past it. So if this consumer dies or loses the partition
first, the next reader starts at that record: it and everything after it is delivered again. Attempts are not
counted, and there is no dead-letter topic. A consumer with ``retry`` keeps a record here only until its
failure is durable elsewhere.

Pure: takes ``now``. Bounded by ``limit``.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection

from escrowmq.actors.client.consumer_groups import TopicPartition
from escrowmq.replication.errors import Overloaded
from escrowmq.replication.model import ConsumerRecord

#: Nacked records that one consumer keeps: a handler that fails for all of them should stop, not queue them.
NACKED_MAX = 10_000
#: Times that no longer count and are kept, beside as many as records wait.
STALE_MAX = 100


class Redelivery:
    """Nacked records by due time, and the lowest offset of each partition."""

    def __init__(self, limit: int = NACKED_MAX) -> None:
        self._limit = limit
        self._due: list[tuple[float, str, int, int]] = []  # a heap: due time, topic, partition, offset
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
            heapq.heappush(self._due, (due, record.topic, record.partition, record.offset))
            self._tidy()

    def discard(self, record: ConsumerRecord) -> bool:
        """Forgets a record. False: it was forgotten before, with its partition."""
        waiting = self._records.get((record.topic, record.partition), {})
        if record.offset not in waiting:
            return False
        del waiting[record.offset]
        self._count -= 1
        if not self._count:
            self._due.clear()
        return True

    def take(self, now: float, limit: int, skip: Collection[TopicPartition] = ()) -> list[ConsumerRecord]:
        """Due records, at most ``limit``; those of partitions in ``skip`` (paused) continue to wait."""
        records: list[ConsumerRecord] = []
        held: list[tuple[float, str, int, int]] = []
        while self._due and len(records) < limit and self._due[0][0] <= now:
            entry = heapq.heappop(self._due)
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
            heapq.heappush(self._due, entry)
        return records

    def next_due(self) -> float | None:
        """When the next record may come back (possibly too early)."""
        return self._due[0][0] if self._due else None

    def floor(self, tp: TopicPartition) -> int | None:
        """The lowest offset of a partition that still waits; commits stop before it."""
        waiting = self._records.get(tp)
        return min(waiting) if waiting else None

    def drop(self, tp: TopicPartition) -> None:
        """Forgets a partition's records: it was reassigned, or the application sought elsewhere."""
        self._count -= len(self._records.pop(tp, ()))
        if not self._count:
            self._due.clear()

    def _tidy(self) -> None:
        """Removes what no longer counts from the heap once it is most of it: a record may be nacked again and
        again, or sought away from, long before its time, which can be years ahead."""
        if len(self._due) <= 2 * self._count + STALE_MAX:
            return
        self._due = [
            (due, topic, partition, offset)
            for (topic, partition), waiting in self._records.items()
            for offset, (due, _) in waiting.items()
            if due < float("inf")
        ]
        heapq.heapify(self._due)
