"""Bytes of the log: operation frames, the command envelope, message rows. See docs/log-format.md.

A client encodes its operations once; the leader puts the frames of many clients behind one
envelope (a group commit) without re-encoding them. Metadata are small msgpack arrays held
column-wise, so that one C call decodes the metadata of a thousand messages; bodies are rows that only
clients decode. Nothing here does I/O.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from escrowmq.replication.errors import CorruptLog, UnknownVersion
from escrowmq.replication.format import ops, share_ops, timer_ops
from escrowmq.replication.format.operation import FRAME, Operation, encode_msgpack
from escrowmq.replication.format.packing import PACKED, PackedRows, PlainRow, decode_stored

#: Version of the envelope.
FORMAT_VERSION = 1

#: First byte of every Raft command, as pysyncobj defines them: ours are REGULAR. 1 is the entry that opens a
#: leader's term, which pysyncobj writes; MEMBERSHIP entries change the group's members.
REGULAR, MEMBERSHIP = 0, 2

#: Command envelope: u8 command type (REGULAR), u8 format version, u16 reserved, u32 number of
#: operations, u64 leader's time in ms since the epoch (never decreases from entry to entry).
ENVELOPE = struct.Struct("<BBHIQ")
#: An operation's frame with type and version read as one number, the key by which decoders are chosen.
_FRAME_KIND = struct.Struct("<HHII")


#: Every operation of the log.
OPERATIONS: tuple[type[Operation], ...] = tuple(
    kind
    for module in (ops, timer_ops, share_ops)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Operation) and kind is not Operation
)


class Op(NamedTuple):
    """One decoded frame: ``meta`` is an ``Operation``, whose kind is ``type``. ``body_pos`` counts from the
    start of the buffer that was decoded."""

    type: int
    meta: Any
    body_pos: int
    body_size: int


#: What decoding of untrusted bytes may raise: damage, invalid UTF-8, unbounded nesting.
_NOT_MSGPACK = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_encode = encode_msgpack
_decode = msgspec.msgpack.Decoder().decode

#: kind | version << 8 -> decoder of the columns. Typed: it refuses any other shape in C, so whatever passes
#: can be applied without further type checks.
_decode_meta = {
    operation.KIND | operation.VERSION << 8: msgspec.msgpack.Decoder(operation).decode
    for operation in OPERATIONS
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


def columns_within(buffer: bytes | memoryview, most: int) -> bool:
    """Whether the frames of ``buffer`` without their bodies take at most ``most`` bytes. Checking looks at no
    more than these, so this says how long it may take. Damage is not noticed."""
    at = columns = 0
    last, unpack_from = len(buffer) - FRAME.size, _FRAME_KIND.unpack_from
    while at <= last and columns <= most:
        _, _, meta_size, body_size = unpack_from(buffer, at)
        columns += FRAME.size + meta_size
        at += FRAME.size + meta_size + body_size
    return columns <= most


def _unknown(kind: int, version: int) -> UnknownVersion:
    known = [operation.VERSION for operation in OPERATIONS if kind == operation.KIND]
    if known:
        text = f"operation of type {kind} of format version {version}; known: up to {max(known)}"
        return UnknownVersion(text)
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
