"""After a failed sync the machine may continue, with pages in its cache that the disk does not have.

The process ends, another one starts on the same boot and finds everything in the page cache, marked clean; a
sync that has nothing to write succeeds. What that process then acknowledges must still survive a power cut.
"""

from __future__ import annotations

import random

import pytest

from escrowmq.replication.errors import FsyncFailed
from escrowmq.replication.log.holes import write_hole
from escrowmq.replication.log.journal import SegmentJournal
from escrowmq.replication.log.survey import survey_log
from escrowmq.replication.log.vote import VoteFile
from tests.sim.disk import SimDisk
from tests.support.storage import command, fill, indexes, sim_disk


def fail_a_sync(disk: SimDisk, journal: SegmentJournal) -> None:
    disk.fail_next("sync")
    with pytest.raises(FsyncFailed):
        journal.sync()
    disk.kill()


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("before", [0, 5])
@pytest.mark.parametrize("segment_bytes", [200, 1 << 20])
def test_what_is_found_after_a_failed_sync_is_made_durable_before_it_counts(
    seed: int, before: int, segment_bytes: int
) -> None:
    disk = sim_disk(seed)
    journal = SegmentJournal(disk, segment_bytes=segment_bytes)
    for index in range(1, before + 1):
        fill(journal, [index])
        journal.sync()
    fill(journal, range(before + 1, before + 8))
    fail_a_sync(disk, journal)
    again = SegmentJournal(disk, segment_bytes=segment_bytes)
    promised = again.durable_index
    assert promised >= before
    fill(again, range(promised + 1, promised + 3))
    again.sync()
    disk.power_cut()
    last = SegmentJournal(disk, segment_bytes=segment_bytes)
    assert last.last_index >= promised + 2
    assert [last.read(i) for i in indexes(last)] == [command(i) for i in indexes(last)]


def test_only_the_last_batch_is_written_again(seed: int = 0) -> None:
    disk = sim_disk(seed)
    journal = SegmentJournal(disk)
    fill(journal, range(1, 100))
    journal.sync()
    fill(journal, range(100, 103))
    journal.sync()
    disk.kill()
    written: list[tuple[int, int]] = []
    opened = disk.open("0000000000000001.log")
    kind = type(opened)

    class Watched(kind):  # type: ignore[misc, valid-type]
        def write_at(self, pos: int, data: bytes) -> None:
            written.append((pos, len(data)))
            super().write_at(pos, data)

    disk.open = lambda name, create=False: (  # type: ignore[method-assign]
        Watched(disk, disk._names[name], name) if name.endswith(".log") else SimDisk.open(disk, name, create)
    )
    SegmentJournal(disk)
    assert written == [(32 + 99 * 72, 3 * 72)]


@pytest.mark.parametrize("seed", range(20))
def test_a_vote_whose_sync_failed_is_durable_before_it_counts(seed: int) -> None:
    disk = SimDisk(random.Random(seed))
    vote = VoteFile(disk)
    disk.fail_next("sync")
    with pytest.raises(FsyncFailed):
        vote.set(3, "1")
    disk.kill()
    found = VoteFile(disk)
    known = (found.term, found.voted_for)
    disk.power_cut()
    lasting = VoteFile(disk)
    assert (lasting.term, lasting.voted_for) == known


@pytest.mark.parametrize("seed", range(20))
def test_a_mended_entry_whose_sync_failed_counts_as_damaged(seed: int) -> None:
    """Otherwise the next process reads it from the page cache, and takes its disk for a sound copy."""
    disk, name = sim_disk(seed), "0000000000000001.log"
    journal = SegmentJournal(disk)
    fill(journal, range(1, 21))
    journal.sync()
    sound = disk.peek(name)
    disk.flip(name, len(sound) // 2)
    hole = survey_log(disk).holes[0]
    data = sound[hole.start : hole.end]
    disk.fail_next("sync")
    with pytest.raises(FsyncFailed):
        write_hole(disk, hole, data)
    disk.kill()
    stored = disk.durable_files()[name][hole.start : hole.end]
    assert disk.peek(name)[hole.start : hole.end] != data or stored == data
    for left in survey_log(disk).holes:
        assert write_hole(disk, left, sound[left.start : left.end])
    disk.power_cut()
    assert disk.peek(name) == sound
