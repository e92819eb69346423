"""The file of the peers' incarnations: what it promises to refuse, it refuses after any crash."""

from __future__ import annotations

import random

import pytest

from escrowmq.replication.errors import CorruptLog, UnknownVersion
from escrowmq.replication.log.peer_marks import (
    FILE_SIZE,
    NAME,
    SLOT_POSITIONS,
    Incarnation,
    Incarnations,
    PeerMarks,
    _decode,
    _encode,
)
from tests.sim.environment.disk import PowerCut, SimDisk

OWN = Incarnation(0, "own")
FIRST, SECOND, OTHER = Incarnation(0, "a"), Incarnation(1, "b"), Incarnation(1, "c")


def test_who_comes_after_is_let_in_and_who_came_before_is_not() -> None:
    marks = Incarnations(OWN)
    assert marks.admit("r1", FIRST) is None
    assert marks.admit("r1", FIRST) is None, "the same one again"
    assert marks.admit("r1", SECOND) is None
    assert marks.admit("r1", FIRST) == SECOND
    assert marks.of("r1") == SECOND


def test_of_two_disks_with_the_same_number_the_first_one_seen_stays() -> None:
    marks = Incarnations(OWN)
    assert marks.admit("r1", SECOND) is None
    assert marks.admit("r1", OTHER) == SECOND
    assert marks.learn([("r1", *OTHER)]) == []
    assert marks.of("r1") == SECOND


def test_marks_of_others_are_taken_over_where_they_are_higher() -> None:
    marks = Incarnations(OWN)
    marks.admit("r1", SECOND)
    assert marks.learn([("r1", *FIRST), ("r2", *FIRST)]) == ["r2"]
    assert marks.all() == [("r1", *SECOND), ("r2", *FIRST)]


def test_what_was_admitted_survives_a_power_cut_at_any_moment_after() -> None:
    for seed in range(50):
        disk = SimDisk(random.Random(seed))
        marks = PeerMarks(disk, OWN)
        marks.admit("r1", FIRST)
        marks.admit("r1", SECOND)
        disk.power_cut()
        assert PeerMarks(disk, OWN, must_exist=True).refuses("r1", FIRST) == SECOND


def test_a_power_cut_while_it_is_written_leaves_the_old_or_the_new() -> None:
    for seed in range(100):
        disk = SimDisk(random.Random(seed))
        marks = PeerMarks(disk, OWN)
        marks.admit("r1", FIRST)
        disk.stop_after(seed % 4)
        try:
            marks.admit("r1", SECOND)
        except PowerCut:
            assert marks.of("r1") == FIRST, "not believed before it is durable"
        disk.power_cut()
        assert PeerMarks(disk, OWN, must_exist=True).of("r1") in (FIRST, SECOND)


def test_one_slot_may_rot() -> None:
    for position in SLOT_POSITIONS:
        disk = SimDisk(random.Random(1))
        PeerMarks(disk, OWN).admit("r1", SECOND)
        disk.flip(NAME, position + 20, 1)
        assert PeerMarks(disk, OWN).of("r1") == SECOND


def test_with_both_slots_gone_nothing_is_made_up() -> None:
    disk = SimDisk(random.Random(1))
    PeerMarks(disk, OWN).admit("r1", SECOND)
    for position in SLOT_POSITIONS:
        disk.flip(NAME, position + 20, 1)
    with pytest.raises(CorruptLog, match="both slots"):
        PeerMarks(disk, OWN)
    with pytest.raises(CorruptLog, match="missing"):
        PeerMarks(SimDisk(random.Random(1)), OWN, must_exist=True)


def test_damage_is_found_whatever_it_hits_and_a_newer_version_is_named() -> None:
    slot, rng = _encode(7, {"r1": SECOND, "r2": FIRST}), random.Random(3)
    assert _decode(slot + bytes(100)) == (7, {"r1": SECOND, "r2": FIRST})
    for at in range(len(slot)):
        damaged = bytearray(slot)
        damaged[at] ^= 1 << rng.randrange(8)
        assert _decode(bytes(damaged)) is None, at
        assert _decode(slot[:at]) is None, at
    newer = bytearray(slot[:-4])
    newer[4] = 2
    from google_crc32c import value

    with pytest.raises(UnknownVersion, match="version 2"):
        _decode(bytes(newer) + value(bytes(newer)).to_bytes(4, "little"))


def test_the_file_has_one_size_for_ever() -> None:
    disk = SimDisk(random.Random(1))
    marks = PeerMarks(disk, OWN)
    marks.learn([(f"r{n}", n, "d" * 64) for n in range(7)])
    assert disk.size_of(NAME) == FILE_SIZE
