"""Reading entries: ranges and batches, from memory and disk, in other threads, within bounds."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from escrowmq.replication.errors import OffsetGone
from escrowmq.replication.log.disk import Disk, File, RealDisk
from escrowmq.replication.log.journal import SegmentJournal
from tests.sim.environment.disk import SimDisk
from tests.support.one_replica import open_files
from tests.support.storage import command, fill, indexes, sealed_log, sim_disk, synced_log


@pytest.fixture(params=["real", "simulated"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    return RealDisk(tmp_path) if request.param == "real" else sim_disk()


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
    journal = SegmentJournal(RealDisk(tmp_path), segment_bytes=200, open_segments=5)
    for index in indexes(journal):
        assert journal.read(index) == command(index)
    assert open_in(tmp_path) <= 5 + 3
    journal.close()
    assert open_in(tmp_path) == 0


def open_in(folder: Path) -> int:
    """How many descriptors of this process are open on files below the folder; others may come and go."""
    return sum(path.startswith(f"{folder}/") for path in open_files().elements())


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
    for index in range(1, 3001):
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


class Remembering(RealDisk):
    """Knows the files that were opened last."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.opened: dict[str, File] = {}

    def open(self, name: str, create: bool = False) -> File:
        file = self.opened[name] = super().open(name, create)
        return file


def test_a_read_in_progress_survives_retention(tmp_path: Path) -> None:
    disk, name = Remembering(tmp_path), "0000000000000001.log"
    journal = sealed_log(disk)
    journal.read(1)
    file = disk.opened[name]  # another thread reads it just now
    journal.drop_before(9)
    journal.sync()
    assert not disk.exists(name) and file.read(64, 40) == command(1)


def test_the_cache_is_bounded_once_entries_are_durable() -> None:
    journal = SegmentJournal(sim_disk(), cache_bytes=1000)
    fill(journal, range(1, 500))
    journal.sync()
    fill(journal, [500])
    assert sum(journal.cache.get(i) is not None for i in range(1, 501)) == 25
    assert journal.read(1) == command(1)


def test_few_segments_are_open_however_many_are_read(tmp_path: Path) -> None:
    journal = SegmentJournal(RealDisk(tmp_path), segment_bytes=20_000, open_segments=2, cache_bytes=0)
    fill(journal, range(1, 3001))
    journal.sync()
    assert all(journal.read(index) == command(index) for index in range(1, 3001, 7))
    assert len(journal.segments()) > 10
    opened = [
        path for path in open_files().elements() if path.startswith(str(tmp_path)) and path.endswith(".log")
    ]
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
