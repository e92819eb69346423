"""Delayed plain messages of one partition on their way to its broker group.

They have a stream of their own beside that of the partition's other messages, and under another name: so
neither waits for the other, and each has its own sequence numbers. What the broker answers has no offsets,
since there are none before a message can be read; its metadata say when that is, and by which id it can be
cancelled.
"""

from __future__ import annotations

from typing import Any, ClassVar

from escrowmq.actors.client.cancelling import ScheduleId
from escrowmq.actors.producer.encoding.blocks import single_rows
from escrowmq.actors.producer.plain.partition_stream import Batch, PartitionStream
from escrowmq.actors.producer.plain.record_batch import Ending, RecordBatch
from escrowmq.replication.delivery_times import AT_ONCE, effective_time
from escrowmq.replication.format.ops import OF_DELAYED
from escrowmq.replication.format.timer_ops import ORDINALS, owner_of, scheduled
from escrowmq.replication.model import NO_ID, RecordMetadata

#: In place of the offset of a message that cannot be read yet.
NO_OFFSET = -1


class DelayedBatch(RecordBatch):
    """As ``RecordBatch``. ``times``: of each message, as requests carry it. Its rows are single ones."""

    __slots__ = ("times",)
    later: ClassVar[bool] = True

    def __init__(self, topic: str, partition: int) -> None:
        super().__init__(topic, partition)
        self.times: list[int] = []

    def fill(self, rows: list[bytes], sizes: list[int] | None, size: int, times: list[int]) -> None:
        """All of its messages, from a run."""
        self.rows = rows if sizes is None else single_rows(sizes, rows)
        self.size, self.times = size, times


class DelayedEnding(Ending):
    """Delayed messages were stored. Their ids are made for those who ask."""

    __slots__ = ("_cluster_id", "_first_ordinal", "_owner", "_times")

    def waits(
        self, timestamp: int, times: list[int], owner: int, first_ordinal: int, cluster_id: str
    ) -> DelayedEnding:
        """They wait for their ``times``; ``timestamp``: the broker's time when it stored them."""
        self._base, self._timestamp = NO_OFFSET, timestamp
        self._times, self._owner, self._first_ordinal = times, owner, first_ordinal
        self._cluster_id = cluster_id
        return self

    def metadata(self, number: int) -> RecordMetadata:
        """See ``Ending``."""
        i = number - self.start
        time_ms = effective_time(self._times[i], self._timestamp)
        found = ScheduleId(self._topic, self._partition, time_ms, self._owner, self._first_ordinal + i).text(
            self._cluster_id
        )
        return RecordMetadata(self._topic, self._partition, NO_OFFSET, self._timestamp, time_ms, found)

    def schedule_id(self, number: int) -> str | None:
        """See ``Ending``: none for one that was sent beside delayed ones, with no time of its own."""
        return None if self._times[number - self.start] == AT_ONCE else self.metadata(number).schedule_id

    def offsets(self, count: Any) -> Any:
        """See ``Ending``: none of them has one yet."""
        return NO_OFFSET


class DelayedStream(PartitionStream):
    """As ``PartitionStream``. Ordinals count what this producer schedules in the partition."""

    later: ClassVar[bool] = True

    def __init__(
        self,
        topic: str,
        partition: int,
        producer: str,
        *args: Any,
        owner: int,
        cluster_id: str,
        **kwargs: Any,
    ) -> None:
        """``owner``: stands for this producer, and for no other one of its name. ``cluster_id``: for the ids
        of its messages."""
        super().__init__(topic, partition, f"{producer}{OF_DELAYED}", *args, **kwargs)
        self._owner, self._cluster_id = owner, cluster_id
        self._next_ordinal = 0
        self._topic_id = NO_ID
        # Of the only batch that is under way, or to be sent again.
        self._times: list[int] = []
        self._first_ordinal = 0

    def begin_at(self, epoch: int) -> None:
        """See ``PartitionStream``. Ordinals begin again as well, so they are counted for another owner."""
        if epoch > self.epoch:
            self._owner = owner_of(str(self._owner), str(epoch))
        super().begin_at(epoch)

    def take(self, bytes_max: int, heard_ms: int = -1, topic_id: int = NO_ID) -> tuple[bytes, Batch]:
        """See ``PartitionStream``. Every batch names its topic's id: the last one that ``topic_id`` gave."""
        batch = self._begin(bytes_max)
        if topic_id != NO_ID:
            self._topic_id = topic_id
        if batch.topic_id is None:
            batch.topic_id = self._topic_id
        frame = scheduled(
            self.topic,
            self.partition,
            self._producer,
            self.epoch,
            self.next_seq,
            self._times,
            batch.rows,  # type: ignore[arg-type]  # a parcel's single rows
            self._owner,
            self._first_ordinal,
            heard_ms,
            batch.topic_id,
        )
        return frame, batch

    def _next_batch(self, bytes_max: int) -> Batch:
        batch = super()._next_batch(bytes_max)
        times: list[int] = []
        for parcel, start, end in batch.parts:
            assert isinstance(parcel, DelayedBatch)
            times += parcel.times[start:end]
        if self._next_ordinal + batch.count > ORDINALS:
            self._next_ordinal = 0
        self._times, self._first_ordinal = times, self._next_ordinal
        self._next_ordinal += batch.count
        return batch

    def _stored(
        self, parcel: RecordBatch, start: int, end: int, done: int, base: int, timestamp: int
    ) -> Ending:
        """See ``PartitionStream``."""
        times = self._times[done : done + end - start]
        ending = DelayedEnding(parcel, start, end)
        return ending.waits(timestamp, times, self._owner, self._first_ordinal + done, self._cluster_id)
