"""Decodes values that are JSON, msgpack or Arrow into one typed column, one batch at a time.

The values of a batch are joined and parsed by one call into C code. The separators are chosen so that an
invalid value can never shift or consume its neighbours: a batch whose result has another number of values is
halved until the bad values are alone. So good data need no Python code per message (though msgpack makes
Python objects), and the cost of bad data grows with their number. Arrow streams are joined differently; see
``arrow_values``.

Each message remains one row: ``value`` becomes a STRUCT (json, msgpack), or an ARRAY of STRUCT (arrow, where
a value is an IPC stream with any number of rows).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from escrowmq.replication.errors import ConfigError, InvalidMessage
from escrowmq.spark_integration.decode.arrow_values import arrow_lists
from escrowmq.spark_integration.decode.halving import halved

#: Treatment of values that cannot be decoded: null, the row is left out, or an error.
MODES = PERMISSIVE, DROPMALFORMED, FAILFAST = "PERMISSIVE", "DROPMALFORMED", "FAILFAST"

_raw_values = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_pairs = msgspec.msgpack.Decoder(list[tuple[dict[str, Any] | None, int]]).decode


@dataclass(frozen=True)
class ValueDecoder:
    """How values are decoded. ``type``: the column's type, a struct, or for ``arrow`` a list of structs."""

    format: str
    type: pa.DataType
    mode: str = PERMISSIVE

    def __post_init__(self) -> None:
        row: Any = self.type
        if self.format == "arrow":
            row = row.value_type if pa.types.is_list(row) else None
        if row is None or not pa.types.is_struct(row):
            shape = "ARRAY<STRUCT<...>>" if self.format == "arrow" else "STRUCT<...>"
            raise ConfigError(f"valueFormat={self.format}: the column 'value' must be {shape}")
        _check_fields(self.format, "", row)

    def decode(
        self, values: pa.BinaryArray, name_of: Callable[[int], str]
    ) -> tuple[pa.Array, pa.BooleanArray | None]:
        """The decoded column, and which rows to keep (None: all). ``name_of(i)`` names message i in errors.

        Raises InvalidMessage if a value cannot be decoded and the mode is FAILFAST.
        """
        if self.format == "arrow":
            column, bad = arrow_lists(values, self.type)
        else:
            parse = _json if self.format == "json" else _msgpack
            column, bad = halved(
                len(values), lambda at, size: parse(values.slice(at, size), self.type), self.type
            )
            if column.null_count > len(bad):  # JSON null and msgpack nil count as bad, too
                bad = np.flatnonzero(column.is_null()).tolist()
        if not bad or self.mode == PERMISSIVE:
            return column, None
        if self.mode == FAILFAST:
            raise InvalidMessage(
                f"{name_of(bad[0])}: the value is not {self.format} with the given schema; correct option "
                "'valueSchema', or set option 'valueMode' to PERMISSIVE (null) or DROPMALFORMED (left out)"
            )
        stays = [True] * len(values)
        for i in bad:
            stays[i] = False
        return column, pa.array(stays)


def value_ddl(format: str, schema: str) -> str:
    """The DDL type of the column ``value``, given the DDL of the columns in it."""
    return f"ARRAY<STRUCT<{schema}>>" if format == "arrow" else f"STRUCT<{schema}>"


def _check_fields(format: str, inside: str, row: pa.StructType) -> None:
    for i in range(row.num_fields):
        field = row.field(i)
        if row.get_field_index(field.name) < 0:
            raise ConfigError(f"valueSchema: {inside + field.name!r} occurs twice")
        _check_type(format, inside + field.name, field)


def _check_type(format: str, name: str, field: pa.Field) -> None:
    kind = field.type
    if not field.nullable:
        raise ConfigError(f"valueSchema: {name!r} is NOT NULL; leave that out, because a value may lack it")
    if pa.types.is_struct(kind):
        _check_fields(format, f"{name}.", kind)
    elif pa.types.is_list(kind):
        _check_type(format, f"{name}[]", kind.value_field)
    elif pa.types.is_map(kind) and format != "arrow":
        raise ConfigError(f"valueSchema: {name!r} is a MAP; valueFormat={format} can read a STRUCT instead")
    elif format == "json" and pa.types.is_binary(kind):
        raise ConfigError(f"valueSchema: {name!r} is BINARY; read it as STRING and use unbase64 or unhex")
    elif pa.types.is_duration(kind) or isinstance(kind, pa.ExtensionType):
        raise ConfigError(f"valueSchema: {name!r} has a type that cannot be decoded: {kind}")


def _joined(values: pa.BinaryArray, before: bytes, after: bytes) -> pa.Buffer:
    """All values joined, each between ``before`` and ``after``, without a Python object for each."""
    whole = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    inner = pc.binary_join(whole, after + before)[0].as_buffer()
    return pa.py_buffer(b"".join((before, inner, after)))


def _json(values: pa.BinaryArray, type: pa.StructType) -> pa.Array:
    """Parse values of one JSON object each.

    Each value is wrapped in an object on a separate line. So a truncated value is an error there and cannot
    continue in the next line, since no string spans lines. A line break inside a value is white space, and is
    replaced by a tab, which is white space as well; inside a string both are errors. As items of one array
    the values show if one of them is an object and more, such as ``{"a":1},"w":2``: an array has no keys.
    """
    values.cast(pa.string())  # refuses invalid UTF-8, which the parser would accept
    lines = pc.replace_substring_regex(values, "[\r\n]", "\t") if _has_line_break(values) else values
    text = _joined(lines, b'{"v":', b"}\n")
    table = pa.json.read_json(
        pa.BufferReader(text),
        read_options=pa.json.ReadOptions(use_threads=False, block_size=text.size + 1),
        parse_options=pa.json.ParseOptions(
            explicit_schema=pa.schema([("v", _as_in_json(type))]), unexpected_field_behavior="ignore"
        ),
    )
    items = _raw_values(b"[%b]" % _joined(values, b"", b",")[:-1])
    if len(table) != len(values) or len(items) != len(values):
        raise ValueError("a value contains more than one object")
    column = table.column("v").combine_chunks()
    return column if column.type == type else column.cast(type)


def _has_line_break(values: pa.BinaryArray) -> bool:
    return bool(pc.any(pc.or_(pc.match_substring(values, "\n"), pc.match_substring(values, "\r"))).as_py())


def _as_in_json(type: pa.DataType) -> pa.DataType:
    """The type to parse as: dates are parsed as strings, because the parser would expect numbers for them."""
    if pa.types.is_date(type):
        return pa.string()
    if pa.types.is_list(type):
        return pa.list_(_as_in_json(type.value_type))
    if pa.types.is_struct(type):
        fields = [type.field(i) for i in range(type.num_fields)]
        return pa.struct([(field.name, _as_in_json(field.type)) for field in fields])
    return type


def _msgpack(values: pa.BinaryArray, type: pa.StructType) -> pa.Array:
    """Parse values of one msgpack map each.

    Each value is followed by the same random number, so that a truncated value, which consumes what follows
    it, is noticed.
    """
    mark = secrets.randbits(32) | 1 << 31
    count = b"\xdd" + len(values).to_bytes(4, "big")
    joined = _joined(values, b"\x92", b"\xce" + mark.to_bytes(4, "big"))
    pairs = _decode_pairs(b"".join((count, joined)))
    maps, marks = zip(*pairs, strict=True)
    if set(marks) != {mark}:
        raise ValueError("a value is truncated or too long")
    _check_whole(maps, type)
    return pa.array(maps, type)


def _check_whole(column: Sequence[Any], wanted: pa.DataType) -> None:
    """Raises ValueError for a number with a fraction where an integer is wanted, for dates and times as well:
    Arrow would cut it off."""
    if _holds_integers(wanted):
        found = float in set(map(type, column))
        if found and any(type(value) is float and not value.is_integer() for value in column):
            raise ValueError("a number has a fraction, but an integer is wanted")
    elif pa.types.is_list(wanted):
        _check_whole([one for many in column if type(many) is list for one in many], wanted.value_type)
    elif pa.types.is_struct(wanted):
        maps = [value for value in column if type(value) is dict]
        for field in wanted:
            if _holds_integers(field.type) or pa.types.is_nested(field.type):
                _check_whole([value.get(field.name) for value in maps], field.type)


def _holds_integers(wanted: pa.DataType) -> bool:
    return bool(pa.types.is_integer(wanted) or pa.types.is_temporal(wanted))
