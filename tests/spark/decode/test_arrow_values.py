"""Arrow streams by the batch: many give what each gives alone, and damage stays where it is."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from escrowmq.spark_integration.decode.values import ValueDecoder

KIND = pa.list_(pa.struct([("id", pa.int64()), ("name", pa.string())]))


def decoded(values: list[bytes], mode: str = "PERMISSIVE", skip: int = 0) -> list[Any]:
    array = pa.array([b"skipped"] * skip + values, pa.binary()).slice(skip)
    column, stays = ValueDecoder("arrow", KIND, mode).decode(array, str)
    column.validate(full=True)
    assert column.type == KIND and len(column) == len(values)
    rows: list[Any] = (column if stays is None else column.filter(stays)).to_pylist()
    return rows


def stream(*tables: pa.Table, options: pa.ipc.IpcWriteOptions | None = None, end: bool = True) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, tables[0].schema, options=options) as writer:
        for table in tables:
            writer.write_table(table)
    return sink.getvalue() if end else sink.getvalue()[:-8]


def table(first: int, count: int = 2) -> pa.Table:
    ids = range(first, first + count)
    names = [None if i % 3 == 0 else f"n{i}" for i in ids]
    return pa.table({"id": pa.array(ids, pa.int64()), "name": pa.array(names, pa.string())})


def rows(first: int, count: int = 2) -> list[dict[str, Any]]:
    return table(first, count).to_pylist()


ONE = stream(table(0))
#: The row each is worth, by name, so that a failure says which.
KINDS: dict[str, bytes] = {
    "plain": ONE,
    "other rows": stream(table(7, 5)),
    "two batches": stream(table(1, 3), table(4, 1)),
    "many batches": stream(*[table(i, 1) for i in range(70)]),
    "an empty batch": stream(table(0, 0)),
    "no batch": stream(table(0), end=False)[: 8 + int.from_bytes(ONE[4:8], "little")],
    "no end": stream(table(3), end=False),
    "more behind the end": stream(table(3)) + b"more",
    "two streams": stream(table(3)) + ONE,
    "two streams with dictionaries": 2 * stream(pa.table({"name": pa.array(["a"]).dictionary_encode()})),
    "two streams in the old framing": 2
    * stream(table(2), options=pa.ipc.IpcWriteOptions(use_legacy_format=True)),
    "two streams, one without its end": stream(table(3), end=False) + ONE,
    "padded": ONE + bytes(8),
    "another schema": stream(pa.table({"other": [1.5], "name": ["x"]})),
    "narrow numbers": stream(pa.table({"id": pa.array([4, None], pa.int8())})),
    "large strings": stream(pa.table({"name": pa.array(["y"], pa.large_string())})),
    "compressed": stream(table(5, 100), options=pa.ipc.IpcWriteOptions(compression="lz4")),
    "dictionary": stream(pa.table({"name": pa.array(["a", "b", "a"]).dictionary_encode()})),
    "old framing": stream(table(2), options=pa.ipc.IpcWriteOptions(use_legacy_format=True)),
    "wrong type": stream(pa.table({"id": ["text"]})),
    "too large": stream(pa.table({"id": pa.array([2**64 - 1], pa.uint64())})),
    "twice the same name": stream(pa.table([[1], [2]], names=["id", "id"])),
    "empty": b"",
    "short": b"\xff\xff\xff\xff",
    "text": b"no stream at all, but long enough for one",
    "schema that goes on": ONE[:4] + (2**31 - 8).to_bytes(4, "little") + ONE[8:],
    "length below zero": ONE[:4] + b"\xf8\xff\xff\xff" + ONE[8:],
}
ALONE = {name: decoded([value])[0] for name, value in KINDS.items()}


def test_every_kind_alone() -> None:
    bad = {"wrong type", "too large", "twice the same name", "empty", "short", "text"}
    bad |= {"schema that goes on", "length below zero", "more behind the end", "padded"}
    bad |= {name for name in KINDS if name.startswith("two streams")}
    assert {name for name, found in ALONE.items() if found is None} == bad
    assert ALONE["plain"] == rows(0) and ALONE["no end"] == rows(3)
    assert ALONE["two batches"] == rows(1, 4) and ALONE["many batches"] == rows(0, 70)
    assert ALONE["an empty batch"] == ALONE["no batch"] == []
    assert ALONE["compressed"] == rows(5, 100) and ALONE["old framing"] == rows(2)
    assert ALONE["another schema"] == [{"id": None, "name": "x"}]
    assert [row["id"] for row in ALONE["narrow numbers"]] == [4, None]
    assert [row["name"] for row in ALONE["dictionary"]] == ["a", "b", "a"]


@settings(deadline=None)
@given(st.lists(st.sampled_from(sorted(KINDS)), max_size=40), st.integers(0, 3))
def test_many_give_what_each_gives_alone(names: list[str], skip: int) -> None:
    values = [KINDS[name] for name in names]
    expected = [ALONE[name] for name in names]
    assert decoded(values, skip=skip) == expected
    assert decoded(values, "DROPMALFORMED", skip) == [found for found in expected if found is not None]


def test_what_is_cut_off_or_damaged_stays_where_it_is() -> None:
    whole = stream(*(part.select(["id"]) for part in (table(1, 3), table(4, 1))))
    neighbours = [stream(table(100)), stream(table(200), end=False), stream(table(300, 0))]
    expected = [rows(100), rows(200), []]

    def check(value: bytes, what: str) -> None:
        found = decoded([neighbours[0], value, *neighbours[1:]])
        assert [found[0], *found[2:]] == expected, what
        assert found[1] == decoded([value])[0], what

    for size in range(0, len(whole), 4):
        check(whole[:size], f"cut off after {size} bytes")
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= (0x55, 0x08, 0x80)[at % 3]
        check(bytes(damaged), f"damaged at {at}")


def test_streams_of_one_schema_are_opened_once(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    open_stream = pa.ipc.open_stream

    def counted(source: Any) -> Any:
        opened.append(source)
        return open_stream(source)

    monkeypatch.setattr(pa.ipc, "open_stream", counted)
    values = [stream(table(i, i % 4)) for i in range(300)]
    assert decoded(values) == [rows(i, i % 4) for i in range(300)]
    assert len(opened) == 1
    others = [stream(pa.table({"id": [i]})) for i in range(300)]
    mixed = [value for pair in zip(values, others, strict=True) for value in pair]
    assert decoded(mixed)[1::2] == [[{"id": i, "name": None}] for i in range(300)]
    assert len(opened) == 1 + 2
