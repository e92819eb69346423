"""Opening a log: which segments exist, what they hold, and cutting off the torn tail.

The sidecar of a sealed segment is trusted (without one the segment is scanned); the newest segment
is scanned entry by entry. Only there may anything be cut off, and only what torn.py calls torn. Its
last batch is rewritten and synced before it counts: after a crash of the process alone it may be
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
from escrowmq.replication.format.entry import (
    UNSYNCED_MAX,
    Scan,
    read_entry,
    scan,
)
from escrowmq.replication.format.segment_format import (
    FILE_HEADER_SIZE,
    file_header_is_sound,
    first_of_name,
    log_name,
    sidecar_name,
)
from escrowmq.replication.log.disk import Disk, File
from escrowmq.replication.log.holes import Hole, scan_past, term_within
from escrowmq.replication.log.member_history import MemberHistory
from escrowmq.replication.log.segment import OpenSegment, Segment
from escrowmq.replication.log.sidecar import load_past_holes, load_sealed
from escrowmq.replication.log.terms import TermRuns
from escrowmq.replication.log.torn import is_torn

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
