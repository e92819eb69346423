"""When the messages of one call for many can be read: ``delay_s`` or ``deliver_at`` of ``send_many`` and of
the calls with a table, from one value for all, a list, or a column.

All of them are checked before anything is sent, and every error names its row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from escrowmq.actors.producer.encoding.delayed_messages import DeliveryClock
from escrowmq.actors.producer.encoding.many import Piece
from escrowmq.replication.delivery_times import AT_ONCE
from escrowmq.replication.errors import InvalidMessage


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
        _listed("delay_s", delivery.delay_s, count),
        _listed("deliver_at", delivery.deliver_at, count),
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


def times_of_table(clock: DeliveryClock, table: Any, delivery: Delivery, count: int) -> list[int] | None:
    """The same for the rows of a table; a str is the name of a column."""
    return times_of_rows(clock, Delivery(*(_cells(table, given) for given in delivery)), count)


def timed(pieces: Iterator[Piece], times: Sequence[int] | None) -> Iterator[Piece]:
    """The same pieces, with the times of their messages. ``times``: of all messages of the call."""
    for piece in pieces:
        if times is not None:
            for run in piece:
                run.times = [times[number] for number in run.numbers]
        yield piece


def _listed(what: str, given: Any, count: int) -> list[Any] | None:
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


def _cells(table: Any, given: Any) -> Any:
    if not isinstance(given, str):
        return given
    import pyarrow as pa
    import pyarrow.compute as pc

    from escrowmq.actors.producer.encoding.table_rows import column_of

    kinds = pa.types.is_timestamp, pa.types.is_integer, pa.types.is_floating, pa.types.is_null
    column = column_of(table, given, kinds, "a timestamp with a time zone, or numbers")
    if pa.types.is_timestamp(column.type):
        if column.type.tz is None:
            raise InvalidMessage(f"column {given!r} has no time zone; give it one, such as UTC")
        ms = pa.timestamp("ms", column.type.tz)
        column = pc.ceil_temporal(column, 1, "millisecond").cast(ms).cast(pa.int64())
    return column.to_pylist()
