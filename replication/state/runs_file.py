"""Sealed runs of partition indexes in one memory-mapped file per snapshot interval.

Layout: magic, u32 version, u32 CRC32C of what follows, u32 directory bytes, the directory (msgpack:
``[[slot, runs], ...]``), zero padding to a multiple of 8, then per slot six columns of little-endian
unsigned 64-bit integers. The file is written once, whole, and never changed.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterator, Mapping

import msgspec
from google_crc32c import extend

from escrowmq.replication.errors import CorruptLog, UnknownVersion
from escrowmq.replication.format.codec import pack, unpack
from escrowmq.replication.state.run_table import COLUMNS, Columns, RunTable

_HEAD = struct.Struct("<4sIII")
_MAGIC, _VERSION = b"EMQR", 1
#: What is copied and summed in one piece: other threads of the process wait meanwhile.
_PIECE_BYTES = 1 << 20
#: Tables that are visited between two rests: see snapshot.py.
TABLES_PER_REST = 64
assert sys.byteorder == "little", "run files are mapped unconverted; a big-endian machine needs a converter"


def encode_runs(tables: Mapping[int, Columns], rest: Callable[[], None] = lambda: None) -> Iterator[bytes]:
    """The file's parts for ``slot -> columns``. ``rest()`` is called in between."""
    directory = pack([[slot, len(columns[0])] for slot, columns in tables.items()])
    crc = 0
    for part in _parts(directory, tables, rest):
        crc = extend(crc, part)
    yield _HEAD.pack(_MAGIC, _VERSION, crc, len(directory))
    yield from _parts(directory, tables, rest)


def _parts(directory: bytes, tables: Mapping[int, Columns], rest: Callable[[], None]) -> Iterator[bytes]:
    yield directory + b"\0" * _padding(len(directory))
    for number, columns in enumerate(tables.values(), 1):
        if not number % TABLES_PER_REST:
            rest()
        for column in columns:
            with memoryview(column) as view, view.cast("B") as data:  # type: ignore[arg-type]
                for at in range(0, len(data), _PIECE_BYTES):
                    yield bytes(data[at : at + _PIECE_BYTES])
                    if len(data) > _PIECE_BYTES:
                        rest()


def map_runs(name: str, view: memoryview, rest: Callable[[], None] = lambda: None) -> dict[int, Columns]:
    """``slot -> columns`` over a mapped file, without copying. Raises CorruptLog or UnknownVersion."""
    if len(view) < _HEAD.size:
        raise CorruptLog(f"{name}: shorter than its header")
    magic, version, crc, directory_size = _HEAD.unpack_from(view)
    if magic != _MAGIC:
        raise CorruptLog(f"{name}: not a run file")
    if version != _VERSION:
        raise UnknownVersion(f"{name}: run file version {version}; this software reads {_VERSION}")
    found = 0
    for at in range(_HEAD.size, len(view), _PIECE_BYTES):
        found = extend(found, bytes(view[at : at + _PIECE_BYTES]))
        rest()
    if found != crc:
        raise CorruptLog(f"{name}: checksum does not match")
    tables: dict[int, Columns] = {}
    at = _HEAD.size + directory_size + _padding(directory_size)
    directory = bytes(view[_HEAD.size : _HEAD.size + directory_size])
    for slot, runs in _directory(name, directory, directory_size, len(view)):
        columns = []
        for _ in range(COLUMNS):
            columns.append(view[at : at + 8 * runs].cast("Q"))
            at += 8 * runs
        tables[slot] = tuple(columns)
        if not len(tables) % TABLES_PER_REST:
            rest()
    return tables


def map_tables(name: str, view: memoryview, rest: Callable[[], None] = lambda: None) -> dict[int, RunTable]:
    """As ``map_runs``, with the sums that retention needs: so the file need not be read again."""
    tables: dict[int, RunTable] = {}
    for slot, columns in map_runs(name, view, rest).items():
        tables[slot] = RunTable(columns).summed()
        if not len(tables) % TABLES_PER_REST:
            rest()
    return tables


def verify_runs(name: str, read: Callable[[int, int], bytes], size: int, piece_bytes: int) -> Iterator[int]:
    """Check a file piece by piece; yields the bytes of each. ``read(pos, size)``. Raises as ``map_runs``."""
    head = read(0, _HEAD.size)
    if len(head) < _HEAD.size:
        raise CorruptLog(f"{name}: shorter than its header")
    magic, version, expected, directory_size = _HEAD.unpack(head)
    if magic != _MAGIC:
        raise CorruptLog(f"{name}: not a run file")
    if version != _VERSION:
        raise UnknownVersion(f"{name}: run file version {version}; this software reads {_VERSION}")
    crc, at = 0, _HEAD.size
    while at < size and (part := read(at, piece_bytes)):
        crc, at = extend(crc, part), at + len(part)
        yield len(part)
    if crc != expected or directory_size > size:
        raise CorruptLog(f"{name}: checksum does not match")
    _directory(name, read(_HEAD.size, directory_size), directory_size, size)  # its size is true


def _directory(name: str, directory: bytes, size: int, file_size: int) -> list[tuple[int, int]]:
    """Slot and number of runs of every table; together they fill the file exactly."""
    try:
        entries = msgspec.convert(unpack(directory), list[tuple[int, int]])
    except msgspec.ValidationError as error:
        raise CorruptLog(f"{name}: its directory is invalid: {error}") from error
    columns = file_size - _HEAD.size - size - _padding(size)
    if any(runs < 1 for _, runs in entries) or columns != 8 * COLUMNS * sum(runs for _, runs in entries):
        raise CorruptLog(f"{name}: its directory does not match its size")
    return entries


def _padding(directory_size: int) -> int:
    return -(directory_size + _HEAD.size) % 8
