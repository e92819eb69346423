"""A full disk loses nothing and is tried again; a failing disk is fatal for good."""

from __future__ import annotations

import pytest

from escrowmq.replication.errors import DiskFailed, FsyncFailed
from escrowmq.replication.log.holes import SECTOR
from escrowmq.replication.log.journal import SegmentJournal
from tests.support.storage import NEWEST, command, fill, indexes, set_content, sim_disk


def test_a_full_disk_loses_nothing_and_is_tried_again() -> None:
    disk = sim_disk()
    journal = SegmentJournal(disk)
    fill(journal, [1])
    journal.sync()
    disk.capacity = disk.used_bytes() + 100
    fill(journal, range(2, 3000))
    journal.sync()
    assert journal.disk_full
    assert journal.durable_index == 1
    assert disk.open(NEWEST).size() == 104, "cut back to the border of the last whole entry"
    fill(journal, [3000])
    assert journal.queued_bytes == 2999 * 72
    assert journal.read(2000) == command(2000), (
        "what is queued is read from memory, whatever the cache's limit"
    )
    journal.sync()
    assert journal.disk_full
    disk.capacity = None
    journal.sync()
    assert not journal.disk_full
    assert journal.durable_index == 3000
    disk.power_cut()
    recovered = SegmentJournal(disk)
    assert [recovered.read(i) for i in indexes(recovered)] == [command(i) for i in range(1, 3001)]


def test_what_found_room_is_durable_at_once() -> None:
    disk = sim_disk()
    journal = SegmentJournal(disk)
    disk.capacity = disk.used_bytes() + 32 + 600 * 72
    fill(journal, range(1, 1001))
    journal.sync()
    assert journal.disk_full
    assert journal.durable_index == 512, "an append takes 512 entries"
    disk.power_cut()
    assert indexes(SegmentJournal(disk))[-1] == 512


def test_a_full_disk_at_a_roll_leaves_no_half_made_segment() -> None:
    disk = sim_disk()
    journal = SegmentJournal(disk, segment_bytes=200)
    fill(journal, [1, 2])
    journal.sync()
    disk.capacity = disk.used_bytes() + 10
    fill(journal, [3, 4, 5])
    journal.sync()
    assert journal.disk_full
    assert not disk.exists("0000000000000003.log")
    journal.deleteEntriesFrom(1)  # Raft gives up entries, some of which never found room
    disk.capacity = None
    for index, size in ((2, 100), (3, 1), (4, 100)):  # the segments begin elsewhere now: at 2 and 4
        fill(journal, [index], term=2, size=size)
    journal.sync()
    disk.kill()
    again = SegmentJournal(disk, segment_bytes=200)
    assert [s.first for s in again.segments()] == [1, 2, 4]
    assert [(e[1], e[2]) for e in again[:]] == [(1, 1), (2, 2), (3, 2), (4, 2)]


def test_retention_makes_the_room_that_a_full_disk_lacks() -> None:
    disk = sim_disk()
    journal = SegmentJournal(disk, segment_bytes=200)
    fill(journal, range(1, 11))
    journal.sync()
    disk.capacity = disk.used_bytes()
    fill(journal, [11, 12])
    journal.sync()
    assert journal.disk_full
    journal.drop_before(7)
    journal.sync()
    assert not journal.disk_full
    assert journal.durable_index == 12


def test_entries_turned_away_are_retried_in_a_sync_of_their_own() -> None:
    """Their headers say which entries one sync covers; a lost sector must still be read as a torn tail."""
    disk = sim_disk()
    journal = SegmentJournal(disk)
    fill(journal, [1])
    journal.sync()
    disk.capacity = disk.used_bytes()
    fill(journal, range(2, 40))
    journal.sync()
    fill(journal, range(40, 80))
    disk.capacity = None
    job = journal.begin_sync()
    assert job is not None
    job.run()
    assert disk.open(NEWEST).size() == 32 + 39 * 72, "the first 39 entries only"
    data = bytearray(disk.read_all(NEWEST))
    data[2 * SECTOR : 3 * SECTOR] = bytes(SECTOR)
    disk.kill()
    set_content(disk, NEWEST, bytes(data))
    assert indexes(SegmentJournal(disk))[-1] < 20


@pytest.mark.parametrize("kind", ["sync", "sync_dir"])
def test_a_failed_sync_is_fatal_for_good(kind: str) -> None:
    disk = sim_disk()
    journal = SegmentJournal(disk)
    fill(journal, [1])
    job = journal.begin_sync()
    assert job is not None
    disk.fail_next(kind)
    for _ in range(2):  # a second attempt is not made: the kernel has forgotten the dirty pages
        with pytest.raises(FsyncFailed):
            job.run()
    assert journal.durable_index == 0
    with pytest.raises(FsyncFailed):
        journal.sync()


def test_a_failed_append_is_fatal() -> None:
    disk = sim_disk()
    journal = SegmentJournal(disk)
    fill(journal, [1])
    disk.fail_next("append")
    with pytest.raises(DiskFailed):
        journal.sync()
    assert journal.durable_index == 0
