"""What a search looks at in the rows of messages: key, transaction id, headers; never the value.

Rows were written by clients, and no broker has looked at them since. One that cannot be decoded cannot be
found either, just as no consumer can read it; it must not hide its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from escrowmq.replication.errors import CorruptLog
from escrowmq.replication.format import forwarded
from escrowmq.replication.format.find_table import (
    BLOCK_OFFSETS,
    BUSINESS_KEY,
    KEY,
    ORIGIN,
    TX_ID,
    crc32,
    crc32c,
    entry_of,
)
from escrowmq.replication.message_headers import HEADER, keys_of

#: What a search may look for beside the kinds of find_table.py: a header's name and value. It is in no file.
IN_HEADER = 5
_NOT_ROWS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _SeenRow(msgspec.Struct, array_like=True, gc=False):
    """A row of any version: further elements are ignored. The value is skipped, not decoded."""

    key: bytes | None
    value: msgspec.Raw
    headers: dict[str, bytes] | None
    tx_id: str | None


_decode_seen = msgspec.msgpack.Decoder(list[_SeenRow]).decode
_decode_one = msgspec.msgpack.Decoder(_SeenRow).decode
_split = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode


def split_rows(blob: bytes | memoryview, count: int) -> list[msgspec.Raw]:
    """The bytes of each of ``count`` rows. Raises CorruptLog if the rows cannot be told apart."""
    try:
        return _split(_as_list(blob, count))
    except _NOT_ROWS as error:
        raise CorruptLog(f"{count} message rows cannot be told apart: {error}") from error


def entries_of(
    blob: bytes | memoryview, count: int, first: int, block_offsets: int = BLOCK_OFFSETS
) -> list[int]:
    """The entries of find_table.py for ``count`` rows, the first of which has the index ``first`` in its
    block. Rows at negative indexes belong to the block before, and those from ``block_offsets`` on to the
    next: they have none here. Raises CorruptLog if the rows cannot be told apart."""
    rows = _seen(blob, count)
    if first < 0 or first + count > block_offsets:
        rows, first = rows[max(-first, 0) : max(block_offsets - first, 0)], max(first, 0)
    # Comprehensions, and ``entry_of`` written out: a call for each entry costs as much again.
    found = [
        crc32c(KEY, key) << 32 | (crc32(key, KEY) & 0xFFFF) << 16 | at
        for at, row in enumerate(rows, first)
        if row is not None and (key := row.key) is not None
    ]
    found += [
        crc32c(TX_ID, tx_id := row.tx_id.encode()) << 32 | (crc32(tx_id, TX_ID) & 0xFFFF) << 16 | at
        for at, row in enumerate(rows, first)
        if row is not None and row.tx_id is not None
    ]
    for at, row in enumerate(rows, first):
        if row is not None and row.headers:
            found.extend(entry_of(BUSINESS_KEY, key, at) for key in set(_business_keys(row)))
            origin = row.headers.get(forwarded.ORIGIN)
            if origin is not None:
                found.append(entry_of(ORIGIN, origin, at))
    return found


def _seen(blob: bytes | memoryview, count: int) -> Sequence[_SeenRow | None]:
    try:
        return _decode_seen(_as_list(blob, count))
    except _NOT_ROWS:
        return [_one(row) for row in split_rows(blob, count)]


def _one(row: bytes | memoryview | msgspec.Raw) -> _SeenRow | None:
    try:
        return _decode_one(row)
    except _NOT_ROWS:
        return None


def _as_list(blob: bytes | memoryview, count: int) -> bytes:
    return b"".join((b"\xdd", count.to_bytes(4, "big"), blob))


def _business_keys(row: _SeenRow) -> list[bytes]:
    header = row.headers.get(HEADER) if row.headers else None
    return [] if header is None else keys_of(header)


def is_sought(row: bytes | msgspec.Raw, kind: int, needle: bytes, name: str = "") -> bool:
    """Whether this row has what is looked for. ``name``: of the header, for ``IN_HEADER``."""
    seen = _one(row)
    if seen is None:
        return False
    if kind == KEY:
        return seen.key == needle
    if kind == TX_ID:
        return seen.tx_id is not None and seen.tx_id.encode() == needle
    if kind == BUSINESS_KEY:
        return needle in _business_keys(seen)
    wanted = forwarded.ORIGIN if kind == ORIGIN else name
    return seen.headers is not None and seen.headers.get(wanted) == needle
