"""Bytes of the log: operation frames, the command envelope, message rows. See docs/log-format.md.

A client encodes its operations once; the leader puts the frames of many clients behind one
envelope (a group commit) without re-encoding them. Metadata are small msgpack arrays held
column-wise, so that one C call decodes the metadata of a thousand messages; bodies are rows that only
clients decode. Nothing here does I/O.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from escrowmq.replication.errors import CorruptLog, UnknownVersion
from escrowmq.replication.format.packing import PACKED, PackedRows, PlainRow, decode_stored

#: The format level of a group whose log may name fences, and the length of a fence's name.
LEVEL_OF_FENCES, FENCE_BYTES = 10, 16
#: From this level on, the newest PREPARE of a transaction that was prepared twice in one entry is that
#: entry's index plus this, which nobody was told. To earlier feedback processes it looks like an index.
LEVEL_OF_TWINS, TWINS = 10, 1 << 52
#: Version of the envelope, and of operations that have only ever had one shape.
FORMAT_VERSION = 1

#: First byte of every Raft command, as pysyncobj defines them: ours are REGULAR. 1 is the entry that opens a
#: leader's term, which pysyncobj writes; MEMBERSHIP entries change the group's members.
REGULAR, MEMBERSHIP = 0, 2

#: Command envelope: u8 command type (REGULAR), u8 format version, u16 reserved, u32 number of
#: operations, u64 leader's time in ms since the epoch (never decreases from entry to entry).
ENVELOPE = struct.Struct("<BBHIQ")
#: Operation frame: u8 type, u8 version, u16 reserved, u32 metadata bytes, u32 body bytes.
FRAME = struct.Struct("<BBHII")
#: The same frame with type and version read as one number, the key by which decoders are chosen.
_FRAME_KIND = struct.Struct("<HHII")


class OpType(enum.IntEnum):
    """Record types. The first seven come from FMQ; the rest are ours."""

    MESSAGE = 1
    PREPARE = 2
    PRE_MESSAGE = 3
    REF_MESSAGE = 4
    TX_MESSAGE = 5
    COMMIT = 6
    ROLLBACK = 7
    SCHEDULED = 8
    PRE_SCHEDULED = 9
    TIMER = 10
    RELEASE = 11
    CANCEL = 12
    FORWARD = 13
    SHARE_ACK = 14
    NACK = 15
    CREATE_TOPIC = 16
    DELETE_TOPIC = 17
    GROUP_OFFSETS = 18
    CHECKED = 19
    RETAIN = 20
    TRIM = 21
    GROUP_SETTINGS = 22
    CARRY = 23
    TX_DONE = 25
    INQUIRE = 26
    PRE_OFFSETS = 27
    CUT = 28
    CLAIM = 29
    PLACES = 30
    LEVEL = 31
    ALTER_TOPIC = 32
    SETTINGS = 33
    DELETE_GROUP = 35
    PRE_LETTERS = 36


class PrepareExtra(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True, frozen=True, gc=False):
    """What PREPARE version 2 says beyond version 1: a map on the wire, defaults left out.

    ``instance``: the sending producer, which a check asks first. ``participants``: broker groups of the
    branches, without home. ``parts``: how many PREPAREs the transaction has here (0: not told).
    ``home_index``: in a branch, the log index of home's record of each transaction (empty: none). ``given``:
    the application chose the ids, so they may come back at any time. ``heard_ms``: the newest time of an
    entry of this group that the client has seen (-1: none). ``claim``: name and epoch of the producer, and
    number and digest of the transaction; only groups of level 9 accept it (see claim_ops.py).
    ``on_timeout``: "rollback": when its time has passed, the leader rolls it back, and nobody is asked
    ("": somebody is); of level 9, and not in branches, which follow home. ``fence``: 16 bytes that name the
    table in an application's database in which its rows say what was committed: only who has that one may
    answer a check (empty: any producer of the app); of level 10, and not in branches either.
    """

    instance: str = ""
    participants: list[int] = []
    parts: int = 0
    home_index: list[int] = []
    given: bool = False
    heard_ms: int = -1
    claim: tuple[str, int, int, bytes] | None = None
    on_timeout: str = ""
    fence: bytes = b""


#: For version 1, which has none of this.
NO_EXTRA = PrepareExtra()


class Op(NamedTuple):
    """One decoded frame. ``body_pos`` counts from the start of the buffer that was decoded."""

    type: int
    meta: Any
    body_pos: int
    body_size: int


#: What decoding of untrusted bytes may raise: damage, invalid UTF-8, unbounded nesting.
_NOT_MSGPACK = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode

#: Shape of each operation's metadata (see ops.py for the meaning). The typed decoders refuse any
#: other shape in C, so whatever passes them can be applied without further type checks.
META_TYPES: dict[int, Any] = {
    OpType.MESSAGE: tuple[str, int, str, int, int, int],
    OpType.PREPARE: tuple[str, str, list[str], list[str] | None, int, int, list[int], int, int],
    OpType.PRE_MESSAGE: tuple[str, int, list[int], list[int]],
    OpType.REF_MESSAGE: tuple[str, int, list[int]],
    OpType.TX_MESSAGE: tuple[str, int, int],
    OpType.COMMIT: tuple[str, list[str], str, int],
    OpType.ROLLBACK: tuple[str, list[str], str],
    OpType.SCHEDULED: tuple[str, int, str, int, int, list[int], list[int], int, int, int, int],
    OpType.PRE_SCHEDULED: tuple[str, int, list[int], list[int], list[int], list[int], int],
    OpType.TIMER: tuple[bytes],
    OpType.RELEASE: tuple[bytes, int, list[int]],
    OpType.CANCEL: tuple[str, int, list[int], int],
    OpType.FORWARD: tuple[str, int, list[int], list[int]],
    OpType.SHARE_ACK: tuple[str, str, int, list[int], str, int],
    OpType.NACK: tuple[str, str, int, list[int], list[int], list[str], str, str, int, int],
    OpType.CREATE_TOPIC: tuple[str, dict[str, int | str]],
    OpType.DELETE_TOPIC: tuple[str],
    OpType.GROUP_OFFSETS: tuple[str, str, list[int]],
    OpType.CHECKED: tuple[str, list[str]],
    OpType.RETAIN: tuple[int],
    OpType.TRIM: tuple[str, list[int]],
    OpType.GROUP_SETTINGS: tuple[str, dict[str, int | str | list[int]], int],
    OpType.CARRY: tuple[bytes],
    OpType.TX_DONE: tuple[str, list[str], list[int], int],
    OpType.INQUIRE: tuple[str, list[str], list[int]],
    OpType.PRE_OFFSETS: tuple[str, str, list[int], int],
    OpType.CUT: tuple[list[str], int],
    OpType.CLAIM: tuple[str, int, str],
    OpType.PLACES: tuple[str, str, list[int]],
    OpType.LEVEL: tuple[int],
    OpType.ALTER_TOPIC: tuple[str, dict[str, int | str]],
    OpType.SETTINGS: tuple[dict[str, int]],
    OpType.DELETE_GROUP: tuple[str, int],
    OpType.PRE_LETTERS: tuple[str, int, list[int], int, str, str],
}
#: The shapes of frame version 2, where there is one.
META_TYPES_2: dict[int, Any] = {
    OpType.CREATE_TOPIC: tuple[str, dict[str, int | str], int],
    OpType.MESSAGE: tuple[str, int, str, int, int, int, int],
    OpType.PREPARE: tuple[str, str, list[str], list[str] | None, int, int, list[int], int, int, PrepareExtra],
    OpType.ROLLBACK: tuple[str, list[str], str, list[int]],
    OpType.COMMIT: tuple[str, list[str], str, int, list[int], int],
    OpType.CHECKED: tuple[str, list[str], str],
    OpType.ALTER_TOPIC: tuple[str, dict[str, int | str], int],
    OpType.DELETE_TOPIC: tuple[str, int],
    OpType.TRIM: tuple[str, list[int], int],
    OpType.PRE_MESSAGE: tuple[str, int, list[int], list[int], int],
    OpType.CANCEL: tuple[bytes, list[int], list[int]],
    OpType.SHARE_ACK: tuple[str, str, int, str, list[int], list[int], int],
    OpType.GROUP_SETTINGS: tuple[str, dict[str, int | str | list[int]], int, str],
    OpType.DELETE_GROUP: tuple[str, int, str],
}
#: And of version 3.
META_TYPES_3: dict[int, Any] = {
    OpType.ROLLBACK: tuple[str, list[str], str, list[int], list[int], int],
    OpType.MESSAGE: tuple[str, int, str, int, int, int, int, int],
    OpType.CANCEL: tuple[bytes, list[int], list[int], list[int]],
    OpType.CREATE_TOPIC: tuple[str, dict[str, int | str], int, int],
    OpType.ALTER_TOPIC: tuple[str, dict[str, int | str], int, int],
}
#: type | version << 8 -> decoder of the metadata
_decode_meta = {
    kind | version << 8: msgspec.msgpack.Decoder(shape).decode
    for version, shapes in ((1, META_TYPES), (2, META_TYPES_2), (3, META_TYPES_3))
    for kind, shape in shapes.items()
}
Row = PlainRow
_decode_rows = msgspec.msgpack.Decoder(list[Row]).decode


def encode_row(
    key: bytes | None, value: bytes, headers: Mapping[str, bytes] | None, tx_id: str | None
) -> bytes:
    """One message as ``[key, value, headers or nil, tx_id or nil]``; only clients read it back."""
    return _encode((key, value, headers or None, tx_id))


#: The same for fields that are a tuple already, with None for empty headers: a function of C, for ``map``.
encode_fields: Callable[[Any], bytes] = _encode


def decode_rows(blob: bytes | memoryview, count: int) -> list[Row]:
    """Rows of ``count`` messages, concatenated in ``blob``; compressed values are unpacked, all at once."""
    rows = decode_lazily(blob, count)
    if not isinstance(rows, PackedRows):
        return rows
    found: list[Row] = []
    while len(found) < count:
        found += rows.unpacked(len(found), count)
    return found


def decode_lazily(blob: bytes | memoryview, count: int) -> list[Row] | PackedRows:
    """As ``decode_rows``, in one C call, if no value is compressed (see packing.py). Otherwise the rows with
    their values still compressed."""
    packed = b"".join((b"\xdd", count.to_bytes(4, "big"), blob))
    try:
        if count and blob and blob[0] != PACKED:
            try:
                return _decode_rows(packed)
            except msgspec.ValidationError:  # a later row may be compressed
                return PackedRows(decode_stored(packed))
        return PackedRows(decode_stored(packed)) if count else _decode_rows(packed)
    except _NOT_MSGPACK as error:
        raise CorruptLog(f"message rows cannot be decoded: {error}") from error


def encode_op(
    op: int, meta: Sequence[Any], body: Sequence[bytes | memoryview] = (), version: int = 1
) -> bytes:
    """A whole frame: header, metadata, the body's parts joined."""
    packed = _encode(meta)
    joined = body[0] if len(body) == 1 else b"".join(body)
    return b"".join((FRAME.pack(op, version, 0, len(packed), len(joined)), packed, joined))


def decode_ops(buffer: bytes | memoryview, start: int = 0) -> list[Op]:
    """All frames of ``buffer`` from ``start`` to its end. Bodies are not touched.

    Raises CorruptLog for a frame that does not fit or whose metadata cannot be decoded, and
    UnknownVersion for a frame of a newer format.
    """
    view = memoryview(buffer)
    ops: list[Op] = []
    end, at, head, unpack_from = len(view), start, FRAME.size, _FRAME_KIND.unpack_from
    while at < end:
        if at + head > end:
            raise CorruptLog(f"operation header cut off at byte {at} of {end}")
        kind, _, meta_size, body_size = unpack_from(view, at)
        body_pos = at + head + meta_size
        if body_pos + body_size > end:
            raise CorruptLog(f"operation of type {kind & 0xFF} at byte {at} is cut off")
        decode_meta = _decode_meta.get(kind)
        if decode_meta is None:
            raise _unknown(kind & 0xFF, kind >> 8)
        try:
            meta = decode_meta(view[at + head : body_pos])
        except _NOT_MSGPACK as error:
            raise CorruptLog(f"operation of type {kind & 0xFF} at byte {at}: {error}") from error
        ops.append(Op(kind & 0xFF, meta, body_pos, body_size))
        at = body_pos + body_size
    return ops


def _unknown(kind: int, version: int) -> UnknownVersion:
    known = 3 if kind in META_TYPES_3 else 2 if kind in META_TYPES_2 else 1
    if kind in META_TYPES:
        return UnknownVersion(f"operation of type {kind} of format version {version}; known: up to {known}")
    return UnknownVersion(f"operation of type {kind} is not known to this software; upgrade it")


def encode_command(frames: Sequence[bytes], count: int, now_ms: int) -> bytes:
    """The Raft command of one group commit: envelope + frames (each may hold several operations)."""
    return b"".join((ENVELOPE.pack(REGULAR, FORMAT_VERSION, 0, count, now_ms), *frames))


def decode_command(command: bytes | memoryview) -> tuple[int, list[Op]]:
    """``(now_ms, operations)`` of a regular command; positions count from the command's first byte."""
    if len(command) < ENVELOPE.size:
        raise CorruptLog(f"command of {len(command)} bytes is shorter than its envelope")
    _, version, _, count, now_ms = ENVELOPE.unpack_from(command)
    if version > FORMAT_VERSION or version == 0:
        raise UnknownVersion(f"entry of format version {version}; this software reads up to {FORMAT_VERSION}")
    ops = decode_ops(command, ENVELOPE.size)
    if len(ops) != count:
        raise CorruptLog(f"entry announces {count} operations and holds {len(ops)}")
    return now_ms, ops


def pack(value: Any) -> bytes:
    """Small values between processes (results, hints, snapshots), as msgpack."""
    return _encode(value)


def unpack(data: bytes | memoryview) -> Any:
    """Inverse of :func:`pack`; raises CorruptLog for anything that is not msgpack."""
    try:
        return _decode(data)
    except _NOT_MSGPACK as error:
        raise CorruptLog(f"not msgpack: {error}") from error
