"""Opening a log: which segments exist, what they hold, and cutting off the torn tail.

The sidecar of a sealed segment is trusted (without one the segment is scanned); the newest segment
is scanned entry by entry. Only there may anything be cut off, and only what ``is_torn`` (holes.py) calls
torn. Its last batch is rewritten and synced before it counts: after a crash of the process alone it may be
only in the page cache, and after a failed sync the kernel considers it clean, so that another sync would
write nothing and report success. Nothing is ever repaired by guessing: a gap, a misnamed file or a bad
checksum raises an error. Only where the caller can have single entries mended from another replica
(``mendable``) is a damaged one skipped, if its position, its length and its term are known anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from escrowmq.replication.errors import CorruptLog, UnknownVersion
from escrowmq.replication.format.entry import HEADER_SIZE, UNSYNCED_MAX, Scan, read_entry, scan
from escrowmq.replication.format.segment_format import (
    FILE_HEADER_SIZE,
    file_header_is_sound,
    first_of_name,
    log_name,
    sidecar_name,
)
from escrowmq.replication.log.disk import Disk, File
from escrowmq.replication.log.holes import Hole, TermRuns, is_torn, scan_past, term_within
from escrowmq.replication.log.member_history import MemberHistory
from escrowmq.replication.log.segment import OpenSegment, Segment, load_past_holes, load_sealed, survey_sealed

# ------------------------------------------------------------------ recovery


@dataclass(slots=True)
class RecoveredLog:
    """Segments in order; all are sealed but the last, which is open. ``holes``: damaged entries."""

    segments: list[Segment] = field(default_factory=list)
    terms: TermRuns = field(default_factory=TermRuns)
    members: MemberHistory = field(default_factory=MemberHistory)
    holes: list[Hole] = field(default_factory=list)


def segment_firsts(disk: Disk) -> list[int]:
    """First indexes of all segment files, in order."""
    return sorted(first for name in disk.names() if (first := first_of_name(name)) is not None)


def recover(disk: Disk, *, mendable: bool = False) -> RecoveredLog:
    """Open the log of ``disk``. Raises CorruptLog or UnknownVersion, naming file and byte.

    ``mendable``: do not refuse a log because of single damaged entries; see the module's docstring.

    Nothing is cut off or removed before everything was found sound: the content of a refused log is
    evidence, and the next attempt must judge it the same way.
    """
    log = RecoveredLog()
    firsts = segment_firsts(disk)
    torn_creation = firsts[-1] if firsts and _creation_is_torn(disk, firsts[-1]) else None
    if torn_creation is not None:
        del firsts[-1]
    for first, following in pairwise(firsts):
        found = _load(disk, first, following, log, mendable)
        _add(log, first, found).sealed = True
    if firsts:
        file = disk.open(log_name(firsts[-1]))
        # A segment is synced before the next one is created: so beside a torn creation no tail is torn.
        if torn_creation is not None:
            found = _load(disk, firsts[-1], torn_creation, log, mendable)
        else:
            found = _scan_newest(firsts[-1], file, log, mendable)
        _add(log, firsts[-1], found).opened = OpenSegment(file, found.positions)
        _check_holes(log)
        _drop_torn_creation(disk, torn_creation)
        if file.size() > found.end:
            file.truncate(found.end)
        _write_again(file, found, firsts[-1], log.holes)
        file.sync()
        disk.remove(sidecar_name(firsts[-1]))  # it will grow again
    else:
        _drop_torn_creation(disk, torn_creation)
    disk.sync_dir()  # even without segments: a removal that is only in the page cache may be undone
    return log


def _load(disk: Disk, first: int, following: int, log: RecoveredLog, mendable: bool) -> Scan:
    """A segment that is followed by another one."""
    file = disk.open(log_name(first))
    if not mendable:
        return load_sealed(disk, first, file)
    found, holes = load_past_holes(disk, first, following - 1, file)
    log.holes += holes
    return found


def _check_holes(log: RecoveredLog) -> None:
    """Raise CorruptLog for damage that leaves an entry's position or term unknown."""
    for hole in log.holes:
        single = hole.last == hole.first and hole.end > hole.start
        known = term_within(hole, log.holes, log.terms, log.segments[0].first, log.segments[-1].last)
        if not single or known is None:
            raise CorruptLog(
                f"{log_name(hole.segment)}: entries {hole.first} to {hole.last} are damaged at byte "
                f"{hole.start}; they must be mended from a peer before this replica can start"
            )


def _write_again(file: File, found: Scan, first: int, holes: Sequence[Hole]) -> None:
    """Rewrite, and so make dirty, what no successful sync is known to have covered: the last batch.

    The last entry says which entries its own sync was to cover. It was written only after the sync of
    everything before these had succeeded; nothing is known about the batch itself. The same bytes are written
    in place, so that whatever a power cut does meanwhile, what was durable stays so.
    """
    start, index = 0, first
    if len(found.positions) > 1:
        at = found.positions[-2]
        last = read_entry(memoryview(file.read(at, found.end - at)), 0)
        if last is not None and last.unsynced < UNSYNCED_MAX and last.batch_first > first:
            start, index = found.positions[last.batch_first - first], last.batch_first
    data = memoryview(file.read(start, found.end - start))
    # Read again, so checked again: the page cache may have dropped what the scan still saw.
    sound = start or file_header_is_sound(data, first, log_name(first))
    at = 0 if start else FILE_HEADER_SIZE
    for hole in [h for h in holes if h.segment == first and h.first >= index]:
        sound = sound and scan(data[: hole.start - start], at, index).problem is None
        at, index = hole.end - start, hole.last + 1
    if not sound or scan(data, at, index).problem is not None:
        raise CorruptLog(f"{log_name(first)} changed after byte {start} while it was read; start again")
    file.write_at(start, bytes(data))


def _drop_torn_creation(disk: Disk, first: int | None) -> None:
    if first is not None:
        disk.remove(log_name(first))
        disk.remove(sidecar_name(first))


def _add(log: RecoveredLog, first: int, found: Scan) -> Segment:
    previous = log.segments[-1] if log.segments else None
    if previous is not None:
        if first != previous.last + 1:
            raise CorruptLog(
                f"{log_name(first)} begins where entry {previous.last + 1} belongs: a segment is missing; "
                "repair this replica from a peer"
            )
        # No term is known yet where all entries before this segment are damaged.
        if found.terms and log.terms and found.terms[0][1] < log.terms.at(previous.last):
            raise CorruptLog(
                f"{log_name(first)} begins with a lower term than {log_name(previous.first)} ends with"
            )
    for index, term in found.terms:
        log.terms.append(index, term)
    for index, command in found.members:
        log.members.note(index, command)
    segment = Segment(first, first + len(found.positions) - 2, found.end, sealed=False)
    log.segments.append(segment)
    return segment


def _scan_newest(first: int, file: File, log: RecoveredLog, mendable: bool) -> Scan:
    """The newest segment up to its torn tail, if it has one; every checksum is verified."""
    name = log_name(first)
    data = memoryview(file.read(0, file.size()))
    try:
        if mendable:
            found, holes = scan_past(data, first, None)
            log.holes += holes
            return found
        found = scan(data, FILE_HEADER_SIZE, first)
        if found.problem is not None and not is_torn(data, found.end, first + len(found.positions) - 1):
            raise CorruptLog(
                f"{found.problem} of {len(data)}, and sound entries follow; repair this replica from a peer"
            )
    except (CorruptLog, UnknownVersion) as error:
        raise type(error)(f"{name}: {error}") from error
    return found


def _creation_is_torn(disk: Disk, first: int) -> bool:
    """Whether the newest segment never got its file header. Then it holds nothing.

    The header is judged like an entry: torn if nothing sound follows it.
    """
    name = log_name(first)
    file = disk.open(name)
    if file_header_is_sound(memoryview(file.read(0, FILE_HEADER_SIZE)), first, name):
        return False
    data = memoryview(file.read(0, file.size()))
    if read_entry(data, FILE_HEADER_SIZE) is not None or not is_torn(data, 0, first):
        raise CorruptLog(f"{name} has a damaged file header at byte 0; repair this replica from a peer")
    return True


# ------------------------------------------------------------------------------------------------------------
# A check of a whole log before it is opened, with every checksum: what is damaged, and what is still known.
#
# Changes nothing. Where this raises, the log's end is not known, nor what the replica has acknowledged.


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
