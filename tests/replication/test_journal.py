"""The journal's promises one by one: group commit, full and failing disks, sealing, retention, reads."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from escrowmq.replication.disk import Disk, RealDisk
from escrowmq.replication.errors import CorruptLog, DiskFailed, FsyncFailed, OffsetGone
from escrowmq.replication.journal import SegmentJournal
from escrowmq.replication.torn import SECTOR
from tests.replication.storage import NEWEST, command, fill, indexes, set_content, sim_disk, synced_log
from tests.sim.disk import SimDisk


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
    assert journal.dirty
    assert journal.durable_index == 0
    assert not disk.exists(NEWEST)
    job = journal.begin_sync()
    assert job is not None
    fill(journal, [3])  # goes on meanwhile, and into the next job
    assert journal.begin_sync() is None
    job.run()
    assert journal.durable_index == 0, "the loop thread has not taken the result yet"
    journal.end_sync(job)
    assert journal.durable_index == 2
    journal.sync()
    assert journal.durable_index == 3
    assert not journal.dirty
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


# ---------------------------------------------------------------- a full disk, a failing disk


def test_a_full_disk_loses_nothing_and_is_tried_again() -> None:
    disk = sim_disk()
    journal = SegmentJournal(disk)
    fill(journal, [1])
    journal.sync()
    disk.capacity = disk.used_bytes() + 100
    fill(journal, range(2, 3000))
    journal.sync()
    assert journal.disk_full
    assert journal.dirty
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
    journal.deleteEntriesFrom(2)  # Raft gives up the entries that never found room
    disk.capacity = None
    fill(journal, [3], term=2)
    journal.sync()
    disk.kill()
    assert [(e[1], e[2]) for e in SegmentJournal(disk, segment_bytes=200)[:]] == [(1, 1), (2, 1), (3, 2)]


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
    """Their headers say which entries one sync covers; a lost sector must still read as a torn tail."""
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
    for _ in range(2):  # asked again, it does not try again: the kernel has forgotten the dirty pages
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


# ---------------------------------------------------------------- sealed segments


def sealed_log(disk: Disk, count: int = 10) -> SegmentJournal:
    """Two entries a segment; opened afresh, so that everything is read from disk."""
    synced_log(disk, count, segment_bytes=200)
    return SegmentJournal(disk, segment_bytes=200)


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
    """With a good sidecar the restart does not look; reading does, names the place, and cuts nothing."""
    disk = sim_disk()
    synced_log(disk, 10, segment_bytes=200)
    name = "0000000000000005.log"
    disk.flip(name, byte)
    journal = None
    broken, whole = (5, 6) if byte < 104 else (6, 5)
    place = rf"{name}.* byte {32 if byte < 104 else 104}"
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
            with pytest.raises(CorruptLog, match=place):
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


# ---------------------------------------------------------------- retention


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
    assert journal.dirty
    journal.sync()
    assert disk.names() == ["0000000000000009.log", "vote"]
    assert indexes(SegmentJournal(disk)) == [9, 10]


def test_retention_keeps_segments_that_are_not_on_disk_yet(disk: Disk) -> None:
    journal = SegmentJournal(disk, segment_bytes=200)
    fill(journal, range(1, 11))
    assert journal.drop_before(9) == 1
    journal.sync()
    assert journal.drop_before(9) == 9


# ---------------------------------------------------------------- reading


def test_ranges_outside_the_entry_are_refused_in_memory_and_on_disk(disk: Disk) -> None:
    journal = SegmentJournal(disk, cache_bytes=50)
    fill(journal, range(1, 10))
    journal.sync()
    for index in (1, 9):  # evicted, cached
        assert journal.read_range(index, 40, 0) == b""
        for pos, size in ((-1, 2), (0, 41), (41, 0), (0, -1)):
            with pytest.raises(ValueError, match=f"entry {index} has 40 bytes"):
                journal.read_range(index, pos, size)


def test_entries_that_do_not_exist_are_gone(disk: Disk) -> None:
    journal = sealed_log(disk)
    for index in (0, -5, 11, 1000):
        with pytest.raises(OffsetGone):
            journal.read_range(index, 0, 1)
        with pytest.raises(LookupError):
            journal.read(index)
    journal.close()
    with pytest.raises(OffsetGone):
        journal.read(1)


def test_a_batch_is_one_read_of_as_much_as_was_asked_for(disk: Disk) -> None:
    synced_log(disk, 1000)
    journal = SegmentJournal(disk)
    batch = journal.batch(1, 40 * 72 + 1)
    assert [row[1] for row in batch] == list(range(1, 41))
    assert [row[1] for row in journal.batch(999, 1 << 20)] == [999, 1000]
    assert [row[1] for row in journal.batch(7, 1)] == [7], "at least one"
    assert journal.batch(1001, 1000) == []
    fill(journal, range(1001, 1011))
    assert [row[1] for row in journal.batch(995, 1 << 20)] == list(range(995, 1001)), "from disk"
    assert [row[1] for row in journal.batch(1001, 1 << 20)] == list(range(1001, 1011)), "from memory"


def test_a_bounded_number_of_sealed_segments_is_open(tmp_path: Path) -> None:
    synced_log(RealDisk(tmp_path), 200, segment_bytes=200)
    before = len(os.listdir("/proc/self/fd"))
    journal = SegmentJournal(RealDisk(tmp_path), segment_bytes=200, open_segments=5)
    for index in indexes(journal):
        assert journal.read(index) == command(index)
    assert len(os.listdir("/proc/self/fd")) - before <= 5 + 3
    journal.close()
    assert len(os.listdir("/proc/self/fd")) - before == 0


def test_readers_in_other_threads_see_the_same_bytes_during_writes_rolls_and_retention(
    tmp_path: Path,
) -> None:
    """Fetch threads read applied entries while the loop thread adds, syncs and drops."""
    journal = SegmentJournal(RealDisk(tmp_path), segment_bytes=20_000, cache_bytes=5_000, open_segments=2)
    applied, stop = [0], threading.Event()
    problems: list[BaseException] = []
    gone = [0]

    def reader(seed: int) -> None:
        step = seed
        try:
            while not stop.is_set():
                last, step = applied[0], step * 1103515245 % 2147483647 + 1
                index = max(1, last - step % 600)
                if last:
                    try:
                        assert journal.read_range(index, 5, 50) == command(index, 100)[5:55]
                    except OffsetGone:
                        assert index < journal.first_index
                        gone[0] += 1
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=reader, args=(seed,)) for seed in range(1, 5)]
    for thread in threads:
        thread.start()
    for index in range(1, 6001):
        journal.add(command(index, 100), index, 1)
        applied[0] = index
        if index % 20 == 0:
            job = journal.begin_sync()
            assert job is not None
            worker = threading.Thread(target=job.run)
            worker.start()
            worker.join()
            journal.end_sync(job)
        if index % 500 == 0:
            journal.drop_before(index - 400)
    stop.set()
    for thread in threads:
        thread.join()
    assert not problems, problems
    journal.close()


def test_a_read_in_progress_survives_retention(tmp_path: Path) -> None:
    journal = sealed_log(RealDisk(tmp_path))
    segment = journal._table.segments[0]
    opened = journal._reader.open(segment)
    file = opened.file
    assert file is not None
    journal.drop_before(9)
    journal.sync()
    assert not (tmp_path / "0000000000000001.log").exists()
    assert file.read(64, 40) == command(1)


def test_the_cache_is_bounded_once_entries_are_durable() -> None:
    journal = SegmentJournal(sim_disk(), cache_bytes=1000)
    fill(journal, range(1, 500))
    journal.sync()
    fill(journal, [500])
    assert sum(journal._cache.get(i) is not None for i in range(1, 501)) == 25
    assert journal.read(1) == command(1)


def test_memory_grows_by_positions_only_and_not_at_all_for_closed_segments() -> None:
    journal = SegmentJournal(sim_disk(), segment_bytes=20_000, open_segments=2)
    fill(journal, range(1, 3001))
    journal.sync()
    opened = [segment for segment in journal._table.segments if segment.opened is not None]
    assert len(journal._table.segments) > 10
    assert len(opened) <= 3


def test_many_terms_are_found(disk: Disk) -> None:
    journal = SegmentJournal(disk, segment_bytes=400)
    terms = [1, 1, 2, 5, 5, 5, 9, 9, 10, 12, 12, 12]
    for index, term in enumerate(terms, 1):
        journal.add(command(index), index, term)
    for log in (journal, None):
        if log is None:
            journal.close()
            log = SegmentJournal(disk, segment_bytes=400)
        assert [log.term_at(i) for i in range(14)] == [None, *terms, None]
        assert [log.first_of_term(i) for i in range(1, 13)] == [1, 1, 3, 4, 4, 4, 7, 7, 9, 10, 10, 10]
        assert log.last_term == 12


def test_sim_disk_power_cut_keeps_what_was_synced() -> None:
    for seed in range(50):
        disk: SimDisk = sim_disk(seed)
        journal = SegmentJournal(disk, segment_bytes=400)
        fill(journal, range(1, 20))
        journal.sync()
        fill(journal, range(20, 30))
        job = journal.begin_sync()
        assert job is not None
        disk.power_cut()
        assert indexes(SegmentJournal(disk)) == list(range(1, 20))
