"""Several broker groups in one virtual time, with faults on one or all of them and one set of clients.

A schedule is chaos and then calm, as with one group. Each group is checked separately at every step, and the
clients' history over all groups.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial
from unittest import mock

from escrowmq.replication.calling.answers import LevelReport
from escrowmq.replication.replica import replica as product
from escrowmq.replication.replica.replica import Replica
from escrowmq.replication.state import machine, snapshot
from escrowmq.replication.state.machine import LEVEL_MAX
from tests.sim.across.changing import BrokerOperators
from tests.sim.across.scene import Scene
from tests.sim.across.workload import AcrossWorkload, GroupWorkload
from tests.sim.checks.rebuild import check_now_and_then, check_rebuilt
from tests.sim.checks.tables import check_tables
from tests.sim.environment.broken_link import prove
from tests.sim.environment.world import START_S, World
from tests.sim.faults.carrying_out import Faults
from tests.sim.faults.plan import EVERY, Fault, draw_faults
from tests.sim.group import patience
from tests.sim.group.broker_app import BrokerApplication, number_of
from tests.sim.group.replica import SimReplica
from tests.sim.group.simulation import SETTLE_S, Figures, Plan, Simulation
from tests.sim.running.collector import resting_collector

GONE_S = (0.5, 2.0, 5.0)  # approximate time for which a whole group is without a leader
LEVEL_EVERY_S = 0.1  # time between two requests for format levels
UPGRADE_S = 0.4  # time between the upgrades of two replicas of a group
#: The level of the software that replicas get in some of the worlds. It has nothing new but its number.
NEXT_LEVEL = LEVEL_MAX + 1


def _broker(replica: SimReplica) -> Replica:
    assert isinstance(replica.app, BrokerApplication)
    return replica.app.replica


@contextmanager
def newer_software(of_some: bool) -> Iterator[None]:
    """With ``of_some`` this software also reads the log of the next level; ``ManyGroups._known`` says which
    replicas say so."""
    newest = NEXT_LEVEL if of_some else LEVEL_MAX
    with mock.patch.object(machine, "LEVEL_MAX", newest), mock.patch.object(snapshot, "LEVEL_MAX", newest):
        yield


class Part(Simulation):
    """One of the groups. Its clients belong to the whole world."""

    def __init__(self, many: ManyGroups, gid: int) -> None:
        self.many, self.gid = many, gid
        plan = Plan.of(many.seed, size=many.scene.size, kind=many.kind, group=gid)
        super().__init__(
            many.seed,
            replace(plan, act_every_s=many.scene.act_every_s),
            workload=GroupWorkload(many.workload, gid, many.scene.groups),
            chaos_s=many.chaos_s,
            faults=[],
            prefix=f"g{gid}",
            shared=many.world,
        )
        self.fault_log, self._hash = many.fault_log, many.hash
        self.clients_cut = 0  # faults that keep clients from this group
        self.operators = BrokerOperators(self)
        self.faults_of_one = Faults(self)
        self._kinds: dict[str, Callable[[random.Random], bool]] = {
            "group-down": self._down,
            "group-cut": self._cut_all,
            "clients-cut": self._cut_clients,
        }

    @property
    def copies_over(self) -> bool:
        """Whether the end is being judged, when nothing may change any more."""
        return self.many.judging

    def happened(self, text: str) -> None:
        self.many.happened(text)

    def numbered(self, number: int) -> SimReplica | None:
        """The process that has this replica's name now; for a removed replica, as long as it lives on."""
        here = (*self.replicas, *reversed(self.retired))
        return next((replica for replica in here if number_of(replica.name) == number), None)

    # -------------------------------------------------------------- faults of a whole group

    def strike(self, fault: Fault) -> None:
        """Carry out one fault here."""
        if fault.kind not in self._kinds:
            self.faults_of_one.strike(fault)
        elif not self.calm and not self.aim.hold(fault, partial(self._strike_all, fault)):
            self._strike_all(fault)

    def _strike_all(self, fault: Fault) -> bool:
        """Carry out a fault of the whole group; returns whether it hit anything."""
        if self.calm or not self._kinds[fault.kind](random.Random(fault.seed)):
            return False
        self.struck(fault.kind, self.prefix)
        return True

    def _down(self, rng: random.Random) -> bool:
        """All replicas end, and none starts for a while."""
        self.down_until = self.world.now + rng.choice(GONE_S) * (0.5 + rng.random())
        up = [replica for replica in self.replicas if replica.up]
        power = rng.random() < 0.5
        for replica in up:
            self.crash(replica, power, rng)
        return bool(up)

    def _cut_all(self, rng: random.Random) -> bool:
        """Cut all links between replicas: no leader can be elected, and nothing can be committed."""
        links = [(a, b) for a in self.names for b in self.names if a != b]
        met = self.network.block(links)
        self.world.later(rng.choice(GONE_S) * (0.5 + rng.random()), self.network.unblock, links)
        return met

    def _cut_clients(self, rng: random.Random) -> bool:
        """Cut the group off from all clients."""
        self.clients_cut += 1
        self.world.later(rng.choice(GONE_S) * (0.5 + rng.random()), self._let_clients)
        return True

    def _let_clients(self) -> None:
        self.clients_cut -= 1


class ManyGroups:
    """One schedule over several groups. ``run`` returns its figures or raises Violation."""

    part_class: type[Part] = Part

    def __init__(
        self,
        seed: int,
        scene: Scene,
        *,
        kind: str | None = None,
        chaos_s: float = 10.0,
        trace: bool = False,
        faults: Sequence[Fault] | None = None,
        actions_max: int | None = None,
    ) -> None:
        self.seed, self.scene, self.kind, self.chaos_s = seed, scene, kind, chaos_s
        self.actions_max, self.actions, self.judging = actions_max, 0, False
        self.faults = draw_faults(seed, chaos_s, scene.groups) if faults is None else faults
        self.world = World(seed)
        self.rng = self.world.stream("clients")
        self.fault_log: list[tuple[float, str, str]] = []
        self.upgraded: set[str] = set()  # replicas that have the newest software
        self._upgrades = self.world.stream("upgrades")
        self.hash = hashlib.sha1() if trace else None
        self.workload = AcrossWorkload(scene)
        self.parts = [self.part_class(self, gid) for gid in range(scene.groups)]
        self._calm_at = START_S + chaos_s

    @property
    def calm(self) -> bool:
        return self.world.now >= self._calm_at

    def happened(self, text: str) -> None:
        """Record a fault or a start, for readers of the trace."""

    def struck(self, kind: str, victim: str) -> None:
        self.fault_log.append((self.world.elapsed_s, kind, victim))
        self.happened(f"{kind} strikes {victim}")

    # -------------------------------------------------------------- the schedule

    def run(self) -> Figures:
        try:
            with resting_collector(), newer_software(self.scene.rises_at_s is not None):
                self._run()
        finally:
            self.workload.close()
        return self.figures()

    def _run(self) -> None:
        world = self.world
        self.workload.begin(self)
        for part in self.parts:
            part.boot()
            check_now_and_then(part)
            world.later(self.chaos_s, part.calm_down)
            world.later(self.chaos_s + 1.5, part.calm_down)
        world.later(0.5, self._act)
        if self.scene.rises_at_s is not None:
            self._begin_upgrade(self.scene.rises_at_s)
        for fault in self.faults:
            world.later(fault.at_s, self._strike, fault)
        world.later(self.chaos_s + 2.0, self._act)
        world.run(self._calm_at)
        before = [len(part.checker.acknowledged) for part in self.parts]
        world.run(self._calm_at + SETTLE_S)
        prove([part.broken for part in self.parts], before, self._touch)
        missing = self.prove_alive([len(part.checker.acknowledged) for part in self.parts])
        for part in self.parts:
            part.check_started()
            part.check_end(missing[part.gid])
        self.workload.check_end()
        for part in self.parts:
            for replica in part.replicas:
                check_rebuilt(part, replica)
                check_tables(replica)

    def _strike(self, fault: Fault) -> None:
        if self.workload.transformers.waits:
            return
        for part in self.parts:
            if fault.gid in (part.gid, EVERY):
                part.strike(replace(fault, seed=fault.seed + part.gid))

    def _begin_upgrade(self, at_s: float) -> None:
        """Restart every replica with the newest software, one after the other in each group."""
        for part in self.parts:
            for number, name in enumerate(part.founders):
                self.world.later(at_s + number * UPGRADE_S, self._upgrade, part, name)
        self.world.later(at_s, self._raise_levels)

    def _upgrade(self, part: Part, name: str) -> None:
        self.upgraded.add(name)
        replica = next((replica for replica in part.replicas if replica.name == name), None)
        if replica is not None and not self.calm:
            part.crash(replica, False, self._upgrades)

    def _known(self, name: str) -> int:
        """The newest level of a replica's software; replicas that joined later have the newest of all."""
        old = number_of(name) < self.scene.size and name not in self.upgraded
        return LEVEL_MAX if old else NEXT_LEVEL

    def _raise_levels(self) -> None:
        """The work of each leader's background thread: ask all replicas of all groups; propose a level."""
        now, found = self.world.now, dict[tuple[int, int], LevelReport | None]()
        for part in self.parts:
            for number, replica in enumerate(part.replicas):
                there = replica.up and now >= replica.paused_until and not part.clients_cut
                known = self._known(replica.name)
                level = LevelReport(known, _broker(replica).state.level) if there else None
                found[part.gid, number] = level
        reports = list(found.values())
        if all(report is not None and report.applied == NEXT_LEVEL for report in reports):
            return
        self.world.later(LEVEL_EVERY_S, self._raise_levels)
        for part in self.parts:
            for replica in part.replicas:
                if replica.up and replica.node.ready and now >= replica.paused_until:
                    ahead = product.ahead_of(part.gid, found)
                    replica.guarded(partial(_broker(replica).raise_level, reports, ahead))
                    replica.kick()

    def _act(self) -> None:
        if not self.calm:
            if self.actions_max is not None and self.actions >= self.actions_max:
                return
            self.actions += 1
            self.world.later(self.rng.expovariate(1 / self.scene.act_every_s), self._act)
        self.workload.act()

    def prove_alive(self, before: Sequence[int]) -> list[list[str]]:
        """What each group still lacks after some time of calm; nothing if it is well."""
        for _ in patience.steps(self.parts):
            self._touch()
            self.world.run(self.world.now + patience.STEP_S)
            missing = [part.missing(n) for part, n in zip(self.parts, before, strict=True)]
            if not any(missing):
                break
        return missing

    def _touch(self) -> None:
        self.workload.act()
        for part in self.parts:
            for replica in part.replicas:
                if replica.up:
                    replica.kick()

    def figures(self) -> Figures:
        """The figures of all groups together; time is counted once."""
        sums = Figures()
        for part in self.parts:
            of_one = part.figures()
            for item in fields(Figures):
                if item.name != "trace":
                    setattr(sums, item.name, getattr(sums, item.name) + getattr(of_one, item.name))
        sums.virtual_s, sums.events = self.world.now - START_S, self.world.events
        sums.trace = self.hash.hexdigest() if self.hash is not None else ""
        return sums
