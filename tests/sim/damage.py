"""Bits that flip on a disk where they lie: in the log, in snapshots and run files, in the vote file.

Only what a checksum can tell from a torn write: a byte of the log before the batch of an entry that is
committed and durable here. With nothing sound behind it, damage to the very last batch looks like a
torn tail (docs/log-format.md says so), and a replica that forgets its last acknowledged entry and then
votes is one failure more than this fault stands for. At most a minority of the replicas is damaged, or
without its disk, at a time: what a majority has lost no software brings back.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from escrowmq.replication.format.entry import read_entry, scan
from escrowmq.replication.format.segment_format import FILE_HEADER_SIZE, log_name, sidecar_name
from escrowmq.replication.log.vote import NAME as VOTE_FILE
from escrowmq.replication.log.vote import SLOT_POSITIONS

if TYPE_CHECKING:
    from tests.sim.replica import SimReplica

SLOT_BYTES = 132


def flip_in_log(victim: SimReplica, rng: random.Random) -> bool:
    """One bit of a log file or a sidecar; False if nothing there is safe to damage."""
    journal, disk = victim.journal, victim.disk
    sure = min(journal.durable_index, victim.node.commit_index)
    if not journal.first_index <= sure:
        return False
    segments = [s for s in journal.segments() if s.first <= sure]
    newest = segments.pop()
    ranges = [(s.name, disk.size_of(s.name)) for s in segments if disk.exists(s.name)]
    ranges += [(n, disk.size_of(n)) for s in segments if disk.exists(n := sidecar_name(s.first))]
    batch_at = _batch_position(disk.peek(newest.name), newest.first, sure)
    if batch_at:
        ranges += [(newest.name, batch_at)] * (2 if segments else 1)
    if not ranges:
        return False
    name, size = rng.choice(ranges)
    disk.flip(name, rng.randrange(size), 1 << rng.randrange(8))
    return True


def _batch_position(data: bytes, first: int, index: int) -> int:
    """Where the batch of entry ``index`` begins in its segment; 0 if it fills the segment or is damaged."""
    view = memoryview(data)
    positions = scan(view, FILE_HEADER_SIZE, first).positions
    if index - first >= len(positions) - 1:
        return 0
    header = read_entry(view, positions[index - first])
    assert header is not None
    return positions[header.batch_first - first] if header.batch_first > first else 0


def flip_in_state(victim: SimReplica, rng: random.Random) -> bool:
    """One bit of a snapshot or a run file."""
    names = [n for n in victim.disk.names() if n.endswith((".snap", ".runs")) and victim.disk.size_of(n)]
    if not names:
        return False
    name = rng.choice(names)
    victim.disk.flip(name, rng.randrange(victim.disk.size_of(name)), 1 << rng.randrange(8))
    return True


def flip_in_vote(victim: SimReplica, rng: random.Random) -> bool:
    """One bit of one slot; the other slot still has the record, unless this fault strikes again."""
    if not victim.disk.exists(VOTE_FILE):
        return False
    at = rng.choice(SLOT_POSITIONS) + rng.randrange(SLOT_BYTES)
    victim.disk.flip(VOTE_FILE, at, 1 << rng.randrange(8))
    return True


def scrub(victim: SimReplica) -> None:
    """Read every entry from the disk, as consumers and peers may at any time; raises CorruptLog."""
    journal = victim.journal
    for info in journal.segments():
        last = min(info.last, journal.durable_index)
        if last >= info.first:
            assert info.name == log_name(info.first)
            journal._reader.read_run(journal._segment(info.first), info.first, last)
