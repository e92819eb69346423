"""Damage in logs: no entry twice, never the end, only entries that others hold; and it is noticed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from escrowmq.replication.log.disk import RealDisk
from escrowmq.replication.log.journal import SegmentJournal
from tests.chaos.damage import ENTRIES_MIN, flip, places_to_damage, sound_entries
from tests.support.storage import fill, indexes, synced_log

ENTRIES = 60


def logs(path: Path, entries: int = ENTRIES) -> dict[int, Path]:
    """The logs of three replicas, in segments of a few entries; the third's last sync has five entries."""
    directories = {rid: path / f"r{rid}" for rid in range(3)}
    for rid, directory in directories.items():
        disk = RealDisk(directory)
        synced_log(disk, entries - 5, segment_bytes=1000)
        journal = SegmentJournal(disk, segment_bytes=1000)
        for index in range(entries - 4, entries + 1):
            fill(journal, (index,))
            if rid != 2:
                journal.sync()
        journal.sync()
        journal.close()
    return directories


@pytest.mark.parametrize("seed", range(20))
def test_every_entry_keeps_a_sound_copy_and_the_end_of_no_log_is_hit(tmp_path: Path, seed: int) -> None:
    directories, used = logs(tmp_path), {7, 8, 9}
    flips = places_to_damage(directories, {0: 3, 1: 2}, used, random.Random(seed))
    assert flips is not None and [one.replica for one in flips] == [0, 0, 0, 1, 1]
    hit = {one.index for one in flips}
    assert len(hit) == 5 and not hit & used and max(hit) <= ENTRIES - 5
    for one in flips:
        flip(one)
    for rid, directory in directories.items():
        entries, problems = sound_entries(directory)
        mine = {one.index for one in flips if one.replica == rid}
        assert set(entries) == set(range(1, ENTRIES + 1)) - mine
        assert bool(problems) == bool(mine)


def test_a_log_that_was_damaged_is_opened_with_holes_and_not_cut(tmp_path: Path) -> None:
    directories = logs(tmp_path)
    flips = places_to_damage(directories, {0: 3}, (), random.Random(5))
    assert flips is not None
    for one in flips:
        flip(one)
    journal = SegmentJournal(RealDisk(directories[0]), segment_bytes=1000, mendable=True)
    assert indexes(journal) == list(range(1, ENTRIES + 1))


def test_a_log_with_too_little_in_it_is_left_alone(tmp_path: Path) -> None:
    few = logs(tmp_path, ENTRIES_MIN // 2)
    assert places_to_damage(few, {0: 1, 1: 1}, (), random.Random(1)) is None
    assert places_to_damage({0: tmp_path / "none"}, {0: 1}, (), random.Random(1)) is None


def test_a_write_under_way_is_no_damage(tmp_path: Path) -> None:
    directory = logs(tmp_path)[0]
    newest = max(directory.glob("*.log"))
    with newest.open("ab") as file:
        file.write(b"EMQ1 half an entry")
    assert sound_entries(directory)[1] == []


def test_a_file_that_ends_where_an_entry_ends_is_damage_all_the_same(tmp_path: Path) -> None:
    directory = logs(tmp_path)[0]
    entries, _ = sound_entries(directory)
    first = min(directory.glob("*.log"))
    last = max(index for index, place in entries.items() if place.file == first)
    with first.open("r+b") as file:
        file.truncate(entries[last].start)
    left, (problem,) = sound_entries(directory)
    assert last not in left and len(left) == len(entries) - 1
    assert f"does not begin at {last}" in problem
