"""Checking a log at rest: every checksum of every entry, changing nothing.

For operators, on a data directory that no live replica uses (or on a copy of one): a running replica
verifies what it reads, but a cold segment may not be read for weeks.
"""

from __future__ import annotations

from typing import NamedTuple

from escrowmq.replication.errors import CorruptLog, UnknownVersion
from escrowmq.replication.format.entry import scan
from escrowmq.replication.format.segment_format import (
    FILE_HEADER_SIZE,
    decode_sidecar,
    file_header_is_sound,
    first_of_name,
    log_name,
    sidecar_name,
)
from escrowmq.replication.log.disk import Disk
from escrowmq.replication.log.recovery import segment_firsts
from escrowmq.replication.log.torn import is_torn
from escrowmq.replication.state import snapshot
from escrowmq.replication.state.runs_file import map_runs


class SegmentReport(NamedTuple):
    """One segment. ``last`` is the last sound entry; ``problem`` is None if all is well.

    ``torn`` says that the problem is a tail which the next start will cut off, and not corruption.
    """

    name: str
    first: int
    last: int
    size: int
    problem: str | None = None
    torn: bool = False


def damage_in(name: str, data: bytes, size: int | None = None) -> str | None:
    """What is wrong with a whole file that others are to rely on (.log, .snap or .runs); None: nothing.

    A log file must hold whole, sound entries up to its last byte, or at least up to ``size``: the rest may
    just be written. Another format version counts as damage:
    a flipped bit can look like one, and what cannot be read cannot be relied on.
    """
    try:
        if name.endswith(".snap"):
            for _ in snapshot.decode(name, data):
                pass
        elif name.endswith(".runs"):
            map_runs(name, memoryview(data))
        elif (first := first_of_name(name)) is not None:
            if not file_header_is_sound(memoryview(data), first, name):
                return f"{name} has a damaged file header at byte 0"
            found = scan(memoryview(data), FILE_HEADER_SIZE, first)
            if found.problem is not None and (size is None or found.end < size):
                return f"{name}: {found.problem}"
    except CorruptLog as error:
        return str(error)
    except UnknownVersion as error:
        return f"{name}: {error} (damaged, or written by a newer version: then upgrade this replica)"
    return None


def verify_log(disk: Disk) -> list[SegmentReport]:
    """A report per segment, oldest first."""
    reports: list[SegmentReport] = []
    firsts = segment_firsts(disk)
    for first in firsts:
        report = _verify_segment(disk, first, newest=first == firsts[-1])
        if reports and report.problem is None and first != reports[-1].last + 1:
            report = report._replace(problem=f"entry {reports[-1].last + 1} belongs before it: a gap")
        reports.append(report)
    return reports


def _verify_segment(disk: Disk, first: int, newest: bool) -> SegmentReport:
    name = log_name(first)
    data = memoryview(disk.read_all(name))
    report = SegmentReport(name, first, first - 1, len(data))
    try:
        if not file_header_is_sound(data, first, name):
            return report._replace(
                problem="damaged file header at byte 0", torn=newest and is_torn(data, 0, first)
            )
        found = scan(data, FILE_HEADER_SIZE, first)
    except (CorruptLog, UnknownVersion) as error:
        return report._replace(problem=str(error))
    report = report._replace(last=first + len(found.positions) - 2)
    if found.problem is not None:
        torn = newest and is_torn(data, found.end, report.last + 1)
        return report._replace(problem=found.problem, torn=torn)
    if not newest:
        sidecar = sidecar_name(first)
        held = decode_sidecar(disk.read_all(sidecar), first) if disk.exists(sidecar) else None
        if held is not None and (held.positions, held.terms) != (found.positions, found.terms):
            return report._replace(
                problem=f"{sidecar} does not describe it; remove it, a restart builds it again"
            )
    return report
