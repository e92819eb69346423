"""Torn tail or corruption: what an unsound entry in the newest segment means.

A power cut may tear what was written and not yet synced: it was never acknowledged, so it is cut off.
Damage to anything that was once synced is corruption, and is never cut off: the replica refuses to serve
the log and is repaired from a peer. The bytes themselves tell which it is:

* nothing sound follows: a torn tail; * something sound follows that a *later* sync wrote (its header says
how many entries its own sync covered): the bad entry had been synced before, so it is corruption; *
something sound of the same sync follows: pages of one sync reach the disk in any order, and a page that
was not written reads as zeros. Only such a lost sector makes it a torn tail; any other damage is
corruption.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from escrowmq.replication.format.entry import (
    HEADER_SIZE,
    MAGIC,
    EntryHeader,
    read_entry,
)

#: Disks write sectors of 512 bytes whole or not at all.
SECTOR: Final = 512
_ZEROS: Final = bytes(SECTOR)
#: Bounds the cost of checksums after forged or accidental magics: at most this many times the file.
_CHECKSUM_FACTOR_MAX: Final = 16


def is_torn(data: memoryview, bad: int, index: int) -> bool:
    """Whether the unsound entry ``index`` at byte ``bad`` can be a write that was never synced."""
    first_sound = None
    for at, header in sound_entries_after(data, bad, index):
        if header is None or header.batch_first > index:
            return False
        if first_sound is None:
            first_sound = at
    return first_sound is None or _lost_sector(data, bad, first_sound)


def sound_entries_after(data: memoryview, bad: int, index: int) -> Iterator[tuple[int, EntryHeader | None]]:
    """Sound entries after ``bad`` with later indexes, as (position, header).

    Ends with a None header if the search becomes too expensive, which only forged input can cause; it
    counts as corruption, the verdict that loses nothing.
    """
    raw = bytes(data[bad:])
    budget = _CHECKSUM_FACTOR_MAX * len(raw)
    at = raw.find(MAGIC, 1)
    while at >= 0:
        found = int.from_bytes(raw[at + 24 : at + 32], "little")
        after = at + 1
        if index < found <= index + len(raw) // HEADER_SIZE:
            budget -= min(int.from_bytes(raw[at + 8 : at + 12], "little"), len(raw))
            if budget < 0:
                yield bad + at, None
                return
            header = read_entry(data, bad + at)
            if header is not None:
                yield bad + at, header
                after = at + HEADER_SIZE + header.size
        at = raw.find(MAGIC, after)


def _lost_sector(data: memoryview, start: int, end: int) -> bool:
    """Whether a sector of [start, end) reads as zeros: wholly, or from ``start`` to its end."""
    border = start - start % SECTOR + SECTOR
    head = bytes(data[start : min(border, end)])
    if not any(head):
        return True
    return any(data[at : at + SECTOR] == _ZEROS for at in range(border, end - SECTOR + 1, SECTOR))
