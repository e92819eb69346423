"""What tasks and drivers of Spark decode: rows by the column, values, the intents of a checkpoint."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Callable

import msgspec
import pyarrow as pa
import pytest
from google_crc32c import value as crc32c

from escrowmq.actors.consumer import arrow_batches
from escrowmq.replication.errors import CorruptLog, InvalidMessage
from escrowmq.replication.format.codec import decode_rows
from escrowmq.replication.format.packing import PackedRows, PlainRow
from escrowmq.spark_integration.decode.values import ValueDecoder
from escrowmq.spark_integration.sink.intents import Attempt, Intent, decode, encode, epoch_id_of
from tests.fuzz.engine import EXAMPLES, Target, examine, fuzz
from tests.support.packed import PACKED_ROWS
from tests.support.requests import ROWS

COLUMNS = ("key", "value", "headers", "tx_id")
ROW = pa.struct([("id", pa.int64()), ("name", pa.string())])
ROWS_OF_ONE = {"id": 1, "name": "one"}


# ------------------------------------------------------------------ rows
def raw_columns(data: bytes, count: int) -> dict[str, pa.Array]:
    """The columns, also of rows with compressed values."""
    found = arrow_batches.raw_columns(data, count, COLUMNS)
    if isinstance(found, PackedRows):
        rows = list[PlainRow]()
        while len(rows) < count:
            rows += found.unpacked(len(rows), count)
        return arrow_batches.columns_of_rows(rows, COLUMNS)
    return found


def columns(data: bytes) -> None:
    """By the column or one by one: the same rows, or the same refusal."""
    for count in (1, len(ROWS), 1000):
        try:
            expected = decode_rows(data, count)
        except CorruptLog:
            with pytest.raises(CorruptLog):
                raw_columns(data, count)
            continue
        found = raw_columns(data, count)
        for column in found.values():
            column.validate(full=True)
        for at, name in ((0, "key"), (1, "value"), (3, "tx_id")):
            assert found[name].to_pylist() == [row[at] for row in expected]


# ------------------------------------------------------------------ values
def arrow_value() -> bytes:
    sink = io.BytesIO()
    table = pa.table({"id": [1, 2], "name": ["a", None]})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


GOOD = {
    "json": [b'{"id": 1, "name": "one"}', b'{\n"id": 7, "other": [{"a": 1}], "name": null}'],
    "msgpack": [msgspec.msgpack.encode(ROWS_OF_ONE), msgspec.msgpack.encode({"other": [1.5], "id": -7})],
    "arrow": [arrow_value()],
}


def value(format: str) -> Callable[[bytes], None]:
    """Whatever stands beside them, good values come out as they are, in their places."""
    kind = pa.list_(ROW) if format == "arrow" else ROW
    good = GOOD[format][0]

    def of(values: list[bytes], mode: str) -> list[object]:
        decoder = ValueDecoder(format, kind, mode)
        column, stays = decoder.decode(pa.array(values, pa.binary()), lambda i: f"no. {i}")
        column.validate(full=True)
        assert column.type == kind
        found: list[object] = (column if stays is None else column.filter(stays)).to_pylist()
        return found

    (wanted,) = of([good], "FAILFAST")

    def run(data: bytes) -> None:
        found = of([good, data, good], "PERMISSIVE")
        assert len(found) == 3 and found[0] == found[2] == wanted
        # NaN and the like are not equal to themselves
        assert repr(found[1:2]) == repr(of([data], "PERMISSIVE")), "the same as if it stood alone"
        assert len(of([good, data, good], "DROPMALFORMED")) in (2, 3)
        try:
            of([data], "FAILFAST")
        except InvalidMessage:
            assert found[1] is None
            raise

    return run


# ------------------------------------------------------------------ intents
INTENT = Intent(4, epoch_id_of("q", 4), (Attempt("0.0.ab", {0: 2, 1: 1}), Attempt("1.0.cd", {})))


def intent(data: bytes) -> None:
    found = decode(data, "it")
    assert decode(encode(found), "it") == found


def mend_intent(data: bytes) -> bytes:
    """The checksum that goes with the content, if it is such a thing at all."""
    try:
        outer = json.loads(data)
        text = json.dumps(outer["intent"], separators=(",", ":"), sort_keys=True)
        return json.dumps({**outer, "crc32c": crc32c(text.encode())}, sort_keys=True).encode() + b"\n"
    except (ValueError, TypeError, KeyError, RecursionError):
        return data


ENCODED = [encode(INTENT), encode(dataclasses.replace(INTENT, offsets="ab12"))]
TARGETS = [
    Target("rows to columns", columns, [b"".join(ROWS), b"".join(PACKED_ROWS)]),
    *(Target(f"value, {format}", value(format), GOOD[format]) for format in GOOD),
    Target("intent", intent, ENCODED),
    Target("intent, checksum right", intent, ENCODED, mend_intent),
]


@pytest.fixture(autouse=True, params=["guessed", "skipped"])
def rows_of_any_length_go_the_fast_way(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow_batches, "SKIPPED_ROW_BYTES_MAX", 1 << 30)
    monkeypatch.setattr(arrow_batches, "GUESSED_ROW_BYTES_MAX", (1 << 30) * (request.param == "guessed"))


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_damaged_bytes_are_refused_with_an_error_of_ours(target: Target) -> None:
    fuzz(target, EXAMPLES // 2)


@pytest.mark.parametrize("target", TARGETS[1:], ids=lambda t: t.name)
def test_nesting_without_end_and_endless_numbers_are_refused(target: Target) -> None:
    start = b'{"crc32c": 0, "intent": {"version": 1, "attempts": [], "epoch_id": "x", "epoch": '
    odd = [b"[" * 100_000, b'{"a":' * 100_000, b"\x91" * 100_000, b"\x81\xa1a" * 100_000]
    odd += [start + number + b"}}" for number in (b"1e999", b"9" * 5000, b"-1", b"null", b"1.5", b'"4"')]
    for data in odd:
        examine(target, data)
