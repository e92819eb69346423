"""Small helpers for the storage tests."""

from __future__ import annotations

import random
from collections.abc import Iterable

from escrowmq.replication.log.disk import Disk
from escrowmq.replication.log.journal import SegmentJournal
from escrowmq.replication.replica.checkpoints import Checkpoints
from escrowmq.replication.state.machine import StateMachine
from tests.sim.environment.disk import SimDisk

NEWEST = "0000000000000001.log"


def sim_disk(seed: int = 0) -> SimDisk:
    return SimDisk(random.Random(seed))


def command(index: int, size: int = 40) -> bytes:
    """A body without zeros, so that nothing of it can pass for a lost sector."""
    return bytes(1 + (index * 7 + k) % 255 for k in range(size))


def fill(journal: SegmentJournal, indexes: Iterable[int], *, term: int = 1, size: int = 40) -> None:
    """Add the entries ``indexes`` without syncing."""
    for index in indexes:
        journal.add(command(index, size), index, term)


def synced_log(
    disk: Disk, count: int, *, each: bool = True, segment_bytes: int = 1 << 20, size: int = 40
) -> None:
    """A closed log of ``count`` entries; ``each``: one sync per entry, else one for all."""
    journal = SegmentJournal(disk, segment_bytes=segment_bytes)
    for index in range(1, count + 1):
        fill(journal, (index,), size=size)
        if each:
            journal.sync()
    journal.close()


def set_content(disk: SimDisk, name: str, data: bytes) -> None:
    """Replace a file, durably."""
    disk.write_atomic(name, (data,))


def indexes(journal: SegmentJournal) -> list[int]:
    return list(range(journal.first_index, journal.last_index + 1))


def sealed_log(disk: Disk, count: int = 10) -> SegmentJournal:
    """Two entries a segment; opened afresh, so that everything is read from disk."""
    synced_log(disk, count, segment_bytes=200)
    return SegmentJournal(disk, segment_bytes=200)


def take(checkpoints: Checkpoints, state: StateMachine, term: int = 1) -> None:
    """A checkpoint from its beginning to its end."""
    checkpoints.begin(state, term)
    to_the_end(checkpoints, state)


def to_the_end(checkpoints: Checkpoints, state: StateMachine, visits: int = 1) -> None:
    """What is left of a checkpoint, with its jobs."""
    while checkpoints.busy:
        if (job := checkpoints.step(state, visits)) is not None:
            job.run()
            checkpoints.done(state, job)
