"""A check of a whole log before it is opened, with every checksum: what is damaged, and what is still known.

Changes nothing. Where this raises, the log's end is not known, nor what the replica has acknowledged.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from escrowmq.replication.errors import CorruptLog, UnknownVersion
from escrowmq.replication.format.entry import HEADER_SIZE, Scan, read_entry
from escrowmq.replication.format.segment_format import FILE_HEADER_SIZE, file_header_is_sound, log_name
from escrowmq.replication.log.disk import Disk
from escrowmq.replication.log.holes import Hole, scan_past, term_within
from escrowmq.replication.log.recovery import segment_firsts
from escrowmq.replication.log.sidecar import survey_sealed
from escrowmq.replication.log.terms import TermRuns
from escrowmq.replication.log.torn import is_torn


@dataclass(slots=True)
class Survey:
    """Entries ``first`` to ``last``; ``holes`` in order, including file headers."""

    first: int = 1
    last: int = 0
    holes: list[Hole] = field(default_factory=list)
    _terms: TermRuns = field(default_factory=TermRuns)

    def term_of(self, index: int) -> int | None:
        """The term of an entry; None if it is not known, or not in this log."""
        if not self.first <= index <= self.last:
            return None
        for hole in self.holes:
            if hole.first <= index <= hole.last:
                return term_within(hole, self.holes, self._terms, self.first, self.last)
        return self._terms.at(index)

    @property
    def end(self) -> tuple[int, int] | None:
        """Term and index of the last entry, (0, 0) of an empty log; None if the term is not known."""
        if self.last < self.first:
            return 0, 0
        term = self.term_of(self.last)
        return None if term is None else (term, self.last)


def survey_log(disk: Disk) -> Survey:
    """Raises CorruptLog or UnknownVersion if positions cannot be determined, ReadFailed if the disk fails."""
    found = Survey()
    firsts = segment_firsts(disk)
    torn_creation = firsts.pop() if firsts and _is_torn_creation(disk, firsts[-1]) else None
    if not firsts:
        return found
    found.first = firsts[0]
    found.last = firsts[0] - 1
    for first, following in pairwise([*firsts, *([] if torn_creation is None else [torn_creation])]):
        part, holes = survey_sealed(disk, first, following - 1, disk.open(log_name(first)))
        _take(found, first, part, holes)
    if torn_creation is None:
        _take(found, firsts[-1], *_survey_newest(disk, firsts[-1]))
    return found


def _take(found: Survey, first: int, part: Scan, holes: list[Hole]) -> None:
    if first != found.last + 1:
        raise CorruptLog(
            f"{log_name(first)} begins where entry {found.last + 1} belongs: a segment is missing"
        )
    for index, term in part.terms:
        if found._terms and found._terms.at(index) > term:
            raise CorruptLog(f"{log_name(first)}: entry {index} has a lower term than an entry before it")
        found._terms.append(index, term)
    found.holes += holes
    found.last = first + len(part.positions) - 2


def _survey_newest(disk: Disk, first: int) -> tuple[Scan, list[Hole]]:
    name = log_name(first)
    data = memoryview(disk.read_all(name))
    header = []
    if not file_header_is_sound(data, first, name):
        header = [Hole(first, first, first - 1, 0, FILE_HEADER_SIZE)]
    try:
        part, holes = scan_past(data, first, None)
    except (CorruptLog, UnknownVersion) as error:
        raise type(error)(f"{name}: {error}") from error
    return part, header + holes


def _is_torn_creation(disk: Disk, first: int) -> bool:
    """Whether the newest segment never got its file header: then it holds nothing."""
    name = log_name(first)
    data = memoryview(disk.read_all(name))
    if file_header_is_sound(data, first, name):
        return False
    return read_entry(data, FILE_HEADER_SIZE) is None and is_torn(data, 0, first)


def read_files(disk: Disk, first: int, last: int, bytes_max: int) -> bytes:
    """What ``SegmentJournal.stored`` would answer, for a log that is not open: read from its files."""
    firsts = segment_firsts(disk)
    parts, room, index = list[bytes](), bytes_max, first
    while index <= last:
        below = [k for k, begin in enumerate(firsts) if begin <= index]
        if not below:
            break
        begin, following = firsts[below[-1]], dict(pairwise(firsts)).get(firsts[below[-1]])
        data = memoryview(disk.read_all(log_name(begin)))
        try:
            if following is None:
                part = scan_past(data, begin, None)[0]
            else:
                part = survey_sealed(disk, begin, following - 1, disk.open(log_name(begin)))[0]
        except (CorruptLog, UnknownVersion):
            break
        stop = min(last, begin + len(part.positions) - 2)
        if index > stop:
            break
        while index <= stop:
            k = index - begin
            raw = bytes(data[part.positions[k] : part.positions[k + 1]])
            header = _sound_header(raw)
            room -= len(raw)
            if header != (index, len(raw) - HEADER_SIZE) or (room < 0 and parts):
                return b"".join(parts)
            parts.append(raw)
            index += 1
    return b"".join(parts)


def _sound_header(raw: bytes) -> tuple[int, int] | None:
    try:
        header = read_entry(memoryview(raw), 0)
    except UnknownVersion:
        return None
    return None if header is None else (header.index, header.size)
