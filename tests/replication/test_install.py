"""Taking a peer's log: the old one or the new one, whole, wherever the power goes."""

from __future__ import annotations

import pytest

from escrowmq.replication.errors import CorruptLog
from escrowmq.replication.install import MARKER, staged_name
from escrowmq.replication.journal import SegmentJournal
from tests.replication.storage import command, fill, indexes, sim_disk, synced_log
from tests.sim.disk import PowerCut, SimDisk

CHECKPOINT = "0000000000000020.snap"


def peer_log() -> SimDisk:
    """A peer whose log begins at entry 11."""
    disk = sim_disk()
    journal = SegmentJournal(disk, segment_bytes=200)
    fill(journal, range(11, 21), term=4)
    journal.sync()
    return disk


def stage(disk: SimDisk, peer: SimDisk) -> list[str]:
    """Copy the peer's segments and a checkpoint beside the log."""
    names = [name for name in peer.names() if name.endswith((".log", ".pos"))]
    for name in names:
        file = disk.open(staged_name(name), create=True)
        file.append((peer.read_all(name),))
        file.sync()
    checkpoint = disk.open(staged_name(CHECKPOINT), create=True)
    checkpoint.append((b"state at entry 10",))
    checkpoint.sync()
    return [*names, CHECKPOINT]


def test_the_log_of_a_peer_replaces_ours() -> None:
    disk = sim_disk()
    synced_log(disk, 6, segment_bytes=200)
    journal = SegmentJournal(disk, segment_bytes=200)
    generation = journal.generation
    fill(journal, [7])
    job = journal.begin_sync()
    assert job is not None
    journal.install(stage(disk, peer_log()))
    journal.end_sync(job)
    assert journal.generation > generation
    assert indexes(journal) == list(range(11, 21))
    assert journal.last_term == 4
    assert journal.durable_index == 20
    assert disk.read_all(CHECKPOINT) == b"state at entry 10"
    fill(journal, [21], term=4)
    journal.close()
    assert indexes(SegmentJournal(disk)) == list(range(11, 22))
    assert not [name for name in disk.names() if "incoming" in name or name == MARKER]


def test_an_undecided_install_leaves_the_old_log() -> None:
    disk = sim_disk()
    synced_log(disk, 6, segment_bytes=200)
    stage(disk, peer_log())
    assert indexes(SegmentJournal(disk)) == [1, 2, 3, 4, 5, 6]
    assert not [name for name in disk.names() if "incoming" in name]


def test_what_was_not_staged_cannot_be_installed() -> None:
    disk = sim_disk()
    synced_log(disk, 6, segment_bytes=200)
    journal = SegmentJournal(disk)
    with pytest.raises(FileNotFoundError):
        journal.install(["000000000000000b.log"])
    assert indexes(SegmentJournal(disk)) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("power", [True, False], ids=["power cut", "kill"])
def test_stopped_anywhere_it_is_one_log_or_the_other(power: bool) -> None:
    outcomes = set()
    for seed in range(6):
        for operations in range(60):
            disk = sim_disk(seed)
            synced_log(disk, 6, segment_bytes=200)
            journal = SegmentJournal(disk, segment_bytes=200)
            names = stage(disk, peer_log())
            disk.stop_after(operations)
            finished = True
            try:
                journal.install(names)
            except PowerCut:
                finished = False
            for again in range(3):  # and recovery may be stopped too
                disk.power_cut() if power else disk.kill()
                disk.stop_after(seed + 2 * again)
                try:
                    SegmentJournal(disk)
                except PowerCut:
                    continue
            disk.power_cut() if power else disk.kill()
            found = SegmentJournal(disk)
            outcome = (found.first_index, found.last_index, disk.exists(CHECKPOINT))
            assert outcome in ((1, 6, False), (11, 20, True)), f"seed {seed}, step {operations}"
            assert all(found.read(i) == command(i) for i in indexes(found))
            outcomes.add(outcome)
            if finished:
                assert outcome == (11, 20, True)
                break
    assert len(outcomes) == 2


def test_a_damaged_marker_is_refused() -> None:
    disk = sim_disk()
    synced_log(disk, 3)
    disk.write_atomic(MARKER, [b"{"])
    with pytest.raises(CorruptLog, match=MARKER):
        SegmentJournal(disk)
