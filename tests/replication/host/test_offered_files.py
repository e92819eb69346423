"""What a peer offers for a copy is checked before it is used, whichever byte of it is wrong."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from escrowmq.replication.errors import Unavailable
from escrowmq.replication.format.segment_format import WINDOW_BYTES
from escrowmq.replication.host.repair import (
    READ_BYTES,
    Begin,
    Look,
    at_once,
    damage_offered,
    has_history,
)
from escrowmq.replication.host.replica_process import in_a_thread
from escrowmq.replication.log.disk import Disk, File
from escrowmq.replication.log.install import staged_name
from escrowmq.replication.log.journal import SegmentJournal
from escrowmq.replication.log.vote import VoteFile
from escrowmq.replication.replica.damage import damage_in
from tests.sim.environment.disk import SimDisk
from tests.support.golden_files import mend_segment
from tests.support.offered_files import (
    KINDS,
    RUNS_NAME,
    SNAP_NAME,
    Offering,
    content,
    copy,
    damage_in_bytes,
    decided_switches,
    disk_with,
    files,
)
from tests.support.storage import NEWEST, indexes, sim_disk


def refused_copy(
    offered: dict[str, bytes], names: Sequence[str], begin: Begin = at_once
) -> tuple[list[str], list[str]]:
    """What the leader was told to check, and the reports; asserts that nothing of our own has changed."""
    own = disk_with(files())
    before = content(own)
    source, reports = Offering(disk_with(offered), names), list[str]()
    with pytest.raises(Unavailable, match="no leader to copy the log from"):
        copy(own, source, reports, begin)
    assert content(own, [name for name in own.names() if not name.startswith("incoming-")]) == before
    return source.suspected, reports


def test_sound_files_are_taken() -> None:
    own, source = sim_disk(), Offering(disk_with(files()), KINDS)
    copy(own, source)
    assert content(own, KINDS) == files()
    assert source.suspected == []


class Reads(Offering):
    """Notes which files are read."""

    def __init__(self, disk: Disk, names: Sequence[str], told: list[str]) -> None:
        super().__init__(disk, names)
        self._told = told

    def read(self, peer: str, name: str, pos: int, size: int) -> bytes:
        self._told.append(f"read {name}")
        return super().read(peer, name, pos, size)


def test_a_file_is_synced_and_checked_while_the_next_one_is_read() -> None:
    """A gigabyte waited for the disk at the end of each of its sixteen segments."""
    own, told = sim_disk(), list[str]()

    def begin(look: Look) -> Look:
        number = told.count("begin")
        told.append("begin")

        def wait() -> str | None:
            told.append(f"end {number}")
            return look()

        return wait

    copy(own, Reads(disk_with(files()), KINDS, told), begin=begin)
    assert content(own, KINDS) == files()
    steps = [step for step in told if not step.startswith("read")]
    expected = [step for number in range(len(KINDS)) for step in ("begin", f"end {number}")]
    assert steps == expected, "one look at a time"
    assert any(step.startswith("read") for step in told[told.index("begin") : told.index("end 0")]), told


@pytest.mark.parametrize("begin", [at_once, in_a_thread, lambda look: look])
@pytest.mark.parametrize("name", KINDS)
def test_a_damaged_file_ends_the_copy_whenever_it_is_looked_at(name: str, begin: Begin) -> None:
    damaged = files()[name]
    damaged = damaged[:-1] + bytes([damaged[-1] ^ 1])
    source, reports = refused_copy({**files(), name: damaged}, KINDS, begin)
    assert source == [name] and "offers a damaged file" in reports[0]


class Supersedes(Offering):
    """A leader that is busy: when a segment is read, its snapshot has been superseded."""

    def read(self, peer: str, name: str, pos: int, size: int) -> bytes:
        if name.endswith(".log"):
            self._disk.remove(SNAP_NAME)
            self._disk.remove(RUNS_NAME)
        return super().read(peer, name, pos, size)


def test_a_snapshot_that_is_superseded_meanwhile_does_not_break_the_copy_off() -> None:
    """With a large log under load each copy was aborted, and so was the next one, without end."""
    own, source = sim_disk(), Supersedes(disk_with(files()), KINDS)
    copy(own, source)
    assert content(own, KINDS) == files()


@pytest.mark.parametrize("name", KINDS)
def test_a_flipped_version_is_damage_that_its_owner_hears_of(name: str) -> None:
    """A snapshot's and a run file's version is covered by no checksum; the copy ended with UnknownVersion,
    the leader never heard of it, and the replica's start failed every 5 s, without end."""
    data = bytearray(files()[name])
    data[4] ^= 0x40
    suspected, reports = refused_copy({**files(), name: bytes(data)}, KINDS)
    assert suspected == [name]
    assert "version" in reports[0] or "damaged" in reports[0]


def test_an_entry_of_another_version_is_damage_too() -> None:
    data = bytearray(files()[NEWEST])
    data[32 + 4] ^= 0x40
    suspected, reports = refused_copy({**files(), NEWEST: mend_segment(bytes(data))}, KINDS)
    assert suspected == [NEWEST]
    assert "version 65" in reports[0] and "newer" in reports[0]


class Measured(SimDisk):
    """Notes the most bytes that were read at once."""

    most = 0

    def open(self, name: str, create: bool = False) -> File:
        file = super().open(name, create)
        read = file.read

        def noted(pos: int, size: int) -> bytes:
            data = read(pos, size)
            self.most = max(self.most, len(data))
            return data

        file.read = noted  # type: ignore[method-assign]
        return file


def test_a_copy_reads_no_file_whole() -> None:
    """A run file may have hundreds of megabytes: the replica that copies it must not need them as memory."""
    disk = sim_disk()
    journal = SegmentJournal(disk)
    for index in (1, 2, 3):
        journal.add(b"\0" + bytes(2 << 20), index, 2)
    journal.close()
    good = {**files(), NEWEST: disk.read_all(NEWEST)}
    assert len(good[NEWEST]) > READ_BYTES == WINDOW_BYTES
    own, parts = Measured(random.Random(0)), list[int]()

    class Noted(Offering):
        def read(self, peer: str, name: str, pos: int, size: int) -> bytes:
            parts.append(size)
            return super().read(peer, name, pos, size)

    copy(own, Noted(disk_with(good), KINDS))
    assert max(parts) == READ_BYTES and own.most <= WINDOW_BYTES
    assert {name: SimDisk.read_all(own, name) for name in KINDS} == good
    for name in KINDS[1:]:
        own.most = 0
        assert damage_in(name, own.open(name), piece_bytes=64) is None and 0 < own.most <= 64


@pytest.mark.parametrize("name", KINDS)
def test_no_flipped_bit_of_an_offered_file_goes_unseen(name: str) -> None:
    good = files()[name]
    assert damage_in_bytes(name, good) is None
    for at in range(len(good)):
        data = bytearray(good)
        data[at] ^= 1 << at % 8
        assert damage_in_bytes(name, bytes(data)) is not None, at


@pytest.mark.parametrize(
    "name", ["../vote", "/etc/x.log", "vote", "install.json", "x.log", ".log", "incoming-x"]
)
def test_what_is_no_file_of_a_log_is_not_taken(name: str) -> None:
    own = disk_with(files())
    suspected, reports = refused_copy({**files(), name: b"x"}, [name, *KINDS])
    assert suspected == [] and repr(name) in reports[0]
    assert "incoming-" + name not in own.names()


def test_a_log_without_its_beginning_is_not_taken_without_a_snapshot() -> None:
    """A leader whose snapshots had all proved damaged offered what was left. The copy replaced our own log,
    and this replica could not start any more."""
    later = {name: data for name, data in files().items() if not name.endswith(".snap")}
    later[f"{6:016x}.log"] = later.pop(NEWEST)
    suspected, reports = refused_copy(later, sorted(later))
    assert suspected == [] and "has no snapshot now" in reports[0]


def interrupted_copy(own: Disk) -> None:
    """A copy that is interrupted in the middle of the first file, as by a crash: its staged part stays."""
    file = own.open(staged_name(NEWEST), create=True)
    file.append([files()[NEWEST][:100]])
    file.sync()
    file.close()


def test_what_a_broken_first_copy_left_is_no_history() -> None:
    """The staged file's name was taken for a segment's, and the replica could not be created any more; with
    two such files it continued without a copy."""
    own = sim_disk()
    interrupted_copy(own)
    assert not has_history(own)
    own.write_atomic(staged_name(f"{6:016x}.log"), [b"x"])
    assert not has_history(own)
    assert has_history(disk_with(files()))


class Breaks(Offering):
    def read(self, peer: str, name: str, pos: int, size: int) -> bytes:
        raise Unavailable("gone in the middle", 0.1)


def test_a_copy_that_was_decided_is_finished_before_another_begins() -> None:
    """Otherwise the next copy overwrites its staged files, while the old marker still calls them complete."""
    decided = 0
    for own in decided_switches(remove=[]):
        decided += 1
        VoteFile(own).close()
        assert has_history(own)
        with pytest.raises(Unavailable):
            copy(own, Breaks(disk_with(files()), KINDS))
        assert indexes(SegmentJournal(own)) == [1, 2, 3, 4, 5]
        assert content(own, KINDS) == files()
    assert decided > 3


@pytest.mark.parametrize("name", KINDS)
def test_a_size_that_was_never_offered_makes_no_sound_file_damaged(name: str) -> None:
    """A call with a size in the middle of an entry ended the leader, which then left for repair."""
    disk = disk_with(files())
    size = len(files()[name])
    for wrong in (*range(-1, size + 2), 1 << 62, 1 << 70, None, "5", 1.5, True):
        assert damage_offered(disk, name, wrong) is None, wrong  # type: ignore[arg-type]
    for odd in (None, 5, [], b"x.log", "", "x\0.log", "\ud800.log", "../x.log", "x" * 999 + ".log"):
        assert damage_offered(disk, odd, size) is None, odd  # type: ignore[arg-type]
    disk.flip(name, size - 1)
    assert damage_offered(disk, name, size) is not None
    short = disk_with({name: files()[name][:20]})  # cut off where it lies
    assert damage_offered(short, name, 20) is not None


@pytest.mark.parametrize("name", [SNAP_NAME, RUNS_NAME])
def test_a_file_that_lost_all_its_bytes_is_damaged(name: str) -> None:
    assert damage_offered(disk_with({name: b""}), name, 0) is not None
    assert refused_copy({**files(), name: b""}, KINDS)[0] == [name]


def test_what_is_being_written_behind_the_offered_part_is_no_damage() -> None:
    data = files()[NEWEST]
    for more in range(1, 40):
        disk = disk_with({NEWEST: data + data[32 : 32 + more]})
        assert damage_offered(disk, NEWEST, len(data)) is None
