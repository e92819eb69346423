"""What the parts of a producer share about delayed messages."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import google_crc32c

from escrowmq.actors.client.cancelling import ScheduleId
from escrowmq.replication.delivery_times import check_not_too_far, delivery_time
from escrowmq.replication.errors import InvalidMessage, TooManyScheduled
from escrowmq.replication.format import timer_ops
from escrowmq.replication.format.timer_ops import owner_of
from escrowmq.replication.model import Message

#: Suggested pause for a caller that found the limit of waiting messages reached.
LIMIT_RETRY_AFTER_S = 5.0


#: A transaction's message that is readable at its commit; see ``blocks.Encoded``.
Now = tuple[str, int, bytes]


class Later(NamedTuple):
    """A transaction's message that is not readable at once. ``time``: see ``delivery_time``; ``ordinal``:
    which of its transaction's delayed messages it is."""

    topic: str
    partition: int
    row: bytes
    time: int
    ordinal: int


def together(now: Sequence[Now], later: Sequence[Later]) -> list[Now | Later]:
    """A transaction's messages: first those that are readable at its commit."""
    return [*now, *later]


def takes_none(message: Message) -> int:
    """In place of ``DeliveryClock.time_of``, where nothing can be delayed."""
    raise InvalidMessage(f"a message to {message.topic!r} cannot be delayed here; send it without a delay")


def too_many_scheduled(limit: Any) -> TooManyScheduled:
    """The error for a broker group with as many waiting messages as it takes."""
    text = f"{limit} messages wait for their time in this broker group, its limit (broker.timers_max)"
    return TooManyScheduled(text, LIMIT_RETRY_AFTER_S)


class DeliveryClock:
    """The times of delayed messages, as requests carry them. ``wall_clock``: in seconds since the epoch."""

    def __init__(self, wall_clock: Callable[[], float] = time.time) -> None:
        self._wall_clock = wall_clock

    def time_of(self, message: Message) -> int:
        """The time of a delayed message. Raises InvalidMessage."""
        return self.time(message.delay_s, message.deliver_at)

    def time(self, delay_s: object, deliver_at: object) -> int:
        """The same for what a caller gives; one of the two is not None."""
        time_ms = delivery_time(delay_s, deliver_at)
        return time_ms if time_ms <= 0 else check_not_too_far(time_ms, self._wall_clock() * 1000)


# ------------------------------------------------------------------------------------------------------------
# The ids of a transaction's delayed messages, by message, for its result.
#
# What is kept of a transaction until its result is made is a few numbers for each delayed message, not its
# row.

#: Topic, partition, time and ordinal of a message that has an id.
Named = tuple[str, int, int, int]


def named(later: Later) -> Named | None:
    """What the id of a delayed message is made of; None: with ``delay_s``, its time is known only once the
    transaction is committed."""
    return (later.topic, later.partition, later.time, later.ordinal) if later.time > 0 else None


def by_message(messages: Iterable[Message], later: Iterable[Later]) -> tuple[Named | None, ...]:
    """The same for each of a transaction's messages; None: it has no id. ``later``: the delayed ones of them,
    in order."""
    delayed = iter(later)
    return tuple(
        named(next(delayed)) if message.delay_s is not None or message.deliver_at is not None else None
        for message in messages
    )


def ids_of(app: str, tx_id: str, cluster_id: str, messages: Sequence[Named | None]) -> tuple[str | None, ...]:
    """The ids of a transaction's messages."""
    owner = owner_of(app, tx_id)
    return tuple(
        None if one is None else ScheduleId(*one[:3], owner, one[3]).text(cluster_id) for one in messages
    )


# ------------------------------------------------------------------------------------------------------------
# Delayed messages of transactions, as columns beside those of the messages that are readable at the commit.
#
# A transaction's digest covers their times, too: a repeated transaction with other times is another one.
# Otherwise its messages would come at the times of the first attempt, and the ids that its caller knows would
# be wrong.

#: Delayed messages of one partition: for each the position of its transaction in the block, its size in
#: bytes, its row, its time and its ordinal.
LaterColumn = tuple[list[int], list[int], list[bytes], list[int], list[int]]
LaterColumns = dict[tuple[str, int], LaterColumn]
#: Of blocks without delayed messages. Never changed.
NONE_LATER: LaterColumns = {}
_extend: Callable[[int, bytes], int] = google_crc32c.extend
_TIME = struct.Struct(">q")


def add_later(columns: LaterColumns, i: int, items: Iterable[Later]) -> int:
    """Adds a transaction's delayed messages; returns their size in bytes."""
    size = 0
    for topic, partition, row, time_ms, ordinal in items:
        column = columns.get((topic, partition))
        if column is None:
            column = columns[topic, partition] = ([], [], [], [], [])
        txs, sizes, rows, times, ordinals = column
        txs.append(i)
        sizes.append(len(row))
        rows.append(row)
        times.append(time_ms)
        ordinals.append(ordinal)
        size += len(row)
    return size


def digest_with(digest: int, items: Iterable[Later]) -> int:
    """The digest of a transaction's messages, from that of those without delay."""
    for _, _, row, time_ms, _ in items:
        digest = _extend(_extend(digest, row), _TIME.pack(time_ms))
    return digest


def select_later(columns: LaterColumns, renumbered: dict[int, int]) -> tuple[LaterColumns, int]:
    """The columns of some of a block's transactions, with their size in bytes. ``renumbered``: from their
    positions to those in the new block."""
    if not columns:
        return NONE_LATER, 0
    found: LaterColumns = {}
    size = 0
    for name, (txs, sizes, rows, times, ordinals) in columns.items():
        kept = [i for i, tx in enumerate(txs) if tx in renumbered]
        if kept:
            found[name] = (
                [renumbered[txs[i]] for i in kept],
                [sizes[i] for i in kept],
                [rows[i] for i in kept],
                [times[i] for i in kept],
                [ordinals[i] for i in kept],
            )
            size += sum(found[name][1])
    return found, size


def merge_later(blocks: Sequence[tuple[int, LaterColumns]]) -> LaterColumns:
    """The columns of several blocks; each with the position of its first transaction."""
    merged: LaterColumns = {}
    for start, columns in blocks:
        for name, column in columns.items():
            into = merged.get(name)
            if into is None:
                into = merged[name] = ([], [], [], [], [])
            into[0].extend([tx + start for tx in column[0]])
            for cells, more in zip(into[1:], column[1:], strict=True):
                cells.extend(more)  # type: ignore[attr-defined]
    return merged


def encode_later(columns: LaterColumns, id_of: Callable[[str], int]) -> list[bytes]:
    """A PRE_SCHEDULED for each column."""
    return [
        timer_ops.pre_scheduled(topic, partition, txs, sizes, times, ordinals, rows, id_of(topic))
        for (topic, partition), (txs, sizes, rows, times, ordinals) in columns.items()
    ]
