"""From lists of bytes to encoded runs: the checks and the encoding of ``send_many``; and for all calls for
many, when their messages can be read.

Whatever Python does for each row costs more than its encoding (a call of ours 0.1 us, one of C 0.02 us), so
checks look at whole columns, and rows are encoded by a ``map`` in C: 0.25 us per row instead of 1.5 us for a
``send``. Everything is checked before anything is handed over, and every error names its row.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import accumulate, repeat
from operator import add
from typing import Any, NamedTuple

import msgspec

from escrowmq.actors.producer.config import ProducerConfig
from escrowmq.actors.producer.encoding.delayed_messages import DeliveryClock
from escrowmq.actors.producer.encoding.encoder import CANNOT_ENCODE, check_not_internal, crc32c
from escrowmq.replication.delivery_times import AT_ONCE
from escrowmq.replication.errors import InvalidMessage, MessageTooLarge, NotSerializable, UnknownTopic
from escrowmq.replication.format.codec import encode_fields

# ------------------------------------------------------------------------------------------------------------
# Encoded messages of one call for many, by partition: what ``send_many`` and ``send_table`` hand over.
#
# A call is handed over in pieces, so that a table larger than the producer's buffer never has to fit into it.
# Each piece has at most one run for each partition; if no message has a key, runs of about a request.

#: Bytes of rows in one piece. Large enough that work per piece does not count, small enough that many callers
#: share a buffer.
PIECE_BYTES = 512 << 10


class Run:
    """Messages of one partition in order; ``partition`` None: that in which keyless messages gather.

    ``rows`` are encoded messages or, if there are ``sizes``, one body of so many concatenated ones.
    ``numbers``: which messages of the call they are. ``times``: when each can be read, as requests carry it;
    None: at once.
    """

    __slots__ = ("numbers", "partition", "rows", "size", "sizes", "times")

    def __init__(
        self,
        partition: int | None,
        rows: list[bytes],
        numbers: Sequence[int],
        size: int,
        sizes: list[int] | None = None,
    ) -> None:
        self.partition, self.rows, self.numbers, self.size, self.sizes = partition, rows, numbers, size, sizes
        self.times: list[int] | None = None


#: Runs that are handed over together.
Piece = list[Run]


def piece_bytes(config: ProducerConfig) -> int:
    """How many bytes of rows a piece has at most, unless it is a single row."""
    return min(PIECE_BYTES, max(config.buffer_bytes // 4, 1))


#: Headers of one message, or None.
Headers = Mapping[str, bytes] | None
#: Rows that are looked at to see how many of them fit into a piece: at first, and at most. In between, twice
#: as many as fitted before.
ROWS_AT_FIRST, ROWS_AT_ONCE = 512, 8_192
#: A row's bytes besides its key, value and headers are at most these.
ROW_OVERHEAD = 16


class RowTooLarge(MessageTooLarge):
    """A row of one call for many messages is larger than a message may be. Nothing was sent."""

    def __init__(self, size_bytes: int, limit_bytes: int, row: int) -> None:
        super().__init__(size_bytes, limit_bytes)
        self.args = size_bytes, limit_bytes, row
        self.row = row

    def __str__(self) -> str:
        return f"row {self.row}: {super().__str__()}"


class Columns:
    """The arguments of one ``send_many``, checked."""

    def __init__(
        self,
        config: ProducerConfig,
        topic: str,
        partitions: int,
        values: Iterable[bytes],
        keys: Iterable[bytes | None] | None,
        headers: Headers | Iterable[Headers],
        partition: int | None,
        serialize: Callable[[Any], bytes] | None = None,
        pack: Callable[[bytes], bytes] | None = None,
    ) -> None:
        """Raises InvalidMessage, MessageTooLarge or UnknownTopic; nothing was sent then."""
        self._config, self._topic, self._count, self._pack = config, topic, partitions, pack
        self._partition = check_partition(topic, partition, partitions)
        self.values: list[bytes] = _listed("values", values)
        self.keys: list[bytes | None] | None = None if keys is None else _listed("keys", keys)
        if serialize is not None:
            self.values = _serialized(self.values, serialize)
        _check_types("value", self.values, (bytes,))
        if self.keys is not None:
            _check_length("keys", self.keys, self.values)
            _check_types("key", self.keys, (bytes, type(None)))
            self._all_keyed = None not in self.keys
        #: Encoded now, so that nothing of it can change: of all rows, or of each.
        self._header: msgspec.Raw | None = None
        self._headers: list[msgspec.Raw | None] | None = None
        if headers is None or isinstance(headers, Mapping):
            self._header = _encode_headers(headers, "headers")
        else:
            listed = _listed("headers", headers)
            _check_length("headers", listed, self.values)
            self._headers = [_encode_headers(one, f"row {row}: headers") for row, one in enumerate(listed)]
        self._besides = ROW_OVERHEAD + _length(self._header)
        self._check_sizes()

    def __len__(self) -> int:
        return len(self.values)

    def _check_sizes(self) -> None:
        """No Python code for each row, unless there is a chance that one is too large."""
        limit = self._config.message_bytes_max
        longest = self._besides + max(map(len, self.values), default=0)
        if self.keys is not None:
            longest += max(map(len, filter(None, self.keys)), default=0)
        if self._headers is not None:
            longest += max(map(_length, self._headers), default=0)
        if longest <= limit:
            return
        for row, fields in enumerate(self._fields(0, len(self.values))):
            size = len(encode_fields(fields))
            if size > limit:
                raise RowTooLarge(size, limit, row)

    def _fields(self, start: int, end: int) -> Iterator[tuple[Any, ...]]:
        keys: Iterable[bytes | None] = repeat(None) if self.keys is None else self.keys[start:end]
        headers: Iterable[msgspec.Raw | None] = repeat(self._header)
        if self._headers is not None:
            headers = self._headers[start:end]
        return zip(keys, self.values[start:end], headers, repeat(None), strict=False)

    def pieces(self, gathers: Callable[[], int]) -> Iterator[Piece]:
        """All messages in order, encoded; each piece as late as possible. ``gathers``: the partition in which
        messages without a key gather at present."""
        bytes_max = piece_bytes(self._config)
        keyless = self._partition is None and self.keys is None
        if keyless:  # each run goes to the next partition: none of them should be more than a request
            bytes_max = min(bytes_max, self._config.full_bytes)
        start, ahead = 0, ROWS_AT_FIRST
        while start < len(self.values):
            count = self._fit(slice(start, start + ahead), bytes_max)
            yield self._piece(start, start + count, gathers)
            start, ahead = start + count, min(2 * count, ROWS_AT_ONCE)

    def _fit(self, rows: slice, bytes_max: int) -> int:
        """How many of these rows make a piece; at least one."""
        sizes: Iterable[int] = map(add, map(len, self.values[rows]), repeat(self._besides))
        if self.keys is not None:
            keys = self.keys[rows]
            sizes = map(add, sizes, map(len, keys if self._all_keyed else [key or b"" for key in keys]))  # type: ignore[arg-type]
        if self._headers is not None:
            sizes = map(add, sizes, map(_length, self._headers[rows]))
        return max(1, bisect_right(list(accumulate(sizes)), bytes_max))

    def _piece(self, start: int, end: int, gathers: Callable[[], int]) -> Piece:
        rows = list(map(encode_fields, self._fields(start, end)))
        if self._pack is not None:
            rows = list(map(self._pack, rows))
        if self.keys is None or self._partition is not None:
            return [Run(self._partition, rows, range(start, end), sum(map(len, rows)))]
        return self._by_key(rows, start, end, gathers)

    def _by_key(self, rows: list[bytes], start: int, end: int, gathers: Callable[[], int]) -> Piece:
        assert self.keys is not None
        keys, count = self.keys[start:end], self._count
        if self._all_keyed:
            partitions = [digest % count for digest in map(crc32c, keys)]  # type: ignore[arg-type]
        else:
            other = gathers()  # known before rows are sorted, so that all of a partition keep their order
            partitions = [other if key is None else crc32c(key) % count for key in keys]
        of: dict[int, tuple[list[bytes], array[int]]] = {one: ([], array("q")) for one in set(partitions)}
        for number, partition, row in zip(range(start, end), partitions, rows, strict=True):
            mine = of[partition]
            mine[0].append(row)
            mine[1].append(number)
        return [
            Run(partition, mine, numbers, sum(map(len, mine))) for partition, (mine, numbers) in of.items()
        ]


def _length(headers: msgspec.Raw | None) -> int:
    return 0 if headers is None else len(memoryview(headers))


def check_partition(topic: str, partition: int | None, partitions: int) -> int | None:
    """Returns it; raises InvalidMessage or UnknownTopic if it is none of the topic's."""
    if partition is None:
        return None
    if type(partition) is not int or partition < 0:
        raise InvalidMessage(f"partition must be a non-negative int or None, not {partition!r}")
    if partition >= partitions:
        raise UnknownTopic(topic, partition, partitions)
    return partition


def check_topic(topic: str) -> str:
    """Returns it; raises InvalidMessage if it is no name, or of a topic that only brokers write into."""
    if type(topic) is not str or not topic:
        raise InvalidMessage(f"topic must be a non-empty str, not {topic!r}")
    check_not_internal(topic)
    return topic


def _listed(what: str, column: Iterable[Any]) -> list[Any]:
    if isinstance(column, str | bytes | bytearray | memoryview | Mapping):
        raise InvalidMessage(f"{what} must be a list with an element for each message, not {column!r:.80}")
    try:
        return list(column)
    except TypeError:
        raise InvalidMessage(f"{what} must be a list, not {type(column).__name__}") from None


def _serialized(values: Sequence[Any], serialize: Callable[[Any], bytes]) -> list[bytes]:
    made: list[bytes] = []
    try:
        for value in values:
            made.append(serialize(value))  # its length says which one cannot be serialized
    except NotSerializable as error:
        raise NotSerializable(f"row {len(made)}: {error}") from error
    return made


def _check_length(what: str, column: Sequence[object], values: Sequence[object]) -> None:
    if len(column) != len(values):
        raise InvalidMessage(f"{len(values)} values, but {len(column)} {what}; give one for each value")


def _check_types(what: str, column: Sequence[object], allowed: tuple[type, ...]) -> None:
    if set(map(type, column)) <= set(allowed):
        return
    row = next(row for row, found in enumerate(column) if type(found) not in allowed)
    kinds = "bytes or None" if len(allowed) > 1 else "bytes"
    raise InvalidMessage(
        f"row {row}: {what} must be {kinds}, not {type(column[row]).__name__}; encode it first"
    )


def _encode_headers(headers: Headers, where: str) -> msgspec.Raw | None:
    if not headers:
        return None
    if not isinstance(headers, Mapping):
        raise InvalidMessage(f"{where} must map str to bytes, not be {type(headers).__name__}")
    for name, value in headers.items():
        if type(name) is not str or type(value) is not bytes:
            raise InvalidMessage(f"{where} must map str to bytes, not {name!r:.40} to {type(value).__name__}")
    try:
        return msgspec.Raw(encode_fields(headers))
    except CANNOT_ENCODE as error:
        raise InvalidMessage(f"{where} cannot be encoded: {error}") from error


# ------------------------------------------------------------------------------------------------------------
# When the messages of one call for many can be read: ``delay_s`` or ``deliver_at``, from one value for all, a
# list, or a table's column.
#
# All of them are checked before anything is sent, and every error names its row.


class Delivery(NamedTuple):
    """As the caller gave it. Elements that are None, or null: these messages are not delayed."""

    delay_s: Any = None
    deliver_at: Any = None

    @property
    def is_given(self) -> bool:
        """Whether any message is delayed."""
        return self.delay_s is not None or self.deliver_at is not None


NOT_DELAYED = Delivery()


def times_of_rows(clock: DeliveryClock, delivery: Delivery, count: int) -> list[int] | None:
    """For each of ``count`` messages, when it can be read, as requests carry it; None: all at once. Raises
    InvalidMessage."""
    if not delivery.is_given:
        return None
    delays, times = (
        _times("delay_s", delivery.delay_s, count),
        _times("deliver_at", delivery.deliver_at, count),
    )
    if delays is not None and times is not None:
        raise InvalidMessage("give delay_s or deliver_at, not both")
    if delays is None and times is None:
        return [clock.time(*delivery)] * count
    found: list[int] = []
    try:
        for delay_s in delays or ():
            found.append(AT_ONCE if delay_s is None else clock.time(delay_s, delivery.deliver_at))
        for deliver_at in times or ():
            found.append(AT_ONCE if deliver_at is None else clock.time(delivery.delay_s, deliver_at))
    except InvalidMessage as error:
        raise InvalidMessage(f"row {len(found)}: {error}") from error
    return found


def timed(pieces: Iterator[Piece], times: Sequence[int] | None) -> Iterator[Piece]:
    """The same pieces, with the times of their messages. ``times``: of all messages of the call."""
    for piece in pieces:
        if times is not None:
            for run in piece:
                run.times = [times[number] for number in run.numbers]
        yield piece


def _times(what: str, given: Any, count: int) -> list[Any] | None:
    """The elements of a list; None: it is one value for all, or none."""
    if given is None or isinstance(given, int | float | str | bytes | datetime):
        return None
    try:
        listed = given.tolist() if hasattr(given, "tolist") else list(given)
    except TypeError:
        return None  # the value itself is wrong, and will be refused
    if len(listed) != count:
        given_for = f"{len(listed)} of {what}"
        raise InvalidMessage(f"{count} values, but {given_for}; give one for each value, or one for all")
    return listed
