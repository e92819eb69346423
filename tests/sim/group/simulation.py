"""A whole broker group in one thread: a plan from the seed, faults from the plan, checks at every step.

A schedule is some seconds of chaos (crashes, power cuts, partitions, pauses, full and failing disks,
hand-overs), and then a calm in which every replica is up and the network works. The real ``RaftNode``,
guards, journal and wire format run over ``SimDisk`` and ``SimNetwork``.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from escrowmq.replication.format.membership import Members
from escrowmq.replication.format.segment_format import FILE_HEADER_SIZE
from escrowmq.replication.format.wire import RaftMessage
from escrowmq.replication.raft.node import RaftConfig, RaftNode
from tests.sim.checks.invariants import Checker
from tests.sim.checks.rebuild import check_now_and_then, check_rebuilt
from tests.sim.checks.tables import check_tables
from tests.sim.clients.workload import Application, RawWorkload, Workload
from tests.sim.environment.broken_link import BrokenLink, prove
from tests.sim.environment.disk_space import Rooms
from tests.sim.environment.handshake import meet
from tests.sim.environment.network import SimNetwork, Weather
from tests.sim.environment.world import START_S, Violation, World
from tests.sim.faults.aiming import Aim
from tests.sim.faults.carrying_out import Faults
from tests.sim.faults.damage import (
    a_majority_holds,
    damaged_entries,
    knows_less,
    mendable_entries,
)
from tests.sim.faults.moments import Moments
from tests.sim.faults.plan import Fault, draw_faults
from tests.sim.group import patience
from tests.sim.group.maintenance import note_mended
from tests.sim.group.members import Operators
from tests.sim.group.replica import SimReplica
from tests.sim.group.supervisor import Supervisor
from tests.sim.running.collector import resting_collector
from tests.sim.running.coverage import AnyPhase

SETTLE_S = 4.0


@dataclass(frozen=True, slots=True)
class Plan:
    """The choices of a seed. A failing seed's report prints every field."""

    size: int
    weather: Weather
    raft: RaftConfig
    segment_bytes: int
    sync_mean_s: float
    room: float
    act_every_s: float

    @staticmethod
    def of(seed: int, *, size: int | None = None, kind: str | None = None, group: int | None = None) -> Plan:
        """The plan of a seed. ``group``: one of several groups, each of which has its own plan."""
        rng = random.Random(f"plan-{seed}" if group is None else f"plan-{seed}-{group}")
        batch = rng.choice((120, 400, 4000))
        return Plan(
            size=size or rng.choice((3, 3, 3, 5)),
            weather=Weather(
                kind or rng.choice(("fifo", "fifo", "wild")),
                rng.choice((0.0, 0.0, 0.01, 0.1)),
                rng.choice((0.0, 0.02, 0.1)),
                rng.choice((0.0005, 0.002, 0.01, 0.03)),
            ),
            raft=RaftConfig(
                send_batch_bytes=batch,
                window_bytes=max(4 * batch, 4000),
                apply_chunk=rng.choice((3, 256)),
                proposal_timeout_s=rng.choice((0.5, 10.0)),
                outstanding_bytes_max=rng.choice((2000, 1 << 20)),
            ),
            segment_bytes=rng.choice((1000, 5000, 1 << 20)),
            sync_mean_s=1 / rng.choice((500, 500, 60, 12)),
            room=rng.choice((1.0, 1.0, 0.6)),
            act_every_s=rng.choice((0.01, 0.03, 0.1)),
        )


@dataclass(slots=True)
class Figures:
    """The figures of one schedule."""

    virtual_s: float = 0.0
    events: int = 0
    elections: int = 0
    crashes: int = 0
    acknowledged: int = 0
    repairs: int = 0
    disk_failures: int = 0
    damage_found: int = 0
    mended: int = 0
    wipes: int = 0
    trace: str = ""


@dataclass
class Simulation:
    """One schedule. ``run`` returns its figures or raises Violation.

    ``faults``: what strikes (None: all that the seed draws); a subset makes a smaller schedule.
    ``actions_max``: how often clients act during the chaos (None: as often as time allows).
    """

    seed: int
    plan: Plan
    workload: Workload = field(default_factory=RawWorkload)
    chaos_s: float = 10.0
    trace: bool = False
    faults: list[Fault] | None = None
    actions_max: int | None = None
    #: With several groups (tests/sim/across): prefix of the names of this group's replicas and streams.
    prefix: str = ""
    shared: World | None = None

    def __post_init__(self) -> None:
        self.world = self.shared or World(self.seed)
        self.rng = self.world.stream(f"clients{self.prefix}")  # used by nothing else
        if self.faults is None:
            self.faults = draw_faults(self.seed, self.chaos_s)
        #: The faults that struck, with the time of their effect (see ``struck``).
        self.fault_log: list[tuple[float, str, str]] = []
        self.actions = 0
        self.names = [f"{self.prefix}r{n}" for n in range(self.plan.size)]
        self.founders = tuple(self.names)
        self.checker, self.moments, self.aim = Checker(), Moments(self), Aim(self)
        self.network = SimNetwork(self.world, self.plan.weather)
        self.replicas = [SimReplica(self, name) for name in self.names]
        self.network.hosts.update((r.name, r) for r in self.replicas)
        self.network.meet = meet
        #: Processes whose replica was replaced and which may live on.
        self.ghosts: list[SimReplica] = []
        self.supervisor = Supervisor(self)
        self.operators = Operators(self)
        self.rooms = Rooms(self)
        self.broken = BrokenLink(self)
        #: Makes an operator delete a topic now, to create it again; returns whether one does. Workloads with
        #: such a topic set it.
        self.recreate: Callable[[], bool] = lambda: False
        #: Replicas that were removed from the group; their processes may live on.
        self.retired: list[SimReplica] = []
        self.crashes = self.repairs = self.disk_failures = self.damage_found = self.wipes = 0
        self.down_until = 0.0  # no replica starts before this time
        self.mended = 0
        self.mended_checked = False  # set at the end: all damage that can be mended is mended
        self._calm_at = START_S + self.chaos_s
        self._hash = hashlib.sha1() if self.trace else None

    # -------------------------------------------------------------- the schedule
    def run(self) -> Figures:
        with resting_collector():
            self._run()
        return self.figures()

    def _run(self) -> None:
        world = self.world
        self.boot()
        world.later(0.5, self.act)
        faults = Faults(self)
        for fault in self.faults or ():
            world.later(fault.at_s, faults.strike, fault)
        check_now_and_then(self)
        world.later(self.chaos_s, self.calm_down)
        world.later(self.chaos_s + 1.5, self.calm_down)
        world.later(self.chaos_s + 2.0, self.act)
        world.run(self._calm_at)
        before = len(self.checker.acknowledged)
        world.run(self._calm_at + SETTLE_S)
        prove([self.broken], [before], self._touch)
        missing = self.prove_alive(len(self.checker.acknowledged))
        self.check_started()
        self.check_end(missing)
        self.workload.check_end([r.app for r in self.replicas])
        for replica in self.replicas:
            check_rebuilt(self, replica)
            check_tables(replica)

    def boot(self) -> None:
        """Start all replicas within a short time."""
        for replica in self.replicas:
            self.world.later(replica.rng.random() * 0.1, replica.start)

    def check_end(self, missing: Sequence[str]) -> None:
        """Check the end: there was time to re-read everything, to repair damage, and to continue."""
        for replica in self.replicas:
            if replica.up:
                note_mended(self, replica)
                left = mendable_entries(self, replica)
                if left:
                    raise Violation(f"still damaged on {replica.name} after the calm: {left}", "unmended")
                replica.flipped = bool(damaged_entries(replica))  # which retention removed elsewhere
        self.mended_checked = True
        self.checker.end(
            list(self.replicas), missing, lambda: a_majority_holds(self, self.checker.acknowledged)
        )

    def check_started(self) -> None:
        """A successor waits for a leader to copy from, forever if the group has lost its majority."""
        waiting = [replica.address for replica in self.replicas if not replica.began]
        if waiting:
            raise Violation(f"{', '.join(waiting)} never started", "stuck")

    def prove_alive(self, before: int) -> list[str]:
        """Let time pass until an entry is acknowledged after the calm and all replicas agree.

        Returns what the group still lacks after some time; nothing if it is well.
        """
        world = self.world
        for _ in patience.steps([self]):
            self._touch()
            world.run(world.now + patience.STEP_S)
            if not (missing := self.missing(before)):
                break
        return missing

    def _touch(self) -> None:
        """Clients act, and every replica looks what there is to do."""
        self.workload.act(self)
        for replica in self.replicas:
            if replica.up:
                replica.kick()

    def missing(self, before: int) -> list[str]:
        """What the group still lacks. ``before``: number of entries acknowledged when the faults ended."""
        missing = [f"{r.name} is down" for r in self.replicas if not r.up]
        up = [r for r in self.replicas if r.up]
        missing += [f"{r.name} is still learning" for r in up if r.node.rejoining]
        missing += [f"{r.name} is still damaged" for r in up if r.flipped and mendable_entries(self, r)]
        positions = {r.name: r.node.applied_index for r in up}
        if len(set(positions.values())) > 1:
            missing.append(f"the replicas have applied differently far: {positions}")
        if len(self.checker.acknowledged) <= before:
            missing.append("nothing was acknowledged")
        return missing + self.operators.missing()

    def figures(self) -> Figures:
        return Figures(
            self.world.now - START_S,
            self.world.events,
            self.checker.elections,
            self.crashes,
            len(self.checker.acknowledged),
            self.repairs,
            self.disk_failures,
            self.damage_found,
            self.mended,
            self.wipes,
            self._hash.hexdigest() if self._hash is not None else "",
        )

    @property
    def calm(self) -> bool:
        return self.world.now >= self._calm_at

    def act(self) -> None:
        if not self.calm:
            if self.actions_max is not None and self.actions >= self.actions_max:
                return
            self.actions += 1
            self.world.later(self.rng.expovariate(1 / self.plan.act_every_s), self.act)
        self._touch()

    def calm_down(self) -> None:
        """End the faults: the network works, disks have room, every replica starts."""
        self.down_until = 0.0
        self.network.heal()
        self.broken.healed()
        for replica in (*self.replicas, *self.ghosts, *self.retired):
            replica.disk.capacity = None
            replica.start()
        # A process that is killed between writing a mended entry and syncing it leaves a dirty page. Its
        # successor reads a sound entry, has nothing to do, and the kernel writes the page.
        for replica in self.replicas:
            replica.disk.write_back()

    # -------------------------------------------------------------- what the parts ask
    def replica_at(self, address: str) -> SimReplica:
        host = self.network.hosts[address]
        assert isinstance(host, SimReplica)
        return host

    def add(self, replica: SimReplica, again: bool = False) -> None:
        """Add a replica that should become a member. ``again``: its name was used before."""
        if again:
            self.network.add(replica.address, replica)
        else:
            self.network.hosts[replica.address] = replica
        self.replicas.append(replica)
        self.names.append(replica.name)

    def leaves_a_majority(self, victim: SimReplica) -> bool:
        """Whether each configuration that may be in force keeps a majority that knows what it promised, even
        if ``victim`` forgets it. (If members never change, other code ensures this.)"""
        if not self.operators.begun:
            return True
        lost = {r.name for r in self.replicas if knows_less(r) or r is victim}
        return all(
            2 * len(lost.intersection(members.voters)) < len(members.voters)
            for members in self.configurations()
        )

    def configurations(self) -> list[Members]:
        """Each configuration that may be in force, by any replica's log."""
        return [
            members
            for replica in (*self.replicas, *self.retired)
            if replica.began
            for members in replica.journal.members.since(replica.node.applied_index)
            if members.voters
        ]

    def retire(self, replica: SimReplica) -> None:
        """Retire a replica that is no longer a member."""
        self.replicas.remove(replica)
        self.names.remove(replica.name)
        self.retired.append(replica)

    def leaders(self) -> Sequence[tuple[RaftNode, Application]]:
        return [
            (r.node, r.app)
            for r in (*self.replicas, *self.ghosts, *self.retired)
            if r.up and r.node.is_leader and self.world.now >= r.paused_until
        ]

    def acknowledged(self, index: int, term: int, command: bytes) -> None:
        self.checker.acknowledge([*self.replicas, *self.retired], index, term)

    def sync_latency_s(self, rng: random.Random) -> float:
        if self.calm:
            return 0.001
        stall = rng.random() * 0.4 if rng.random() < 0.03 else 0.0
        return rng.expovariate(1 / self.plan.sync_mean_s) + stall

    def look(self, replica: SimReplica) -> None:
        """After every step of a replica."""
        if self.ghosts and replica in self.ghosts:
            self.supervisor.look_at_ghost(replica)
            return
        self.checker.look(replica)
        self.moments.look(replica)

    def happened(self, text: str) -> None:
        """Record a fault or a start, for readers of the trace."""

    def phase(self, phase: AnyPhase) -> None:
        """A transaction enters this phase."""
        self.aim.entered(phase)

    def struck(self, kind: str, victim: str) -> None:
        """Log that a fault of this kind takes effect on ``victim`` now."""
        self.fault_log.append((self.world.elapsed_s, kind, victim))
        self.happened(f"{kind} strikes {victim}")

    def crash(self, replica: SimReplica, power: bool, rng: random.Random) -> None:
        self.crashes += 1
        replica.crash(power)
        self.world.later(rng.choice((0.02, 0.3, 1.0)) * (0.5 + rng.random()), replica.start)

    def roll(self, replica: SimReplica, duration_s: float = 0.0) -> None:
        """Start a new segment with the next entry, and with every entry for ``duration_s``."""
        journal = replica.journal
        journal._segment_bytes = FILE_HEADER_SIZE + 1
        replica.later(duration_s + 0.02, lambda: setattr(journal, "_segment_bytes", self.plan.segment_bytes))

    def traced(self, receiver: str, sender: str, message: RaftMessage) -> None:
        if self._hash is not None:
            seen = (round(self.world.now, 6), receiver, sender, message["type"], message.get("term"))
            self._hash.update(repr(seen).encode())
