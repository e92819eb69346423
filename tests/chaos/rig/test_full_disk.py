"""What a replica can still write on a real file system without room, and what it must leave whole."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from escrowmq.replication.errors import DiskFull
from escrowmq.replication.host.repair import mend_before_start
from escrowmq.replication.log.datadir import LEARNER, SUPERSEDED, DataDir, Identity, Marks
from escrowmq.replication.log.disk import RealDisk
from escrowmq.replication.log.holes import read_stored
from escrowmq.replication.log.journal import SegmentJournal
from escrowmq.replication.log.peer_marks import Incarnation, PeerMarks
from escrowmq.replication.log.recovery import read_files, survey_log
from tests.chaos.rig import disks
from tests.chaos.rig.disks import MIB, Disk
from tests.chaos.rig.shell import own_directory, remove_directory
from tests.support.storage import fill, indexes, synced_log

REASON = disks.unavailable()
pytestmark = pytest.mark.skipif(REASON is not None, reason=f"no simulated disks: {REASON}")
OWN, FIRST, SECOND = Incarnation(0, "own"), Incarnation(0, "a"), Incarnation(1, "b")
IDENTITY = Identity("c", 0, 1)


@pytest.fixture
def disk() -> Iterator[Disk]:
    directory = own_directory()
    disk = Disk(directory / "d", 16 * MIB)
    yield disk
    disk.close()
    remove_directory(directory)


def test_a_successor_is_noted_and_a_vote_given_without_any_room(disk: Disk) -> None:
    files = RealDisk(disk.path / "r")
    marks = PeerMarks(files, OWN)
    marks.admit("r1", FIRST)
    synced_log(files, 3)
    journal = SegmentJournal(files)
    disk.fill()
    assert marks.admit("r1", SECOND) is None
    journal.setCurrentTerm(7, "r2")
    journal.close()
    marks.close()
    assert PeerMarks(files, OWN, must_exist=True).refuses("r1", FIRST) == SECOND
    again = SegmentJournal(files)
    assert (again.getCurrentTerm(), again.getVotedForNodeId()) == (7, "r2")


def test_marks_and_identities_are_written_whole_or_not_at_all(disk: Disk) -> None:
    files = RealDisk(disk.path / "r")
    marks = Marks(files)
    marks.write(LEARNER, "since then")
    disk.fill()
    before = files.names()
    with pytest.raises(DiskFull):
        marks.write(SUPERSEDED, "3" * 5000)
    with pytest.raises(DiskFull):
        marks.write(LEARNER, "otherwise" * 1000)
    assert files.names() == before and marks.read(LEARNER) == "since then"
    with pytest.raises(DiskFull):
        DataDir(disk.path / "new", IDENTITY)
    disk.free()
    marks.remove(LEARNER)
    directory = DataDir(disk.path / "new", IDENTITY)
    assert directory.fresh and directory.marks().own.number == 0
    directory.close()


class Peer:
    """Another replica's files."""

    def __init__(self, files: RealDisk) -> None:
        self._files = files

    def entries(self, peer: str, first: int, last: int) -> bytes | None:
        return read_files(self._files, first, last, 1 << 20)


@pytest.mark.parametrize("kind", ["flipped", "cut short"])
def test_entries_are_mended_in_place_and_what_needs_room_waits_for_it(disk: Disk, kind: str) -> None:
    files, sound = RealDisk(disk.path / "r"), RealDisk(disk.path / "sound")
    for each in (files, sound):
        synced_log(each, 40, segment_bytes=20_000, size=2_000)
    name = "0000000000000001.log"
    path = disk.path / "r" / name
    data = bytearray(path.read_bytes())
    if kind == "flipped":
        data[5_000] ^= 1
        with path.open("r+b") as file:
            file.write(data)
    else:
        with path.open("r+b") as file:
            file.truncate(3_000)
    disk.fill()
    assert survey_log(files).holes

    def mended() -> bool:
        return mend_before_start(files, ["r2"], Peer(sound), lambda text: None)

    if kind == "cut short":
        assert not mended()
        assert read_stored(read_files(files, 1, 1, 1), 1), "what was sound stays so"
        disk.free()
    assert mended()
    assert indexes(SegmentJournal(files, segment_bytes=20_000)) == list(range(1, 41))
    assert path.read_bytes() == (disk.path / "sound" / name).read_bytes() or kind == "cut short"


def test_a_log_at_the_end_of_its_disk_goes_on_when_there_is_room(disk: Disk) -> None:
    files = RealDisk(disk.path / "r")
    journal = SegmentJournal(files, segment_bytes=20_000)
    fill(journal, range(1, 21), size=2_000)
    journal.sync()
    disk.fill(leave=8 << 10)
    fill(journal, range(21, 61), size=2_000)
    journal.sync()
    assert journal.disk_full and 20 <= journal.durable_index < 60
    for _ in range(20):
        disk.give_back(8 << 10)
        journal.sync()
    disk.free()
    journal.sync()
    assert not journal.disk_full and journal.durable_index == 60
    journal.close()
    assert indexes(SegmentJournal(files, segment_bytes=20_000)) == list(range(1, 61))
