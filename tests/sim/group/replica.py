"""One simulated replica: the real node, journal and wire format over a simulated disk and network.

In virtual time it does what the drivers and running replicas of ``replication.host`` do in real time:
coalesced ticks, one concurrent sync at a time, retries while the disk is full, the end of the process when
the disk fails, and a copy of the leader's log if its own is damaged or too far behind.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from escrowmq.replication.errors import (
    ApplyFailed,
    CorruptLog,
    DiskFailed,
    DiskFull,
    FsyncFailed,
    Superseded,
    Unavailable,
)
from escrowmq.replication.host.repair import has_history
from escrowmq.replication.log.datadir import BEHIND, DAMAGED, LEARNER, WANTS_COPY, Marks
from escrowmq.replication.log.journal import SegmentJournal
from escrowmq.replication.log.peer_marks import Incarnation, PeerMarks
from escrowmq.replication.log.syncjob import SyncJob
from escrowmq.replication.net.handshake import ToldSuperseded
from escrowmq.replication.raft.node import RaftNode, check_fit
from escrowmq.replication.raft.pysync import FOLLOWER
from tests.sim.checks.bounds import RECOUNT_EVERY, check_bounds
from tests.sim.checks.tables import WALK_EVERY, check_tables
from tests.sim.clients.workload import Application, ReplicaContext
from tests.sim.environment.disk import PowerCut, SimDisk
from tests.sim.environment.world import WALL_S, Violation
from tests.sim.faults.damage import keep_last_copies
from tests.sim.group.maintenance import Upkeep, note_mended
from tests.sim.group.repair import NotNow, SimRestoring, Unexplained
from tests.sim.group.replica_links import ReplicaLinks

if TYPE_CHECKING:
    from tests.sim.group.simulation import Simulation

TICK_S = 0.02
IDLE_TICKS_MAX = 4  # regular ones that may be left out
STEP_S = 0.0002  # from an event to the tick it causes
DISK_FULL_RETRY_S = 0.2
START_RETRY_S = 0.2
CACHE_BYTES = 4096
#: Share of the copies of a log in which the power fails.
CRASHES_WHILE_COPYING = {"share": 0.2}
COPY_TRIES = 5  # after these, a replica that is only behind starts without a copy, so a leader can be elected
#: What ends a process, as opposed to a fault of the code under test.
DISK_TROUBLE = (DiskFailed, FsyncFailed, CorruptLog, ApplyFailed)
LIVES = 1_000_000  # processes of one incarnation are numbered below this
T = TypeVar("T")


class SimReplica:
    """A machine with a disk, on which a process starts, runs, and dies."""

    def __init__(self, simulation: Simulation, name: str, number: int = 0, address: str = "") -> None:
        """``number``: how often the replica was replaced before. Its address is its name the first time."""
        self.name, self.up = name, False
        self.address = address or (name if number == 0 else f"{name}#{number}")
        twins = self.address.count("+") if number else 0  # earlier ones with the same incarnation number
        self.incarnation = number * LIVES + twins * LIVES // 10
        self.began = False  # its process started once
        self.sim, self._world = simulation, simulation.world
        stream = simulation.world.stream
        self.rng, self._sync_rng, self._fail_rng = (
            stream(self.address),
            stream(f"sync-{self.address}"),
            stream(f"fail-{self.address}"),
        )
        self.disk = SimDisk(stream(f"disk-{self.address}"))
        #: Files beside the log: the incarnations of the peers, which survive a copy of the log.
        self.meta = SimDisk(stream(f"meta-{self.address}"))
        self.own = Incarnation(number, self.address)
        self.marks = PeerMarks(self.meta, self.own)
        self.joining = False  # it joined after the group was founded
        self.superseded = False  # it was replaced, and remembers that forever (a file, in the broker)
        self.superseded_by: int | None = None  # the incarnation that took its place
        self.doubled = False  # its predecessor has the same number, on another disk
        self.given_up = 0  # supervisors that have decided to replace it, and have not done so yet
        #: It has lost its disk or its vote, and is not a full member yet: the truth, whatever its files say.
        self.forgotten = False
        self.scrubbed = ""  # progress of the scrub (a file, in the broker)
        self.opening = False  # the process is up and waits for data from peers
        self._tries = self._copies = self.ticks = self._idle_ticks = 0
        self.flipped = False  # bits of its log were flipped and not all replaced yet
        self.spoilt = False  # its vote or state was damaged: it may have to learn or copy
        self.clock_ahead_s = self.wall_ahead_s = 0.0  # jumps of the monotonic and of the wall clock
        self._effects_left: int | None = None  # until the power fails in the middle of something
        self._effects_power = self._working = False
        self._quiet = False  # the last tick left nothing to do, and nothing happened since
        self.disk_hangs_s = 0.0  # additional time of the next sync
        self.paused_until = 0.0
        self._put_off: list[tuple[int, Callable[[], None]]] = []  # events for a paused process
        self._drift = 1 + 0.02 * (self.rng.random() - 0.5)  # clocks run at different speeds
        self.links = ReplicaLinks(simulation, self)

    # -------------------------------------------------------------- the process
    def start(self) -> None:
        """Start the process, after a repair if it needs one; retry if that is not possible now."""
        if self.up or self.superseded:
            return
        if self._world.now < self.sim.down_until:
            self._world.later(self.sim.down_until - self._world.now, self.start)
            return
        self.opening = True
        try:
            self._working = True
            patience_s = math.inf if self._tries < COPY_TRIES else 0.0
            SimRestoring(self.sim, self, patience_s).restore()
            self._start()
            return
        except PowerCut:
            self._cut_power()
        except Unexplained as unexplained:
            raise unexplained.error from unexplained
        except (NotNow, Unavailable):
            self._tries += 1
        except (DiskFull, *DISK_TROUBLE) as error:
            will_start = self.up  # it got so far that it crashes, like any running process
            self._judge(error)
            if will_start:
                return
        finally:
            self._working = False
        self.up, self._effects_left = False, None
        self._world.later(START_RETRY_S, self.start)

    @property
    def notes(self) -> Marks:
        """The files that tell the next start what this process knew."""
        return Marks(self.meta)

    @property
    def learner(self) -> bool:
        """Whether it lost its disk or its vote, and is not a full member yet."""
        return self.forgotten or self.meta.exists(LEARNER)

    @property
    def wants_copy(self) -> str:
        """Why it needs the leader's files: BEHIND or DAMAGED; "": it needs none."""
        return self.notes.read(WANTS_COPY) or ""

    @property
    def is_new(self) -> bool:
        """Whether it joined later and has nothing yet."""
        return self.joining and not self.own.number and not has_history(self.disk)

    def want_copy(self, why: str) -> None:
        """As ``RunningReplica.end``: a mark for the next start."""
        working, self._working = self._working, False
        self.notes.write(WANTS_COPY, why)
        self._working, self._tries = working, 0

    def may_crash_while_it_copies(self) -> None:
        """Now and then the power fails in the middle of a copy, before it, or right after it."""
        self._copies += 1
        rng = self._world.stream(f"copying-{self.address}-{self._copies}")
        if not self.sim.calm and rng.random() < CRASHES_WHILE_COPYING["share"]:
            self.crash_at_effect(rng.randrange(rng.choice((4, 40))), True)

    def recover(self, doubtful: bool) -> SimReplica:
        """Open the log and the state, as host/replica_process.py does after the repair. What it asks to be
        called later belongs to this attempt."""
        sim, self.incarnation = self.sim, self.incarnation + 1
        try:
            self.journal = SegmentJournal(
                self.disk, segment_bytes=sim.plan.segment_bytes, cache_bytes=CACHE_BYTES, mendable=True
            )
            keep_last_copies(sim, self)
            self.marks = PeerMarks(self.meta, self.own, must_exist=True)
            self.app: Application = sim.workload.open(
                ReplicaContext(
                    self.name,
                    self.address,
                    self.disk,
                    self.journal,
                    self.rng,
                    self.clock,
                    self.later,
                    self.guarded,
                    doubtful,
                    self.wall_clock,
                )
            )
            check_fit(self.journal, self.app.applied_index)
        except CorruptLog as error:
            self._found_damage(error)
            raise
        return self

    def _found_damage(self, error: CorruptLog) -> None:
        if not self.flipped and not self.spoilt:
            raise Unexplained(error)
        self.sim.happened(f"{self.name} finds damage: {error}")
        self.sim.damage_found += 1

    def close(self) -> None:
        """An opening fails late: the next one opens everything again."""

    def _judge(self, error: Exception) -> None:
        """Record what the error that ended a process means for its next start."""
        corrupt = error.__cause__ if isinstance(error, ApplyFailed) else error
        if isinstance(corrupt, CorruptLog):
            try:
                self._found_damage(corrupt)
            except Unexplained:
                raise error from None
            self.want_copy(DAMAGED)
        elif isinstance(error, ApplyFailed) and not isinstance(corrupt, DiskFailed | FsyncFailed):
            raise error
        else:
            self.sim.disk_failures += not isinstance(error, DiskFull)
        reboot = self.disk.reboot_needed or self._fail_rng.random() < 0.3
        if self.up:
            self.sim.crash(self, reboot, self._fail_rng)
        elif reboot:
            self._cut_power()
        else:
            self._kill()

    def _cut_power(self) -> None:
        self.disk.power_cut()
        self.meta.power_cut()

    def _kill(self) -> None:
        self.disk.kill()
        self.meta.kill()

    def lose_log(self) -> None:
        """From now on this replica knows less than it promised; see replication/raft/rejoin.py."""
        self.forgotten = True
        self.sim.network.silence(self.name)

    def _start(self) -> None:
        sim = self.sim
        self.up, self.began, self.paused_until = True, True, 0.0
        self._effects_left = None
        self._tick_queued = self._wake_queued = self._quiet = False
        self._checked_to = 0  # bounds were checked after this entry was applied
        self.job: SyncJob | None = None
        self.links.inbox.clear()
        self._put_off.clear()
        learner = self.meta.exists(LEARNER)
        if self.forgotten and not learner:
            raise Violation(
                f"{self.name} has lost its disk or its vote, and counts from its start on", "counts-at-once"
            )
        self.node = RaftNode(
            self.name,
            [name for name in (sim.names if self.joining else sim.founders) if name != self.name],
            self.journal,
            self.links,
            self._apply,
            clock=self.clock,
            rng=self.rng,
            config=sim.plan.raft,
            applied_index=self.app.applied_index,
            no_vote_until_caught_up=learner,
            marks=self.marks,
            drop_link=self.links.drop,
            joining=self.joining,
        )
        self.app.attach(self.node)
        self._upkeep = Upkeep(sim, self)
        self.opening, self._tries = False, 0
        sim.happened(f"{self.address} starts with log {self.journal.first_index}..{self.journal.last_index}")
        sim.network.host_up(self.address)
        self._world.later(self.rng.random() * TICK_S, self._regular_tick, self.incarnation)
        self._begin_sync()

    def crash(self, power: bool) -> None:
        """End the process; with ``power``, the machine too: what was not synced may be lost."""
        if not self.up:
            return
        self.up, self.opening, self._effects_left = False, False, None
        note_mended(self.sim, self)
        self.sim.happened(f"{self.address} {'loses power' if power else 'is killed'}")
        if self.job is not None and self._fail_rng.random() < 0.5:
            self.disk.stop_after(self._fail_rng.randrange(4))
            try:
                self.job.run()
            except PowerCut:
                pass
            except (DiskFailed, FsyncFailed):
                power = power or self.disk.reboot_needed
        if power:
            self._cut_power()
        else:
            self._kill()
        self.sim.network.host_down(self.address)

    def lose_disk(self) -> None:
        """The machine is destroyed; an empty one takes its name, as a further incarnation."""
        self.crash(power=True)
        self.own = Incarnation(self.own.number + 1, f"{self.name}-{self.incarnation}")
        self.meta = SimDisk(self._world.stream(f"meta-{self.address}-{self.incarnation}"))
        PeerMarks(self.meta, self.own)
        self.disk = SimDisk(self._world.stream(f"disk-{self.address}-{self.incarnation}"))
        self.forgotten, self.flipped = True, False
        self.spoilt, self.scrubbed = False, ""
        self.sim.network.silence(self.name)
        self.sim.happened(f"{self.name} loses its disk")

    @property
    def members_change(self) -> bool:
        """Whether a change of this group's members was ever requested."""
        return self.sim.operators.begun > 0

    @property
    def hosts(self) -> int:
        """Number of processes that ever were on the network."""
        return len(self.sim.network.hosts)

    def clock(self) -> float:
        """The monotonic clock; it may jump ahead but never back."""
        return self._world.now * self._drift + self.clock_ahead_s

    def wall_clock(self) -> float:
        return WALL_S + self._world.now + self.wall_ahead_s

    def later(self, delay_s: float, fn: Callable[[], None]) -> None:
        """Run ``fn`` after ``delay_s``, unless the process has died by then; a paused one runs it late."""
        self._world.later(delay_s, self._if_alive, self.incarnation, fn)

    def _if_alive(self, incarnation: int, fn: Callable[[], None]) -> None:
        if incarnation != self.incarnation or not self.up:
            return
        if self._world.now < self.paused_until or self._put_off:  # a second pause may end before the first
            self._put_off.append((incarnation, fn))
            if len(self._put_off) == 1:
                self._world.later(self.paused_until - self._world.now + 1e-6, self._go_on)
            return
        self.guarded(fn)

    def _go_on(self) -> None:
        """End the pause, unless it was extended: everything that waited happens now, in order."""
        if self._world.now < self.paused_until:
            self._world.later(self.paused_until - self._world.now + 1e-6, self._go_on)
            return
        waiting, self._put_off = self._put_off, []
        for incarnation, fn in waiting:
            self._if_alive(incarnation, fn)

    def guarded(self, fn: Callable[[], T]) -> T | None:
        """Run ``fn`` as this process. An error that must end the process ends it; the result is then None."""
        try:
            self._working, self._quiet = True, False
            return fn()
        except PowerCut:
            self.sim.crash(self, self._effects_power, self._fail_rng)
        except (Superseded, ToldSuperseded) as error:
            self.superseded_by = error.by if isinstance(error, Superseded) else error.by.number
            self.give_up(str(error))
        except DISK_TROUBLE as error:
            self._judge(error)
        finally:
            self._working = False
        return None

    def give_up(self, why: str) -> None:
        """It was replaced: it never starts again."""
        self.superseded = True
        self.sim.happened(f"{self.address} gives up: {why}")
        self.crash(power=False)

    def crash_at_effect(self, number: int, power: bool) -> None:
        """End the process right before its ``number``-th observable effect from now: a change to the disk
        (each append, sync, rename, ... counts), a message, an applied entry."""
        self._effects_left, self._effects_power = number, power
        self.disk.on_effect = self.meta.on_effect = self.effect

    def effect(self) -> None:
        """Called before each observable effect: the process may be meant to end here."""
        if self._effects_left is None or not self._working:
            return
        if self._effects_left <= 0:  # also for every further effect while the stack unwinds
            if self._effects_left == 0:
                self._effects_left = -1
                self.sim.struck("crash-at-effect", self.name)
            raise PowerCut(f"{self.name} stops in the middle")
        self._effects_left -= 1

    # -------------------------------------------------------------- ticking
    def kick(self) -> None:
        if not self._tick_queued:
            self._tick_queued = True
            self._world.later(STEP_S, self._kicked, self.incarnation)

    def _kicked(self, incarnation: int) -> None:
        """Run the requested tick, unless it would do nothing: nothing has happened to this follower since the
        last tick, and nothing is due.

        Some regular ticks are always run, so that work which is added to a tick later is still done, though
        late, even if it is not listed here.
        """
        if (
            self._quiet
            and incarnation == self.incarnation
            and self.up
            and self._world.now >= self.paused_until
            and not self._put_off
            and not self.journal.holes
            and not self.sim.moments.waiting
            and self.clock() < min(self.node._core.election_deadline, self.app.timer_s())
        ):
            self._tick_queued = False
        else:
            self._if_alive(incarnation, self._tick)

    def _regular_tick(self, incarnation: int) -> None:
        if incarnation != self.incarnation or not self.up:
            return
        if self._world.now < self.paused_until or self._put_off:
            self._if_alive(incarnation, lambda: self._regular_tick(incarnation))
            return
        self._world.later(TICK_S, self._regular_tick, incarnation)
        self._idle_ticks += 1
        if self._idle_ticks >= IDLE_TICKS_MAX:
            self._quiet = False
        self.kick()

    def _tick(self) -> None:
        self._tick_queued = False
        self._idle_ticks = 0
        node = self.node
        self.sim.rooms.look(self)
        node.tick()
        self.app.after_tick(self.wall_clock())
        node.flush()
        self._begin_sync()
        if self.learner and not node.rejoining:
            self.forgotten = False
            self.notes.remove(LEARNER)
        self.ticks += 1
        applied, recount = node.applied_index, self.ticks % RECOUNT_EVERY == 0
        check_bounds(self, CACHE_BYTES, recount=recount, has_applied=applied != self._checked_to)
        self._checked_to = applied
        if self.ticks % WALK_EVERY == 0:
            check_tables(self)
        self.sim.look(self)
        if node.readiness.more_to_apply():
            self.kick()
        delay = node.wake_in_s()
        if delay is not None and not self._wake_queued:
            self._wake_queued = True
            self.later(delay, self._woken_up)
        if self.journal.holes:
            self._upkeep.mend_soon()
        if node.too_far_behind or (self.journal.holes and self._upkeep.lost_next()):
            self.want_copy(BEHIND)
            self.sim.crash(self, False, self._fail_rng)
        self._quiet = not self._tick_queued and node._core.role == FOLLOWER and not node.rejoining

    def in_loop(self, fn: Callable[[], bool]) -> bool:
        self.kick()
        return fn()

    def _woken_up(self) -> None:
        self._wake_queued = False
        self.kick()

    def _apply(self, index: int, term: int, command: bytes) -> Any:
        self.effect()
        result = self.app.apply(index, term, command)
        shown = command or self.journal.members.command(index) or b""
        self.sim.checker.applied(self, index, term, shown, self.app.digest())
        return result

    # -------------------------------------------------------------- disk
    def _begin_sync(self) -> None:
        if self.job is None and (job := self.journal.begin_sync()) is not None:
            self.job = job
            hangs_s, self.disk_hangs_s = self.disk_hangs_s, 0.0
            if hangs_s:
                self.sim.struck("slow-fsync", self.name)
            self.later(hangs_s + self.sim.sync_latency_s(self._sync_rng), lambda: self._synced(job))

        if (removal := self.journal.begin_removal()) is not None:
            self.later(self.sim.sync_latency_s(self._sync_rng), lambda: self._removed(removal))

    def _removed(self, removal: SyncJob) -> None:
        removal.run()
        self.journal.end_removal(removal)
        self.kick()

    def _synced(self, job: SyncJob) -> None:
        job.run()
        self.journal.end_sync(job)
        self.node.readiness.disk_full = job.disk_full
        self.node.after_sync()
        self.sim.look(self)
        if job.disk_full:
            self.later(DISK_FULL_RETRY_S, self._sync_again)
        else:
            self._sync_again()

    def _sync_again(self) -> None:
        self.job = None
        self.kick()
