"""A process's hold on one replica: its locked directory, before, during and after the replica runs."""

from __future__ import annotations

import threading
from collections.abc import Callable

from escrowmq.replication.errors import Closed, Superseded, Unavailable
from escrowmq.replication.host.announcing import announce
from escrowmq.replication.host.mending import RANGE_BYTES_MAX
from escrowmq.replication.host.opening import let_go, open_in
from escrowmq.replication.host.repair import has_history
from escrowmq.replication.host.replica_setup import ReplicaSetup
from escrowmq.replication.host.running_replica import RunningReplica
from escrowmq.replication.host.snapshot_source import SnapshotSource
from escrowmq.replication.log.datadir import DataDir
from escrowmq.replication.log.disk import RealDisk
from escrowmq.replication.log.marks import SUPERSEDED, Marks
from escrowmq.replication.log.peer_marks import Incarnation
from escrowmq.replication.log.survey import read_files

#: How long ``close`` waits for an opening under way, which may be in the middle of copying a large file.
BREAK_OFF_S = 10.0


class ReplicaProcess:
    """Locks a directory, opens its replica, and closes both. Thread-safe.

    The lock is held from the beginning to ``close``, also between attempts to open: no other process gets
    the directory of a replica that is being repaired.
    """

    def __init__(self, setup: ReplicaSetup) -> None:
        """Raises DataDirLocked, DataDirMismatch, UnknownVersion, CorruptLog or the disk's errors for a
        directory that must not be served; then it is not locked."""
        self.setup = setup
        try:
            self._directory = DataDir(setup.data_dir, setup.identity)
        except BaseException as error:
            let_go(error)
            raise
        try:
            self._log = RealDisk(setup.data_dir / "log")
            self._founded = has_history(self._log)
        except BaseException as error:
            self._directory.close()
            let_go(error)
            raise
        self._running: RunningReplica | None = None
        self._attempt = threading.Lock()  # held while the replica is opened or closed
        self._closing = threading.Event()

    def founded(self) -> bool:
        """Whether this replica holds any history; peers ask this while all replicas of a new group open."""
        running = self._running
        return self._founded if running is None else running.journal.last_index > 1

    def announce(self, tell: Callable[[str, Incarnation], Incarnation | None], stay: bool = False) -> None:
        """If this process replaced another one, let the peers know; see announcing.py. Blocks until each has
        recorded it, and with ``stay`` for later ones as well; raises Closed once ``close`` was called. Ends
        a process that a peer refuses, unless it is a full member."""
        try:
            announce(self._directory.incarnation, self.setup.peers, tell, self._pause, stay)
        except Superseded as error:
            running = self._running
            if running is None:
                try:
                    Marks(self._directory.disk).write(SUPERSEDED, str(error.by))  # no start takes part again
                finally:
                    self.setup.fatal(error)
            elif running.learner:  # a full member has been recorded by all voters: only this peer is wrong
                running.end(error)

    def entries(self, first: int, last: int) -> bytes:
        """Entries of the log for a peer that lacks them, whether the replica runs or is being opened; ends
        early where they are damaged or missing here too. Raises Closed, and what reading raises."""
        self._check_not_closing()
        running = self._running
        if running is not None:
            return SnapshotSource(running).entries(first, last)
        return read_files(self._log, first, last, RANGE_BYTES_MAX)

    def unavailable(self) -> Unavailable:
        """The error for callers that come before the replica is open, or after it was closed."""
        return Unavailable(f"{self.setup} is {'stopping' if self._closing.is_set() else 'starting'}", 0.2)

    def open(self, patience_s: float = 60.0) -> RunningReplica:
        """One attempt; see :func:`open_in`. May be called again after it has raised.

        Raises Closed once ``close`` was called, even during the attempt.
        """
        try:
            with self._attempt:
                self._check_not_closing()
                assert self._running is None, "opened twice"
                self._founded = has_history(self._log)  # an earlier attempt may have run for a moment
                running = self._running = open_in(self._directory, self.setup, self._pause, patience_s)
            self._check_not_closing()
            return running
        finally:
            if self._closing.is_set():  # ``close`` may have given up waiting for this attempt
                self.close()

    def close(self) -> None:
        """Abort an opening under way, close the replica, unlock the directory. A second call does nothing,
        except for a replica that did not stop: its directory stays locked until it has.

        An opening that does not end in time continues to its end and then closes what it has opened.
        """
        self._closing.set()
        if not self._attempt.acquire(timeout=BREAK_OFF_S):
            return
        try:
            if self._running is None:
                self._directory.close()
            elif self._running.close():
                self._running = None
        finally:
            self._attempt.release()

    def _pause(self, seconds: float) -> None:
        if self._closing.wait(seconds):
            self._check_not_closing()

    def _check_not_closing(self) -> None:
        if self._closing.is_set():
            raise Closed(f"{self.setup} is stopping")


def open_replica(setup: ReplicaSetup, patience_s: float = 60.0) -> RunningReplica:
    """Lock the directory and open its replica in one step; raises as both do, and nothing is locked then."""
    host = ReplicaProcess(setup)
    try:
        return host.open(patience_s)
    except BaseException:
        host.close()
        raise
