"""Defect E: the stock journal has no checksum, so a flipped bit becomes part of someone's order."""

from __future__ import annotations

from pathlib import Path

import pytest
from pysyncobj.journal import FileJournal

from escrowmq.replication.errors import CorruptLog
from escrowmq.replication.log.disk import RealDisk
from escrowmq.replication.log.journal import SegmentJournal

ORDERS = [b"\x00order 1: pay 100", b"\x00order 2: pay 200", b"\x00order 3: pay 300"]


def flip(path: Path, text: bytes) -> None:
    """Flips one bit of the amount that ends ``text``: 200 becomes 300."""
    data = bytearray(path.read_bytes())
    at = data.index(text) + len(text) - 3
    data[at] ^= 1
    path.write_bytes(data)


def test_stock_loads_a_flipped_bit_silently(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = FileJournal(str(path))
    for index, order in enumerate(ORDERS, 1):
        journal.add(order, index, 1)
    journal._destroy()
    flip(path, b"pay 200")
    assert FileJournal(str(path))[1][0] == b"\x00order 2: pay 300"


def test_ours_refuses_it_and_names_file_and_byte(tmp_path: Path) -> None:
    journal = SegmentJournal(RealDisk(tmp_path))
    for index, order in enumerate(ORDERS, 1):
        journal.add(order, index, 1)
        journal.sync()
    journal.close()
    path = tmp_path / "0000000000000001.log"
    flip(path, b"pay 200")
    damaged = path.read_bytes()
    with pytest.raises(CorruptLog, match=r"0000000000000001\.log: no sound entry at byte 81 of"):
        SegmentJournal(RealDisk(tmp_path))
    assert path.read_bytes() == damaged, "evidence is never cut off"
