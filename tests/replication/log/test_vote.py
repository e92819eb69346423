"""Term and vote survive anything that may happen to one slot, and are never silently forgotten."""

from __future__ import annotations

import pytest

from escrowmq.replication.errors import CorruptLog, UnknownVersion
from escrowmq.replication.log.journal import SegmentJournal
from escrowmq.replication.log.vote import FILE_SIZE, NAME, SLOT_POSITIONS, VoteFile
from tests.sim.environment.disk import PowerCut
from tests.support.storage import set_content, sim_disk, synced_log


def test_term_and_vote_are_durable_at_return() -> None:
    for seed in range(20):
        disk = sim_disk(seed)
        votes = VoteFile(disk)
        assert (votes.term, votes.voted_for) == (0, None)
        votes.set(7, None)
        votes.set(7, "r2")
        disk.power_cut()
        again = VoteFile(disk)
        assert (again.term, again.voted_for) == (7, "r2")


def test_setting_what_is_known_costs_no_sync() -> None:
    disk = sim_disk()
    votes = VoteFile(disk)
    votes.set(3, "r1")
    before = disk.syncs
    votes.set(3, "r1")
    assert disk.syncs == before


def test_a_second_vote_or_a_falling_term_is_a_bug_and_says_so() -> None:
    votes = VoteFile(sim_disk())
    votes.set(3, "r1")
    with pytest.raises(AssertionError, match="second vote in term 3"):
        votes.set(3, "r2")
    with pytest.raises(AssertionError, match="term falls from 3 to 2"):
        votes.set(2, None)
    with pytest.raises(ValueError, match="longer than 100 bytes"):
        votes.set(4, "r" * 101)


@pytest.mark.parametrize("slot", SLOT_POSITIONS)
@pytest.mark.parametrize("byte", range(128))
def test_one_damaged_slot_is_covered_by_the_other_and_mended(slot: int, byte: int) -> None:
    disk = sim_disk()
    VoteFile(disk).set(5, "r0")
    disk.flip(NAME, slot + byte)
    votes = VoteFile(disk)
    assert (votes.term, votes.voted_for) == (5, "r0")
    good = disk.read_all(NAME)
    assert good[:128] == good[SLOT_POSITIONS[1] : SLOT_POSITIONS[1] + 128]


def test_with_both_slots_damaged_the_replica_must_not_start() -> None:
    disk = sim_disk()
    VoteFile(disk).set(5, "r0")
    for slot in SLOT_POSITIONS:
        disk.flip(NAME, slot + 20)
    with pytest.raises(CorruptLog, match="both slots"):
        VoteFile(disk)
    set_content(disk, NAME, disk.read_all(NAME)[: FILE_SIZE // 2])
    with pytest.raises(CorruptLog):
        VoteFile(disk)


def test_a_log_without_its_vote_file_must_not_start() -> None:
    disk = sim_disk()
    synced_log(disk, 3)
    disk.remove(NAME)
    with pytest.raises(CorruptLog, match="vote file is missing beside a log"):
        SegmentJournal(disk)


def test_a_newer_version_is_refused() -> None:
    from google_crc32c import value

    disk = sim_disk()
    VoteFile(disk)
    data = bytearray(disk.read_all(NAME))
    data[4] = 2
    crc: int = value(bytes(data[:124]))
    data[124:128] = crc.to_bytes(4, "little")
    set_content(disk, NAME, bytes(data))
    with pytest.raises(UnknownVersion, match="version 2"):
        VoteFile(disk)


def test_a_vote_can_be_cast_on_a_full_disk() -> None:
    disk = sim_disk()
    votes = VoteFile(disk)
    disk.capacity = disk.used_bytes()
    votes.set(2, "r1")
    disk.power_cut()
    assert VoteFile(disk).term == 2


def test_a_power_cut_at_any_moment_leaves_the_old_vote_or_the_new_one() -> None:
    for seed in range(30):
        for operations in range(5):
            disk = sim_disk(seed)
            VoteFile(disk).set(4, "r1")
            votes = VoteFile(disk)
            disk.stop_after(operations)
            try:
                votes.set(5, "r2")
                done = True
            except PowerCut:
                done = False
            disk.power_cut()
            found = VoteFile(disk)
            vote = (found.term, found.voted_for)
            assert vote == (5, "r2") if done else vote in ((4, "r1"), (5, "r2")), (
                f"seed {seed}, step {operations}"
            )
            disk.power_cut()  # what was read was made durable first
            again = VoteFile(disk)
            assert (again.term, again.voted_for) == vote
