"""Applies CARRY: messages that wait are stored anew, so that the segments in which they lay can go.

The new copy has the same key and lies in CARRY's own entry. A tombstone goes with it, which kills the copies
that CARRY names and no later one: an application may use a transaction's id again, and what that has
scheduled under the same key may lie in an entry between the old place and the CARRY. So a carried message
is a message like any other to all that read the store: to merges, snapshots, releases and cancellations.

What is left out here, though a leader that follows its rules never carries it: what is released already, and
what is of a deleted topic.
"""

from __future__ import annotations

from collections.abc import Container
from itertools import groupby

from escrowmq.replication.format.codec import Op
from escrowmq.replication.state.timers import Timers
from escrowmq.replication.timers.record import (
    KEY_BYTES,
    PLACE,
    key_bytes,
    log_index_of,
    size_of,
    slot_of,
    split,
    tombstone,
)


def carry(timers: Timers, slots: Container[int], index: int, now_ms: int, op: Op) -> None:
    """The CARRY of entry ``index``. ``slots``: of the partitions that there are."""
    pos = op.body_pos
    moved: list[bytes] = []
    added: list[bytes] = []
    for key, same in groupby(split(op.meta[0]), key_bytes):
        copies = list(same)
        if key > timers.released and slot_of(key) in slots:
            added.append(tombstone(key, max(map(log_index_of, copies)) + 1, len(copies)))
            moved += copies
        else:
            pos += sum(map(size_of, copies))
            continue
        for copy in copies:
            size = size_of(copy)
            added.append(copy[:KEY_BYTES] + PLACE.pack(index, pos, size))
            pos += size
    timers.move(timers.counts.of(moved), index)
    timers.store.add(b"".join(added), now_ms)
