"""One running replica: its locked directory, its log and state, and the driver in whose thread they live.

No replica is ever half-built: ``open_in`` repairs and recovers first, and a ``RunningReplica`` takes part in
its group from its first moment. Callers use its parts, each of which holds it (requests, reads, due_checks,
inspection, snapshots), from any thread; the log, the state and the node change in the driver's thread
only.

A replica that cannot continue ends its process (``end``) and leaves a mark that tells the next start why.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol, TypeVar

from escrowmq.replication.calling.answers import Leadership, LevelReport, Reply
from escrowmq.replication.errors import (
    Closed,
    CorruptLog,
    DiskFailed,
    DiskFull,
    OffsetGone,
    Overloaded,
    Superseded,
    Unavailable,
)
from escrowmq.replication.format.membership import members_mark
from escrowmq.replication.format.segment_format import first_of_name
from escrowmq.replication.host.body_prefetcher import BodyPrefetcher
from escrowmq.replication.host.driver import Driver
from escrowmq.replication.host.maintenance import (
    CheckpointThread,
    Maintenance,
    RoomWatch,
    Scrubber,
    ScrubState,
)
from escrowmq.replication.host.repair import Mender
from escrowmq.replication.host.replica_setup import AskLevels, ReplicaSetup
from escrowmq.replication.host.restoring import UNSOUND, Recovered
from escrowmq.replication.log.datadir import (
    BEHIND,
    DAMAGED,
    LEARNER,
    MEMBERS,
    SCRUBBED,
    SUPERSEDED,
    WANTS_COPY,
    DataDir,
    Marks,
)
from escrowmq.replication.log.disk import Disk
from escrowmq.replication.net.handshake import PeerIdentity
from escrowmq.replication.raft.node import PeerLink, RaftConfig, RaftNode
from escrowmq.replication.replica.agenda import Duty
from escrowmq.replication.replica.checkpoints import Job
from escrowmq.replication.replica.damage import STATE_FILES
from escrowmq.replication.replica.replica import Replica, ahead_of, next_level
from escrowmq.replication.state.machine import LEVEL_MAX, StateMachine

# ------------------------------------------------------------------------------------------------------------
# Long polls: callers wait for news, bounded in number, so that they never hold every thread.
#
# A parked call holds one thread of its concurrency group. Half of the threads may park; further callers are
# answered immediately with what there is, and ask again.

T = TypeVar("T")
#: Maximum wait of one call, whatever its caller asks for: it holds a thread even if its caller is gone.
WAIT_S_MAX = 60.0


class ParkingLot:
    """Bounded waiting room around one kind of news."""

    def __init__(self, slots: int, monotonic: Callable[[], float]) -> None:
        self._condition = threading.Condition()
        self._slots, self.parked, self._monotonic = slots, 0, monotonic
        self._closed = False
        self._sequence = 0

    def wait_for(self, attempt: Callable[[], T | None], wait_s: float) -> T | None:
        """Call ``attempt()`` now and at each piece of news until it returns something, for at most
        ``wait_s``."""
        deadline = self._monotonic() + (wait_s if wait_s <= WAIT_S_MAX else WAIT_S_MAX)
        parked = False
        try:
            while True:
                seen = self._sequence  # before the attempt: news that arrives during it is not missed
                found = attempt()
                left = deadline - self._monotonic()
                if found is not None or left <= 0:
                    return found
                with self._condition:
                    if not parked:
                        if self.parked >= self._slots:
                            return None
                        self.parked, parked = self.parked + 1, True
                    if self._closed:
                        return None
                    if seen == self._sequence:
                        self._condition.wait(left)
        finally:
            if parked:
                with self._condition:
                    self.parked -= 1

    def announce(self) -> None:
        """Something changed: wake every waiting caller. Cheap if there is none; does not wait for
        attempts."""
        self._sequence += 1
        if self.parked:
            with self._condition:
                self._condition.notify_all()

    def close(self) -> None:
        """Wake every waiting caller for good; later ones do not wait."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()


# ------------------------------------------------------------------ the format level
# Moves a group to the next format level: asks all replicas of the cluster while this one leads.
#
# A thread of its own, because asking takes up to seconds. It ends when the highest level is reached: after
# a moment in a new cluster, at the end of the upgrade in one that is being upgraded.


#: Pause between two questions: short for a new cluster, whose clients want the level; long during an upgrade.
ASK_S, ASK_S_MAX = 0.1, 5.0
#: How often an upgrade that stays unfinished is reported.
REPORT_S = 600.0


class LevelWatch:
    """See the module's docstring. ``leads()``: whether this replica is a ready leader. ``later(fn)`` runs
    ``fn`` in the replica's thread. ``ask()`` may block."""

    def __init__(
        self,
        replica: Replica,
        *,
        leads: Callable[[], bool],
        later: Callable[[Callable[[], None]], None],
        ask: AskLevels,
        report: Callable[[str], None],
        pauses_s: tuple[float, float] = (ASK_S, ASK_S_MAX),
    ) -> None:
        self._replica, self._pauses_s = replica, pauses_s
        self._leads, self._later, self._ask, self._report = leads, later, ask, report
        self._stop = threading.Event()

    def start(self) -> None:
        """Start asking, unless the highest level is already reached."""
        if self._replica.state.level < LEVEL_MAX:
            threading.Thread(target=self._run, name="level", daemon=True).start()

    def stop(self) -> None:
        """Stop asking; a question under way ends by itself and changes nothing."""
        self._stop.set()

    def _run(self) -> None:
        shortest_s, longest_s = self._pauses_s
        pause_s, report_in_s = shortest_s, 0.0
        while not self._stop.wait(pause_s) and self._replica.state.level < LEVEL_MAX:
            if not self._leads():
                pause_s = shortest_s
                continue
            found = self._ask()
            reports = list(found.values()), ahead_of(self._replica.state.topics.gid, found)
            if next_level(self._replica.state.level, *reports) is not None:
                self._later(lambda told=reports: self._replica.raise_level(*told))  # type: ignore[misc]
                pause_s = shortest_s
                continue
            pause_s = min(2 * pause_s, longest_s)
            report_in_s -= pause_s
            if found and pause_s == longest_s and report_in_s <= 0:
                report_in_s = REPORT_S
                self._report(self._who_is_behind(found))

    def _who_is_behind(self, found: Mapping[tuple[int, int], LevelReport | None]) -> str:
        level, own = self._replica.state.level, self._replica.state.topics.gid
        behind = [
            f"replica {rid} of group {gid}"
            for (gid, rid), report in found.items()
            if next_level(level, [report], ahead_of(own, {(gid, rid): report})) is None
        ]
        return (
            f"format level {level} until all replicas are upgraded and answer; missing: {', '.join(behind)}"
        )


# ------------------------------------------------------------------ leadership
# Reads who leads from another thread than the one in which it changes.
#
# Readiness, leader and term are three values of the node. Read one after the other while the term changes,
# they may name a leader of the earlier term together with the later term. Callers would follow that deposed
# leader as if it led now, and a coordinator of consumer groups would work in a term in which it does not
# lead.


#: Readings until the term stays the same meanwhile. Terms change milliseconds apart at most, and a reading
#: takes microseconds.
READINGS_MAX = 3


class Leading(Protocol):
    """What is read of a node."""

    @property
    def term(self) -> int: ...
    @property
    def leader_id(self) -> str | None: ...
    @property
    def ready(self) -> bool: ...


def read_leadership(node: Leading) -> Leadership:
    """Who leads, all of one term; nobody, if no reading ends in the term in which it began."""
    term = node.term
    for _ in range(READINGS_MAX):
        leader, ready = node.leader_id, node.ready
        if (now := node.term) == term:
            return Leadership(ready, None if leader is None else int(leader), term)
        term = now
    return Leadership(False, None, term)


# ------------------------------------------------------------------ running replica


#: The answer of a replica that does not run yet, or no longer: nothing was done, and another one may lead.
NOT_RUNNING: Reply = Leadership(False, None, 0).refusal()
TIMER_S = 0.1
#: Maximum wait for a majority that confirms a read. A healthy group takes a millisecond; one that has lost
#: its leader has another one by then, whom the caller finds.
CONFIRM_S = 2.0
#: When a reader may come again who finds too many reads waiting.
READS_RETRY_S = 0.1
#: Maximum wait at the end for a checkpoint that is being written.
CHECKPOINT_WAIT_S = 10.0
#: Maximum wait at the end for a call to a peer that is under way.
UPKEEP_WAIT_S = 35.0
#: More than this waiting for the disk is more than a group commit or two: scrubbing pauses meanwhile.
BUSY_BYTES = 4 << 20
#: How much is read at once to verify it.
VERIFY_BYTES = 1 << 20
#: How long a leader that must leave waits for a follower to take over.
HAND_OVER_S = 2.0


class RunningReplica:
    """See the module's docstring. Thread-safe; ``close`` ends it.

    Read-only for others: ``setup``, ``gid``, ``rid``, ``disk``, ``journal``, ``checkpoints``, ``replica``,
    ``node``, ``driver``, ``address`` (where its Raft link listens), ``room``, ``recovered_index``, and the
    parking lots ``news`` (something was applied) and ``checks_due`` (a transaction check came due).
    """

    #: The term in which it was last seen to lead, and when that began, on ``setup.monotonic``.
    _led: tuple[int, float] = 0, 0.0
    threads = True  # not in a cluster in memory

    def __init__(self, setup: ReplicaSetup, directory: DataDir, found: Recovered, listen_port: int) -> None:
        """Takes part in the group on return. Raises what binding or building the node raised; then the
        driver has stopped, the log is closed, and the directory is still the caller's."""
        config = setup.config
        self.setup = setup
        self.gid, self.rid = setup.identity.group, setup.identity.replica
        self.disk, self.journal, self.checkpoints = found.disk, found.journal, found.checkpoints
        self._peer_marks = found.peers
        self.recovered_index = found.state.applied_index
        self.news = ParkingLot(max(1, config.fetch_threads // 2), setup.monotonic)
        self.checks_due = ParkingLot(max(1, config.feedback_threads // 2), setup.monotonic)
        self.closed = False
        self.stops: list[Callable[[], bool]] = []  # of the parts' threads: whether it has ended
        self._directory, self._marks = directory, Marks(directory.disk)
        self._level_watch: LevelWatch | None = None
        self._learner = False
        self._last_applied = 0
        self._heard: frozenset[str] | None = None
        self._noted_version = 0
        self.checkpointing = CheckpointThread(f"checkpoint-{self.rid}", self.end, self.later)
        self._marking, self._halting = threading.Lock(), threading.Lock()
        self._body_prefetcher = BodyPrefetcher(
            found.state.timers, found.journal, leads=self._leads, now_ms=self._told_ms, replica=self.rid
        )
        self.replica = Replica(
            state=found.state,
            journal=found.journal,
            checkpoints=found.checkpoints,
            limits=setup.limits(),
            start_job=self._start_job,
            on_due=self.checks_due.announce,
            monotonic=setup.monotonic,
            bodies=self._body_prefetcher,
        )
        self.replica.agenda.add(Duty("timer", self._run_timer))
        self.driver = Driver(
            self._build_node,
            self.journal,
            identity=PeerIdentity(setup.identity.cluster_id, self.gid, str(self.rid)),
            peers=frozenset(setup.peers),
            listen_host=setup.listen_host,
            listen_port=listen_port,
            secret=setup.secret,
            resolve=setup.resolve,
            fatal=self.end,
            after_tick=self._after_tick,
            tls=setup.tls,
            marks=found.peers,
        )
        self._inodes = {path: _inode(path) for path in (setup.data_dir, setup.data_dir / "log")}
        self.room = self._make_room_watch()
        self._upkeep = Maintenance(f"upkeep-{self.rid}", self.end)
        self.mender = Mender(
            self.journal, setup.peers, setup.source, self.driver.call, setup.report, self._upkeep.pace
        )
        self.scrubber = self._make_scrubber()
        self.room.start()
        try:
            self.address = self.driver.start()
        except BaseException as error:
            self.give_up(error)
            raise
        self.node = self.driver.node
        self._level_watch = LevelWatch(
            self.replica,
            leads=self._leads,
            later=self.later,
            ask=setup.levels,
            report=lambda text: setup.report(f"{setup}: {text}"),
        )
        self._level_watch.start()
        self.stops.append(self._body_prefetcher.start())
        self._upkeep.start(self.mender, self.scrubber)

    def _make_room_watch(self) -> RoomWatch:
        return RoomWatch(
            f"room-{self.rid}",
            lambda: self.disk.free_bytes(),
            self._disk_bytes,
            missing=self.missing_file,
            on_missing=self._files_gone,
        )

    def _make_scrubber(self) -> Scrubber:
        setup, config = self.setup, self.setup.config
        return Scrubber(
            self.journal,
            self.disk,
            config.scrub_period_s,
            config.scrub_bytes_per_s,
            ScrubState.decode(self._marks.read(SCRUBBED)),
            note=lambda state: self._marks.write(SCRUBBED, state.encode()),
            in_loop=self.driver.call,
            damaged=self.replace_file,
            busy=lambda: self.driver.disk_full or self.journal.queued_bytes > BUSY_BYTES,
            clock=setup.monotonic,
            wall_ms=lambda: int(setup.wall_clock() * 1000),
            report=setup.report,
        )

    def replace_file(self, name: str, error: CorruptLog) -> None:
        """A file is damaged that cannot be mended entry by entry ("": the log). The state in memory is
        sound, so a damaged snapshot is taken again, and a file of one that the state does not read goes; for
        any other file the replica must leave. Not for the driver's thread."""
        self.setup.report(f"{self.setup}: {error}")
        is_of_a_snapshot = name.endswith(STATE_FILES)
        if not (is_of_a_snapshot and self.driver.call(lambda: self.replica.drop_damaged(name))):
            self.leave(error)

    # -------------------------------------------------------------- for the parts

    def led(self, read: Callable[[], Any]) -> Reply:
        """``("ok", read())`` in the driver's thread if this replica is the ready leader, else who leads.

        Raises Unavailable if that thread does not get to it in time.
        """

        def guarded() -> Reply:
            return ("ok", read()) if self.node.ready else self.replica.not_leader()

        try:
            with self.leaving():
                return self.driver.call(guarded)
        except Closed:
            return NOT_RUNNING
        except TimeoutError as error:
            raise Unavailable(f"{self.setup} does not answer", 1.0) from error

    @property
    def learner(self) -> bool:
        """Whether it lost its log and does not count yet: it neither votes nor counts towards a majority."""
        return self._learner

    def if_leading(self, read: Callable[[StateMachine], Any]) -> Reply:
        """``("ok", read(state))`` in this thread, or who leads, as far as this replica knows; for state that
        may be read beside the driver."""
        self.check_open()
        with self.leaving():
            return ("ok", read(self.replica.state)) if self.node.ready else self.replica.not_leader()

    def confirmed(self, read: Callable[[StateMachine], Any], *, in_loop: bool = False) -> Reply:
        """As ``if_leading``, and linearizable: what is read has everything that was acknowledged before this
        call, by whichever leader (replica/lease_dispatcher.py). ``in_loop``: in the driver's thread,
        for state that may not be read beside it.

        One trip to a majority. Raises Unavailable if none answers in time.
        """
        if self.closed:
            return NOT_RUNNING
        if not self.node.ready:
            return self.replica.not_leader()
        answer: Future[Reply] = Future()

        def asked() -> None:
            if self.replica.read_index.full:
                answer.set_result(("overloaded", READS_RETRY_S))
            else:
                self.replica.confirm(told)

        def told(leads: bool) -> None:
            if not leads:
                answer.set_result(self.replica.not_leader())
                return
            try:
                answer.set_result(("ok", read(self.replica.state) if in_loop else None))
            except Exception as error:  # its caller's, not the loop's
                answer.set_exception(error)

        try:
            self.driver.submit(asked)
            with self.leaving():
                reply = answer.result(CONFIRM_S)
        except Closed:
            return NOT_RUNNING
        except Overloaded as error:
            return "overloaded", error.retry_after_s
        except TimeoutError as error:
            why = f"no majority confirms within {CONFIRM_S:g} s that it leads"
            raise Unavailable(f"{self.setup}: {why}", READS_RETRY_S) from error
        with self.leaving():
            return ("ok", read(self.replica.state)) if reply[0] == "ok" and not in_loop else reply

    def log_end(self) -> int | None:
        """The log's last index; None as long as requests wait to be written, or the driver is busy."""

        def end() -> int | None:
            return None if self.replica.admission.waiting() else self.journal.last_index

        try:
            return self.driver.call(end)
        except (Closed, Overloaded, TimeoutError):
            return None

    def whoami(self) -> Leadership:
        """Who leads, as far as this replica knows. Cheap; any thread."""
        if self.closed:
            return Leadership(False, None, 0)
        return read_leadership(self.node)

    def _told_ms(self) -> int:
        return self.replica.time.ms  # as the driver's thread was told last; that thread alone moves it

    def _leads(self) -> bool:
        return not self.closed and self.node.ready

    def led_since(self, term: int) -> float | None:
        """When it began to lead in that term, on ``setup.monotonic``, to a tenth of a second; None: just now.
        Any thread."""
        led, since = self._led
        return since if led == term else None

    def levels(self) -> LevelReport:
        """The format level that this software knows, and the one that the state has reached. Any thread."""
        return LevelReport(LEVEL_MAX, self.replica.state.level)

    def check_open(self) -> None:
        """Raise Unavailable once the replica is being closed."""
        if self.closed:
            raise Unavailable(f"{self.setup} is stopping", 0.2)

    def find_disk(self) -> Disk:
        """For the files of finding.py; the directory is created."""
        return self.setup.disk(self.setup.data_dir / "find")

    def _disk_bytes(self) -> int:
        found = os.statvfs(self.setup.data_dir)
        return found.f_blocks * found.f_frsize

    def missing_file(self) -> str:
        """Which of the directories, or of the files that are written, is not where it was opened; "": none.
        Any thread."""
        for path, inode in self._inodes.items():
            try:
                there = _inode(path)
            except OSError:  # the disk does not answer: that is another problem
                return ""
            if there != inode:
                return str(path)
        name = self.journal.newest_file()
        return name if name and not self.disk.exists(name) else ""

    def _files_gone(self, what: str) -> None:
        text = f"{what} was removed under this replica: it starts again as one that lost its disk"
        self.end(DiskFailed(text))

    def scarce(self) -> bool:
        """Whether the disk has too little room for new work."""
        free = self.room.free_bytes  # None: not known; a write that finds no room says so itself
        return free is not None and free < self.setup.config.disk_reserve_bytes

    def later(self, fn: Callable[[], None]) -> None:
        """Run ``fn`` in the driver's thread, however many calls wait there; not at all if that has ended."""
        while True:
            try:
                return self.driver.submit(fn)
            except Overloaded as error:
                time.sleep(error.retry_after_s)
            except Closed:
                return None

    def look_through(self, name: str) -> bool:
        """Re-read a segment file and have the damage mended; False if it is beyond mending.
        Takes as long as the disk needs; for any thread but the driver's."""
        first = first_of_name(name)
        try:
            if first is None:
                return False
            if not self.journal.frame_is_sound(first):
                self.driver.call(lambda: self.journal.mend_frame(first))
            index, segment = first, self.journal.segment_start(first)
            while self.journal.segment_start(index) == segment and index <= self.journal.durable_index:
                index, _ = self.journal.verify(index, VERIFY_BYTES)
        except OffsetGone:  # retention has dropped it, or the end is reached
            pass
        except CorruptLog:
            return False
        return True

    def now_ms(self) -> int:
        """The group's time."""
        return self.replica.group_ms(int(self.setup.wall_clock() * 1000))

    # -------------------------------------------------------------- in the driver's thread

    def _build_node(self, link: PeerLink, clock: Callable[[], float]) -> RaftNode:
        config = self.setup.config
        self._learner = self._marks.read(LEARNER) is not None
        setup = self.setup
        node = RaftNode(
            str(self.rid),
            list(setup.peers) if setup.joining else setup.founding_peers,
            self.journal,
            link,
            self.replica.apply,
            clock=clock,
            rng=random.Random(),
            config=RaftConfig(
                election_min_s=config.election_min_s,
                election_max_s=config.election_max_s,
                heartbeat_s=config.heartbeat_s,
            ),
            applied_index=max(1, self.recovered_index),
            no_vote_until_caught_up=self._learner,
            marks=self._peer_marks,
            drop_link=lambda peer: self.driver.drop_link(peer),
            joining=setup.joining,
            on_peers=lambda peers: self.driver.follow(peers),
        )
        for peer in setup.peers:
            node.told_of(peer)
        self._follow_node(node)
        self.driver.follow(node.heard)
        self.replica.attach(node, node.clocks)
        node.clocks.tell = lambda: int(setup.wall_clock() * 1000)
        return node

    def _follow_node(self, node: RaftNode) -> None:
        if self._heard != node.heard:
            self._heard = node.heard
            self.setup.peers.follow(node.members.version, node.heard)

    def _note_members(self, node: RaftNode) -> None:
        """For tools that must find all directories of a group whose record is lost."""
        members = node.members
        if members.version <= self._noted_version or not members.change_id or not node.members_applied:
            return
        try:
            self._marks.write(MEMBERS, members_mark(members))
        except DiskFull:  # nothing that runs needs it; the next call tries again
            return
        self._noted_version = members.version

    def told(self, epoch: int, members: Sequence[str]) -> None:
        """A caller that may know says that these are the group's members; see ``PeerList``. Any thread;
        raises Closed, TimeoutError."""
        self.setup.peers.tell(epoch, members)
        # Not only those that are new to the list: they may have been told while the node was being built.
        unheard = [peer for peer in self.setup.peers if peer not in self.node.heard]

        def tell() -> None:
            for peer in unheard:
                self.node.told_of(peer)

        if unheard:
            self.driver.call(tell)

    def _after_tick(self) -> float:
        """Called after every tick, perhaps before the constructor has returned. Returns when something is due
        next, on ``setup.monotonic``."""
        replica = self.replica
        applied = replica.state.applied_index
        if applied != self._last_applied:
            self._last_applied = applied
            self.news.announce()
        replica.pump(int(self.setup.wall_clock() * 1000))
        return replica.agenda.next

    def _run_timer(self, now: float) -> float:
        """What nothing makes due but time, and what may be some milliseconds late."""
        node = self.driver.node
        self.replica.on_timer(int(self.setup.wall_clock() * 1000))
        if self._learner and not node.rejoining:
            self._learner = False
            self._marks.remove(LEARNER)
        if node.too_far_behind:
            self._marks.write(WANTS_COPY, BEHIND)
            self.end(Unavailable("the leader's log starts after ours ends: copying its log", 1.0))
        if self.journal.holes:
            self._look_at_damage()
        node.readiness.look_at_room(self.room.free_bytes, self.setup.config.disk_reserve_bytes)
        self._note_leading(node, now)
        self._follow_node(node)
        self._note_members(node)
        return now + TIMER_S

    def _note_leading(self, node: RaftNode, now: float) -> None:
        if node.ready and node.term != self._led[0]:
            self._led = node.term, now

    def _look_at_damage(self) -> None:
        """Have damage mended. If no replica has the entry any more, only a copy of the leader's state
        helps."""
        self._upkeep.wake()
        node, mender = self.driver.node, self.mender
        waits_for = self.replica.state.applied_index + 1
        if self.journal.damaged_after(waits_for - 1) != waits_for:
            return
        leader = node.leader_id
        if leader not in (None, str(self.rid)) and mender.lacks(waits_for, leader):
            self._marks.write(WANTS_COPY, BEHIND)
            why = f"entry {waits_for} is damaged, and no replica has it: copying the leader's log"
            self.end(Unavailable(why, 1.0))

    def _start_job(self, job: Job, done: Callable[[], None]) -> None:
        def ended() -> None:
            self.driver.sync_choice.other_work_ended(time.monotonic())
            done()

        self.driver.sync_choice.other_work_begins()
        self.checkpointing.start(job, ended)

    # -------------------------------------------------------------- ends

    def end(self, error: BaseException) -> None:
        """This replica cannot continue: the process ends, and its supervisor starts another one."""
        self.setup.report(f"{self.setup} ends: {error}")
        try:
            if isinstance(error, UNSOUND) or isinstance(error.__cause__, UNSOUND):
                with self._marking:  # several threads may find the same damage
                    self._marks.write(WANTS_COPY, DAMAGED)  # the next start repairs it
            elif isinstance(error, Superseded):
                with self._marking:
                    self._marks.write(SUPERSEDED, str(error.by))  # no start takes part again
        finally:  # even if the disk takes no mark: reading the damage again would end the next process too
            self.setup.fatal(error)

    def leave(self, error: BaseException) -> Unavailable:
        """End because stored data cannot be read; returns the error for the caller that met it. A leader
        hands over first, so that the group has one while this replica is away. Not for the driver's
        thread."""
        with contextlib.suppress(Closed, Overloaded):
            self.driver.submit(lambda: self.node.transfer_leadership())
            deadline = time.monotonic() + HAND_OVER_S
            while self.node.is_leader and time.monotonic() < deadline:
                time.sleep(0.02)
        self.end(error)
        return Unavailable(f"{self.setup} leaves for repair", 1.0)

    @contextlib.contextmanager
    def leaving(self) -> Iterator[None]:
        """Runs or timers are looked up for the block's caller: if they cannot be read, the replica leaves,
        and the caller is told to ask another one. Not for the driver's thread."""
        try:
            yield
        except (CorruptLog, DiskFailed) as error:
            raise self.leave(error) from error

    def close(self, patience_s: float = CHECKPOINT_WAIT_S) -> bool:
        """Hand over leadership, sync, close, and unlock the directory. Parked calls return; later calls are
        answered as by a follower. A second call waits for the first one and does nothing. ``patience_s``: for
        a checkpoint that is being written.

        False: a thread does not stop, so the directory stays locked; a later call tries again.
        """
        with self._halting:
            stopped = True
            try:
                stopped = self._halt(patience_s)
            finally:
                if stopped:
                    self._directory.close()
        if not stopped:  # its threads may still write: keep the directory until the process ends
            self.setup.report(f"{self.setup} does not stop; its directory stays locked")
        return stopped

    def give_up(self, error: BaseException) -> None:
        """Undo an opening that failed late; the directory is the caller's again.

        If a thread does not stop, the process ends: another attempt would run a second node on
        the same files.
        """
        with self._halting:
            stopped = self._halt(CHECKPOINT_WAIT_S)
        if not stopped:
            self.end(error)

    def _halt(self, patience_s: float) -> bool:
        """Stop every thread and close the log; returns whether all threads have stopped."""
        self.closed = True
        if self._level_watch is not None:
            self._level_watch.stop()
        self.news.close()
        self.checks_due.close()
        with contextlib.suppress(Closed, Overloaded):
            self.driver.submit(self.replica.lease_dispatcher.resign)
            self.driver.submit(self.replica.read_index.resign)
        self.driver.stop()
        self.room.stop()
        if not all(stop() for stop in self.stops) or not self._upkeep.stop(UPKEEP_WAIT_S):
            return False
        if not self.checkpointing.stop(patience_s) or self.driver.running:
            return False
        self.journal.close()
        self._peer_marks.close()
        return True


def _inode(path: Path) -> tuple[int, int] | None:
    """Which directory the path leads to; None: to none. Raises OSError."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino
