"""Entries of a log that are damaged, and what is still known of them: where they lie, and their terms.

One flipped bit makes one entry unreadable, and nothing else is lost: the entries around it are sound, and so
is the log's end, which is all that a vote and an acknowledgement rest on. So such a place is a *hole*: its
entries are taken from another replica and written where they were (mending.py of the host).

By Log Matching (Raft, section 5.3) two logs that hold an entry of the same index and term are alike up to
there. So entries of another log fill a hole if that log has, at the hole's end or behind it, an entry whose
term is known here and is the same (``fitting``). Without such a proof the other log may hold something else
there, which was never committed.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from escrowmq.replication.errors import CorruptLog, DiskFull, UnknownVersion
from escrowmq.replication.format.entry import HEADER_SIZE, Scan, encode_header, read_entry, scan
from escrowmq.replication.format.segment_format import FILE_HEADER_SIZE, log_name
from escrowmq.replication.log.disk import Disk, File
from escrowmq.replication.log.terms import TermRuns
from escrowmq.replication.log.torn import is_torn, sound_entries_after

#: Holes that are remembered at a time; each is found again when it is read again.
HOLES_MAX: Final = 1_000
#: Where a hole ends that reaches to the end of a file which was cut short: nobody knows.
UNKNOWN: Final = -1


class Hole(NamedTuple):
    """Entries ``first`` to ``last`` of the segment file that begins with entry ``segment``.

    They lie in bytes [start, end) of it; ``end`` is ``UNKNOWN`` where the file lacks its end. ``term``: of
    the one entry, if the sidecar tells; 0: only what is around the hole can tell. With
    ``last == first - 1`` it is the file's header, which holds no entry.
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
    """Damaged entries that were met, each by itself. Noted by any thread, forgotten by the loop thread."""

    __slots__ = ("_holes", "found", "mended")

    def __init__(self, holes: Iterable[Hole] = ()) -> None:
        self._holes = {hole.first: hole for hole in holes}
        self.found, self.mended = len(self._holes), 0  # since the start

    def __bool__(self) -> bool:
        return bool(self._holes)

    def note(self, hole: Hole) -> None:
        """It fails its checksum."""
        if hole.first not in self._holes and len(self._holes) < HOLES_MAX:
            self._holes[hole.first] = hole
            self.found += 1

    def known(self, hole: Hole) -> bool:
        return self._holes.get(hole.first) == hole

    def after(self, index: int) -> int | None:
        """The first damaged entry after ``index``."""
        if not self._holes:
            return None
        return min((first for first in list(self._holes) if first > index), default=None)

    def all(self) -> list[Hole]:
        holes = list(self._holes.values())  # in one step: other threads note what they meet
        holes.sort()
        return holes

    def forget(self, hole: Hole, *, mended: bool = False) -> None:
        if self._holes.get(hole.first) == hole:
            del self._holes[hole.first]
            self.mended += mended

    def keep_within(self, first: int, last: int) -> None:
        """The log holds only entries ``first`` to ``last`` now."""
        for index in list(self._holes):
            if not first <= index <= last:
                del self._holes[index]


# ------------------------------------------------------------------ finding them
def scan_past(data: memoryview, first: int, last: int | None) -> tuple[Scan, list[Hole]]:
    """Entries of a whole segment file from entry ``first`` on, and the holes among them.

    ``last``: the segment's last entry, where it is known; else it is the newest one, and a torn tail ends
    it (``Scan.problem`` says so). The positions of a hole's entries behind its first one are not known: they
    stand for its end. The terms are those of sound entries. Raises CorruptLog where sound entries are not
    where they belong, or nothing is left to go by.
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
                raise CorruptLog(f"no sound entry at byte {bad_at}, and none can be found behind it")
            holes.append(Hole(first, bad, last, bad_at, UNKNOWN))
            whole.positions.extend([bad_at] * (last - bad + 1))
            return whole, holes
        holes.append(Hole(first, bad, header.index - 1, bad_at, sound_at))
        whole.positions.extend([sound_at] * (header.index - bad))
        at, index = sound_at, header.index
    missing = 0 if last is None else last + 1 - (first + len(whole.positions) - 1)
    if missing < 0:
        raise CorruptLog(f"{-missing} entries more than belong here, before the next segment")
    if missing:  # the file was cut short at the border of an entry
        assert last is not None
        holes.append(Hole(first, last + 1 - missing, last, whole.end, UNKNOWN))
        whole.positions.extend([whole.end] * missing)
    return whole, holes


def check_placed(data: memoryview, first: int, found: Scan) -> list[Hole]:
    """The holes among entries of which positions and terms are known; the file may be cut short."""
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
    """The term of a hole's entries if it is one and known: by the sidecar, or as the same before and behind.

    ``terms``: of the sound entries, and of those that a sidecar tells. ``holes``: all of the log, which has
    entries from ``log_first`` to ``log_last``. Behind its end nothing can tell.
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
    """An entry as another replica has it, its checksum verified."""

    index: int
    term: int
    command: bytes


def read_stored(blob: bytes, first: int) -> list[StoredEntry]:
    """What a replica answered: whole entries from ``first`` on, as they lie in its file. What is not sound,
    or not in its place, ends it."""
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

    Two logs that have one entry, by index and term, are the same up to it (Raft's log matching): one from the
    hole's last on will do. So will a last one of the term of our entry behind the hole: that term's leader
    appended both, to one log. The other log may end there.

    ``term_of``: the term of an entry of our own log, None if it is not known or there is no such entry.
    """
    inside = [entry for entry in entries if hole.first <= entry.index <= hole.last]
    if len(inside) != hole.last - hole.first + 1:
        return None
    same = any(entry.index >= hole.last and entry.term == term_of(entry.index) for entry in entries)
    if not same and (term_of(hole.last) is not None or inside[-1].term != term_of(hole.last + 1)):
        return None
    return inside


def as_stored(entries: Iterable[StoredEntry]) -> bytes:
    """The bytes to write into a hole. Everything before an entry that is mended was durable long ago."""
    return b"".join(
        part
        for entry in entries
        for part in (encode_header(entry.command, entry.index, entry.term, 0), entry.command)
    )


def write_hole(disk: Disk, hole: Hole, data: bytes, file: File | None = None) -> bool:
    """Write what belongs into a hole, durably; False if it cannot be done now: no such file, no room.

    In place, and nothing but the bytes that are unsound: whatever a crash leaves of this write, the file is
    not worse than before, the next look finds what is still damaged, and a full disk has room for it.
    (Recovery writes the newest batch again in the same way.) Only a file that lacks its end grows, from its
    end on.
    """
    try:
        file = file or disk.open(log_name(hole.segment))
        size = file.size()
        if hole.end != UNKNOWN and hole.end <= size:
            if len(data) != hole.end - hole.start:
                return False
            file.write_at(hole.start, data)
        else:
            if hole.start > size:
                return False  # something before it is missing, too
            if size > hole.start:
                file.truncate(hole.start)
            file.append((data,))
        file.sync()
    except (FileNotFoundError, DiskFull):
        return False
    return True
