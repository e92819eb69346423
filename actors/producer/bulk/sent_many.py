"""What became of many messages of one call: one object for all of them.

It keeps the parcels in which the messages are, and which message of the call each one is. Everything else
(metadata, errors, columns of offsets) is made for those who ask.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, overload

from escrowmq.actors.client.router import LoopBridge
from escrowmq.actors.producer.core import ProducerCore
from escrowmq.actors.producer.encoding.many import (
    NOT_DELAYED,
    Columns,
    Delivery,
    Headers,
    Piece,
    check_topic,
    timed,
    times_of_rows,
)
from escrowmq.actors.producer.plain.record_batch import Ending, RecordBatch, SendFuture
from escrowmq.replication.errors import Closed, EscrowMQError, NotSupported, Overloaded
from escrowmq.replication.model import RecordMetadata

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

#: In columns: the message has no offset, because it failed or has no answer yet.
NONE = -1


class SentMany(Sequence[RecordMetadata]):
    """The messages of one ``send_many`` or ``send_table``, by row. Thread-safe.

    ``len`` is the number of rows. ``sent[row]`` waits for a row's metadata, or raises its error. The columns
    ``offsets``, ``partitions`` and ``timestamps`` are numpy arrays of int64, with -1 where a row has no
    offset (yet). It keeps a few hundred bytes for each batch and at most eight for each row.
    """

    def __init__(self) -> None:
        self._parts: list[tuple[RecordBatch, Sequence[int]]] = []
        self._count = 0
        self._parts_of: tuple[Any, Any] | None = None  # part and number in it, by row: made for who asks

    def add(self, parcel: RecordBatch, numbers: Sequence[int]) -> None:
        """For the producer: so many more rows, and which ones of the call they are."""
        self._parts.append((parcel, numbers))
        self._count += len(numbers)

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"<SentMany of {self._count} messages, {'done' if self.done() else 'pending'}>"

    # ------------------------------------------------------------ waiting

    def done(self) -> bool:
        """Whether every row has an offset or an error."""
        return all(parcel.first_open(len(numbers)) is None for parcel, numbers in self._parts)

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until every row has an offset or an error; False if ``timeout`` seconds pass first."""
        ends = None if timeout is None else time.monotonic() + timeout
        for future in self._open():
            try:
                future.exception(None if ends is None else max(0.0, ends - time.monotonic()))
            except FutureTimeout:
                return False
        return True

    def result(self, timeout: float | None = None) -> SentMany:
        """Itself, once every row has an offset. Raises the error of the first row that has one; TimeoutError
        if ``timeout`` seconds pass first."""
        if not self.wait(timeout):
            raise FutureTimeout
        errors = self.errors
        if errors:
            raise errors[min(errors)]
        return self

    async def end(self, bridge: LoopBridge) -> None:
        """For the producer: waits in an event loop until every row has an offset or an error."""
        for future in self._open():
            with contextlib.suppress(EscrowMQError):  # the rows have it
                await future.asyncio_future(bridge)

    def _open(self) -> Iterator[SendFuture]:
        """A message without answer, until there is none; wait for each before you take the next one."""
        for parcel, numbers in self._parts:
            while (number := parcel.first_open(len(numbers))) is not None:
                yield SendFuture(parcel, number)

    # ------------------------------------------------------------ rows

    def future(self, row: int) -> Future[RecordMetadata]:
        """The future of one row, as ``send`` would have returned it."""
        parcel, number = self._find(row)
        return SendFuture(parcel, number)  # type: ignore[return-value]  # see SendFuture

    @overload
    def __getitem__(self, row: int) -> RecordMetadata: ...
    @overload
    def __getitem__(self, row: slice) -> list[RecordMetadata]: ...
    def __getitem__(self, row: int | slice) -> RecordMetadata | list[RecordMetadata]:
        if isinstance(row, slice):
            return [self.future(one).result() for one in range(*row.indices(self._count))]
        return self.future(row).result()

    def _find(self, row: int) -> tuple[RecordBatch, int]:
        if row < 0:
            row += self._count
        if not 0 <= row < self._count:
            raise IndexError(f"row {row} of {self._count}")
        if self._parts_of is None:
            self._parts_of = self._find_parts()
        parts, numbers = self._parts_of
        parcel = self._parts[parts[row]][0]
        return parcel, numbers[row]

    def _find_parts(self) -> tuple[list[int], list[int]]:
        parts, inside = [0] * self._count, [0] * self._count
        for part, (_, numbers) in enumerate(self._parts):
            if isinstance(numbers, range):
                parts[numbers.start : numbers.stop] = [part] * len(numbers)
                inside[numbers.start : numbers.stop] = range(len(numbers))
                continue
            for number, row in enumerate(numbers):
                parts[row], inside[row] = part, number
        return parts, inside

    # ------------------------------------------------------------ columns

    @property
    def errors(self) -> dict[int, EscrowMQError]:
        """The error of each row that has one. Rows of one batch share it."""
        found: dict[int, EscrowMQError] = {}
        for ending, rows in self._endings():
            error = ending.error()
            if error is not None:
                found.update(dict.fromkeys(map(int, rows), error))
        return found

    @property
    def failed(self) -> int:
        """How many rows have an error."""
        return sum(len(rows) for ending, rows in self._endings() if ending.has_failed)

    @property
    def offsets(self) -> Integers:
        """The offset of each row. Delayed messages have none."""
        return self._column(lambda ending, count: ending.offsets(_np().arange(count)))

    @property
    def partitions(self) -> Integers:
        """The partition of each row."""
        return self._column(lambda ending, count: ending.metadata(ending.start).partition)

    @property
    def schedule_ids(self) -> list[str | None]:
        """For each row, the id for ``Producer.cancel``; None if it is not delayed, or has failed, or has no
        answer yet. Made for whoever asks, about 3 us for each delayed row."""
        found: list[str | None] = [None] * self._count
        for ending, rows in self._endings():
            if not ending.has_failed:
                for number, row in enumerate(rows, ending.start):
                    found[row] = ending.schedule_id(number)
        return found

    @property
    def timestamps(self) -> Integers:
        """The broker's time of each row, in ms since the epoch."""
        return self._column(lambda ending, count: ending.metadata(ending.start).timestamp)

    def _column(self, of: Callable[[Ending, int], Any]) -> Integers:
        numpy = _np()
        column: Integers = numpy.full(self._count, NONE, numpy.int64)
        for ending, rows in self._endings():
            if not ending.has_failed:
                where: Any = slice(rows.start, rows.stop) if isinstance(rows, range) else numpy.asarray(rows)
                column[where] = of(ending, len(rows))
        return column

    def _endings(self) -> Iterator[tuple[Ending, Sequence[int]]]:
        for parcel, numbers in self._parts:
            for ending in parcel.endings:
                yield ending, numbers[ending.start : ending.end]


def _np() -> Any:
    try:
        import numpy
    except ImportError as error:
        raise NotSupported("columns of results need numpy; install it, or look at single rows") from error
    return numpy


# ------------------------------------------------------------------------------------------------------------
# Hands the rows of ``send_many`` and ``send_table`` over to the producer's queues, piece by piece.


def send_many(
    core: ProducerCore,
    topic: str,
    values: Iterable[bytes],
    keys: Iterable[bytes | None] | None,
    headers: Headers | Iterable[Headers],
    partition: int | None,
    delivery: Delivery = NOT_DELAYED,
    given_up: Callable[[], bool] = lambda: False,
) -> SentMany:
    """See ``Producer.send_many``. ``given_up()``: nobody waits any more, so nothing more is handed over."""
    core.check_open()
    count = core.encoder.partitions(check_topic(topic))
    how = core.encoder.serialize, core.encoder.pack
    rows = Columns(core.config, topic, count, values, keys, headers, partition, *how)
    times = times_of_rows(core.delays, delivery, len(rows))
    return _hand_over_all(core, topic, rows, times, given_up)


def send_table(
    core: ProducerCore,
    topic: str,
    table: Any,
    value: str,
    key: str | None,
    partition: int | None,
    delivery: Delivery = NOT_DELAYED,
    given_up: Callable[[], bool] = lambda: False,
) -> SentMany:
    """See ``Producer.send_table``; ``given_up`` as for ``send_many``."""
    try:
        from escrowmq.actors.producer.encoding.table_rows import TableRows, times_of_table
    except ImportError as error:
        raise NotSupported(
            f"send_table needs pyarrow and numpy: pip install 'escrowmq[arrow]' ({error})"
        ) from error
    core.check_open()
    count = core.encoder.partitions(check_topic(topic))
    rows = TableRows(core.config, topic, count, table, value, key, partition, core.encoder.pack_column)
    times = times_of_table(core.delays, table, delivery, len(rows))
    return _hand_over_all(core, topic, rows, times, given_up)


class _Rows(Protocol):
    """The checked rows of a call: ``Columns`` of lists, or ``TableRows``."""

    def __len__(self) -> int: ...
    def pieces(self, gathers: Callable[[], int]) -> Iterator[Piece]: ...


def _hand_over_all(
    core: ProducerCore, topic: str, rows: _Rows, times: Sequence[int] | None, given_up: Callable[[], bool]
) -> SentMany:
    """Hands all pieces over, waiting for room before each for up to ``buffer_wait_s``.

    If there is no room for the first one, raises Overloaded; Closed if the producer was closed. Later, the
    rows that were not handed over have that error.
    """
    sent = SentMany()
    for piece in timed(rows.pieces(partial(core.gathers, topic)), times):
        if given_up():
            break
        size = sum(run.size for run in piece)
        try:
            parcels = core.when_room(size, partial(core.hand_over, topic, piece, size))
        except (Overloaded, Closed) as error:
            if not len(sent):
                raise
            rest = RecordBatch(topic, 0)
            rest.end(Ending(rest, 0, len(rows) - len(sent)).failed(error.with_traceback(None)))
            sent.add(rest, range(len(sent), len(rows)))
            break
        for parcel, run in zip(parcels, piece, strict=True):
            sent.add(parcel, run.numbers)
    return sent
