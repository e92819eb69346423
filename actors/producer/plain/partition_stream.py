"""Plain messages of one partition on their way to its broker group: batches, numbered, one at a time.

At most one batch of a partition is under way, so the order holds through every retry and fail-over without
any further rule, and when the broker is slow the next batch just grows. Batches are numbered from 0 within an
epoch; the broker stores each number once. When the fate of a batch stays unknown, the next one starts a new
epoch: late copies of the old one are then refused, and nothing is stored out of order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, ClassVar

from escrowmq.actors.client.failures import Failure, FailureKind
from escrowmq.actors.producer.claiming import fenced
from escrowmq.actors.producer.config import Counted
from escrowmq.actors.producer.encoding.delayed_messages import too_many_scheduled
from escrowmq.actors.producer.plain.record_batch import Ending, RecordBatch
from escrowmq.replication.errors import (
    EscrowMQError,
    MessageTooLarge,
    ProducerFenced,
    TopicRecreated,
    UnknownTopic,
)
from escrowmq.replication.format import ops
from escrowmq.replication.format.ops import claimed_epoch, first_epoch
from escrowmq.replication.model import NO_ID, ResultCode

#: How often a new epoch is tried after "out of sequence" before the batch fails.
EPOCHS_MAX = 3
#: One or several encoded messages.
Encoded = bytes | memoryview
#: Rows in one batch: bounds the time that telling its callers takes.
ROWS_MAX = 5_000


class _Queued:
    """What of a parcel was not sent: ``count`` messages from number ``start`` on, queued at ``since``."""

    __slots__ = ("_ends", "_joined", "_rows", "_sent", "_sizes", "count", "parcel", "since", "size", "start")

    def __init__(self, parcel: RecordBatch, now: float) -> None:
        self.parcel, self.start, self.since = parcel, 0, now
        self._rows: list[Encoded] = parcel.rows  # type: ignore[assignment]  # its own list, and no one else's
        self._sizes = parcel.sizes
        parcel.rows, parcel.sizes = [], None
        self._joined = self._sizes is not None
        self.count = len(self._rows if self._sizes is None else self._sizes)
        self.size = parcel.size
        #: Where each message ends, in bytes from the first one; made once something has to be left behind.
        self._ends: list[int] = []
        self._sent = 0

    def take(self, bytes_max: int, rows_max: int, at_least: int) -> tuple[list[Encoded], int, int]:
        """Its next messages, encoded, how many, and their size: as many as fit, but ``at_least`` so many."""
        if self.size <= bytes_max and self.count <= rows_max:
            taken, count, size = self._rows, self.count, self.size
            self._rows = []
        else:
            count, size = self._fitting(bytes_max, rows_max, at_least)
            if self._joined:
                body = memoryview(self._rows[0])
                taken, self._rows = [body[:size]], [body[size:]]
            else:
                taken = self._rows[:count]
                del self._rows[:count]  # also so that rows are freed when their batch is
        self.start += count
        self.count -= count
        self.size -= size
        self._sent += size
        return taken, count, size

    def _fitting(self, bytes_max: int, rows_max: int, at_least: int) -> tuple[int, int]:
        if not self._ends:
            self._ends = list(accumulate(map(len, self._rows) if self._sizes is None else self._sizes))
            self._sizes = None
        first = self.start
        last = min(first + rows_max, len(self._ends))
        end = max(bisect_right(self._ends, self._sent + bytes_max, first, last), first + at_least)
        return end - first, self._ends[end - 1] - self._sent if end > first else 0


class Batch:
    """``count`` messages of one partition in one MESSAGE operation, encoded in ``rows``, one or several in
    each. ``parts``: their parcels, and their numbers there, from the first to before the last."""

    __slots__ = ("count", "deadline", "parts", "rows", "size", "topic_id", "tries")

    def __init__(
        self,
        parts: list[tuple[RecordBatch, int, int]],
        rows: list[Encoded],
        count: int,
        size: int,
        deadline: float,
    ) -> None:
        self.parts, self.rows, self.count, self.size, self.deadline = parts, rows, count, size, deadline
        self.tries = 0
        #: The id of its topic; set when it is first encoded as the first batch of an epoch.
        self.topic_id: int | None = None


class PartitionStream:
    """One partition's queue.

    Calls ``released(bytes)`` when messages leave it for any reason; ``refused(topic)`` when the broker does
    not know the partition; ``taken(topic, partition)`` when a batch is sent; ``heard(time_ms)`` with the
    group's time from an answer.
    """

    #: Whether its messages are delayed ones.
    later: ClassVar[bool] = False

    def __init__(
        self,
        topic: str,
        partition: int,
        producer: str,
        delivery_timeout_s: float,
        released: Callable[[int], None],
        refused: Callable[[str], None],
        taken: Callable[[str, int], None],
        heard: Callable[[int], None],
        counted: Counted | None = None,
        claimed: int = 0,
    ) -> None:
        """``claimed``: the epoch with which the name ``producer`` is claimed; 0: it is not."""
        self.topic, self.partition, self._producer = topic, partition, producer
        self._timeout_s, self._counted = delivery_timeout_s, counted or Counted()
        self._released, self._refused, self._taken, self._heard = released, refused, taken, heard
        self._claimed, self.epoch, self.next_seq = claimed, first_epoch(claimed), 0
        self.queued_bytes = 0
        self._queue: deque[_Queued] = deque()
        self._under_way: Batch | None = None
        self._again: Batch | None = None  # to be sent before anything else

    def begin_at(self, epoch: int) -> None:
        """Before anything is sent: an earlier stream into this partition may have used all epochs below."""
        self.epoch = max(self.epoch, epoch)

    def add(self, parcel: RecordBatch, now: float) -> None:
        """Queues messages, and takes their rows out of the parcel; their linger and their deadline start at
        ``now``."""
        self.queued_bytes += parcel.size
        self._queue.append(_Queued(parcel, now))

    @property
    def waits(self) -> bool:
        """Whether something is queued and nothing is under way that it must not overtake."""
        return self._under_way is None and (self._again is not None or bool(self._queue))

    @property
    def idle(self) -> bool:
        """Whether nothing is queued and nothing is under way."""
        return self._under_way is None and self._again is None and not self._queue

    def oldest(self) -> float:
        """When the first waiting message was queued; call it only if ``waits``."""
        return float("-inf") if self._again is not None else self._queue[0].since

    def oldest_queued(self) -> float:
        """When the first message that was never sent was queued; call it only while there is one."""
        return self._queue[0].since

    def take(self, bytes_max: int, heard_ms: int = -1, topic_id: int = NO_ID) -> tuple[bytes, Batch]:
        """The next batch of at most ``bytes_max`` bytes, but at least one message, as a frame. ``heard_ms``:
        the newest time heard from the group, for the first batch of an epoch; -1: it states none.
        ``topic_id``: the topic's present id, for the same."""
        batch = self._begin(bytes_max)
        if topic_id != NO_ID and batch.topic_id is None:
            batch.topic_id = topic_id
        stream = self.topic, self.partition, self._producer, self.epoch, self.next_seq
        frame = ops.message(*stream, batch.rows, heard_ms, batch.topic_id or NO_ID, batch.count)
        return frame, batch

    def _begin(self, bytes_max: int) -> Batch:
        """What is under way from now on: the batch that was put back, or the next one."""
        assert self.waits
        batch, self._again = self._again, None
        if batch is None:
            batch = self._next_batch(bytes_max)
        self._under_way = batch
        self._taken(self.topic, self.partition)
        return batch

    def _next_batch(self, bytes_max: int) -> Batch:
        queue = self._queue
        deadline = queue[0].since + self._timeout_s
        parts: list[tuple[RecordBatch, int, int]] = []
        rows: list[Encoded] = []
        count = size = 0
        while queue and count < ROWS_MAX:
            first = queue[0]
            start = first.start
            taken, more, bytes_taken = first.take(bytes_max - size, ROWS_MAX - count, 0 if count else 1)
            if not more:
                break
            parts.append((first.parcel, start, first.start))
            if rows:
                rows += taken
            else:
                rows = taken
            count += more
            size += bytes_taken
            if first.count:
                break
            queue.popleft()
        self.queued_bytes -= size
        return Batch(parts, rows, count, size, deadline)

    def put_back(self, batch: Batch) -> None:
        """Nothing was done with the batch under way: it is sent again next."""
        assert batch is self._under_way
        self._under_way, self._again = None, batch

    def finished(self, batch: Batch, outcome: Sequence[Any] | Failure, repeated: bool) -> None:
        """Takes the broker's result for ``batch``, or how it ended without one.

        ``repeated``: it was sent before under this number. Even if that was refused, a copy of it may have
        been stored by a later leader, and be forgotten by now.
        """
        assert batch is self._under_way
        self._under_way = None
        if isinstance(outcome, Failure):
            self._end(batch, outcome.error(self._describe()))
            return
        code: int = outcome[0]
        info: Any = outcome[1] if len(outcome) > 1 else None
        if code in (ResultCode.OK, ResultCode.DUPLICATE):
            self.next_seq += 1
            self._succeed(batch, info[0], info[1])
        elif code == ResultCode.STALE:
            self._stale(batch, info, repeated)
        elif code == ResultCode.OTHER_TOPIC and not repeated and info > (batch.topic_id or NO_ID):
            # It was sent only once, and is stored nowhere: send it to the present topic. A lower id is an
            # earlier topic, left over in a group that its deletion and the new creation have not reached.
            self._refused(self.topic)
            batch.topic_id = info
            self._again = batch
        elif code in (ResultCode.OUT_OF_SEQUENCE, ResultCode.TOO_MANY_SCHEDULED) and repeated:
            self._end(batch, Failure(FailureKind.UNKNOWN).error(self._describe()))
        elif code == ResultCode.OUT_OF_SEQUENCE and batch.tries < EPOCHS_MAX:
            self._out_of_sequence(batch)
        else:
            self._end(batch, self._refusal(code, info))

    def _out_of_sequence(self, batch: Batch) -> None:
        """The broker has forgotten this stream (the topic was created again, or there was a long silence):
        starts a new epoch.

        This was the batch's first attempt, so it is not stored; and no earlier batch is open, since a new
        epoch is started after every unknown outcome.
        """
        self._new_epoch()
        batch.tries += 1
        self._again = batch

    def _stale(self, batch: Batch, time_ms: int, repeated: bool) -> None:
        """The broker has forgotten producers since the producer last heard from it. A batch that was sent
        only once is not stored: it is sent again, with ``time_ms``."""
        self._heard(time_ms)
        if repeated:  # stored and forgotten, or never stored: this cannot be told
            self._end(batch, Failure(FailureKind.UNKNOWN).error(self._describe()))
        else:
            self._again = batch

    def _end(self, batch: Batch, error: EscrowMQError) -> None:
        """A batch that was sent ends without an offset, and its number is not used again.

        This holds even if the answer was that nothing was done: a copy of the batch may still reach a later
        leader. Under the same number the next batch would get that copy's offsets as its answer, and be lost.
        """
        self._new_epoch()
        self._fail(batch, error)

    def _new_epoch(self) -> None:
        self.epoch += 1
        self.next_seq = 0
        # After four thousand million failures. Beyond, it would write under the next one's claim.
        assert claimed_epoch(self.epoch) == self._claimed

    def _refusal(self, code: int, info: Any) -> EscrowMQError:
        if code in (ResultCode.UNKNOWN_TOPIC, ResultCode.BAD_PARTITION):
            self._refused(self.topic)
            return UnknownTopic(self.topic, self.partition if code == ResultCode.BAD_PARTITION else None)
        if code == ResultCode.OTHER_TOPIC:
            self._refused(self.topic)
            return TopicRecreated(self.topic)
        if code == ResultCode.FENCED and self._claimed:
            return fenced(self._describe(), claimed_epoch(info) or info)
        if code == ResultCode.FENCED:
            return ProducerFenced(
                f"producer {self._producer!r} has written to {self.topic}/{self.partition} with epoch {info}"
            )
        if code == ResultCode.TOO_MANY_SCHEDULED:
            return too_many_scheduled(info)
        if code == ResultCode.TOO_LARGE:
            return MessageTooLarge(info[0], info[1])
        return Failure(FailureKind.MALFORMED, f"{ResultCode(code).name} {info!r}").error(self._describe())

    def _describe(self) -> str:
        batch = f"{self._producer}/{self.epoch}.{self.next_seq}"
        return f"send to {self.topic}/{self.partition}, batch {batch}"

    def _succeed(self, batch: Batch, base: int, timestamp: int) -> None:
        self._heard(timestamp)
        done = 0
        for parcel, start, end in batch.parts:
            parcel.end(self._stored(parcel, start, end, done, base, timestamp))
            done += end - start
        self._counted.messages += batch.count
        self._counted.message_bytes += batch.size
        self._released(batch.size)

    def _stored(
        self, parcel: RecordBatch, start: int, end: int, done: int, base: int, timestamp: int
    ) -> Ending:
        """Of a parcel's messages that follow ``done`` others of a batch, which was stored at ``base``."""
        return Ending(parcel, start, end).stored(base + done, timestamp)

    def _fail(self, batch: Batch, error: EscrowMQError) -> None:
        for parcel, start, end in batch.parts:
            parcel.end(Ending(parcel, start, end).failed(error))
        self._counted.messages_failed += batch.count
        self._released(batch.size)

    def expire(self, now: float, failure: Failure) -> None:
        """Ends queued messages that are older than the delivery time-out; they were never sent."""
        while self._queue and now >= self._queue[0].since + self._timeout_s:
            self._end_first(failure)

    def end_all(self, failure: Failure) -> None:
        """The producer closes: ends whatever is still queued."""
        if self._again is not None:
            batch, self._again = self._again, None
            self._fail(batch, failure.error(self._describe()))
        while self._queue:
            self._end_first(failure)

    def _end_first(self, failure: Failure) -> None:
        first = self._queue.popleft()
        self.queued_bytes -= first.size
        self._counted.messages_failed += first.count
        self._released(first.size)
        error = failure.error(self._describe())
        first.parcel.end(Ending(first.parcel, first.start, first.start + first.count).failed(error))
