"""The storage files byte by byte: what this version writes, and that it still reads older files."""

from __future__ import annotations

import random

import pytest

from escrowmq.replication.log.journal import SegmentJournal
from tests.sim.environment.disk import SimDisk
from tests.support import golden_storage as golden

NAMES = ["0000000000000001.log", "0000000000000001.pos", "0000000000000005.log", "vote"]


def golden_bytes(name: str) -> bytes:
    return golden.from_hex((golden.FOLDER / f"{name}.hex").read_text())


@pytest.mark.parametrize("name", NAMES)
def test_files_are_written_as_the_golden_file_says(name: str) -> None:
    written = golden.build().read_all(name)
    assert golden.to_hex(written) == (golden.FOLDER / f"{name}.hex").read_text(), (
        "the format changed: raise its version, describe it in docs/log-format.md, and regenerate with "
        "python -m tests.support.golden_storage"
    )
    assert golden.from_hex(golden.to_hex(written)) == written


def test_the_golden_log_is_all_there_is() -> None:
    assert golden.build().names() == NAMES
    assert sorted(path.name for path in golden.FOLDER.iterdir()) == [f"{name}.hex" for name in NAMES]


def test_golden_files_are_read_back() -> None:
    disk = SimDisk(random.Random(0))
    for name in NAMES:
        disk.open(name, create=True).append((golden_bytes(name),))
    journal = SegmentJournal(disk, segment_bytes=golden.SEGMENT_BYTES)
    entries = golden.FIRST_BATCH + golden.SECOND_BATCH + golden.THIRD_BATCH
    assert [tuple(entry) for entry in journal[:]] == entries
    assert (journal.getCurrentTerm(), journal.getVotedForNodeId()) == (3, "r1")
    assert disk.read_all(NAMES[1]) == golden_bytes(NAMES[1]), "the sidecar was taken, not rebuilt"
