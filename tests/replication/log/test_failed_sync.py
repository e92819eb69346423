"""After a failed sync the machine may continue, with pages in its cache that the disk does not have.

The process ends, another one starts on the same boot and finds everything in the page cache, marked clean; a
sync that has nothing to write succeeds. What that process then acknowledges must still survive a power cut.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from escrowmq.replication.errors import CorruptLog, DiskFull, FsyncFailed
from escrowmq.replication.format.segment_format import sidecar_name
from escrowmq.replication.log.holes import Hole, StoredEntry, write_hole
from escrowmq.replication.log.journal import SegmentJournal
from escrowmq.replication.log.recovery import survey_log
from escrowmq.replication.log.vote import VoteFile
from tests.sim.environment.disk import SimDisk, SimFile
from tests.support.storage import NEWEST, command, fill, indexes, sim_disk, synced_log


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


def fail_a_mend(disk: SimDisk, hole: Hole, data: bytes) -> None:
    disk.fail_next("sync")
    with pytest.raises(FsyncFailed):
        write_hole(disk, hole, data)


def check_nothing_is_believed(disk: SimDisk, name: str, sound: bytes) -> None:
    """The next process finds and mends whatever a power cut would bring back."""
    disk.kill()
    for left in survey_log(disk).holes:
        end = left.end if left.end > 0 else len(sound)
        assert write_hole(disk, left, sound[left.start : end])
    disk.power_cut()
    assert disk.peek(name) == sound


@pytest.mark.parametrize("seed", range(20))
def test_a_mended_entry_whose_sync_failed_counts_as_damaged(seed: int) -> None:
    """Otherwise the next process reads it from the page cache, and takes its disk for a sound copy."""
    disk = sim_disk(seed)
    synced_log(disk, 20)
    sound = disk.peek(NEWEST)
    disk.flip(NEWEST, len(sound) // 2)
    hole = survey_log(disk).holes[0]
    fail_a_mend(disk, hole, sound[hole.start : hole.end])
    check_nothing_is_believed(disk, NEWEST, sound)


@pytest.mark.parametrize("seed", range(20))
def test_neighbours_that_were_mended_together_count_as_damaged(seed: int) -> None:
    disk = sim_disk(seed)
    synced_log(disk, 20)
    sound = disk.peek(NEWEST)
    for entry in (9, 10):
        disk.flip(NEWEST, 32 + 72 * (entry - 1))
    (hole,) = survey_log(disk).holes
    assert (hole.first, hole.last) == (9, 10)
    fail_a_mend(disk, hole, sound[hole.start : hole.end])
    assert [(left.first, left.last) for left in survey_log(disk.frozen()).holes] == [(9, 10)]
    check_nothing_is_believed(disk, NEWEST, sound)


@pytest.mark.parametrize("sidecar", [True, False])
@pytest.mark.parametrize("cut", [0, 1, 30, 72])
@pytest.mark.parametrize("seed", range(10))
def test_the_mended_end_of_a_sealed_segment_counts_as_damaged(seed: int, cut: int, sidecar: bool) -> None:
    """``cut``: bytes that the file lacks; 0: its last entry is damaged. Nothing there can be a torn tail."""
    disk = sim_disk(seed)
    synced_log(disk, 10, segment_bytes=200)
    name = sorted(name for name in disk.names() if name.endswith(".log"))[1]
    sound = disk.peek(name)
    if cut:
        disk.cut_off(name, len(sound) - cut)
    else:
        disk.flip(name, len(sound) - 1)
    if not sidecar:
        disk.remove(name.replace(".log", ".pos"))
        disk.sync_dir()
    (hole,) = survey_log(disk).holes
    fail_a_mend(disk, hole, sound[hole.start :])
    assert [left.first for left in survey_log(disk.frozen()).holes] == [hole.first]
    check_nothing_is_believed(disk, name, sound)


def newest_batch(disk: SimDisk, bodies: Sequence[bytes]) -> int:
    """A log that ends with a batch of these entries, after three batches of one; the batch's first index."""
    journal = SegmentJournal(disk)
    for index in range(1, 4):
        fill(journal, [index])
        journal.sync()
    for k, body in enumerate(bodies):
        journal.add(body, 4 + k, 1)
    journal.close()
    return 4


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize(
    "bodies",
    [
        (command(4),),
        (command(4, 2_000),),
        (b"\xff" * 2_000, command(5), command(6)),
        (b"\x00" * 2_000, command(5), command(6)),
        (command(4), command(5), command(6)),
    ],
    ids=["one", "long", "ones", "zeros", "three"],
)
@pytest.mark.parametrize("seed", range(8))
def test_a_failed_mend_is_never_judged_as_a_torn_tail(seed: int, bodies: Sequence[bytes], cut: bool) -> None:
    """The replica acknowledged the newest batch, and keeps its vote: a start must not forget any of it."""
    disk = sim_disk(seed)
    damaged, last = newest_batch(disk, bodies), 3 + len(bodies)
    if cut:
        damaged = last  # the file lacks the end of its last entry
    body = bodies[damaged - 4]
    journal = SegmentJournal(disk, mendable=True)
    at = disk.peek(NEWEST).rfind(body)
    if cut:
        disk.cut_off(NEWEST, at + 5)
    else:
        disk.flip(NEWEST, at + 5)
    with pytest.raises(CorruptLog):
        journal.read(damaged)
    (hole,) = journal.holes.all()
    assert journal.mend(hole, StoredEntry(damaged, 1, body))
    disk.fail_next("sync")
    with pytest.raises(FsyncFailed):
        journal.sync()
    assert SegmentJournal(disk.frozen(), mendable=True).last_index == last
    believed = damaged == last  # what might be torn is written again before it counts
    assert [left.first for left in survey_log(disk.frozen()).holes] == ([] if believed else [damaged])
    disk.kill()  # what is in the page cache may be evicted: then nothing tells the damage from a torn tail
    shown = disk.peek(NEWEST)[at : at + len(body)]
    again = SegmentJournal(disk, mendable=True)
    counted, holes = again.last_index, again.holes.all()
    assert counted == last or shown != body
    disk.power_cut()
    lasting = SegmentJournal(disk, mendable=True)
    assert (lasting.last_index, lasting.holes.all()) == (counted, holes)
    expected = [command(1), command(2), command(3), *bodies]
    for index in indexes(lasting):
        if index not in [left.first for left in holes]:
            assert lasting.read(index) == expected[index - 1]


@pytest.mark.parametrize("each", [True, False])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("seed", range(8))
def test_a_failed_mend_of_a_file_header_is_not_judged_as_a_torn_creation(
    seed: int, count: int, each: bool
) -> None:
    disk = sim_disk(seed)
    synced_log(disk, count, each=each)
    sound = disk.peek(NEWEST)
    disk.flip(NEWEST, 3)
    (hole,) = survey_log(disk).holes
    assert hole.is_header
    fail_a_mend(disk, hole, sound[: hole.end])
    assert survey_log(disk.frozen()).last == count
    disk.kill()
    for left in survey_log(disk).holes:
        assert write_hole(disk, left, sound[: left.end])
    assert SegmentJournal(disk).last_index == count
    disk.power_cut()
    assert disk.peek(NEWEST) == sound


@pytest.mark.parametrize("seed", range(8))
def test_a_sound_file_header_stays_so_when_its_sidecar_is_written_again(seed: int) -> None:
    """On a full disk a sealed segment gets no sidecar. The one that scrubbing writes later came with a header
    in place of the sound one, and when that header's sync failed, it was undone: the segment was lost."""
    disk = sim_disk(seed)
    synced_log(disk, 20, segment_bytes=200)
    log = SegmentJournal(disk, mendable=True)
    assert log.frame_is_sound(1), "it is open now"
    disk.remove(sidecar_name(1))
    assert not log.frame_is_sound(1) and log.mend_frame(1) and log.frame_is_sound(1)
    fill(log, (21,))
    fail_a_sync(disk, log)
    survey = survey_log(disk.frozen())
    assert not survey.holes and survey.last >= 20
    assert indexes(SegmentJournal(disk))[:20] == list(range(1, 21))


@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_what_was_sound_before_a_mend_whose_sync_failed_stays_so(seed: int, header: bool) -> None:
    """As when two repairs meet: the second one finds that the first has mended it already."""
    disk = sim_disk(seed)
    synced_log(disk, 20)
    sound = disk.peek(NEWEST)
    disk.flip(NEWEST, 3 if header else len(sound) // 2)
    (hole,) = survey_log(disk).holes
    assert write_hole(disk, hole, sound[hole.start : hole.end]), "the first repair"
    fail_a_mend(disk, hole, sound[hole.start : hole.end])
    disk.power_cut()
    assert disk.peek(NEWEST) == sound


def test_a_sector_that_cannot_be_read_is_written() -> None:
    """A drive gives such a sector another place when it is written."""
    disk = sim_disk()
    synced_log(disk, 20)
    sound = disk.peek(NEWEST)
    disk.flip(NEWEST, len(sound) // 2)
    (hole,) = survey_log(disk).holes
    disk.fail_next("read")
    assert write_hole(disk, hole, sound[hole.start : hole.end])
    assert disk.peek(NEWEST) == sound


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("error", [DiskFull, OSError])
def test_what_fails_after_a_failed_sync_does_not_hide_it(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception], cut: bool
) -> None:
    """A full disk is waited for; after a failed sync the process must end."""
    disk = sim_disk()
    synced_log(disk, 10, segment_bytes=200)
    sound = disk.peek(NEWEST)
    if cut:
        disk.cut_off(NEWEST, len(sound) - 72)
    else:
        disk.flip(NEWEST, len(sound) - 1)
    (hole,) = survey_log(disk).holes

    def refuse(*_: object) -> None:
        raise error("no room")

    def no_more_writes() -> None:
        monkeypatch.setattr(SimFile, "write_at", refuse)
        monkeypatch.setattr(SimFile, "truncate", refuse)

    disk.fail_next("sync", no_more_writes)
    with pytest.raises(FsyncFailed):
        write_hole(disk, hole, sound[hole.start :])
