"""Opening a replica: repair what needs repair, recover what is on the disk, and take part in the group.

The result is a running replica, or an error, with no thread or open file left behind. The
locked directory stays the caller's, who may try again. The previous process left marks of what it knew
beside the log (marks.py); repair.py explains when a replica needs a copy of the leader's log.
"""

from __future__ import annotations

import gc
import socket
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from escrowmq.replication.errors import CorruptLog, DiskFull, ReadFailed, Superseded, Unavailable
from escrowmq.replication.host.mending import BEYOND_MENDING, mend_before_start
from escrowmq.replication.host.recovered import Recovered
from escrowmq.replication.host.repair import (
    ASK_INTERVAL_S,
    Look,
    copy_from_leader,
    has_history,
    knows_its_end,
    must_copy,
)
from escrowmq.replication.host.replica_setup import ReplicaSetup
from escrowmq.replication.host.running import UNSOUND, RunningReplica
from escrowmq.replication.log.datadir import DataDir
from escrowmq.replication.log.disk import Disk, RealDisk
from escrowmq.replication.log.install import finish_install
from escrowmq.replication.log.journal import SegmentJournal
from escrowmq.replication.log.marks import BEHIND, LEARNER, LOST, NEWCOMER, PORT_FILE, WANTS_COPY, Marks
from escrowmq.replication.log.peer_marks import PeerMarks
from escrowmq.replication.log.recovery import segment_firsts
from escrowmq.replication.raft.newcomers import has_promised_nothing
from escrowmq.replication.raft.node import check_fit
from escrowmq.replication.replica.checkpoints import Checkpoints
from escrowmq.replication.state.machine import StateMachine

BEHIND_PATIENCE_S = 5.0  # several elections
MEND_PATIENCE_S = 5.0  # peers that are also starting answer from their first moment on

T = TypeVar("T")
#: Waits for this many seconds, or raises because the opening must be aborted.
Pause = Callable[[float], None]


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


class _Opening:
    """One attempt."""

    def __init__(self, directory: DataDir, setup: ReplicaSetup, pause: Pause, patience_s: float) -> None:
        self._directory, self._setup, self._pause, self._patience_s = directory, setup, pause, patience_s
        self._peers = setup.peers  # which may change meanwhile
        self._disk: Disk = RealDisk(directory.path / "log")
        self._marks = Marks(directory.disk)
        self._doubtful = False  # damage was found in some file

    def open(self) -> RunningReplica:
        by = self._marks.superseded_by()
        if by is not None:
            raise Superseded(str(self._setup), by)
        self._repair()
        try:
            found = self._recover()
        except UNSOUND as error:
            if not self._peers:
                raise
            self._setup.report(f"{error}; taking what is missing from the other replicas")
            self._doubtful = True
            found = self._restore()
        try:
            self._forgive_newcomer(found)
            self._marks.remove(WANTS_COPY)
            running = RunningReplica(self._setup, self._directory, found, self._listen_port())
        except BaseException:
            found.journal.close()
            found.peers.close()
            raise
        try:
            self._remember_port(running.address[1])
        except BaseException as error:
            running.give_up(error)
            raise
        return running

    # -------------------------------------------------------------- repair

    def _repair(self) -> None:
        """Take the leader's log if the marks ask for it, or if this replica has none although the group
        has."""
        wanted = self._marks.read(WANTS_COPY) if self._peers else None
        if wanted == BEHIND:
            self._catch_up()
        elif wanted is not None:
            self._doubtful = True
            if not self._mend():
                self._replace()
        elif self._setup.joining and not has_history(self._disk):
            self._join()
        elif self._has_lost_its_log():
            self._copy(self._patience_s, lost_log=True)

    def _mend(self) -> bool:
        """Fill the holes of the log from any replica; False if that is impossible, now or at all."""
        setup, waited = self._setup, 0.0
        try:
            finish_install(self._disk)
            while not mend_before_start(self._disk, self._peers, setup.source, setup.report):
                if waited >= min(self._patience_s, MEND_PATIENCE_S):
                    return False
                self._pause(ASK_INTERVAL_S)
                waited += ASK_INTERVAL_S
        except BEYOND_MENDING as error:
            setup.report(f"{error}; this cannot be mended in place")
            return False
        return self._has_forgotten_nothing()

    def _has_forgotten_nothing(self) -> bool:
        return bool(segment_firsts(self._disk)) and knows_its_end(self._disk)

    def _replace(self) -> None:
        """Take the leader's log. A replica that knows where its own log ends loses no promise by this."""
        lost = not self._has_forgotten_nothing()
        if lost:
            self._setup.report("this replica takes no part until it has learned what it may have forgotten")
        self._copy(self._patience_s, lost_log=lost)

    def _restore(self) -> Recovered:
        """Restore a log or state that could not be opened."""
        if self._mend():
            try:
                return self._recover()
            except UNSOUND as error:  # the state is unsound: it needs the leader's snapshot
                self._setup.report(str(error))
        self._replace()
        return self._recover()

    def _has_lost_its_log(self) -> bool:
        if has_history(self._disk):
            return False
        founded = self._asked(self._setup.founded, lambda answer: answer is not None)
        if not self._peers:  # the group began with this replica alone, and others may have joined since
            members = self._asked(
                lambda: tuple(self._setup.ask_members()), lambda answer: bool(answer) or not founded
            )
            self._peers.tell(self._peers.epoch, map(str, members))
        if not self._peers:
            return False
        if founded:  # however many others are also empty, some replica has the group's history
            return True
        return must_copy(self._peers, self._setup.source, self._pause, self._patience_s)

    def _asked(self, ask: Callable[[], T], is_answer: Callable[[T], bool]) -> T:
        """The supervisor's answer. Ignorance must not pass for a new group: with an empty directory this
        replica would found one beside what the others hold. Raises Unavailable; try again."""
        waited = 0.0
        while not is_answer(answer := ask()):
            if waited >= self._patience_s:
                raise Unavailable(
                    "this replica's directory is empty, and the supervisor does not say whether its group "
                    "has a history: it waits, since a new group would hide what the others hold",
                    self._patience_s,
                )
            self._pause(ASK_INTERVAL_S)
            waited += ASK_INTERVAL_S
        return answer

    def _join(self) -> None:
        """For a replica that was added after the group's beginning and holds nothing. Either it never was a
        member: then it has promised nothing, and must not wait for those that it replaces. Or it has lost its
        disk: then it must wait. The leader's log tells which (``_forgive_newcomer``), and without a leader it
        does not start.
        """
        never_seen = self._setup.identity.incarnation == 0
        self._copy(self._patience_s, lost_log=True, mark=NEWCOMER if never_seen else LOST)

    def _forgive_newcomer(self, found: Recovered) -> None:
        """If it never voted (raft/newcomers.py), it is no longer a learner in the sense of rejoin.py: it
        becomes a voter when it has caught up, like any new replica. Raises Unavailable if no leader can
        tell."""
        if not self._setup.joining or self._marks.read(LEARNER) != NEWCOMER:
            return
        members, own = found.journal.members, str(self._setup.identity.replica)
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
        waited, rid = 0.0, self._setup.identity.replica
        while True:
            for peer in self._peers:
                if (never := self._setup.source.never_voted(peer, rid)) is not None:
                    return never
            if waited >= self._patience_s:
                return None
            self._pause(ASK_INTERVAL_S)
            waited += ASK_INTERVAL_S

    def _catch_up(self) -> None:
        """Take the leader's log, or else continue with the own one, which is sound, only old.

        Without this replica's vote a group of which a majority is behind could never elect a leader again. A
        replica whose log turns out to be unsound comes back as a learner.
        """
        if not knows_its_end(self._disk):
            self._setup.report(
                "this replica was behind, and its log is damaged: it learns what it has forgotten"
            )
            self._copy(self._patience_s, lost_log=True)
            return
        try:
            self._copy(min(self._patience_s, BEHIND_PATIENCE_S), lost_log=False)
        except Unavailable as error:
            self._setup.report(f"{error}; continuing without it, so that a leader can be elected")

    def _copy(self, patience_s: float, *, lost_log: bool, mark: str = LOST) -> None:
        """Take the leader's log. If its own log is lost, this replica is a learner from then on (rejoin.py):
        it may have promised what it no longer knows. That is remembered on disk until it has caught up.
        """
        if lost_log:
            self._marks.write(LEARNER, mark)
        setup = self._setup
        copy_from_leader(
            self._disk, self._peers, setup.source, self._pause, patience_s, setup.report, in_a_thread
        )

    # -------------------------------------------------------------- the log and the address

    def _recover(self) -> Recovered:
        setup, segment_bytes = self._setup, self._setup.config.segment_bytes
        checkpoints = Checkpoints(
            self._disk,
            setup.report,
            segment_bytes=segment_bytes,
            delay_bytes=segment_bytes * (setup.identity.replica % setup.founders) // setup.founders,
        )
        journal = SegmentJournal(
            self._disk,
            segment_bytes=segment_bytes,
            on_roll=lambda first: checkpoints.want(first - 1),
            mendable=bool(self._peers),
        )
        try:
            state, _ = checkpoints.recover(
                lambda: StateMachine(setup.identity.group, setup.groups), doubtful=self._doubtful
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
            self._setup.report(
                f"{error}; this replica asks the others for it, and counts again when all have answered"
            )
            if self._peers:
                self._marks.write(LEARNER, LOST)
            return self._directory.forget_marks()

    def _listen_port(self) -> int:
        """The port used last time, so that peers find this replica immediately; any other if it is taken
        (peers ask where it listens before they dial, so nothing depends on it)."""
        port, host = self._marks.port(), self._setup.listen_host
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                self._setup.report(f"port {port} is taken ({error}); listening on another")
                return 0
        return port

    def _remember_port(self, port: int) -> None:
        try:
            self._marks.write(PORT_FILE, str(port))
        except DiskFull as error:  # only a convenience: peers ask where this replica listens
            self._setup.report(f"{error}; the next start may listen on another port")


def let_go(error: BaseException | None) -> None:
    """Release what a failed opening had open: files close with their last reference, which the frames of a
    traceback hold for as long as the error is kept; mapped files are in reference cycles of a replica and its
    driver, which a broker's process rarely collects."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
    gc.collect()
