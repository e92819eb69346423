"""Files of sealed runs of partition indexes: one per snapshot interval, until several are merged into one.

Layout: magic, u32 version, u32 CRC32C of what follows, u32 directory bytes, the directory (msgpack:
``[[slot, runs], ...]``), zero padding to a multiple of 8, then per slot six columns of little-endian
unsigned 64-bit integers. The file is written once, whole, and never changed. Reading: stored_runs.py.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec
from google_crc32c import extend

from escrowmq.replication.errors import CorruptLog, UnknownVersion
from escrowmq.replication.format.codec import pack, unpack
from escrowmq.replication.state.run_table import COLUMNS, Columns

_HEAD = struct.Struct("<4sIII")
HEAD_BYTES: Final = _HEAD.size
RUN_BYTES: Final = 8 * COLUMNS
_MAGIC, _VERSION = b"EMQR", 1
#: What is copied and summed in one piece: other threads of the process wait meanwhile.
_PIECE_BYTES = 1 << 20
#: Tables that are visited between two rests: see snapshot.py.
TABLES_PER_REST = 64
assert sys.byteorder == "little", "run files are read unconverted; a big-endian machine needs a converter"


def encode_runs(tables: Mapping[int, Columns], rest: Callable[[], None] = lambda: None) -> Iterator[bytes]:
    """The file's parts for ``slot -> columns``. ``rest()`` is called in between."""
    directory = pack([[slot, len(columns[0])] for slot, columns in tables.items()])
    crc = 0
    for part in _parts(directory, tables, rest):
        crc = extend(crc, part)
    yield packed_head(crc, len(directory))
    yield from _parts(directory, tables, rest)


def packed_head(crc: int, directory_bytes: int) -> bytes:
    """``crc``: of what follows the head."""
    return _HEAD.pack(_MAGIC, _VERSION, crc, directory_bytes)


def _parts(directory: bytes, tables: Mapping[int, Columns], rest: Callable[[], None]) -> Iterator[bytes]:
    yield directory + b"\0" * padding(len(directory))
    for number, columns in enumerate(tables.values(), 1):
        if not number % TABLES_PER_REST:
            rest()
        for column in columns:
            with memoryview(column) as view, view.cast("B") as data:  # type: ignore[arg-type]
                for at in range(0, len(data), _PIECE_BYTES):
                    yield bytes(data[at : at + _PIECE_BYTES])
                    if len(data) > _PIECE_BYTES:
                        rest()


def parse_head(name: str, head: bytes) -> tuple[int, int]:
    """Checksum of what follows the head, and bytes of the directory. Raises CorruptLog or UnknownVersion."""
    if len(head) < _HEAD.size:
        raise CorruptLog(f"{name}: shorter than its header")
    magic, version, crc, directory_size = _HEAD.unpack(head)
    if magic != _MAGIC:
        raise CorruptLog(f"{name}: not a run file")
    if version != _VERSION:
        raise UnknownVersion(f"{name}: run file version {version}; this software reads {_VERSION}")
    return crc, directory_size


def verify_runs(name: str, read: Callable[[int, int], bytes], size: int, piece_bytes: int) -> Iterator[int]:
    """Check a file piece by piece; yields the bytes of each. ``read(pos, size)``. Raises CorruptLog or
    UnknownVersion."""
    expected, directory_size = parse_head(name, read(0, HEAD_BYTES))
    crc, at = 0, HEAD_BYTES
    while at < size and (part := read(at, min(piece_bytes, size - at))):
        crc, at = extend(crc, part), at + len(part)
        yield len(part)
    if crc != expected or directory_size > size:
        raise CorruptLog(f"{name}: checksum does not match")
    parse_directory(name, read(HEAD_BYTES, directory_size), size)  # its size is true


def parse_directory(name: str, directory: bytes, file_size: int) -> list[tuple[int, int]]:
    """Slot and number of runs of every table; together they fill the file exactly. Raises CorruptLog."""
    try:
        entries = msgspec.convert(unpack(directory), list[tuple[int, int]])
    except msgspec.ValidationError as error:
        raise CorruptLog(f"{name}: its directory is invalid: {error}") from error
    size = file_size - HEAD_BYTES - len(directory) - padding(len(directory))
    if any(runs < 1 for _, runs in entries) or size != RUN_BYTES * sum(runs for _, runs in entries):
        raise CorruptLog(f"{name}: its directory does not match its size")
    return entries


def padding(directory_size: int) -> int:
    """The zero bytes behind a directory."""
    return -(directory_size + HEAD_BYTES) % 8
