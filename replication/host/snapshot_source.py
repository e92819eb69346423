"""Files that a leader offers to peers without a usable log; repair.py is the side that copies them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from escrowmq.replication.calling.answers import Reply
from escrowmq.replication.errors import Closed, CorruptLog, DiskFailed, Overloaded
from escrowmq.replication.host.repair import (
    RANGE_BYTES_MAX,
    Manifest,
    begins_in_the_middle,
    damage_offered,
    may_be_offered,
    offered_files,
)
from escrowmq.replication.host.running_replica import NOT_RUNNING, RunningReplica
from escrowmq.replication.replica.checkpoints import snapshot_name

# ------------------------------------------------------------------ bytes per second
# A bound in bytes for what several threads hold at a time; the others wait.
#
# It says aloud when it makes them wait, once in a while: whoever looks for the cause of a slow copy finds
# it.


SAID_EVERY_S: Final = 60.0


class ByteBudget:
    """``with budget.hold(size): ...``. Thread-safe."""

    def __init__(
        self,
        most: int,
        full: str,
        report: Callable[[str], None],
        wait_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``full``: what to report when somebody has to wait. None waits for longer than ``wait_s``."""
        self._most, self._full, self._report, self._wait_s, self._clock = most, full, report, wait_s, clock
        self._freed = threading.Condition()
        self._held = 0
        self._said_at = float("-inf")

    @property
    def held(self) -> int:
        """How many bytes are held now."""
        return self._held

    @contextmanager
    def hold(self, size: int) -> Iterator[None]:
        """Hold ``size`` bytes, of which more than the bound count as the bound. Raises Overloaded if there is
        no room in time."""
        size = min(size, self._most)
        with self._freed:
            if self._held + size > self._most:
                self._say()
                if not self._freed.wait_for(lambda: self._held + size <= self._most, self._wait_s):
                    raise Overloaded(self._full, self._wait_s)
            self._held += size
        try:
            yield
        finally:
            with self._freed:
                self._held -= size
                self._freed.notify_all()

    def _say(self) -> None:
        now = self._clock()
        if now - self._said_at >= SAID_EVERY_S:
            self._said_at = now
            self._report(f"{self._full}: others wait")


# ------------------------------------------------------------------ snapshot source


#: Maximum part of a file in one answer, whatever the peer asks for: it is read into this process's memory.
FILE_PART_BYTES_MAX = 8 << 20
#: Parts that are read at a time, for all peers together. A copy asks for two of 4 MiB, and a group has at
#: most six others.
PARTS_BYTES_MAX = 32 << 20
#: Less than a peer waits for a part (``COPY_S`` of actors/broker/broker.py).
PART_WAIT_S = 10.0


class SnapshotSource:
    """Files and entries that one replica offers to its peers. Thread-safe."""

    def __init__(self, running: RunningReplica) -> None:
        self._running = running
        full = f"{running.setup}: peers copy files, and {PARTS_BYTES_MAX >> 20} MiB of them are being read"
        self._parts = ByteBudget(PARTS_BYTES_MAX, full, running.setup.report, PART_WAIT_S)

    def checkpoint_manifest(self) -> Reply:
        """``("ok", Manifest)``: what may be copied; leader only, and only while it has what a copy needs.

        A leader need not be ready for this: if both peers needed repair it could never become ready.
        """
        running = self._running
        node = running.node
        if running.closed or not node.is_leader:
            return NOT_RUNNING

        def read() -> Manifest:
            segments = [(s.name, s.size) for s in running.journal.segments()]
            indexes = running.checkpoints.indexes
            newest = snapshot_name(indexes[-1]) if indexes else None
            files = offered_files(running.disk, segments, newest)
            return Manifest(str(running.rid), node.term, node.commit_index, files)

        try:
            manifest = running.driver.call(read)
        except Closed:
            return NOT_RUNNING
        return NOT_RUNNING if begins_in_the_middle(manifest.files) else ("ok", manifest)

    def checkpoint_read(self, name: str, pos: int, size: int) -> bytes:
        """Part of a file that ``checkpoint_manifest`` named; b"" past its end or if it is gone. Raises
        Overloaded if too much is being read for others."""
        disk = self._running.disk
        if pos < 0 or size <= 0 or not may_be_offered(disk, name):
            return b""
        size = min(size, FILE_PART_BYTES_MAX)
        try:
            with self._parts.hold(size):
                return disk.open(name).read(pos, size)
        except DiskFailed as error:
            raise self._running.leave(error) from error

    def checkpoint_suspect(self, name: str, size: int) -> None:
        """A peer found its copy of a file damaged. If ours is damaged too, entries are mended in place, and a
        snapshot is taken again; a damaged run file makes this replica leave for repair."""
        try:
            damage = damage_offered(self._running.disk, name, size)
            if damage is None or (name.endswith(".log") and self._running.look_through(name)):
                return
        except DiskFailed as error:
            raise self._running.leave(error) from error
        self._running.replace_file(name, CorruptLog(f"{damage} (found by a peer)"))

    def entries(self, first: int, last: int) -> bytes:
        """Entries ``first`` to ``last`` as they are on disk, for a peer whose own are damaged; ends early
        where they are damaged or missing here too."""
        try:
            return self._running.journal.stored(first, last, RANGE_BYTES_MAX)
        except DiskFailed as error:
            raise self._running.leave(error) from error
