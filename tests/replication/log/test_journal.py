"""The journal's promises one by one: group commit, full and failing disks, sealing, retention, reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from escrowmq.replication.log.disk import Disk, RealDisk
from escrowmq.replication.log.journal import SegmentJournal
from tests.support.storage import NEWEST, command, fill, indexes, sim_disk, synced_log


@pytest.fixture(params=["real", "simulated"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    return RealDisk(tmp_path) if request.param == "real" else sim_disk()


# ---------------------------------------------------------------- as pysyncobj's journal


def test_it_is_the_list_that_pysyncobj_expects(disk: Disk) -> None:
    journal = SegmentJournal(disk)
    entries = [(command(i), i, 1 + i // 4) for i in range(1, 9)]
    for entry in entries:
        journal.add(*entry)
    assert len(journal) == 8
    assert journal[0] == entries[0]
    assert journal[-1][1] == 8
    assert journal[-1][2] == 3
    assert [tuple(e) for e in journal[2:5]] == entries[2:5]
    assert [tuple(e) for e in journal[5:][1:]] == entries[6:]
    assert len(journal[8:]) == 0
    assert entries[0] == journal[0] != entries[1]
    with pytest.raises(IndexError):
        journal[8]
    with pytest.raises(IndexError):
        journal[-9]


def test_an_empty_journal_begins_wherever_the_first_entry_says(disk: Disk) -> None:
    journal = SegmentJournal(disk)
    assert (len(journal), journal.first_index, journal.last_index, journal.durable_index) == (0, 1, 0, 0)
    fill(journal, [70, 71])
    assert indexes(journal) == [70, 71]
    journal.clear()
    fill(journal, [90])
    assert indexes(journal) == [90]
    journal.close()
    assert indexes(SegmentJournal(disk)) == [90]


def test_an_entry_that_does_not_follow_is_a_bug_and_says_so(disk: Disk) -> None:
    journal = SegmentJournal(disk)
    fill(journal, [1])
    with pytest.raises(AssertionError, match="entry 3 does not follow entry 1"):
        journal.add(b"", 3, 1)


def test_pysyncobj_compaction_drops_whole_sealed_segments_only(disk: Disk) -> None:
    synced_log(disk, 12, segment_bytes=200)
    journal = SegmentJournal(disk, segment_bytes=200)
    journal.deleteEntriesTo(3)
    assert journal.first_index == 3
    assert journal[0] == (command(3), 3, 1)


# ---------------------------------------------------------------- group commit


def test_nothing_reaches_the_disk_before_the_job_runs(disk: Disk) -> None:
    journal = SegmentJournal(disk)
    fill(journal, [1, 2])
    assert journal.durable_index == 0
    assert not disk.exists(NEWEST)
    job = journal.begin_sync()
    assert job is not None
    fill(journal, [3])  # continues meanwhile, in the next job
    assert journal.begin_sync() is None
    job.run()
    assert journal.durable_index == 0, "the loop thread has not taken the result yet"
    journal.end_sync(job)
    assert journal.durable_index == 2
    journal.sync()
    assert journal.durable_index == 3
    assert journal.begin_sync() is None


def test_one_sync_covers_all_that_was_queued() -> None:
    disk = sim_disk()
    journal = SegmentJournal(disk)
    before = disk.syncs
    fill(journal, range(1, 1001))
    journal.sync()
    assert disk.syncs - before == 2, "the file, and the directory since the file is new"
    fill(journal, range(1001, 2001))
    journal.sync()
    assert disk.syncs - before == 3


def test_a_cut_waits_for_the_job_under_way_and_voids_what_it_wrote(disk: Disk) -> None:
    journal = SegmentJournal(disk)
    fill(journal, range(1, 6))
    job = journal.begin_sync()
    assert job is not None
    generation = journal.generation
    journal.deleteEntriesFrom(2)
    assert journal.generation == generation + 1
    job.run()
    journal.end_sync(job)
    assert (journal.last_index, journal.durable_index) == (2, 2)
    fill(journal, [3], term=2)
    journal.close()
    assert [(e[1], e[2]) for e in SegmentJournal(disk)[:]] == [(1, 1), (2, 1), (3, 2)]


def test_a_cut_through_sealed_segments_reopens_the_one_it_ends_in(disk: Disk) -> None:
    synced_log(disk, 20, segment_bytes=200)
    journal = SegmentJournal(disk, segment_bytes=200)
    journal.deleteEntriesFrom(5)
    assert [s.name for s in journal.segments()] == [f"{i:016x}.log" for i in (1, 3, 5)]
    fill(journal, range(6, 10), term=5)
    journal.close()
    again = SegmentJournal(disk, segment_bytes=200)
    assert [(e[1], e[2]) for e in again[:]] == [(i, 1 if i < 6 else 5) for i in range(1, 10)]
