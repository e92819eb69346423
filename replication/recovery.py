"""Opening a log: which segments there are, what they hold, and the torn tail cut off.

Sealed segments are taken at their sidecar's word (a scan, where there is none); the newest segment
is scanned entry by entry. Only there may anything be cut off, and only what torn.py calls torn. What
is found is synced before it counts: after a crash of the process alone it may be in the page cache
only. Nothing is ever repaired by guessing: a gap, a misnamed file or a bad checksum raises.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from escrowmq.replication.disk import Disk, File
from escrowmq.replication.entry import Scan, read_entry, scan
from escrowmq.replication.errors import CorruptLog, UnknownVersion
from escrowmq.replication.segment import OpenSegment, Segment
from escrowmq.replication.segment_format import (
    FILE_HEADER_SIZE,
    file_header_is_sound,
    first_of_name,
    load_sealed,
    log_name,
    sidecar_name,
)
from escrowmq.replication.terms import TermRuns
from escrowmq.replication.torn import is_torn


@dataclass(slots=True)
class RecoveredLog:
    """Segments in order; all are sealed but the last, which is open."""

    segments: list[Segment] = field(default_factory=list)
    terms: TermRuns = field(default_factory=TermRuns)
    #: Bytes of the torn tail that was cut off.
    cut_bytes: int = 0


def segment_firsts(disk: Disk) -> list[int]:
    """First indexes of all segment files, in order."""
    return sorted(first for name in disk.names() if (first := first_of_name(name)) is not None)


def recover(disk: Disk) -> RecoveredLog:
    """Open the log of ``disk``. Raises CorruptLog or UnknownVersion, naming file and byte."""
    log = RecoveredLog()
    firsts = segment_firsts(disk)
    newest = _open_newest(disk, firsts[-1], log) if firsts else None
    if firsts and newest is None:
        # Its creation was torn, so it holds nothing. The one before it is the newest, and has no torn
        # tail: a segment is synced before the next one is created.
        del firsts[-1]
        if firsts:
            file = disk.open(log_name(firsts[-1]))
            newest = firsts[-1], file, load_sealed(disk, firsts[-1], file)
    for first in firsts[:-1]:
        found = load_sealed(disk, first, disk.open(log_name(first)))
        segment = _add(log, first, found)
        segment.sealed, segment.opened = True, None
    if newest is not None:
        first, file, found = newest
        segment = _add(log, first, found)
        segment.opened = OpenSegment(file, found.positions)
        file.sync()
        if disk.exists(sidecar_name(first)):  # it will grow again
            disk.remove(sidecar_name(first))
    disk.sync_dir()  # without segments too: a removal that only the page cache knows may be undone
    return log


def _add(log: RecoveredLog, first: int, found: Scan) -> Segment:
    previous = log.segments[-1] if log.segments else None
    if previous is not None:
        if first != previous.last + 1:
            raise CorruptLog(
                f"{log_name(first)} begins where entry {previous.last + 1} belongs: a segment is missing; "
                "repair this replica from a peer"
            )
        if found.terms and found.terms[0][1] < log.terms.at(previous.last):
            raise CorruptLog(
                f"{log_name(first)} begins with a term lower than {log_name(previous.first)} ends with"
            )
    for index, term in found.terms:
        log.terms.append(index, term)
    segment = Segment(first, first + len(found.positions) - 2, found.end, sealed=False)
    log.segments.append(segment)
    return segment


def _open_newest(disk: Disk, first: int, log: RecoveredLog) -> tuple[int, File, Scan] | None:
    """Scan the newest segment and cut its torn tail; None if even its file header is torn."""
    name = log_name(first)
    file = disk.open(name)
    size = file.size()
    data = memoryview(file.read(0, size))
    if not file_header_is_sound(data, first, name):
        if not _header_is_torn(data, first):
            raise CorruptLog(f"{name} has a damaged file header at byte 0; repair this replica from a peer")
        log.cut_bytes += size
        file.close()
        disk.remove(name)
        disk.remove(sidecar_name(first))
        disk.sync_dir()
        return None
    try:
        found = scan(data, FILE_HEADER_SIZE, first)
        if found.problem is not None and not is_torn(data, found.end, first + len(found.positions) - 1):
            raise CorruptLog(
                f"{found.problem} of {size}, and sound entries follow; repair this replica from a peer"
            )
    except (CorruptLog, UnknownVersion) as error:
        raise type(error)(f"{name}: {error}") from error
    if found.problem is not None:
        log.cut_bytes += size - found.end
        file.truncate(found.end)
    return first, file, found


def _header_is_torn(data: memoryview, first: int) -> bool:
    """Like any entry: torn if nothing sound follows, or if its sector is lost and no later sync is seen."""
    return read_entry(data, FILE_HEADER_SIZE) is None and is_torn(data, 0, first)
