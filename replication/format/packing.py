"""Rows whose value the producer has compressed: they have a fifth element.

A row is ``[key, value, headers or nil, tx_id or nil]`` (codec.py). There may also be
``[method, size, checksum]``: how the value is compressed, its size before, and the CRC32C of what it was.
With the size, a reader knows how much memory it will need before it takes any. With the checksum it notices
every value that is not the producer's: lz4 has none of its own, and pyarrow returns as many bytes as it was
told to expect, whatever they are. Brokers never look at any of this.

pyarrow is imported only when a value is compressed or unpacked, since it is an optional part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import google_crc32c
import msgspec

from escrowmq.replication.errors import CorruptLog, NotSupported

#: First byte of such a row: an array of five.
PACKED = 0x95
#: Number of each method, for ever, and pyarrow's name of it. lz4's block format has no header of its own.
METHODS = {"zstd": 1, "lz4": 2}
_CODECS = {1: "zstd", 2: "lz4_raw"}
#: A larger value is stored as it is, and a row that announces more is refused: a few bytes could fill a
#: consumer's memory otherwise. A request with an uncompressed value of this size is refused by default, too.
VALUE_BYTES_MAX = 8 << 20
#: What readers unpack at once, apart from a single larger value.
UNPACKED_BYTES = 16 << 20

_checksum: Callable[[bytes], int] = google_crc32c.value
_encode = msgspec.msgpack.Encoder().encode
_NIL = 0xC0
#: Length of a field's header by its first byte: bytes, and nil.
_HEADS = {_NIL: 1, 0xC4: 2, 0xC5: 3, 0xC6: 5}

#: A row as everybody else sees it.
PlainRow = tuple[bytes | None, bytes, dict[str, bytes] | None, str | None]


class Packing(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True, gc=False):
    """The fifth element of a row."""

    method: int
    size: int
    checksum: int


class StoredRow(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True, gc=False):
    """A row of four or five elements, as it is stored."""

    key: bytes | None
    value: bytes
    headers: dict[str, bytes] | None
    tx_id: str | None
    packing: Packing | msgspec.UnsetType = msgspec.UNSET


decode_stored: Callable[[bytes], list[StoredRow]] = msgspec.msgpack.Decoder(list[StoredRow]).decode


class UnsoundValue(CorruptLog):
    """The value of row ``position`` cannot be unpacked. Whoever knows which row it is raises DamagedValue."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(position, reason)
        self.position, self.reason = position, reason

    def __str__(self) -> str:
        return f"row {self.position}: {self.reason}"


def arrow() -> Any:
    """pyarrow. Raises NotSupported, which says what to install."""
    try:
        import pyarrow
    except ImportError as error:
        raise NotSupported(
            f"compressed values need pyarrow; install it, for example as escrowmq[compression]: {error}"
        ) from error
    return pyarrow


def codec_of(method: str, level: int | None) -> Any:
    """pyarrow's codec; making one takes a tenth of a microsecond. Raises NotSupported."""
    name = _CODECS[METHODS[method]]
    return arrow().Codec(name) if level is None else arrow().Codec(name, level)


def pack_row(row: bytes, method: str, level: int | None, least: int) -> bytes:
    """An encoded row of four elements with its value compressed; the row itself if its value has fewer than
    ``least`` bytes or more than ``VALUE_BYTES_MAX``, or if the row would not become smaller."""
    if len(row) <= least:
        return row
    _, value_at = _content(row, 1)
    start, end = _content(row, value_at)
    if not least <= end - start <= VALUE_BYTES_MAX:
        return row
    value = row[start:end]
    packed: bytes = codec_of(method, level).compress(value, asbytes=True)
    size = len(packed)
    tag, width = (0xC4, 1) if size < 1 << 8 else (0xC5, 2) if size < 1 << 16 else (0xC6, 4)
    head = tag.to_bytes(1, "big") + size.to_bytes(width, "big")
    about = _encode((METHODS[method], end - start, _checksum(value)))
    made = b"".join((b"\x95", row[1:value_at], head, packed, row[end:], about))
    return made if len(made) < len(row) else row


def _content(row: bytes, at: int) -> tuple[int, int]:
    """Where the content of the field at ``at``, bytes or nil, begins and ends."""
    tag = row[at]
    start = at + _HEADS[tag]
    return start, start + (0 if tag == _NIL else int.from_bytes(row[at + 1 : start], "big"))


def unpack_value(value: bytes, packing: Packing) -> bytes:
    """The value before it was compressed. Raises ValueError, which says why it cannot be had; NotSupported
    without pyarrow."""
    if packing.method not in _CODECS:
        raise ValueError(f"it is compressed by method {packing.method}, which this version does not know")
    if not 0 < packing.size <= VALUE_BYTES_MAX:
        raise ValueError(f"it announces {packing.size} bytes; a compressed value has 1 to {VALUE_BYTES_MAX}")
    name = _CODECS[packing.method]
    pa = arrow()
    try:
        found: bytes = pa.Codec(name).decompress(value, packing.size, asbytes=True)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise ValueError(f"it cannot be unpacked: {error}") from error
    if len(found) != packing.size or _checksum(found) != packing.checksum:
        raise ValueError(f"its checksum is wrong: these are not the {packing.size} bytes that were sent")
    return found


class PackedRows:
    """Rows some of which have a compressed value. Nothing is unpacked before somebody asks for it."""

    __slots__ = ("_rows",)

    def __init__(self, rows: list[StoredRow]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def headers(self, at: int) -> Mapping[str, bytes] | None:
        """The headers of a row."""
        return self._rows[at].headers

    def fitting(self, start: int, stop: int, bytes_max: int) -> int:
        """Before which row, ``stop`` at most, to end so that the values from row ``start`` on have no more
        than ``bytes_max`` bytes; after the first row at least."""
        size = 0
        for at in range(start, stop):
            row = self._rows[at]
            size += len(row.value) if type(row.packing) is not Packing else max(row.packing.size, 0)
            if size > bytes_max:
                return max(at, start + 1)
        return stop

    def unpacked(self, start: int, stop: int) -> list[PlainRow]:
        """Rows from ``start`` on, up to the first unsound one, or to ``stop``. Raises UnsoundValue if
        ``start`` is unsound."""
        found: list[PlainRow] = []
        for at in range(start, stop):
            row = self._rows[at]
            value = row.value
            if type(row.packing) is Packing:
                try:
                    value = unpack_value(value, row.packing)
                except ValueError as error:
                    if found:
                        break
                    raise UnsoundValue(at, str(error)) from error
            found.append((row.key, value, row.headers, row.tx_id))
        return found

    def without_values(self) -> list[PlainRow]:
        """All rows, with empty values: for readers that want no values."""
        return [(row.key, b"", row.headers, row.tx_id) for row in self._rows]
