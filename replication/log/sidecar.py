"""Positions and terms of a sealed segment, from its sidecar, so that a restart does not scan the entries.

A sidecar is derived data. It carries a checksum, and a missing or bad one is rebuilt by scanning the
segment, with every entry's checksum verified.

With a good sidecar a damaged entry affects only itself: its position, its length and its term are known.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from escrowmq.replication.errors import CorruptLog, DiskFull, UnknownVersion
from escrowmq.replication.format.entry import Scan, read_entry, scan
from escrowmq.replication.format.segment_format import (
    FILE_HEADER_SIZE,
    decode_sidecar,
    encode_sidecar,
    file_header_is_sound,
    log_name,
    sidecar_name,
)
from escrowmq.replication.log.disk import Disk, File
from escrowmq.replication.log.holes import Hole, check_placed, scan_past


def write_sidecar(
    disk: Disk,
    first: int,
    positions: array[int],
    terms: list[tuple[int, int]],
    members: Sequence[tuple[int, bytes]],
) -> None:
    """Not synced: losing it costs a scan. On a full disk there is no sidecar, and the next restart scans.

    ``members``: the segment's entries that hold the group's members, which a start must know.
    """
    name = sidecar_name(first)
    try:
        disk.remove(name)
        file = disk.open(name, create=True)
        file.append((encode_sidecar(first, positions, terms, members),))
        file.close()
    except DiskFull:
        disk.remove(name)


def load_sealed(disk: Disk, first: int, file: File) -> Scan:
    """Positions and terms of a sealed segment: from its sidecar, else by a scan that rebuilds it.

    Raises CorruptLog, naming file and byte, if an entry is unsound: in a sealed segment none may be.
    """
    name = log_name(first)
    found = _read_sidecar(disk, first)
    if found is not None and _sidecar_fits(file, found, first):
        return found
    data = memoryview(file.read(0, file.size()))
    if not file_header_is_sound(data, first, name):
        raise CorruptLog(f"{name} has a damaged file header at byte 0; repair this replica from a peer")
    try:
        found = scan(data, FILE_HEADER_SIZE, first)
    except (CorruptLog, UnknownVersion) as error:
        raise type(error)(f"{name}: {error}") from error
    if found.problem is not None:
        raise CorruptLog(f"{name}: {found.problem} of {len(data)}; repair this replica from a peer")
    write_sidecar(disk, first, found.positions, found.terms, found.members)
    return found


def load_past_holes(disk: Disk, first: int, last: int, file: File) -> tuple[Scan, list[Hole]]:
    """As ``load_sealed``, for a segment that ends with entry ``last``, skipping damaged entries.

    A sidecar that matches the file's size and its last entry is trusted without checking the rest.
    Raises CorruptLog or UnknownVersion if the positions cannot be determined.
    """
    found = _read_sidecar(disk, first)
    if found is not None and _sidecar_fits(file, found, first):
        return found, []
    found, holes = survey_sealed(disk, first, last, file)
    if holes and holes[0].is_header:  # reading entries does not need it, but all other checks do
        raise CorruptLog(
            f"{log_name(first)} has a damaged file header at byte 0; repair this replica from a peer"
        )
    if not holes:
        write_sidecar(disk, first, found.positions, found.terms, found.members)
    return found, holes


def survey_sealed(disk: Disk, first: int, last: int, file: File) -> tuple[Scan, list[Hole]]:
    """What a sealed segment that ends with entry ``last`` holds, every checksum verified, and its holes.

    Changes nothing. Raises CorruptLog or UnknownVersion if the positions cannot be determined.
    """
    name = log_name(first)
    data = memoryview(file.read(0, file.size()))
    header = []
    if not file_header_is_sound(data, first, name):
        header = [Hole(first, first, first - 1, 0, FILE_HEADER_SIZE)]
    found = _read_sidecar(disk, first)
    if (
        found is not None
        and len(found.positions) == last + 2 - first
        and found.terms[:1]
        and found.terms[0][0] == first
    ):
        return found, header + check_placed(data, first, found)
    try:
        found, holes = scan_past(data, first, last)
    except (CorruptLog, UnknownVersion) as error:
        raise type(error)(f"{name}: {error}") from error
    return found, header + holes


def sidecar_is_sound(disk: Disk, first: int, last: int) -> bool:
    """Whether it exists, is sound, and describes this number of entries."""
    found = _read_sidecar(disk, first)
    return found is not None and len(found.positions) == last + 2 - first


def _read_sidecar(disk: Disk, first: int) -> Scan | None:
    name = sidecar_name(first)
    try:
        return decode_sidecar(disk.read_all(name), first) if disk.exists(name) else None
    except FileNotFoundError:  # retention has removed it meanwhile
        return None


def _sidecar_fits(file: File, found: Scan, first: int) -> bool:
    """Whether the sidecar describes this file: same size, and its last entry matches in place and term."""
    if found.end != file.size() or len(found.positions) < 2 or not found.terms:
        return False
    at = found.positions[-2]
    if found.terms[0][0] != first or at > found.end:
        return False
    header = read_entry(memoryview(file.read(at, found.end - at)), 0)
    if header is None:
        return False
    return header.index == first + len(found.positions) - 2 and header.term == found.terms[-1][1]
