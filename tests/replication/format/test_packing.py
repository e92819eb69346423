"""Rows with compressed values: old ones stay readable, and older software refuses them as a whole."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from escrowmq.replication.errors import CorruptLog
from escrowmq.replication.format.codec import decode_lazily, decode_rows, encode_row
from escrowmq.replication.format.packing import METHODS, PackedRows, pack_row
from tests.support.earlier_software import LEVEL, unpacked

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


OLD_READER = """
import json, sys
from escrowmq.replication.format.codec import decode_rows
from escrowmq.replication.errors import CorruptLog
golden = json.load(open(sys.argv[1]))
plain = bytes.fromhex(sys.argv[2])
assert decode_rows(plain, 1)[0][1] == b"plain"
for row in golden["zstd"], golden["lz4"]:
    for blob, count in ((bytes.fromhex(row), 1), (plain + bytes.fromhex(row), 2)):
        try:
            print("read", decode_rows(blob, count))
        except CorruptLog as error:
            print("refused:", error)
"""


def test_software_from_before_refuses_such_rows_instead_of_misreading_them(tmp_path: Path) -> None:
    assert LEVEL < 7
    place = unpacked(tmp_path / "earlier")
    golden = Path(__file__).parents[2] / "golden" / "packed_rows.json"
    plain = encode_row(None, b"plain", None, None).hex()
    told = subprocess.run(
        [sys.executable, "-P", "-c", OLD_READER, str(golden), plain],
        env={"PYTHONPATH": str(place)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert len(told) == 4 and all(line.startswith("refused: message rows cannot be decoded") for line in told)
