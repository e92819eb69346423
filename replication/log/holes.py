"""Entries of a log that are damaged, and what is still known about them: their positions and terms. And what
is no damage but a torn tail, which a start may cut off (``is_torn``).

One flipped bit makes one entry unreadable, but nothing else is lost: the entries around it are sound, and so
is the log's end, on which alone votes and acknowledgements depend. Such a gap is a *hole*: its
entries are fetched from another replica and written where they were (host/repair.py).

By Log Matching (Raft, section 5.3) two logs that hold an entry of the same index and term are identical up to
it. So entries of another log fill a hole if that log has, at the hole's end or after it, an entry whose
term is known here and is the same (``fitting``). Without that proof the other log may hold different
entries there, which were never committed.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

from escrowmq.replication.errors import CorruptLog, DiskFailed, DiskFull, FsyncFailed, UnknownVersion
from escrowmq.replication.format.entry import (
    HEADER_SIZE,
    MAGIC,
    EntryHeader,
    Scan,
    encode_header,
    read_entry,
    scan,
)
from escrowmq.replication.format.segment_format import FILE_HEADER_SIZE, first_of_name, log_name
from escrowmq.replication.log.disk import Disk, File

# ------------------------------------------------------------------------------------------------------------
# Terms of the log's entries, stored as runs: a term covers thousands of entries, so one pair per run.


class TermRuns:
    """Maps log index to term. ``starts`` ascends; run i covers starts[i] up to starts[i + 1] - 1.
    ``newest_start``: of the last run, to which nearly every question is."""

    __slots__ = ("_starts", "_terms", "newest_start")

    def __init__(self, runs: Iterable[tuple[int, int]] = ()) -> None:
        self._starts: list[int] = []
        self._terms: list[int] = []
        self.newest_start = 0
        for first, term in runs:
            self.append(first, term)

    def __bool__(self) -> bool:
        return bool(self._terms)

    def append(self, index: int, term: int) -> None:
        """Entry ``index`` and those after it have ``term``. Does nothing if the last run has it already."""
        if self._terms and self._terms[-1] == term:
            return
        assert not self._starts or (index > self._starts[-1] and term > self._terms[-1])
        self._starts.append(index)
        self._terms.append(term)
        self.newest_start = index

    def at(self, index: int) -> int:
        """Term of an entry that is in the log."""
        return self._terms[bisect_right(self._starts, index) - 1]

    def run_at(self, index: int) -> tuple[int, int]:
        """(term, last index of its run) for an entry that is in the log; the newest run has no end."""
        k = bisect_right(self._starts, index)
        return self._terms[k - 1], self._starts[k] - 1 if k < len(self._starts) else 1 << 63

    def start_of(self, index: int) -> int:
        """First index of the run that ``index`` belongs to."""
        return self._starts[bisect_right(self._starts, index) - 1]

    def between(self, first: int, last: int) -> list[tuple[int, int]]:
        """Runs of the entries first..last, the first run cut to begin at ``first``."""
        low = bisect_right(self._starts, first) - 1
        high = bisect_right(self._starts, last)
        return [(max(first, self._starts[k]), self._terms[k]) for k in range(max(low, 0), high)]

    def cut_after(self, last: int) -> None:
        """Forget entries after ``last``."""
        keep = bisect_right(self._starts, last)
        del self._starts[keep:], self._terms[keep:]
        self.newest_start = self._starts[-1] if self._starts else 0

    def cut_before(self, first: int) -> None:
        """Forget entries before ``first``."""
        drop = bisect_right(self._starts, first) - 1
        if drop > 0:
            del self._starts[:drop], self._terms[:drop]
        if self._starts and self._starts[0] < first:
            self._starts[0] = first
        self.newest_start = self._starts[-1] if self._starts else 0


# ------------------------------------------------------------------------------------------------------------
# Torn tail or corruption: what an unsound entry in the newest segment means.
#
# A power cut may tear what was written and not yet synced: it was never acknowledged, so it is cut off.
# Damage to anything that was once synced is corruption, and is never cut off: the replica refuses to serve
# the log and is repaired from a peer. The bytes themselves tell which it is:
#
# * nothing sound follows: a torn tail; * something sound follows that a *later* sync wrote (its header says
# how many entries its own sync covered): the bad entry had been synced before, so it is corruption; *
# something sound of the same sync follows: pages of one sync reach the disk in any order, and a page that
# was not written reads as zeros. Only such a lost sector makes it a torn tail; any other damage is
# corruption.

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


#: Holes that are remembered at a time; any others are found again when they are next read.
HOLES_MAX: Final = 1_000
#: The end of a hole that reaches to the end of a file which was cut short: its position is not known.
UNKNOWN: Final = -1
#: Turns each byte into another one, and none into zero: zeros look like a write that was torn.
_SPOILED: Final = bytes(255 - byte or 1 for byte in range(256))


class Hole(NamedTuple):
    """Entries ``first`` to ``last`` of the segment file that begins with entry ``segment``.

    They occupy bytes [start, end) of it; ``end`` is ``UNKNOWN`` where the file lacks its end. ``term``: of
    the one entry, if the sidecar tells it; 0: it can only be inferred from the entries around the hole. With
    ``last == first - 1`` the hole is the file's header, which holds no entry.
    """

    segment: int
    first: int
    last: int
    start: int
    end: int
    term: int = 0

    @property
    def is_header(self) -> bool:
        return self.last < self.first


class KnownHoles:
    """Damaged entries met so far, each on its own, in ``by_index``. Any thread notes them, the loop thread
    forgets them."""

    __slots__ = ("by_index", "found", "mended")

    def __init__(self, holes: Iterable[Hole] = ()) -> None:
        self.by_index = {hole.first: hole for hole in holes}
        self.found, self.mended = len(self.by_index), 0  # since the process started

    def __bool__(self) -> bool:
        return bool(self.by_index)

    def note(self, hole: Hole) -> None:
        """The entry fails its checksum."""
        if hole.first not in self.by_index and len(self.by_index) < HOLES_MAX:
            self.by_index[hole.first] = hole
            self.found += 1

    def known(self, hole: Hole) -> bool:
        return self.by_index.get(hole.first) == hole

    def after(self, index: int) -> int | None:
        """The first damaged entry after ``index``."""
        if not self.by_index:
            return None
        return min((first for first in list(self.by_index) if first > index), default=None)

    def all(self) -> list[Hole]:
        holes = list(self.by_index.values())  # in one step: other threads add holes at any time
        holes.sort()
        return holes

    def forget(self, hole: Hole, *, mended: bool = False) -> None:
        if self.by_index.get(hole.first) == hole:
            del self.by_index[hole.first]
            self.mended += mended

    def keep_within(self, first: int, last: int) -> None:
        """The log now holds only entries ``first`` to ``last``."""
        for index in list(self.by_index):
            if not first <= index <= last:
                del self.by_index[index]


# ------------------------------------------------------------------ finding them
def scan_past(data: memoryview, first: int, last: int | None) -> tuple[Scan, list[Hole]]:
    """Entries of a whole segment file from entry ``first`` on, and the holes among them.

    ``last``: the segment's last entry, where it is known; otherwise the segment is the newest one, and a torn
    tail ends it (``Scan.problem`` says so). Positions of a hole's entries after its first are not known: they
    are given as its end. The terms are those of sound entries. Raises CorruptLog where sound entries are not
    where they belong, or where no sound entry follows.
    """
    whole, holes = Scan(array("I", [FILE_HEADER_SIZE])), list[Hole]()
    at, index = FILE_HEADER_SIZE, first
    while True:
        part = scan(data, at, index)
        if part.terms and whole.terms and part.terms[0][1] < whole.terms[-1][1]:
            raise CorruptLog(f"byte {at}: entry {index} has a lower term than an entry before it")
        whole.terms += [run for run in part.terms if not whole.terms or run[1] != whole.terms[-1][1]]
        whole.positions.extend(part.positions[1:])
        whole.members += part.members
        bad_at, bad = part.end, index + len(part.positions) - 1
        if part.problem is None or (last is None and is_torn(data, bad_at, bad)):
            whole.problem = part.problem
            break
        sound_at, header = next(sound_entries_after(data, bad_at, bad), (0, None))
        if header is None:
            if last is None or bad > last:
                raise CorruptLog(f"no sound entry at byte {bad_at}, and none can be found after it")
            holes.append(Hole(first, bad, last, bad_at, UNKNOWN))
            whole.positions.extend([bad_at] * (last - bad + 1))
            return whole, holes
        holes.append(Hole(first, bad, header.index - 1, bad_at, sound_at))
        whole.positions.extend([sound_at] * (header.index - bad))
        at, index = sound_at, header.index
    missing = 0 if last is None else last + 1 - (first + len(whole.positions) - 1)
    if missing < 0:
        raise CorruptLog(f"{-missing} entries more than belong here, before the next segment")
    if missing:  # the file was cut short at an entry's boundary
        assert last is not None
        holes.append(Hole(first, last + 1 - missing, last, whole.end, UNKNOWN))
        whole.positions.extend([whole.end] * missing)
    return whole, holes


def check_known(data: memoryview, first: int, found: Scan) -> list[Hole]:
    """The holes among entries whose positions and terms are known; the file may be cut short."""
    holes, runs, term = list[Hole](), dict(found.terms), -1
    for k in range(len(found.positions) - 1):
        index, start, end = first + k, found.positions[k], found.positions[k + 1]
        term = runs.get(index, term)
        header = None
        if end <= len(data):
            try:
                header = read_entry(data[start:end], 0)
            except UnknownVersion:
                header = None
        expected = (index, term, end - start - HEADER_SIZE)
        if header is None or (header.index, header.term, header.size) != expected:
            holes.append(Hole(first, index, index, start, end, term))
    return holes


def term_within(
    hole: Hole, holes: Sequence[Hole], terms: TermRuns, log_first: int, log_last: int
) -> int | None:
    """The term of a hole's entries if they have one term and it is known: from the sidecar, or because the
    entries before and after the hole have the same.

    ``terms``: of sound entries, and of entries that a sidecar describes. ``holes``: all holes of the log,
    which has entries from ``log_first`` to ``log_last``. At the log's end nothing follows that could tell.
    """
    if hole.term:
        return hole.term
    before, behind = hole.first - 1, hole.last + 1
    for other in reversed(holes):
        if not other.term and not other.is_header and other.first <= before <= other.last:
            before = other.first - 1
    for other in holes:
        if not other.term and not other.is_header and other.first <= behind <= other.last:
            behind = other.last + 1
    if before < log_first or behind > log_last or terms.at(before) != terms.at(behind):
        return None
    return terms.at(before)


# ------------------------------------------------------------------ filling them
@dataclass(frozen=True, slots=True)
class StoredEntry:
    """An entry as another replica stores it, its checksum verified."""

    index: int
    term: int
    command: bytes


def read_stored(blob: bytes, first: int) -> list[StoredEntry]:
    """A replica's answer decoded: whole entries from ``first`` on, as they are in its file. The list ends
    before the first entry that is unsound or out of sequence."""
    data, at, entries = memoryview(blob), 0, list[StoredEntry]()
    while at < len(blob):
        try:
            header = read_entry(data, at)
        except UnknownVersion:
            break
        if header is None or header.index != first + len(entries):
            break
        body = at + HEADER_SIZE
        entries.append(StoredEntry(header.index, header.term, blob[body : body + header.size]))
        at = body + header.size
    return entries


def fitting(
    hole: Hole, entries: list[StoredEntry], term_of: Callable[[int], int | None]
) -> list[StoredEntry] | None:
    """The entries of the hole, if ``entries`` of another log prove that they are ours; else None.

    Two logs that have one entry in common, by index and term, are the same up to it (Raft's log matching):
    any such entry from the hole's last on proves it. So does a last entry with the term of our entry after
    the hole: that term's leader appended both to one log. The other log may end there.

    ``term_of``: the term of an entry of our own log; None if it is not known or there is no such entry.
    """
    inside = [entry for entry in entries if hole.first <= entry.index <= hole.last]
    if len(inside) != hole.last - hole.first + 1:
        return None
    same = any(entry.index >= hole.last and entry.term == term_of(entry.index) for entry in entries)
    if not same and (term_of(hole.last) is not None or inside[-1].term != term_of(hole.last + 1)):
        return None
    return inside


def as_stored(entries: Iterable[StoredEntry]) -> bytes:
    """The bytes to write into a hole. Everything before a mended entry was durable long ago."""
    return b"".join(
        part
        for entry in entries
        for part in (encode_header(entry.command, entry.index, entry.term, 0), entry.command)
    )


def write_hole(disk: Disk, hole: Hole, data: bytes, file: File | None = None) -> bool:
    """Write what belongs into a hole, durably; False if that is impossible now: no such file, or no room.

    In place, and only the bytes that are unsound: whatever a crash leaves of this write, the file is
    no worse than before, the next check finds what is still damaged, and a full disk has room for it.
    (Recovery rewrites the newest batch in the same way.) Only a file that lacks its end grows, from its
    end on. Raises FsyncFailed, DiskFailed: the process must end.
    """
    try:
        file = file or disk.open(log_name(hole.segment))
        size = file.size()
        was_sound = _holds(file, hole.start, data)  # somebody else has mended it
        if grows := hole.end == UNKNOWN or hole.end > size:
            if hole.start > size:
                return False  # something before it is missing too
            if size > hole.start:
                file.truncate(hole.start)
            file.append((data,))
        else:
            if len(data) != hole.end - hole.start:
                return False
            file.write_at(hole.start, data)
        try:
            file.sync()
        except FsyncFailed:
            with suppress(DiskFailed, DiskFull, UnknownVersion, OSError):  # none of them may hide this one
                if not was_sound:
                    _damage_again(disk, file, hole, None if grows else data)
            raise
    except (FileNotFoundError, DiskFull):
        return False
    return True


def _holds(file: File, start: int, data: bytes) -> bool:
    """Whether the file has these bytes there. A sector that cannot be read has not: writing it mends it."""
    try:
        return file.read(start, len(data)) == data
    except DiskFailed:
        return False


def _damage_again(disk: Disk, file: File, hole: Hole, data: bytes | None) -> None:
    """Undo a mend whose sync failed: the page cache would keep it, marked clean, and the next process would
    read it there and take the disk for a sound copy. ``data``: what was written in place; None: appended.

    Not in the newest segment if a start would then judge the entry as a torn tail: it would cut off entries
    that were acknowledged. There is no need to: what can be a torn tail is of the last batch, and that is
    written again before it counts (recovery.py).
    """
    # Not by the log's own table: a log that is being mended before its start has none.
    newest = all((first_of_name(name) or 0) <= hole.segment for name in disk.names())
    if data is None:
        if not newest:
            file.truncate(hole.start)
        return
    spoiled = data.translate(_SPOILED)
    if newest:
        view = bytearray(file.read(0, file.size()))
        view[hole.start : hole.start + len(spoiled)] = spoiled
        if is_torn(memoryview(view), hole.start, hole.first):
            return
    file.write_at(hole.start, spoiled)
