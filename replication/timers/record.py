"""One waiting message: 40 bytes, big-endian, so that records compare as bytes in the order of delivery.

Key: u64 delivery time in ms since the epoch, u32 slot of the partition, u64 owner (who gave the message: a
producer, or a transaction of an application), u32 ordinal within the owner. Behind it: u64 log index and u32
position of the message's row, and u32 bytes of the row.

A record of 0 bytes is a tombstone. It kills the copies of its key with a lower log index than its own; its
position is the number of copies that it kills and that are still stored, as a signed number: a merge may meet
a copy with a later tombstone than the one that counts it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

RECORD: Final = struct.Struct(">QIQIQII")
KEY: Final = struct.Struct(">QIQI")
RECORD_BYTES, KEY_BYTES = RECORD.size, KEY.size
#: Before every record: nothing is released yet.
FIRST_KEY: Final = b"\0" * KEY_BYTES
#: The highest delivery time that fits.
TIME_MAX: Final = (1 << 63) - 1
_TIME: Final = struct.Struct(">Q")
#: Behind the key: log index, position, bytes.
LOCATION: Final = struct.Struct(">QII")
#: Behind the key of a tombstone: log index, copies, 0.
_DEATH: Final = struct.Struct(">QiI")
#: Of a tombstone.
_NO_BYTES: Final = b"\0\0\0\0"
_INDEX: Final = slice(KEY_BYTES, KEY_BYTES + 8)
_COPIES: Final = slice(KEY_BYTES + 8, KEY_BYTES + 12)


class Timer(NamedTuple):
    """A record's fields."""

    deliver_ms: int
    slot: int
    owner: int
    ordinal: int
    log_index: int
    position: int
    size: int


def key_of(deliver_ms: int, slot: int, owner: int, ordinal: int) -> bytes:
    """The key's bytes."""
    return KEY.pack(deliver_ms, slot, owner, ordinal)


def last_key(deliver_ms: int) -> bytes:
    """No key with this delivery time is higher."""
    return _TIME.pack(deliver_ms) + b"\xff" * (KEY_BYTES - 8)


def deliver_ms_of(record: bytes) -> int:
    """Delivery time of a record or a key."""
    return int.from_bytes(record[:8], "big")


def key_bytes(record: bytes) -> bytes:
    """A record's key."""
    return record[:KEY_BYTES]


def slot_of(record: bytes) -> int:
    """The slot of a record's partition, or of a key's."""
    return int.from_bytes(record[8:12], "big")


def log_index_of(record: bytes) -> int:
    """Where the message of a record lies."""
    return int.from_bytes(record[_INDEX], "big")


def size_of(record: bytes) -> int:
    """Bytes of a record's message."""
    return int.from_bytes(record[-4:], "big")


def tombstone(key: bytes, log_index: int, copies: int = 1) -> bytes:
    """What is added for a cancelled key. It kills copies with a lower log index; ``copies``: how many."""
    return key + _DEATH.pack(log_index, copies, 0)


def is_tombstone(record: bytes) -> bool:
    return record.endswith(_NO_BYTES)


def living(ordered: list[bytes]) -> list[bytes]:
    """What no tombstone kills, without the tombstones. ``ordered``: all records of each key that is in it."""
    newest = {r[:KEY_BYTES]: r[_INDEX] for r in ordered if r.endswith(_NO_BYTES)}
    if not newest:
        return ordered
    return [
        r for r in ordered if not r.endswith(_NO_BYTES) and r[_INDEX] >= newest.get(r[:KEY_BYTES], _NO_BYTES)
    ]


def settled(ordered: list[bytes]) -> list[bytes]:
    """As ``living``, with the newest tombstone of each key, since it also kills copies that are stored
    elsewhere. It counts for all tombstones of the key, less the copies that are left out here."""
    newest = {r[:KEY_BYTES]: r[_INDEX] for r in ordered if r.endswith(_NO_BYTES)}
    if not newest:
        return ordered
    copies = dict.fromkeys(newest, 0)
    kept: list[bytes] = []
    for record in ordered:
        key = record[:KEY_BYTES]
        if record.endswith(_NO_BYTES):
            copies[key] += int.from_bytes(record[_COPIES], "big", signed=True)
        elif record[_INDEX] >= newest.get(key, _NO_BYTES):
            kept.append(record)
        else:
            copies[key] -= 1
    kept += (key + _DEATH.pack(int.from_bytes(newest[key], "big"), n, 0) for key, n in copies.items())
    kept.sort()
    return kept


def living_count(records: Sequence[bytes]) -> int:
    """How many of these live, if they are all that there is: tombstones count for what they kill."""
    dead = [record for record in records if record.endswith(_NO_BYTES)]
    return (
        len(records) - len(dead) - sum(int.from_bytes(record[_COPIES], "big", signed=True) for record in dead)
    )


def split(data: bytes | bytearray | memoryview) -> list[bytes]:
    """The records of a stretch of them."""
    data = bytes(data)
    return [data[at : at + RECORD_BYTES] for at in range(0, len(data), RECORD_BYTES)]


def lower_than(bound: bytes, data: bytes, low: int, high: int) -> int:
    """How many of the sorted records in ``data`` are lower than these bytes; at least ``low``, at most
    ``high``."""
    while low < high:
        middle = (low + high) // 2
        if data[middle * RECORD_BYTES : (middle + 1) * RECORD_BYTES] < bound:
            low = middle + 1
        else:
            high = middle
    return low


def at_the_earliest(records: Sequence[bytes], floor_ms: int) -> list[bytes]:
    """The records, with delivery times of at least ``floor_ms``: so nothing gets in behind the cursor."""
    floor = _TIME.pack(floor_ms)
    return [record if record[:8] >= floor else floor + record[8:] for record in records]
