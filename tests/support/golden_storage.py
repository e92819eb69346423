"""The storage files of one small log, as the golden files under tests/golden/storage/ show them.

Regenerate after a wanted change of format (raise the version first) with
``python -m tests.support.golden_storage``.
"""

from __future__ import annotations

import random
from pathlib import Path

from escrowmq.replication.log.journal import SegmentJournal
from tests.sim.environment.disk import SimDisk

FOLDER = Path(__file__).parent.parent / "golden" / "storage"
#: (command, index, term): two group commits in the first segment, one in the second.
FIRST_BATCH = [(b"\x01", 1, 0), (b"\x00first", 2, 1)]
SECOND_BATCH = [(b"", 3, 1), (b"\x00" + bytes(range(40)), 4, 3)]
THIRD_BATCH = [(b"\x00next segment", 5, 3)]
SEGMENT_BYTES = 220


def build() -> SimDisk:
    """A log of two segments, the first one sealed, in term 3 with a vote for r1."""
    disk = SimDisk(random.Random(0))
    journal = SegmentJournal(disk, segment_bytes=SEGMENT_BYTES)
    for batch in (FIRST_BATCH, SECOND_BATCH, THIRD_BATCH):
        for entry in batch:
            journal.add(*entry)
        journal.sync()
    journal.setCurrentTerm(1, None)
    journal.setCurrentTerm(3, "r1")
    return disk


def to_hex(data: bytes) -> str:
    """Sixteen bytes a line after their offset; runs of zero lines are left out, as hexdump does."""
    lines, skipping = [], False
    for at in range(0, len(data), 16):
        row = data[at : at + 16]
        if at and not any(row) and at + 16 < len(data):
            if not skipping:
                lines.append("*")
            skipping = True
            continue
        skipping = False
        lines.append(f"{at:06x}  {row.hex(' ')}")
    return "\n".join(lines) + "\n"


def from_hex(text: str) -> bytes:
    """Inverse of :func:`to_hex`."""
    data = bytearray()
    for line in text.splitlines():
        if line != "*":
            at, _, row = line.partition("  ")
            data.extend(bytes(int(at, 16) - len(data)))
            data.extend(bytes.fromhex(row))
    return bytes(data)


def main() -> None:
    disk = build()
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in disk.names():
        (FOLDER / f"{name}.hex").write_text(to_hex(disk.read_all(name)))


if __name__ == "__main__":
    main()
