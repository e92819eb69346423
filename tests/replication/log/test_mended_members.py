"""A damaged entry held the group's members: once repaired, they are known at the next start, too."""

from __future__ import annotations

import random

import pytest

from escrowmq.replication.format.membership import Members, encode_members, founding
from escrowmq.replication.format.segment_format import log_name, sidecar_name
from escrowmq.replication.log.holes import StoredEntry
from escrowmq.replication.log.journal import SegmentJournal
from tests.sim.environment.disk import SimDisk

BEGINNING = founding(["0", "1", "2"])
CHANGED = Members(2, ("0", "1", "2", "3", "4"), (), "x", 4)
ENTRY = StoredEntry(5, 1, encode_members(CHANGED))


def opened(disk: SimDisk) -> SegmentJournal:
    log = SegmentJournal(disk, segment_bytes=900, mendable=True, cache_bytes=0)
    log.members.begin(0, BEGINNING)
    return log


def add(log: SegmentJournal, first: int, last: int) -> None:
    for index in range(first, last + 1):
        log.add(ENTRY.command if index == 5 else b"\0" + b"x" * 50, index, 1)
    log.sync()


def flip(disk: SimDisk) -> None:
    """Flips one bit of entry 5, while the replica is down."""
    at = disk.read_all(log_name(1)).index(ENTRY.command) + 6
    file = disk.open(log_name(1))
    file.write_at(at, bytes((file.read(at, 1)[0] ^ 1,)))
    file.sync()
    file.close()


def hole_in_the_newest_segment(disk: SimDisk) -> SegmentJournal:
    log = opened(disk)
    add(log, 1, 8)
    log.close()
    flip(disk)
    return opened(disk)


def hole_without_a_sidecar(disk: SimDisk) -> SegmentJournal:
    log = opened(disk)
    add(log, 1, 30)
    log.close()
    disk.remove(sidecar_name(1))  # it is not synced: a power cut may take it
    flip(disk)
    return opened(disk)


def mend(log: SegmentJournal) -> None:
    (hole,) = log.holes.all()
    assert log.members.current == BEGINNING and log.mend(hole, ENTRY)
    log.sync()
    assert not log.holes and log.members.current == CHANGED


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk(random.Random(0))


@pytest.mark.parametrize("sealed_before", [True, False])
def test_the_segment_is_sealed_while_its_entry_is_damaged(disk: SimDisk, sealed_before: bool) -> None:
    log = hole_in_the_newest_segment(disk)
    if sealed_before:
        add(log, 9, 30)
        assert not disk.exists(sidecar_name(1)), "it would name no members, and be believed"
        assert log.frame_is_sound(1)
        mend(log)
        assert not log.frame_is_sound(1) and log.mend_frame(1), "now it can be written"
    else:
        mend(log)
        add(log, 9, 30)
    assert disk.exists(sidecar_name(1))
    log.close()
    again = opened(disk)
    assert not again.holes and again.members.current == CHANGED


def test_a_lost_sidecar_is_not_written_while_an_entry_is_damaged(disk: SimDisk) -> None:
    log = hole_without_a_sidecar(disk)
    log.mend_frame(1)
    log.sync()
    assert not disk.exists(sidecar_name(1))
    mend(log)
    log.close()
    assert opened(disk).members.current == CHANGED


def test_after_a_cut_the_segment_has_a_sidecar_again(disk: SimDisk) -> None:
    log = hole_in_the_newest_segment(disk)
    log.deleteEntriesFrom(3)
    for index in range(4, 31):
        log.add(b"\0" + b"y" * 50, index, 2)
    log.sync()
    assert disk.exists(sidecar_name(1)) and log.frame_is_sound(1)


def test_a_sidecar_that_lacks_the_members_goes_before_the_entry_is_mended(
    disk: SimDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if it had been written nevertheless, and whatever a power cut leaves of the repair."""
    monkeypatch.setattr(SegmentJournal, "_has_untold", lambda self, segment: False)
    log = hole_in_the_newest_segment(disk)
    add(log, 9, 30)
    assert disk.exists(sidecar_name(1))
    log.close()
    log = opened(disk)
    assert log.members.current == BEGINNING
    log.verify(5, 1)
    mend(log)
    assert not disk.exists(sidecar_name(1))
    disk.power_cut()
    assert opened(disk).members.current == CHANGED
