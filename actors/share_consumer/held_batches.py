"""What a share consumer holds: batches of messages under leases, in its buffer or with the application.

A batch is what one answer brought of one partition, under one lease. Its messages are settled one by one;
what is still open keeps its lease. A batch whose lease ended is not handed out any more: other consumers may
have its messages. What the application has of it can still be acked, since an ack needs no lease.

Pure: takes ``now``. Never hands out a message of a lease that ended by this consumer's clock.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from escrowmq.actors.client.call_arguments import shown
from escrowmq.actors.client.values import Deserialize
from escrowmq.actors.consumer.records import StreamRecord
from escrowmq.replication.calling.answers import AcquiredRow
from escrowmq.replication.errors import CorruptLog, DamagedValue, NotDeserializable, RecordNotHeld
from escrowmq.replication.format.codec import Row, decode_lazily
from escrowmq.replication.format.forwarded import history
from escrowmq.replication.format.internal_topics import is_internal
from escrowmq.replication.format.packing import UNPACKED_BYTES, PackedRows, UnsoundValue
from escrowmq.replication.message_headers import TAG
from escrowmq.replication.model import ConsumerRecord, like_dataclass

# ------------------------------------------------------------------------------------------------------------
# What one answer brought of one partition, and the records made of it.
#
# The broker sends whole runs of messages, as for a fetch, and says which of these it has handed out. Rows are
# decoded all at once, by one C call, only when the application gets to them. Compressed values are unpacked
# when they are handed out.

# ------------------------------------------------------------------------------------------------------------
# What ``poll`` of a share consumer returns.


@like_dataclass
class ShareRecord(StreamRecord, frozen=True, gc=False):
    """A message that belongs to one consumer of a share group until its lease ends.

    ``attempt`` counts failures and, since the last one, leases that ended by themselves. Three of those in a
    row are one failure, so at the last attempt of a group the number may be higher by two."""

    #: Number of the lease, for the consumer that polled it. Records that differ only here are equal.
    lease: int = 0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ShareRecord):
            return NotImplemented
        return msgspec.structs.astuple(self)[:-1] == msgspec.structs.astuple(other)[:-1]

    def __hash__(self) -> int:
        return hash(msgspec.structs.astuple(self)[:-1])


class _Piece(NamedTuple):
    """Messages of one run, handed out together. ``at``: the row of the first one."""

    first: int
    last: int
    expiries: int
    at: int
    ts_ms: int


class Acquired:
    """Messages of one partition, handed out to this consumer, and not yet to the application."""

    __slots__ = (
        "_blob", "_count", "_internal", "_pieces", "_rows", "offsets", "partition", "passed", "size", "topic",
        "topic_id", "unpacked",
    )  # fmt: skip

    def __init__(self, row: AcquiredRow) -> None:
        """Raises CorruptLog if the answer contradicts itself."""
        self.topic, self.partition, self.topic_id = row.topic, row.partition, row.topic_id
        self._internal = is_internal(row.topic)
        if sum(run[3] for run in row.runs) != len(row.blob):
            raise CorruptLog(f"{len(row.blob)} bytes of {row.topic}/{row.partition} came for {row.runs[:3]}")
        # A copy if this is a view of Ray's shared memory, which must not fill with data that is never polled.
        self._blob, self.size = bytes(row.blob), len(row.blob)
        self._rows: list[Row] | PackedRows | None = None
        self._count = sum(run[1] for run in row.runs)
        self._pieces = _pieces(row)
        #: All that was handed out.
        self.offsets = {offset for p in self._pieces for offset in range(p.first, p.last + 1)}
        #: Bytes of the values that were unpacked for the messages taken last.
        self.unpacked = 0
        #: Messages that the last ``take`` passed over.
        self.passed: list[int] = []

    @property
    def next(self) -> int | None:
        """The message that is taken next; None: all were."""
        return self._pieces[0].first if self._pieces else None

    def skip(self) -> None:
        """Leave out the next message."""
        piece = self._pieces.popleft()
        if piece.first < piece.last:
            self._pieces.appendleft(piece._replace(first=piece.first + 1, at=piece.at + 1))

    def take(
        self,
        limit: int,
        room: int,
        wanted: Collection[int],
        lease: int,
        deserialize: Deserialize | None = None,
        tags: frozenset[bytes] | None = None,
    ) -> list[ShareRecord]:
        """Up to ``limit`` of the next records, those that are in ``wanted``, and at most about ``room`` bytes
        that have to be unpacked. ``tags``: those with none of these are passed over, and listed in
        ``passed``; their values are not looked at.

        Raises CorruptLog if no row can be told from the next; DamagedValue or NotDeserializable for the first
        one: if it is a later one, those before it are returned.
        """
        self.unpacked, self.passed = 0, []
        if self._rows is None:
            self._rows, self._blob = decode_lazily(self._blob, self._count), b""
        records: list[ShareRecord] = []
        while self._pieces and len(records) < limit and self.unpacked < room:
            piece = self._pieces[0]
            if tags is not None and not self._is_tagged(_headers(self._rows, piece.at), tags, wanted):
                continue
            stop = piece.at + min(limit - len(records), piece.last - piece.first + 1)
            try:
                rows = self._plain(self._rows, piece.at, stop, room - self.unpacked)
            except UnsoundValue as error:
                if records:
                    break
                raise DamagedValue(self.topic, self.partition, piece.first, error.reason) from error
            for row in rows:
                if tags is not None and not self._is_tagged(row[2], tags, wanted):
                    continue
                if self._pieces[0].first in wanted:
                    try:
                        records.append(self._record(row, self._pieces[0], lease, deserialize))
                    except NotDeserializable:
                        if records:
                            return records
                        raise
                self.skip()
        return records

    def _is_tagged(
        self, headers: Mapping[str, bytes] | None, tags: frozenset[bytes], wanted: Collection[int]
    ) -> bool:
        """Whether the next message, which has these headers, has one of the tags; otherwise it is passed
        over."""
        if (headers or {}).get(TAG) in tags:
            return True
        offset = self._pieces[0].first
        if offset in wanted:
            self.passed.append(offset)
        self.skip()
        return False

    def _record(self, row: Row, piece: _Piece, lease: int, deserialize: Deserialize | None) -> ShareRecord:
        key, value, headers, tx_id = row
        made: object = value
        if deserialize is not None:
            try:
                made = deserialize(value)
            except Exception as error:
                raise NotDeserializable(self.topic, self.partition, piece.first, shown(error)) from error
        return ShareRecord(
            self.topic,
            self.partition,
            piece.first,
            piece.ts_ms,
            key,
            made,
            {} if headers is None else headers,
            tx_id,
            piece.expiries + (history(headers).attempt if self._internal else 1),
            lease,
        )

    def _plain(self, rows: list[Row] | PackedRows, start: int, stop: int, room: int) -> Sequence[Row]:
        if not isinstance(rows, PackedRows):
            return rows[start:stop]
        found = rows.unpacked(start, rows.fitting(start, stop, room))
        self.unpacked += sum(len(value) for _, value, _, _ in found)
        return found


def _headers(rows: list[Row] | PackedRows, at: int) -> Mapping[str, bytes] | None:
    return rows.headers(at) if isinstance(rows, PackedRows) else rows[at][2]


def _pieces(row: AcquiredRow) -> deque[_Piece]:
    """What was handed out, cut where runs begin. Raises CorruptLog for a message that is in no run."""
    found: deque[_Piece] = deque()
    runs, at = iter(row.runs), 0
    base, count, ts_ms, _ = next(runs, (0, 0, 0, 0))
    for first, last, expiries in zip(row.leased[::3], row.leased[1::3], row.leased[2::3], strict=True):
        while first <= last:
            while first >= base + count:
                at += count
                base, count, ts_ms, _ = next(runs, (-1, 0, 0, 0))
                if base < 0:
                    break
            if not base <= first < base + count:
                raise CorruptLog(f"offset {first} of {row.topic}/{row.partition} came without its row")
            stop = min(last, base + count - 1)
            found.append(_Piece(first, stop, expiries, at + first - base, ts_ms))
            first = stop + 1
    return found


# ------------------------------------------------------------------------------------------------------------
# Sets of offsets as ranges: what goes into requests, and what brokers keep.


def merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same offsets as sorted ranges ``(first, last)`` with gaps between them."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            if last > found[-1][1]:
                found[-1] = found[-1][0], last
        else:
            found.append((first, last))
    return found


def ranges_of(offsets: Iterable[int]) -> list[tuple[int, int]]:
    """Single offsets as sorted ranges."""
    return merged((offset, offset) for offset in offsets)


def flat(ranges: Iterable[tuple[int, int]]) -> list[int]:
    """``[first, last, first, last, ...]``, as requests have them."""
    return [end for pair in ranges for end in pair]


def pairs(flat_ranges: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The opposite of ``flat``."""
    return zip(flat_ranges[::2], flat_ranges[1::2], strict=True)


#: Batches whose leases ended while the application still had messages of them. Their acks count as long as
#: they are known here; an application that takes messages and never settles them must not fill the memory.
LOST_MAX = 1_000

#: Shortest pause between two attempts to extend a lease.
EXTEND_PAUSE_S = 0.2

#: Topic, partition, and the topic's id.
TopicIdPartition: TypeAlias = tuple[str, int, int]
#: Numbers of leases: two consumers, also of two processes, never have the same one, so that a record which
#: another consumer polled is recognised.
_numbers = itertools.count(random.getrandbits(40) << 20)


class Batch:
    """Messages of one partition under one lease. ``open``: those that are not settled."""

    __slots__ = (
        "came", "content", "expires", "extend_at", "extending", "gid", "handed", "lease_s", "lost", "number",
        "open", "own", "since",
    )  # fmt: skip

    def __init__(self, gid: int, content: Acquired, now: float, lease_s: float) -> None:
        self.number = next(_numbers)
        self.gid, self.content, self.open = gid, content, content.offsets
        #: Those of ``open`` that the application has.
        self.handed: set[int] = set()
        #: When a message of it was last handed out, or else when it came.
        self.came = self.since = now
        self.expires, self.lease_s = now + lease_s, lease_s
        #: At half of the lease, so that more attempts fit into the rest.
        self.extend_at = now + lease_s / 2
        self.extending = self.lost = False
        #: Messages whose lease is not extended with the batch, and when it ends: the application extends it,
        #: or it is gone.
        self.own: dict[int, float] = {}

    @property
    def source(self) -> TopicIdPartition:
        return self.content.topic, self.content.partition, self.content.topic_id

    @property
    def waiting(self) -> set[int]:
        """Those that wait in the buffer."""
        return self.open - self.handed

    @property
    def tended(self) -> set[int]:
        """Those whose lease is extended unasked."""
        return self.open - self.own.keys()

    @property
    def over_at(self) -> float:
        """When the last lease of its messages ends."""
        return max(self.own.values(), default=0.0) if self.own.keys() >= self.open else self.expires


class Unreadable(NamedTuple):
    """A message that cannot be handed out, and why."""

    batch: Batch
    offset: int
    reason: str


class HeldBatches:
    """All batches of one consumer. Every method runs under its lock."""

    def __init__(
        self,
        extend_max_s: float,
        deserialize: Deserialize | None = None,
        tags: frozenset[bytes] | None = None,
    ) -> None:
        """``tags``: messages with none of these are not handed out; see ``passed_over``."""
        self._extend_max_s, self._deserialize, self._tags = extend_max_s, deserialize, tags
        self._batches: dict[int, Batch] = {}
        self._ready: deque[Batch] = deque()  # those with messages in the buffer
        self._lost: deque[int] = deque()
        #: What ``take`` has settled because of its tag; the caller acks it, and empties this.
        self.passed_over: list[tuple[Batch, int]] = []
        #: Messages in the buffer, with the application, and those that the application is done with.
        self.buffered = self.handed = self.done = 0
        #: Leases that ended before their messages were settled.
        self.leases_lost = 0
        #: Broker group -> the number of the last call for messages that it has answered.
        self.answered: dict[int, int] = {}

    def __len__(self) -> int:
        """Messages that are held: in the buffer, or with the application."""
        return sum(len(batch.open) for batch in self._batches.values() if not batch.lost)

    def add(self, gid: int, content: Acquired, now: float, lease_s: float) -> None:
        """Takes the messages of a new lease into the buffer."""
        batch = Batch(gid, content, now, lease_s)
        self._batches[batch.number] = batch
        self._ready.append(batch)
        self.buffered += len(batch.open)

    # ------------------------------------------------------------ handing out

    def take(self, limit: int, now: float) -> tuple[list[ShareRecord], list[Unreadable]]:
        """At most ``limit`` messages from the buffer; and messages that cannot be read, which the caller
        settles."""
        records: list[ShareRecord] = []
        unreadable: list[Unreadable] = []
        room = UNPACKED_BYTES
        while self._ready and len(records) < limit and room > 0:
            batch = self._ready[0]
            if batch.lost or batch.expires <= now or batch.content.next is None:
                self._ready.popleft()
                self._drop_buffered(batch)
                continue
            try:
                part = batch.content.take(
                    limit - len(records), room, batch.open, batch.number, self._deserialize, self._tags
                )
            except (NotDeserializable, DamagedValue) as error:
                batch.content.skip()
                unreadable.append(Unreadable(batch, error.offset, f"{type(error).__name__}: {error.reason}"))
                self._hand(batch, [error.offset], now)
                continue
            except CorruptLog as error:  # no row can be told from the next
                self._ready.popleft()
                lost = sorted(batch.waiting)
                unreadable += [Unreadable(batch, offset, str(error)) for offset in lost]
                self._hand(batch, lost, now)
                continue
            finally:
                self._pass_over(batch)
            if part:  # of values that were passed over, nothing is kept
                room -= batch.content.unpacked
            self._hand(batch, [record.offset for record in part], now)
            records += part
        return records, unreadable

    def _pass_over(self, batch: Batch) -> None:
        self.done += len(batch.content.passed)
        for offset in batch.content.passed:
            self.settled(batch, offset)
            self.passed_over.append((batch, offset))
        batch.content.passed = []

    def _hand(self, batch: Batch, offsets: Collection[int], now: float) -> None:
        batch.handed.update(offsets)
        batch.since = now
        self.buffered -= len(offsets)
        self.handed += len(offsets)

    # ------------------------------------------------------------ settling

    def find(self, record: ConsumerRecord) -> Batch:
        """The batch of a record that the application has. Raises RecordNotHeld."""
        batch = self._batches.get(record.lease) if isinstance(record, ShareRecord) else None
        if (
            batch is None
            or record.offset not in batch.handed
            or (record.topic, record.partition) != batch.source[:2]
        ):
            raise RecordNotHeld(record.topic, record.partition, record.offset)
        return batch

    def settled(self, batch: Batch, offset: int) -> None:
        """This one is done with: it is not open any more."""
        if offset in batch.open:
            batch.open.discard(offset)
            if offset in batch.handed:
                batch.handed.discard(offset)
                if not batch.lost:
                    self.handed -= 1
                    self.done += 1
            else:
                self.buffered -= 1
            batch.own.pop(offset, None)
        if not batch.open:
            self._batches.pop(batch.number, None)

    def reopened(self, batch: Batch, offset: int) -> None:
        """Settling it failed: the application has it as before."""
        if not batch.lost:
            self.handed += 1
            self.done -= 1
        batch.open.add(offset)
        batch.handed.add(offset)
        self._batches[batch.number] = batch

    def extended_alone(self, batch: Batch, offset: int, until: float) -> None:
        """The application has extended the lease of this one, and will do so from now on."""
        if offset in batch.open:
            batch.own[offset] = until

    # ------------------------------------------------------------ leases

    def tend(self, now: float) -> list[Batch]:
        """Ends what has expired; returns the batches to extend now. The caller says how that ended."""
        due: list[Batch] = []
        for batch in list(self._batches.values()):
            if batch.lost:
                continue
            if batch.over_at <= now:
                self._lose(batch, now)
            elif not batch.extending and self._may_extend(batch) and batch.extend_at <= now:
                batch.extending = True
                due.append(batch)
        return due

    def next_tend(self) -> float:
        """When ``tend`` is due; infinity if nothing is held."""
        times = [float("inf")]
        for batch in self._batches.values():
            if not batch.lost:
                times.append(batch.over_at)
                if not batch.extending and self._may_extend(batch):
                    times.append(batch.extend_at)
        return min(times)

    def _may_extend(self, batch: Batch) -> bool:
        """Not when the time of all extensions is over: then the lease ends by itself."""
        return batch.extend_at < batch.since + self._extend_max_s and bool(batch.tended)

    def extended(self, batch: Batch, refused: Iterable[int], asked_at: float) -> None:
        """The broker has extended a batch, except for these messages, which are others' now."""
        batch.extending = False
        batch.expires = max(batch.expires, asked_at + batch.lease_s)
        batch.extend_at = asked_at + batch.lease_s / 2
        for offset in refused:
            if offset in batch.handed:
                batch.own[offset] = 0.0
                self.leases_lost += 1
            else:
                self.settled(batch, offset)

    def not_extended(self, batch: Batch, now: float) -> None:
        """The call failed: it is tried again, a few times until the lease ends."""
        batch.extending = False
        batch.extend_at = now + max((batch.expires - now) / 2, EXTEND_PAUSE_S)

    def _lose(self, batch: Batch, now: float) -> None:
        self.handed -= len(batch.handed)
        self.done += len(batch.handed)
        batch.lost = True
        self._drop_buffered(batch)
        if batch.open:
            self.leases_lost += sum(0 < batch.own.get(offset, now) <= now for offset in batch.open)
            self._lost.append(batch.number)
            while len(self._lost) > LOST_MAX:
                self._batches.pop(self._lost.popleft(), None)

    def _drop_buffered(self, batch: Batch) -> None:
        for offset in batch.waiting:
            self.settled(batch, offset)

    def waits_since(self) -> float:
        """When the oldest in the buffer came; infinity if it is empty."""
        while self._ready and self._ready[0].content.next is None:
            self._drop_buffered(self._ready.popleft())
        return self._ready[0].came if self._ready else float("inf")

    def give_back(self) -> list[tuple[Batch, list[int]]]:
        """Takes everything out of the buffer, for other consumers."""
        given = []
        for batch in self._ready:
            offsets = sorted(batch.waiting)
            self._drop_buffered(batch)
            if offsets and not batch.lost:
                given.append((batch, offsets))
        self._ready.clear()
        return given


# ------------------------------------------------------------------------------------------------------------
# Acks on their way: gathered for some milliseconds, so that one request carries many of them as few ranges.
#
# An ack may be sent as often as needed: what is final stays final, whoever says it, also after the lease. So
# acks whose request failed are put back, and go with the next one. Pure: takes ``now``.

Ranges = list[tuple[int, int]]


class _Waiting:
    """Acks for one broker group."""

    __slots__ = ("by_partition", "count", "due")

    def __init__(self, due: float) -> None:
        self.by_partition: dict[TopicIdPartition, Ranges] = {}
        self.count, self.due = 0, due


class AckAccumulator:
    """The acks of one consumer that are in no request yet, by broker group and partition."""

    def __init__(self, linger_s: float, records_max: int) -> None:
        self._linger_s, self._records_max = linger_s, records_max
        self._waiting: dict[int, _Waiting] = {}

    def __len__(self) -> int:
        return sum(waiting.count for waiting in self._waiting.values())

    def add(self, gid: int, source: TopicIdPartition, offset: int, now: float) -> bool:
        """Takes one ack. True if the time of the next request has changed."""
        waiting = self._waiting.get(gid)
        news = waiting is None
        if waiting is None:
            waiting = self._waiting[gid] = _Waiting(now + self._linger_s)
        ranges = waiting.by_partition.get(source)
        if ranges is None:
            waiting.by_partition[source] = [(offset, offset)]
        elif ranges[-1][1] + 1 == offset:  # the usual case: handled in order
            ranges[-1] = ranges[-1][0], offset
        else:
            ranges.append((offset, offset))
        waiting.count += 1
        if waiting.count == self._records_max:
            waiting.due, news = now, True
        return news

    def put_back(self, gid: int, source: TopicIdPartition, ranges: Ranges, due: float) -> None:
        """Takes acks whose request failed; they are sent again at ``due``, or with an earlier request."""
        waiting = self._waiting.get(gid)
        if waiting is None:
            waiting = self._waiting[gid] = _Waiting(due)
        waiting.by_partition.setdefault(source, []).extend(ranges)
        waiting.count += sum(last - first + 1 for first, last in ranges)

    def hurry(self, now: float) -> None:
        """Everything is due now: somebody waits for it."""
        for waiting in self._waiting.values():
            waiting.due = min(waiting.due, now)

    def due(self, now: float) -> list[int]:
        """The broker groups whose acks must not wait longer."""
        return [gid for gid, waiting in self._waiting.items() if waiting.due <= now]

    def next_due(self, but: Collection[int] = ()) -> float:
        """When the next acks must be sent, but those for some groups; infinity if there are none."""
        times = (waiting.due for gid, waiting in self._waiting.items() if gid not in but)
        return min(times, default=float("inf"))

    def take(self, gid: int) -> dict[TopicIdPartition, Ranges]:
        """Everything that waits for this broker group, as sorted ranges."""
        waiting = self._waiting.pop(gid, None)
        if waiting is None:
            return {}
        return {source: merged(ranges) for source, ranges in waiting.by_partition.items()}
