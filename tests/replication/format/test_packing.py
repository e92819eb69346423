"""Rows with compressed values: what was once written stays readable."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from escrowmq.replication.errors import CorruptLog
from escrowmq.replication.format.codec import decode_lazily, decode_rows, encode_row
from escrowmq.replication.format.packing import METHODS, PackedRows, pack_row

#: Written once: other versions of the libraries may compress to other bytes, and have to read these.
GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "packed_rows.json").read_text())
VALUE = GOLDEN["value"].encode()


@pytest.mark.parametrize("method", METHODS)
def test_rows_of_the_golden_file_are_what_was_sent(method: str) -> None:
    row = bytes.fromhex(GOLDEN[method])
    assert row[0] == 0x95 and len(row) < len(VALUE) / 2
    assert decode_rows(row, 1) == [(b"key", VALUE, {"h": b"1"}, "tx")]
    plain = encode_row(b"key", VALUE, {"h": b"1"}, "tx")
    assert decode_rows(pack_row(plain, method, None, 1), 1) == decode_rows(plain, 1)


def test_rows_without_compressed_values_are_decoded_as_ever() -> None:
    rows = [encode_row(b"k", b"v" * 2_000, None, None), encode_row(None, b"", {"h": b"1"}, "tx")]
    assert isinstance(decode_lazily(b"".join(rows), 2), list)
    assert isinstance(decode_lazily(rows[0] + bytes.fromhex(GOLDEN["zstd"]), 2), PackedRows)
    assert decode_rows(b"", 0) == []
    with pytest.raises(CorruptLog):
        decode_rows(b"", 1)


@pytest.mark.parametrize("key", [None, b"", b"k" * 300, b"k" * 70_000])
@pytest.mark.parametrize("size", [0, 1_023, 1_024, 70_000, 1 << 20])
def test_lengths_of_every_width_are_kept(key: bytes | None, size: int) -> None:
    plain = encode_row(key, b"v" * size, None, None)
    row = pack_row(plain, "lz4", None, 1_024)
    assert (row == plain) == (size < 1_024)
    assert decode_rows(row, 1) == decode_rows(plain, 1)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("noise", [200, 300, 65_000, 66_000, 1 << 20])
def test_compressed_lengths_of_every_width_are_kept(method: str, noise: int) -> None:
    value = random.Random(noise).randbytes(noise) + bytes(20_000)
    plain = encode_row(b"key", value, {"h": b"1"}, "tx")
    row = pack_row(plain, method, None, 1)
    assert noise < len(row) < len(plain), "it is compressed"
    assert decode_rows(row, 1) == decode_rows(plain, 1)
