"""Decoding values: good ones by the batch, bad ones alone, never a neighbour's."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from escrowmq.replication.errors import ConfigError, InvalidMessage
from escrowmq.spark_integration.decode.values import ValueDecoder

ROW = pa.struct([("id", pa.int64()), ("name", pa.string())])


def decoded(format: str, values: list[bytes], type: pa.DataType = ROW, mode: str = "PERMISSIVE") -> list[Any]:
    column, stays = ValueDecoder(format, type, mode).decode(
        pa.array(values, pa.binary()), lambda i: f"no. {i}"
    )
    column.validate(full=True)
    assert column.type == type
    rows: list[Any] = (column if stays is None else column.filter(stays)).to_pylist()
    return rows


def stream(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return sink.getvalue()


def test_json_with_every_type_it_can_hold() -> None:
    kind = pa.struct(
        [
            ("id", pa.int32()),
            ("price", pa.decimal128(10, 2)),
            ("ratio", pa.float64()),
            ("ok", pa.bool_()),
            ("day", pa.date32()),
            ("at", pa.timestamp("us", tz="UTC")),
            ("tags", pa.list_(pa.string())),
            ("days", pa.list_(pa.struct([("d", pa.date32())]))),
        ]
    )
    value = b"""{"id": 1, "price": "12.30", "ratio": 2, "ok": true, "day": "2024-02-03", "other": [{}],
      "at": "2024-01-02T03:04:05.123456+02:00", "tags": ["a", null], "days": [{"d": "2024-01-01"}]}"""
    (row,) = decoded("json", [value], kind)
    assert row == {
        "id": 1,
        "price": Decimal("12.30"),
        "ratio": 2.0,
        "ok": True,
        "day": date(2024, 2, 3),
        "at": datetime(2024, 1, 2, 1, 4, 5, 123456, UTC),
        "tags": ["a", None],
        "days": [{"d": date(2024, 1, 1)}],
    }


BAD_JSON = [
    b"",
    b"x",
    b"3",
    b"[]",
    b"{} {}",
    b'{}} {"v":{}',
    b'{"id": 1',
    b'{"id": "one"}',
    b'{"id": 1.5}',
    b'{"name": "\xff"}',
    b'{"name": "a\nb"}',
    b'{"name": "cut',
    b'{"id": 99999999999999999999}',
    b'{"id": 1}, "w": 2',
    b'{"id": 1}, "w": {"id": 2}',
    b'{"id": 1}, {"id": 2}',
    b'{"id": 1}], "w": [2',
    b'{"id": 1}}, {"v": {"id": 2}',
    b'{"id": 1},',
]


@pytest.mark.parametrize("bad", BAD_JSON)
def test_bad_json_is_null_and_its_neighbours_are_not(bad: bytes) -> None:
    good = [b'{"id": %d, "name": "n%d"}' % (i, i) for i in range(5)]
    rows = [{"id": i, "name": f"n{i}"} for i in range(5)]
    assert decoded("json", [*good[:2], bad, *good[2:]]) == [*rows[:2], None, *rows[2:]]
    assert decoded("json", [bad, bad]) == [None, None]


def test_missing_fields_and_line_breaks_between_tokens_are_fine() -> None:
    assert decoded("json", [b'{\r\n"id":\n1}', b"{}", b"null", b'{"name": "a\\nb"}']) == [
        {"id": 1, "name": None},
        {"id": None, "name": None},
        None,
        {"id": None, "name": "a\nb"},
    ]


def test_modes() -> None:
    values = [b'{"id": 1}', b"bad", b'{"id": 2}']
    assert [row and row["id"] for row in decoded("json", values)] == [1, None, 2]
    assert [row["id"] for row in decoded("json", values, mode="DROPMALFORMED")] == [1, 2]
    with pytest.raises(InvalidMessage, match=r"no\. 1: the value is not json"):
        decoded("json", values, mode="FAILFAST")
    for format in ("json", "msgpack", "arrow"):
        kind = pa.list_(ROW) if format == "arrow" else ROW
        assert decoded(format, [], kind) == []


@pytest.mark.parametrize(
    ("format", "nothing"), [("json", b"null"), ("json", b" null\n"), ("msgpack", b"\xc0")]
)
def test_a_value_that_is_null_is_no_object(format: str, nothing: bytes) -> None:
    """It passed every mode, as a row whose value is null, although nobody had asked for such rows."""
    encode = json.dumps if format == "json" else msgspec.msgpack.encode
    one, two = ({"id": 1, "name": None}, {"id": 2, "name": None})
    values = [bytes(encode(one), "utf8") if format == "json" else encode(one) for one in (one, two)]
    values.insert(1, nothing)
    assert decoded(format, values) == [one, None, two]
    assert decoded(format, values, mode="DROPMALFORMED") == [one, two]
    assert decoded(format, [*values, b"\xc1"], mode="DROPMALFORMED") == [one, two]
    with pytest.raises(InvalidMessage, match=r"no\. 1: the value is no"):
        decoded(format, values, mode="FAILFAST")


texts = st.text(max_size=8)
rows = st.fixed_dictionaries({"id": st.integers(-(2**63), 2**63 - 1), "name": st.none() | texts})


@settings(deadline=None)
@given(st.lists(rows | st.binary(max_size=6), max_size=30), st.sampled_from(["json", "msgpack"]))
def test_values_keep_their_places_beside_anything(chosen: list[Any], format: str) -> None:
    encode = (lambda row: json.dumps(row).encode()) if format == "json" else msgspec.msgpack.encode
    values = [row if isinstance(row, bytes) else encode(row) for row in chosen]
    found = decoded(format, values)
    assert len(found) == len(chosen)
    for row, value in zip(chosen, found, strict=True):
        if not isinstance(row, bytes):
            assert value == row
        else:  # whatever it is taken for, it is the same as if it stood alone
            assert value == decoded(format, [row])[0]


@pytest.mark.parametrize(
    "bad", [b"", b"\xc1", b"\x01", b"\x80\x80", b"\x81\xa2id", b"\x81\xa2id\xa3one", b"\x92\x80"]
)
def test_bad_msgpack_is_null_and_its_neighbours_are_not(bad: bytes) -> None:
    good = [msgspec.msgpack.encode({"id": i, "other": [1]}) for i in range(4)]
    ids = [row and row["id"] for row in decoded("msgpack", [good[0], bad, *good[1:]])]
    assert ids == [0, None, 1, 2, 3]


@pytest.mark.parametrize(
    ("kind", "whole", "cut"),
    [
        (pa.int64(), 3, 1.99),
        (pa.int8(), 3.0, -0.5),
        (pa.date32(), 1, 1.5),
        (pa.timestamp("us", tz="UTC"), datetime(2024, 1, 2, tzinfo=UTC), 1.5),
        (pa.list_(pa.date32()), [1], [1.5]),
        (pa.list_(pa.int64()), [1, None, 2.0], [1, 2.5]),
        (pa.struct([("c", pa.int32())]), {"c": None}, {"c": 1.5}),
        (pa.list_(pa.struct([("c", pa.int32())])), [None, {}, {"c": 1}], [{"c": 1}, {"c": 1e-3}]),
    ],
)
def test_msgpack_cuts_no_fraction_off(kind: pa.DataType, whole: Any, cut: Any) -> None:
    """As in JSON and Arrow, where such a value cannot be decoded either."""
    row = pa.struct([("a", kind), ("price", pa.float64())])
    values = [msgspec.msgpack.encode({"a": found, "price": 0.5}) for found in (whole, cut, None, whole)]
    first, bad, empty, last = decoded("msgpack", values, row)
    assert first == last and first["price"] == 0.5
    assert (bad, empty) == (None, {"a": None, "price": 0.5})
    with pytest.raises(InvalidMessage, match=r"no\. 1: the value is not msgpack"):
        decoded("msgpack", values, row, mode="FAILFAST")


def test_msgpack_holds_bytes_and_times() -> None:
    kind = pa.struct([("raw", pa.binary()), ("at", pa.timestamp("us", tz="UTC"))])
    row = {"raw": b"\x00\xff", "at": datetime(2024, 1, 2, 3, 4, 5, 6, UTC)}
    assert decoded("msgpack", [msgspec.msgpack.encode(row), b"\xc0"], kind) == [row, None]


def test_an_arrow_value_is_a_list_of_rows() -> None:
    table = pa.table({"id": [1, 2, 3], "name": ["a", None, "c"], "other": [0.5, 1, 2]})
    lacking = pa.table({"id": pa.array([7], pa.int32())})
    wrong = pa.table({"id": ["text"]})
    values = [stream(table), b"", stream(table.slice(0, 0)), stream(wrong), stream(lacking), b"bad"]
    kind = pa.list_(ROW)
    ids = [{"id": 1, "name": "a"}, {"id": 2, "name": None}, {"id": 3, "name": "c"}]
    assert decoded("arrow", values, kind) == [ids, None, [], None, [{"id": 7, "name": None}], None]
    assert decoded("arrow", values, kind, "DROPMALFORMED") == [ids, [], [{"id": 7, "name": None}]]
    damaged = bytearray(stream(table))
    for at in range(len(damaged)):  # whatever is damaged: rows or null, but no crash and no invalid column
        damaged[at] ^= 0x55
        decoded("arrow", [bytes(damaged)], kind)
        damaged[at] ^= 0x55


@pytest.mark.parametrize(
    ("format", "type", "said"),
    [
        ("json", pa.int64(), "must be STRUCT"),
        ("arrow", ROW, "must be ARRAY<STRUCT"),
        ("json", pa.struct([("a", pa.binary())]), "'a' is BINARY"),
        ("json", pa.struct([("a", pa.map_(pa.string(), pa.string()))]), "'a' is a MAP"),
        (
            "msgpack",
            pa.struct([("a", pa.struct([pa.field("b", pa.int64(), nullable=False)]))]),
            "'a.b' is NOT",
        ),
        ("json", pa.struct([("a", pa.duration("us"))]), "'a' has a type"),
        ("json", pa.struct([("a", pa.int64()), ("a", pa.string())]), "'a' occurs twice"),
        ("arrow", pa.list_(pa.struct([("b", pa.struct([("a", ROW), ("a", ROW)]))])), "'b.a' occurs twice"),
    ],
)
def test_schemas_that_cannot_be_are_refused_by_column(format: str, type: pa.DataType, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ValueDecoder(format, type)
