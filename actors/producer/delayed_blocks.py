"""Delayed messages of transactions, as columns beside those of the messages that are readable at the commit.

A transaction's digest covers their times, too: a repeated transaction with other times is another one.
Otherwise its messages would come at the times of the first attempt, and the ids that its caller knows would
be wrong.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence

import google_crc32c

from escrowmq.actors.producer.delayed_messages import Later
from escrowmq.replication.format import timer_ops

#: Delayed messages of one partition: for each the position of its transaction in the block, its size in
#: bytes, its row, its time and its ordinal.
LaterColumn = tuple[list[int], list[int], list[bytes], list[int], list[int]]
LaterColumns = dict[tuple[str, int], LaterColumn]
#: Of blocks without delayed messages. Never changed.
NONE_LATER: LaterColumns = {}
_extend: Callable[[int, bytes], int] = google_crc32c.extend
_TIME = struct.Struct(">q")


def add_later(columns: LaterColumns, place: int, items: Iterable[Later]) -> int:
    """Adds a transaction's delayed messages; returns their size in bytes."""
    size = 0
    for topic, partition, row, time_ms, ordinal in items:
        column = columns.get((topic, partition))
        if column is None:
            column = columns[topic, partition] = ([], [], [], [], [])
        txs, sizes, rows, times, ordinals = column
        txs.append(place)
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


def select_later(columns: LaterColumns, place: dict[int, int]) -> tuple[LaterColumns, int]:
    """The columns of some of a block's transactions, with their size in bytes. ``place``: from their
    positions to those in the new block."""
    if not columns:
        return NONE_LATER, 0
    found: LaterColumns = {}
    size = 0
    for name, (txs, sizes, rows, times, ordinals) in columns.items():
        kept = [i for i, tx in enumerate(txs) if tx in place]
        if kept:
            found[name] = (
                [place[txs[i]] for i in kept],
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
