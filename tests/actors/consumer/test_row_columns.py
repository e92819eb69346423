"""Rows to columns at once give what the plain way gives, whatever values hold."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from escrowmq.actors.consumer import arrow_batches
from escrowmq.actors.consumer.arrow_batches import _scan, columns_of_rows, raw_columns
from escrowmq.replication.errors import CorruptLog
from escrowmq.replication.format.codec import decode_rows, encode_row
from escrowmq.replication.format.packing import PackedRows, pack_row


@pytest.fixture(scope="module", autouse=True, params=["guessed", "skipped"])
def rows_of_any_length_go_the_fast_way(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow_batches, "SKIPPED_ROW_BYTES_MAX", 1 << 30)
        patch.setattr(arrow_batches, "GUESSED_ROW_BYTES_MAX", (1 << 30) * (request.param == "guessed"))
        yield


WANTED = ("key", "value", "headers", "tx_id")
#: Bytes that look like rows and like fields of rows, to lead the guess astray.
row_like = st.lists(
    st.sampled_from([b"\x94", b"\x94\xc0", b"\x94\xc4\x01", b"\xc4\x00\xc0\xc0", b"\xc0", b"\xc5\x00", b"x"]),
    max_size=8,
).map(b"".join)
contents = st.binary(max_size=20) | row_like | st.just(b"y" * 300) | st.just(b"\x94\xc0" * 40_000)
tx_ids = st.none() | st.text(max_size=10) | st.just("t" * 200)
plain_rows = st.tuples(st.none() | contents, contents, st.none(), tx_ids)
headers = st.none() | st.dictionaries(st.text(max_size=3), st.binary(max_size=3), max_size=2)
any_rows = st.tuples(st.none() | contents, contents, headers, tx_ids)


def check(blob: bytes, count: int) -> None:
    expected = decode_rows(blob, count)
    columns = raw_columns(blob, count, WANTED)
    if isinstance(columns, PackedRows):
        columns = columns_of_rows(columns.unpacked(0, count), WANTED)
    for column in columns.values():
        column.validate(full=True)
    assert columns["key"].to_pylist() == [row[0] for row in expected]
    assert columns["value"].to_pylist() == [row[1] for row in expected]
    assert columns["tx_id"].to_pylist() == [row[3] for row in expected]
    assert [{h["key"]: h["value"] for h in row} for row in columns["headers"].to_pylist()] == [
        row[2] or {} for row in expected
    ]


@settings(deadline=None)
@given(st.lists(plain_rows | any_rows, min_size=1, max_size=40))
def test_columns_are_those_of_the_plain_way(rows: list[tuple[bytes | None, bytes, None, str | None]]) -> None:
    check(b"".join(encode_row(*row) for row in rows), len(rows))


@settings(deadline=None)
@given(st.lists(st.tuples(any_rows, st.sampled_from([None, "zstd", "lz4"])), min_size=1, max_size=20))
def test_rows_with_compressed_values_are_those_that_were_packed(
    drawn: list[tuple[tuple[bytes | None, bytes, None, str | None], str | None]],
) -> None:
    encoded = [encode_row(*row) for row, _ in drawn]
    rows = [
        row if method is None else pack_row(row, method, None, 1)
        for row, (_, method) in zip(encoded, drawn, strict=True)
    ]
    check(b"".join(rows), len(rows))
    assert decode_rows(b"".join(rows), len(rows)) == decode_rows(b"".join(encoded), len(rows))
    assert all(len(now) <= len(before) for now, before in zip(rows, encoded, strict=True))


@settings(deadline=None)
@given(st.lists(plain_rows, min_size=1, max_size=20), st.data())
def test_damage_is_refused_or_read_as_the_plain_way_reads_it(
    rows: list[tuple[bytes | None, bytes, None, str | None]], data: st.DataObject
) -> None:
    blob = bytearray(b"".join(encode_row(*row) for row in rows))
    at = data.draw(st.integers(0, len(blob) - 1))
    blob[at] = data.draw(st.integers(0, 255))
    count = len(rows) + data.draw(st.sampled_from([0, 0, 0, 1, -1]))
    if not count:
        return
    damaged = bytes(blob[: data.draw(st.sampled_from([len(blob), at]))])
    try:
        decode_rows(damaged, count)
    except CorruptLog:
        with pytest.raises(CorruptLog):
            raw_columns(damaged, count, WANTED)
    else:
        check(damaged, count)


@pytest.mark.parametrize("size", [3, 200, 1000, 70_000])
def test_ordinary_rows_take_the_fast_way_even_if_their_values_are_random(size: int) -> None:
    rng = random.Random(size)
    count = max(3, 400_000 // size)
    rows = [encode_row(b"k%d" % i, rng.randbytes(size), None, "tx" if i % 3 else None) for i in range(count)]
    blob = b"".join(rows)
    assert _scan(blob, count) is not None
    check(blob, count)
