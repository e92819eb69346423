"""What one answer brought of one partition, and the records made of it.

The broker sends whole runs of messages, as for a fetch, and says which of these it has handed out. Rows are
decoded all at once, by one C call, only when the application gets to them. Compressed values are unpacked
when they are handed out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from escrowmq.actors.client.failure_arguments import shown
from escrowmq.actors.client.values import Deserialize
from escrowmq.actors.share_consumer.record import ShareRecord
from escrowmq.replication.calling.share_answers import AcquiredRow
from escrowmq.replication.errors import CorruptLog, DamagedValue, NotDeserializable
from escrowmq.replication.format.codec import Row, decode_lazily
from escrowmq.replication.format.forwarded import history
from escrowmq.replication.format.internal_topics import is_internal
from escrowmq.replication.format.packing import PackedRows, UnsoundValue
from escrowmq.replication.message_headers import TAG


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
