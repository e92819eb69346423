"""What a poll takes from a consumer: records that come again after ``nack``, then what was fetched.

There is one way for each form of the result, so that all of them advance positions alike. Messages without
a tag that is wanted are passed over here, as if they had been handed out. Every method runs under the
consumer's lock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from escrowmq.actors.client.values import Deserialize
from escrowmq.actors.consumer.positions import HandOut, PartitionState, Positions
from escrowmq.actors.consumer.records import Chunk
from escrowmq.actors.consumer.redelivery import Redelivery
from escrowmq.actors.consumer.statistics import Counted
from escrowmq.actors.consumer.stream_record import StreamRecord
from escrowmq.replication.errors import EscrowMQError
from escrowmq.replication.format.packing import UNPACKED_BYTES
from escrowmq.replication.model import ConsumerRecord

if TYPE_CHECKING:
    import pyarrow as pa

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
