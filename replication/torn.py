"""Torn tail or corruption: what an unsound entry in the newest segment means.

A power cut may tear what was written and not yet synced: nobody was told it was safe, so it is cut
off. Damage to anything that was once synced is corruption, and is never cut off: the replica refuses
to serve the log and is repaired from a peer. The bytes themselves tell which it is:

* nothing sound follows: a torn tail;
* something sound follows that a *later* sync wrote (its header says how many entries its own sync
  covered): the bad entry had been synced before, so it is corruption;
* something sound of the same sync follows: pages of one sync reach the disk in any order, and a
  page that did not make it reads as zeros. Only such a lost sector makes it a torn tail; any
  other damage is corruption.
"""

from __future__ import annotations

from typing import Final

from escrowmq.replication.entry import HEADER_SIZE, MAGIC, EntryHeader, read_entry

#: Disks write sectors of 512 bytes whole or not at all.
SECTOR: Final = 512
_ZEROS: Final = bytes(SECTOR)
#: Checksums over forged or accidental magics cost at most this many times the file.
_CHECKSUM_FACTOR_MAX: Final = 16


def is_torn(data: memoryview, bad: int, index: int) -> bool:
    """Whether the unsound entry ``index`` at byte ``bad`` can be a write that was never synced."""
    following = _next_sound(data, bad, index)
    if following is None:
        return True
    at, header = following
    if header is None or header.batch_first > index:
        return False
    return _lost_sector(data, bad, at)


def _next_sound(data: memoryview, bad: int, index: int) -> tuple[int, EntryHeader | None] | None:
    """The next sound entry after ``bad`` with a later index: (position, header), or None.

    A None header means that the search became too dear, which only forged input can cause; it
    counts as corruption, the answer that loses nothing.
    """
    raw = bytes(data[bad:])
    budget = _CHECKSUM_FACTOR_MAX * len(raw)
    at = raw.find(MAGIC, 1)
    while at >= 0:
        found = int.from_bytes(raw[at + 24 : at + 32], "little")
        if index < found <= index + len(raw) // HEADER_SIZE:
            budget -= min(int.from_bytes(raw[at + 8 : at + 12], "little"), len(raw))
            if budget < 0:
                return bad + at, None
            header = read_entry(data, bad + at)
            if header is not None:
                return bad + at, header
        at = raw.find(MAGIC, at + 1)
    return None


def _lost_sector(data: memoryview, start: int, end: int) -> bool:
    """Whether a sector of [start, end) reads as zeros: wholly, or from ``start`` to its end."""
    border = start - start % SECTOR + SECTOR
    head = bytes(data[start : min(border, end)])
    if not any(head):
        return True
    return any(data[at : at + SECTOR] == _ZEROS for at in range(border, end - SECTOR + 1, SECTOR))
