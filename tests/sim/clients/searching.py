"""Searches beside the readers of the simulator: what a reader was given must be found (``find-missed``).

Each replica has a ``Finder`` with small blocks, whose files live as long as its disk: over crashes, installed
snapshots, retention, and topics that are deleted and created again. The files are damaged now and then. It
draws from a generator of its own, so that schedules stay as they are.
"""

from __future__ import annotations

import random
from weakref import WeakKeyDictionary

from escrowmq.cluster.testing.memory_disk import MemoryDisk
from escrowmq.replication.errors import EscrowMQError
from escrowmq.replication.format.codec import decode_rows
from escrowmq.replication.format.find_table import KEY, TX_ID
from escrowmq.replication.host.finding import SUFFIX, BlockKey, Finder, FindFiles, Sought
from escrowmq.replication.model import NO_ID
from escrowmq.replication.replica.fetching import FetchResult
from escrowmq.replication.replica.replica import Replica
from tests.sim.environment.disk import SimDisk
from tests.sim.environment.world import Violation

#: Messages of a block: so few that a schedule fills some.
BLOCK = 16
#: One fetch in so many is followed by a search; of these, one in so many by damage to a file.
EVERY, DAMAGE_EVERY = 6, 8

_DISKS: WeakKeyDictionary[SimDisk, MemoryDisk] = WeakKeyDictionary()


class Searching:
    """The searches at one replica from start to crash."""

    def __init__(self, disk: SimDisk, replica: Replica, name: str) -> None:
        self._disk = _DISKS.setdefault(disk, MemoryDisk())
        self._rng, self._name, self._fetches = random.Random(name), name, 0
        self.finder = Finder(
            replica.state,
            lambda requests, max_bytes, wait_s: replica.fetch(requests, max_bytes),
            lambda: FindFiles(self._disk, 4_000),
            share=1.0,
            name="find",
            clock=lambda: 0.0,
            own_thread=False,
            block_offsets=BLOCK,
        )

    def after(self, result: FetchResult) -> None:
        """A reader got this; sometimes, search for one of its messages."""
        self._fetches += 1
        topic, number, _, start, end, runs, blob = result
        if self._fetches % EVERY or not runs:
            return
        base, count, _, size = runs[0]
        at = self._rng.randrange(count)
        key, _, _, tx_id = decode_rows(blob[:size], count)[at]
        kind, needle = (KEY, key) if tx_id is None else (TX_ID, tx_id.encode())
        if needle is None or base + at < start:
            return
        try:
            found = self._found(Sought(topic, number, NO_ID, kind, needle), start, end)
        except EscrowMQError:
            return  # damage: another replica is asked
        if base + at not in found:
            text = (
                f"{self._name}: {needle!r} at offset {base + at} of {topic}/{number} was not found in {found}"
            )
            raise Violation(text, "find-missed")
        if self._fetches % (EVERY * DAMAGE_EVERY) == 0 and (names := self._disk.names()):
            file = self._disk.open(self._rng.choice(names))
            at = self._rng.randrange(file.size())
            file.write_at(at, bytes([file.read(at, 1)[0] ^ 1]))

    def files(self) -> list[BlockKey]:
        """Of which slots and blocks this disk has files."""
        named = (name.removesuffix(SUFFIX).split("-") for name in self._disk.names())
        return [(int(slot), int(block)) for slot, block in named]

    def _found(self, sought: Sought, at: int, end: int) -> list[int]:
        offsets: list[int] = []
        while at < end:
            answer = self.finder.find(sought, at, end, 1_000, 0.0)
            assert answer.code == 0 and answer.reached > at
            offsets, at = offsets + list(answer.offsets), answer.reached
        return offsets
