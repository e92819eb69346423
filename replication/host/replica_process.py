"""A process's hold on one replica: its locked directory, before, during and after the replica runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from escrowmq.replication.errors import Closed, Superseded, Unavailable
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

# ------------------------------------------------------------------ announcing
# A replica that replaced another one tells its peers so, before anything else.
#
# The predecessor may be alive and well, and even lead. Then the peers have a link to it; of two replicas
# only the one with the greater number dials, and a link that is up is not dialled again. So the peers would
# never connect to the successor. It would wait for ever for another leader to copy from, while clients, who
# ask Ray for the replica, find the successor and no leader. A peer that is told makes the incarnation
# durable and closes its link to the earlier one. A false announcement can only make it more careful: the
# handshake and the learner's answers decide which process counts.
#
# A replica that joins the group later is told, too. It may have a link to the predecessor, which nobody
# else would end: it knows of no other process of that name.
#
# A peer answers with the incarnation that it has recorded. That may be another one, with a higher number,
# or with the same number on another disk (two supervisors counted alike). Then this process was itself
# replaced, and nobody else would tell it so: the peers have a link to the other process.


PAUSE_S = 0.5
#: Pause once all peers know: then only one that joins the group has to be told.
NEWCOMERS_S = 5.0


def announce(
    own: Incarnation,
    peers: Sequence[str],
    tell: Callable[[str, Incarnation], Incarnation | None],
    sleep: Callable[[float], None],
    stay: bool = False,
) -> None:
    """``tell`` every peer until it has recorded this incarnation; ``peers`` may change meanwhile. With
    ``stay``, those that come later as well: then it ends only when ``sleep`` raises. ``tell`` returns which
    incarnation the peer has recorded; None: no answer. Raises Superseded if a peer refuses this one."""
    noted: set[str] = set()
    while own.number:
        noted.update([peer for peer in peers if peer not in noted and is_recorded(own, tell(peer, own))])
        noted.intersection_update(peers)  # one that leaves and comes again is told again
        known = noted.issuperset(peers)
        if known and not stay:
            return
        sleep(NEWCOMERS_S if known else PAUSE_S)


def is_recorded(own: Incarnation, recorded: Incarnation | None) -> bool:
    """Whether a peer that has answered this knows of us. Raises Superseded if it refuses us."""
    if recorded is not None and recorded.supersedes(own):
        raise Superseded("this replica", recorded.number)
    return recorded is not None


# ------------------------------------------------------------------ replica process


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
        """If this process replaced another one, let the peers know; see replica_process.py. Blocks until
        each has recorded it, and with ``stay`` for later ones as well; raises Closed once ``close`` was
        called. Ends a process that a peer refuses, unless it is a full member."""
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
