"""Opening a replica: repair what needs repair, recover what is on the disk, and take part in the group.

The result is a running replica, or an error, with no thread or open file left behind. The
locked directory stays the caller's, who may try again. The previous process left marks of what it knew
beside the log (marks.py); restoring.py decides by them, and repair.py explains when a replica needs a copy of
the leader's log. Here is what only a real process does: newcomers, ports, threads.
"""

from __future__ import annotations

import gc
import socket
import traceback
from concurrent.futures import ThreadPoolExecutor

from escrowmq.replication.errors import CorruptLog, DiskFull, ReadFailed, Unavailable
from escrowmq.replication.host.repair import ASK_INTERVAL_S, Look
from escrowmq.replication.host.replica_setup import ReplicaSetup
from escrowmq.replication.host.restoring import Pause, Recovered, Restoring
from escrowmq.replication.host.running_replica import RunningReplica
from escrowmq.replication.log.datadir import DataDir
from escrowmq.replication.log.disk import RealDisk
from escrowmq.replication.log.journal import SegmentJournal
from escrowmq.replication.log.marks import LEARNER, LOST, NEWCOMER, PORT_FILE, Marks
from escrowmq.replication.log.peer_marks import PeerMarks
from escrowmq.replication.raft.membership_changes import has_promised_nothing
from escrowmq.replication.raft.node import check_fit
from escrowmq.replication.replica.checkpoints import Checkpoints
from escrowmq.replication.state.machine import StateMachine


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
            RealDisk(directory.path / "log"),
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
