"""What a replica does with its directory before it takes part: it mends its log, or takes the leader's, or
finds that it lost it, and then remembers that before anything else.

A rule of order is at stake here and nowhere else: a replica that may have forgotten a promise has the learner
mark on its disk *before* a copy of the log hides what it lost. Everything is passed in, the disk and the
waiting as well, so that the simulator runs this over disks that lose power between any two steps;
replica_process.py holds what only a real process does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from escrowmq.replication.errors import CorruptLog, ReadFailed, Superseded, Unavailable
from escrowmq.replication.host.repair import (
    ASK_INTERVAL_S,
    BEYOND_MENDING,
    Begin,
    PeerSource,
    at_once,
    copy_from_leader,
    has_history,
    knows_its_end,
    mend_before_start,
    must_copy,
)
from escrowmq.replication.host.replica_setup import PeerList
from escrowmq.replication.log.datadir import BEHIND, LEARNER, LOST, NEWCOMER, WANTS_COPY, Marks
from escrowmq.replication.log.disk import Disk
from escrowmq.replication.log.install import finish_install
from escrowmq.replication.log.journal import SegmentJournal
from escrowmq.replication.log.peer_marks import PeerMarks
from escrowmq.replication.log.recovery import segment_firsts
from escrowmq.replication.replica.checkpoints import Checkpoints
from escrowmq.replication.state.machine import StateMachine

BEHIND_PATIENCE_S = 5.0  # several elections
MEND_PATIENCE_S = 5.0  # peers that are also starting answer from their first moment on
#: The log here does not hold what was written to it: this replica needs a copy of the leader's.
UNSOUND = (CorruptLog, ReadFailed)


class Opened(Protocol):
    """What is open once the log has been recovered."""

    def close(self) -> None: ...


F = TypeVar("F", bound=Opened)
T = TypeVar("T")
#: Waits for this many seconds, or raises because the opening must be aborted.
Pause = Callable[[float], None]


class Surroundings(Protocol):
    """What is asked around a replica; ``ReplicaSetup`` has the meanings."""

    @property
    def peers(self) -> PeerList: ...
    @property
    def source(self) -> PeerSource: ...
    @property
    def joining(self) -> bool: ...
    @property
    def never_replaced(self) -> bool: ...
    @property
    def founded(self) -> Callable[[], bool | None]: ...
    @property
    def ask_members(self) -> Callable[[], Iterable[int]]: ...
    @property
    def report(self) -> Callable[[str], None]: ...


class Restoring(Generic[F]):
    """One attempt."""

    def __init__(
        self,
        log: Disk,
        marks: Marks,
        setup: Surroundings,
        pause: Pause,
        patience_s: float,
        recover: Callable[[bool], F],
        look: Begin = at_once,
    ) -> None:
        """``recover(doubtful)`` opens the log and the state; ``doubtful``: damage was found in some file."""
        self._disk, self._marks, self._setup = log, marks, setup
        self._pause, self._patience_s, self._recover, self._look = pause, patience_s, recover, look
        self._peers = setup.peers  # which may change meanwhile
        self._doubtful = False

    def restore(self) -> F:
        """Raises Superseded, Unavailable, what ``recover`` and ``pause`` raise, and the disk's errors."""
        by = self._marks.superseded_by()
        if by is not None:
            raise Superseded(str(self._setup), by)
        self._repair()
        try:
            found = self._recover(self._doubtful)
        except UNSOUND as error:
            if not self._peers:
                raise
            self._setup.report(f"{error}; taking what is missing from the other replicas")
            self._doubtful = True
            found = self._restore()
        try:
            self._accept(found)
            self._marks.remove(WANTS_COPY)
        except BaseException:
            found.close()
            raise
        return found

    def _accept(self, found: F) -> None:
        """Judge what was found, before this replica takes part with it."""

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

    def _restore(self) -> F:
        """Restore a log or state that could not be opened."""
        if self._mend():
            try:
                return self._recover(self._doubtful)
            except UNSOUND as error:  # the state is unsound: it needs the leader's snapshot
                self._setup.report(str(error))
        self._replace()
        return self._recover(self._doubtful)

    def _has_lost_its_log(self) -> bool:
        # A log of nothing but its first entry, with a vote beside it, lies where this replica began, and is
        # all that it ever had. Were it a learner, a group that stops right after its first election would
        # have no leader again. A disk that was lost has no such files, and one that takes a copy the mark. No
        # power cut leaves a vote without a log: the log is durable before the first vote is (journal.py).
        if has_history(self._disk) or self._has_forgotten_nothing():
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
        never_seen = self._setup.never_replaced
        self._copy(self._patience_s, lost_log=True, mark=NEWCOMER if never_seen else LOST)

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
            self._setup.report(f"{error.message}; continuing without it, so that a leader can be elected")

    def _copy(self, patience_s: float, *, lost_log: bool, mark: str = LOST) -> None:
        """Take the leader's log. If its own log is lost, this replica is a learner from then on (rejoin.py):
        it may have promised what it no longer knows. That is remembered on disk until it has caught up.
        """
        if lost_log:
            self._marks.write(LEARNER, mark)
        setup = self._setup
        copy_from_leader(
            self._disk, self._peers, setup.source, self._pause, patience_s, setup.report, self._look
        )


# ------------------------------------------------------------------ what was recovered
# What opening a replica's directory has found, from which the replica is built.


@dataclass(frozen=True, slots=True)
class Recovered:
    """What opening found on the disk: the log, the snapshots, the state of the newest good snapshot, and the
    incarnations of the peers."""

    disk: Disk
    journal: SegmentJournal
    checkpoints: Checkpoints
    state: StateMachine
    peers: PeerMarks

    def close(self) -> None:
        """Release the files; for an opening that fails."""
        self.journal.close()
        self.peers.close()
