"""Sealing, sidecars and retention: complete segments that never change again."""

from __future__ import annotations

from pathlib import Path

import pytest

from escrowmq.replication.errors import CorruptLog, OffsetGone
from escrowmq.replication.log.disk import Disk, RealDisk
from escrowmq.replication.log.journal import SegmentJournal
from tests.support.storage import command, fill, indexes, sealed_log, set_content, sim_disk, synced_log


@pytest.fixture(params=["real", "simulated"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    return RealDisk(tmp_path) if request.param == "real" else sim_disk()


def test_rolling_reports_the_new_segment_and_seals_the_old_one(disk: Disk) -> None:
    rolls: list[int] = []
    journal = SegmentJournal(disk, segment_bytes=200, on_roll=rolls.append)
    fill(journal, range(1, 6))
    assert rolls == [3, 5]
    assert [s.sealed for s in journal.segments()] == [False, False, False], "not on disk yet"
    journal.sync()
    infos = journal.segments()
    assert [(s.first, s.last, s.size, s.sealed) for s in infos] == [
        (1, 2, 176, True),
        (3, 4, 176, True),
        (5, 5, 104, False),
    ]
    assert disk.exists("0000000000000003.pos")
    assert not disk.exists("0000000000000005.pos")
    assert [journal.segment_start(i) for i in range(1, 6)] == [1, 1, 3, 3, 5]


def test_headers_say_which_entries_of_their_segment_one_sync_covers() -> None:
    """A sync does not span segments: a segment is synced before the next one is created."""
    disk = sim_disk()
    journal = SegmentJournal(disk, segment_bytes=300)
    for batch in ([1], [2, 3, 4, 5], [6]):
        fill(journal, batch)
        journal.sync()
    unsynced = []
    for index in indexes(journal):
        info = next(s for s in journal.segments() if s.first <= index <= s.last)
        at = 32 + (index - info.first) * 72
        unsynced.append(int.from_bytes(disk.read_all(info.name)[at + 6 : at + 8], "little"))
    assert [s.first for s in journal.segments()] == [1, 4]
    assert unsynced == [0, 0, 1, 0, 1, 0]


def test_an_entry_larger_than_a_segment_has_one_to_itself(disk: Disk) -> None:
    journal = SegmentJournal(disk, segment_bytes=200)
    for index, size in ((1, 1000), (2, 10), (3, 1000), (4, 10)):
        journal.add(command(index, size), index, 1)
    journal.close()
    again = SegmentJournal(disk, segment_bytes=200)
    assert [s.first for s in again.segments()] == [1, 2, 3, 4]
    assert again.read(3) == command(3, 1000)


def test_a_restart_reads_no_entry_of_a_sealed_segment_but_its_last() -> None:
    disk = sim_disk()
    synced_log(disk, 1000, segment_bytes=40_000)
    reads: list[int] = []
    step = disk.step
    disk.step = lambda kind: reads.append(1) if kind == "read" else step(kind)  # type: ignore[method-assign]
    journal = SegmentJournal(disk, segment_bytes=40_000)
    assert indexes(journal) == list(range(1, 1001))
    assert len(journal.segments()) == 2
    assert len(reads) < 10


@pytest.mark.parametrize("how", ["missing", "empty", "damaged", "of another segment", "of another size"])
def test_a_sidecar_that_cannot_be_used_is_built_again_by_scanning(how: str) -> None:
    disk = sim_disk()
    synced_log(disk, 10, segment_bytes=200)
    name = "0000000000000003.pos"
    good = disk.read_all(name)
    if how == "missing":
        disk.remove(name)
    elif how == "damaged":
        disk.flip(name, 40)
    else:
        other = disk.read_all("0000000000000001.pos") if how == "of another segment" else b""
        set_content(disk, name, other)
    if how == "of another size":  # as if the segment had been cut and filled again
        other_disk = sim_disk()
        journal = SegmentJournal(other_disk, segment_bytes=300)
        fill(journal, range(1, 9))
        journal.sync()
        set_content(disk, "0000000000000001.pos", other_disk.read_all("0000000000000001.pos"))
    journal = SegmentJournal(disk, segment_bytes=200)
    assert [journal.read(i) for i in indexes(journal)] == [command(i) for i in range(1, 11)]
    assert disk.read_all(name) == good


def test_a_sidecar_of_entries_that_were_cut_is_recognised_by_the_last_term() -> None:
    """Same size, same positions: only the terms differ, as after a conflict."""
    old, new = sim_disk(), sim_disk()
    for disk, term in ((old, 1), (new, 2)):
        journal = SegmentJournal(disk, segment_bytes=200)
        fill(journal, [1, 2, 3], term=term)
        journal.close()
    set_content(new, "0000000000000001.pos", old.read_all("0000000000000001.pos"))
    assert SegmentJournal(new, segment_bytes=200).term_at(1) == 2


@pytest.mark.parametrize("byte", range(32, 176))
def test_damage_in_a_sealed_segment_is_found_when_it_is_read(byte: int) -> None:
    """With a good sidecar the restart does not read it; a later read does, names the byte, and cuts
    nothing."""
    disk = sim_disk()
    synced_log(disk, 10, segment_bytes=200)
    name = "0000000000000005.log"
    disk.flip(name, byte)
    journal = None
    broken, whole = (5, 6) if byte < 104 else (6, 5)
    message = rf"{name}.* byte {32 if byte < 104 else 104}"
    try:
        journal = SegmentJournal(disk, segment_bytes=200)
    except CorruptLog as error:
        assert broken == 6, "the last entry of a segment is checked with its sidecar"
        assert name in str(error)
    if journal is not None:
        for read in (
            lambda: journal.read(broken),
            lambda: journal.read_range(broken, 0, 1),
            lambda: journal.batch(broken, 1000),
        ):
            with pytest.raises(CorruptLog, match=message):
                read()
        assert journal.read_range(whole, 0, 40) == command(whole)
    assert disk.open(name).size() == 176


def test_damage_in_a_sealed_segment_without_sidecar_is_found_at_the_restart() -> None:
    disk = sim_disk()
    synced_log(disk, 10, segment_bytes=200)
    disk.remove("0000000000000005.pos")
    disk.flip("0000000000000005.log", 120)
    with pytest.raises(CorruptLog, match=r"0000000000000005\.log: no sound entry at byte 104 of 176"):
        SegmentJournal(disk, segment_bytes=200)


def test_retention_drops_whole_segments_and_keeps_two_entries(disk: Disk) -> None:
    journal = sealed_log(disk)
    assert journal.drop_before(4) == 3
    assert journal.drop_before(1) == 3
    assert journal.drop_before(100) == 9
    assert indexes(journal) == [9, 10]
    assert journal.term_at(8) is None
    with pytest.raises(OffsetGone, match="begins at 9"):
        journal.read(8)
    assert disk.exists("0000000000000001.log"), "the files go with the next job"
    journal.sync()
    assert disk.names() == ["0000000000000009.log", "vote"]
    assert indexes(SegmentJournal(disk)) == [9, 10]


def test_retention_keeps_segments_that_are_not_on_disk_yet(disk: Disk) -> None:
    journal = SegmentJournal(disk, segment_bytes=200)
    fill(journal, range(1, 11))
    assert journal.drop_before(9) == 1
    journal.sync()
    assert journal.drop_before(9) == 9
