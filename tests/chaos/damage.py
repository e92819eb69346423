"""Flips bytes in the log files of replicas, such that every entry keeps a sound copy, and checks at the end
that all logs are sound again.

An entry is damaged on one replica only, once in a round, and only if every replica of its group has a sound
copy. A later sync must have written after it, since the last bytes of a log cannot be told from a torn write
(docs/log-format.md). The files are read while replicas write to them.
"""

from __future__ import annotations

import os
import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from escrowmq.replication.format.entry import HEADER_SIZE, MAGIC, read_entry
from escrowmq.replication.format.segment_format import FILE_HEADER_SIZE, first_of_name

#: Each replica must have at least this many entries that may be damaged.
ENTRIES_MIN = 30


@dataclass(frozen=True, slots=True)
class Place:
    """A sound entry in a file. ``batch``: the first entry of the batch that was synced with this one."""

    file: Path
    start: int
    size: int  # including its header
    batch: int


@dataclass(frozen=True, slots=True)
class Flip:
    """A change of one byte of an entry."""

    replica: int
    index: int
    file: Path
    at: int
    mask: int


def sound_entries(directory: Path) -> tuple[dict[int, Place], list[str]]:
    """The sound entries of a log by index, and a text for each place with damage or with missing entries. The
    end of the newest file does not count, since a write may be under way there."""
    found: dict[int, Place] = {}
    problems: list[str] = []
    files = sorted(file for file in directory.glob("*.log") if first_of_name(file.name) is not None)
    for number, file in enumerate(files):
        try:
            data = file.read_bytes()
        except FileNotFoundError:  # removed by retention, or replaced by a copied log
            continue
        at: int | None = FILE_HEADER_SIZE
        follows = first_of_name(file.name)
        while at is not None and at < len(data):
            entry = read_entry(memoryview(data), at)
            if entry is not None:
                size = HEADER_SIZE + entry.size
                found[entry.index] = Place(file, at, size, entry.batch_first)
                at, follows = at + size, entry.index + 1
                continue
            behind = _next_sound(data, at + 1)
            if behind is not None or file != files[-1]:
                problems.append(f"{file} at byte {at} of {len(data)}: no sound entry")
            at = behind
        next_first = None if file == files[-1] else first_of_name(files[number + 1].name)
        if at is not None and next_first not in (None, follows):
            problems.append(f"{file} ends at byte {len(data)}, and the next file does not begin at {follows}")
    return found, problems


def _next_sound(data: bytes, at: int) -> int | None:
    """The position of the next sound entry."""
    while (at := data.find(MAGIC, at)) >= 0:
        if read_entry(memoryview(data), at) is not None:
            return at
        at += 1
    return None


def places_to_damage(
    directories: Mapping[int, Path], counts: Mapping[int, int], used: Collection[int], rng: random.Random
) -> list[Flip] | None:
    """Choose entries to damage, each on one replica only. ``counts``: their number by replica. None if there
    are too few entries so far."""
    logs = {rid: sound_entries(directory)[0] for rid, directory in directories.items()}
    if not all(logs.values()):
        return None
    # Only entries before the newest batch of the replica that is furthest behind.
    end = min(max(place.batch for place in log.values()) for log in logs.values())
    common = set.intersection(*(set(log) for log in logs.values()))
    candidates = sorted(index for index in common if index < end and index not in used)
    if len(candidates) < ENTRIES_MIN:
        return None
    chosen = rng.sample(candidates, sum(counts.values()))
    flips = []
    for rid, count in sorted(counts.items()):
        for index in (chosen.pop() for _ in range(count)):
            place = logs[rid][index]
            at = place.start + rng.randrange(place.size)
            flips.append(Flip(rid, index, place.file, at, rng.randint(1, 255)))
    return flips


def flip(one: Flip) -> None:
    """Change the byte as a faulty disk does: no process is told."""
    number = os.open(one.file, os.O_RDWR)
    try:
        (byte,) = os.pread(number, 1, one.at)
        os.pwrite(number, bytes([byte ^ one.mask]), one.at)
    finally:
        os.close(number)
