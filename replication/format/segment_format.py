"""Bytes of the segment files: ``<first index>.log`` holds entries, ``<first index>.pos`` where they begin.

The sidecar (.pos) belongs to a sealed segment, which never changes again, so that a restart need not
read the entries (log/sidecar.py). docs/log-format.md shows both files byte by byte.
"""

from __future__ import annotations

import struct
import sys
from array import array
from itertools import pairwise
from typing import Final

from google_crc32c import value

from escrowmq.replication.errors import CorruptLog, UnknownVersion
from escrowmq.replication.format.entry import Scan

assert sys.byteorder == "little", "positions are stored as a little-endian machine holds them"

FILE_VERSION: Final = 1
#: magic "EMQS", version, 3 reserved, first index, 12 reserved, CRC32C of the 28 bytes before.
FILE_HEADER: Final = struct.Struct("<4sB3xQ12xI")
FILE_HEADER_SIZE: Final = FILE_HEADER.size
FILE_MAGIC: Final = b"EMQS"
#: magic "EMQP", version, 3 reserved, first index, entries, term runs, CRC32C of everything else.
SIDECAR_HEADER: Final = struct.Struct("<4sB3xQIII")
SIDECAR_MAGIC: Final = b"EMQP"


def log_name(first: int) -> str:
    return f"{first:016x}.log"


def sidecar_name(first: int) -> str:
    return f"{first:016x}.pos"


def first_of_name(name: str) -> int | None:
    """First index of a segment file's name; None for any other file."""
    stem, dot, kind = name.partition(".")
    if kind != "log" or not dot or len(stem) != 16:
        return None
    try:
        return int(stem, 16)
    except ValueError:
        return None


def encode_file_header(first: int) -> bytes:
    head = FILE_HEADER.pack(FILE_MAGIC, FILE_VERSION, first, 0)[:-4]
    crc: int = value(head)
    return head + crc.to_bytes(4, "little")


def file_header_is_sound(data: memoryview, first: int, name: str) -> bool:
    """False if torn or damaged; UnknownVersion or CorruptLog if sound but not what belongs here."""
    if len(data) < FILE_HEADER_SIZE:
        return False
    magic, version, found, crc = FILE_HEADER.unpack_from(data)
    if magic != FILE_MAGIC or value(bytes(data[: FILE_HEADER_SIZE - 4])) != crc:
        return False
    if version != FILE_VERSION:
        raise UnknownVersion(
            f"{name} has format version {version}; this software reads {FILE_VERSION}: upgrade it"
        )
    if found != first:
        raise CorruptLog(f"{name} says its first entry is {found}: the file was renamed or copied over")
    return True


def encode_sidecar(first: int, positions: array[int], terms: list[tuple[int, int]]) -> bytes:
    body = positions.tobytes() + array("Q", [n for run in terms for n in run]).tobytes()
    fields = (SIDECAR_MAGIC, FILE_VERSION, first, len(positions) - 1, len(terms))
    crc = value(SIDECAR_HEADER.pack(*fields, 0)[:-4] + body)
    return SIDECAR_HEADER.pack(*fields, crc) + body


def decode_sidecar(data: bytes, first: int) -> Scan | None:
    """Positions and terms, or None if the sidecar is damaged, of another version or another segment."""
    head = SIDECAR_HEADER.size
    if len(data) < head:
        return None
    magic, version, found, entries, runs, crc = SIDECAR_HEADER.unpack_from(data)
    border = head + 4 * (entries + 1)
    if (magic, version, found) != (SIDECAR_MAGIC, FILE_VERSION, first) or len(data) != border + 16 * runs:
        return None
    if value(data[: head - 4] + data[head:]) != crc:
        return None
    positions, flat = array("I"), array("Q")
    positions.frombytes(data[head:border])
    flat.frombytes(data[border:])
    terms = list(zip(flat[::2], flat[1::2], strict=True))
    if any(a[0] >= b[0] or a[1] >= b[1] for a, b in pairwise(terms)):
        return None
    return Scan(positions, terms)
