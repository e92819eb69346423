"""A process's hold on one replica: its locked directory, before, during and after the replica runs."""

from __future__ import annotations

import gc
import socket
import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from escrowmq.replication.errors import Closed, CorruptLog, DiskFull, ReadFailed, Superseded, Unavailable
from escrowmq.replication.host.repair import ASK_INTERVAL_S, RANGE_BYTES_MAX, Look, has_history
from escrowmq.replication.host.replica_setup import ReplicaSetup
from escrowmq.replication.host.restoring import Pause, Recovered, Restoring
from escrowmq.replication.host.running_replica import RunningReplica
from escrowmq.replication.host.snapshot_source import SnapshotSource
from escrowmq.replication.log.datadir import LEARNER, LOST, NEWCOMER, PORT_FILE, SUPERSEDED, DataDir, Marks
from escrowmq.replication.log.journal import SegmentJournal
from escrowmq.replication.log.peer_marks import Incarnation, PeerMarks
from escrowmq.replication.log.recovery import read_files
from escrowmq.replication.raft.membership_changes import has_promised_nothing
from escrowmq.replication.raft.node import check_fit
from escrowmq.replication.replica.checkpoints import Checkpoints
from escrowmq.replication.state.machine import StateMachine

# ------------------------------------------------------------------------------------------------------------
# Opening a replica: repair what needs repair, recover what is on the disk, and take part in the group.
#
# The result is a running replica, or an error, with no thread or open file left behind. The
# locked directory stays the caller's, who may try again. The previous process left marks of what it knew
# beside the log (``Marks`` in log/datadir.py); restoring.py decides by them, and repair.py explains when a
# replica needs a copy of the leader's log. Here is what only a real process does: newcomers, ports, threads.


def in_a_thread(look: Look) -> Look:
    """Looks at a copied file in a thread of its own, while the caller copies the next one."""
    pool = ThreadPoolExecutor(1, thread_name_prefix="copy-look")
    found = pool.submit(look)
    pool.shutdown(wait=False)
    return found.result


def open_in(directory: DataDir, setup: ReplicaSetup, pause: Pause, patience_s: float) -> RunningReplica:
    """Open the replica of a locked directory. Blocks, for up to ``patience_s`` for each thing that peers must
    answer; run it in parallel with the calls that peers make.

    Raises the reason why this replica is unfit: CorruptLog or ReadFailed (there is no peer to repair from, or
    the copy is no better), Unavailable (no peer answers, or the address cannot be bound), UnknownVersion,
    ConfigError, NotAuthorized, Superseded (it must never take part again), the disk's errors, and whatever
    ``pause`` raises.
    """
    try:
        return _Opening(directory, setup, pause, patience_s).open()
    except BaseException as error:
        let_go(error)
        raise


class _Opening(Restoring[Recovered]):
    """One attempt."""

    def __init__(self, directory: DataDir, setup: ReplicaSetup, pause: Pause, patience_s: float) -> None:
        super().__init__(
            setup.disk(directory.path / "log"),
            Marks(directory.disk),
            setup,
            pause,
            patience_s,
            self._recovered,
            in_a_thread,
        )
        self._directory, self._own_setup = directory, setup

    def open(self) -> RunningReplica:
        found = self.restore()
        try:
            running = RunningReplica(self._own_setup, self._directory, found, self._listen_port())
        except BaseException:
            found.close()
            raise
        try:
            self._remember_port(running.address[1])
        except BaseException as error:
            running.give_up(error)
            raise
        return running

    # -------------------------------------------------------------- newcomers

    def _accept(self, found: Recovered) -> None:
        self._forgive_newcomer(found)

    def _forgive_newcomer(self, found: Recovered) -> None:
        """If it never voted (raft/membership_changes.py), it is no longer a learner in the sense of
        rejoin.py: it becomes a voter when it has caught up, like any new replica. Raises Unavailable if no
        leader can tell."""
        if not self._own_setup.joining or self._marks.read(LEARNER) != NEWCOMER:
            return
        members, own = found.journal.members, str(self._own_setup.identity.replica)
        if found.state.members is not None:
            members.begin(*found.state.members)
        nothing = has_promised_nothing(own, members.since(0), self._ask_who_leads)
        if nothing is None:
            raise Unavailable(
                "no leader that a majority has answered could tell whether this replica voted", 1.0
            )
        if nothing:
            self._marks.remove(LEARNER)

    def _ask_who_leads(self) -> bool | None:
        waited, rid = 0.0, self._own_setup.identity.replica
        while True:
            for peer in self._peers:
                if (never := self._own_setup.source.never_voted(peer, rid)) is not None:
                    return never
            if waited >= self._patience_s:
                return None
            self._pause(ASK_INTERVAL_S)
            waited += ASK_INTERVAL_S

    # -------------------------------------------------------------- the log and the address

    def _recovered(self, doubtful: bool) -> Recovered:
        setup, segment_bytes = self._own_setup, self._own_setup.config.segment_bytes
        checkpoints = Checkpoints(
            self._disk,
            setup.report,
            segment_bytes=segment_bytes,
            delay_bytes=segment_bytes * (setup.identity.replica % setup.founders) // setup.founders,
            reserve_bytes=setup.config.disk_reserve_bytes,
        )
        journal = SegmentJournal(
            self._disk,
            segment_bytes=segment_bytes,
            on_roll=lambda first: checkpoints.want(first - 1),
            mendable=bool(self._peers),
        )
        try:
            state, _ = checkpoints.recover(
                lambda: StateMachine(setup.identity.group, setup.groups), doubtful=doubtful
            )
            check_fit(journal, state.applied_index)
            peers = self._peer_marks()
        except BaseException:
            journal.close()
            raise
        return Recovered(self._disk, journal, checkpoints, state, peers)

    def _peer_marks(self) -> PeerMarks:
        """The incarnations of the peers. A replica that has lost them has lost a promise, like one without
        its log: it is a learner until it has the marks of all the others."""
        try:
            return self._directory.marks()
        except (CorruptLog, ReadFailed) as error:
            self._own_setup.report(
                f"{error}; this replica asks the others for it, and counts again when all have answered"
            )
            if self._peers:
                self._marks.write(LEARNER, LOST)
            return self._directory.forget_marks()

    def _listen_port(self) -> int:
        """The port used last time, so that peers find this replica immediately; any other if it is taken
        (peers ask where it listens before they dial, so nothing depends on it)."""
        port, host = self._marks.port(), self._own_setup.listen_host
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                self._own_setup.report(f"port {port} is taken ({error}); listening on another")
                return 0
        return port

    def _remember_port(self, port: int) -> None:
        try:
            self._marks.write(PORT_FILE, str(port))
        except DiskFull as error:  # only a convenience: peers ask where this replica listens
            self._own_setup.report(f"{error}; the next start may listen on another port")


def let_go(error: BaseException | None) -> None:
    """Release what a failed opening had open: files close with their last reference, which the frames of a
    traceback hold for as long as the error is kept; stored files are in reference cycles of a replica and its
    driver, which a broker's process rarely collects."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
    gc.collect()


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


#: How long ``close`` waits for an opening under way, which may be in the middle of copying a large file, or
#: for a checkpoint.
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
            self._directory = DataDir(setup.data_dir, setup.identity, setup.disk)
        except BaseException as error:
            let_go(error)
            raise
        try:
            self._log = setup.disk(setup.data_dir / "log")
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

    def close(self, patience_s: float = BREAK_OFF_S) -> None:
        """Abort an opening under way, close the replica, unlock the directory. A second call does nothing,
        except for a replica that did not stop: its directory stays locked until it has.

        An opening that does not end within ``patience_s`` continues to its end, and then closes what it has
        opened.
        """
        self._closing.set()
        if not self._attempt.acquire(timeout=patience_s):
            return
        try:
            if self._running is None:
                self._directory.close()
            elif self._running.close(patience_s):
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
