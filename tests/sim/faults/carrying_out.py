"""Carries out the faults of the plan in a simulation, one after another."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tests.sim.faults.damage import (
    flip_in_log,
    flip_in_state,
    flip_in_vote,
    knows_less,
    others_have_all,
    tear_log,
    tear_state,
)
from tests.sim.faults.moments import AMBUSHES
from tests.sim.faults.plan import CHANGE, LONE_LEADER, RECREATED, SCARCE, Fault
from tests.sim.group.supervisor import GHOST

if TYPE_CHECKING:
    from tests.sim.clients.workload import Application, Cluster
    from tests.sim.environment.network import Link
    from tests.sim.group.replica import SimReplica
    from tests.sim.group.simulation import Simulation


#: How far a leader's clock jumps.
AHEAD_S = (1.0, 60.0, 3600.0, 2e5)
#: Operations whose next call fails with an armed EIO; ``write_at`` is used by the vote file.
EIO_OPERATIONS = ("append", "read", "sync_dir", "write_at", "rename", "remove")
#: These are only set up, and are logged when they strike: later, more than once, or never. (A leader that is
#: left alone is itself a part of another fault.)
STRIKE_LATER = frozenset(
    (
        GHOST,
        RECREATED,
        LONE_LEADER,
        "disk-full",
        "eio",
        "failed-fsync",
        "slow-fsync",
        "crash-at-effect",
        *AMBUSHES,
    )
)


def fill_disk(sim: Cluster, victim: SimReplica, rng: random.Random) -> None:
    """Leave a replica hardly any room for up to a second. Logged once, however often writing is retried."""

    def was_full() -> None:
        victim.disk.on_full = lambda: None
        sim.struck("disk-full", victim.name)

    def make_room() -> None:
        victim.disk.capacity = None

    victim.disk.capacity = victim.disk.used_bytes() + rng.choice((0, 100, 2000))
    victim.disk.on_full = was_full
    sim.world.later(rng.random(), make_room)


class Faults:
    """Carries out faults in the running simulation. Each fault has a separate random stream."""

    def __init__(self, simulation: Simulation) -> None:
        self._sim = simulation
        self._kinds: dict[str, Callable[[random.Random], str]] = {
            "kill": lambda rng: self._crash(rng, power=False),
            "power-cut": lambda rng: self._crash(rng, power=True),
            "cut-link": self._cut,
            "partition": self._partition,
            "pause": self._pause,
            "disk-full": self._fill_disk,
            "eio": self._fail_disk,
            "failed-fsync": self._fail_sync,
            "slow-fsync": self._hang_disk,
            "hand-over": self._hand_over,
            "crash-at-effect": self._crash_at_effect,
            "storm": self._storm,
            "clock-wall": self._jump_wall,
            "clock-ahead": self._jump_ahead,
            "leader-ahead": self._jump_leaders,
            "flip-log": self._flip_log,
            "flip-state": lambda rng: self._flip(rng, flip_in_state),
            "flip-vote": lambda rng: self._flip(rng, flip_in_vote),
            "torn-file": self._tear,
            "roll": self._roll,
            "snapshot": lambda rng: self._ask_all(rng, lambda app: app.want_checkpoint()),
            "retention": lambda rng: self._ask_all(rng, lambda app: app.want_retention()),
            "empty-disk": self._lose_disk,
            GHOST: simulation.supervisor.lose_sight,
            CHANGE: simulation.operators.begin,
            SCARCE: simulation.rooms.hover,
            LONE_LEADER: self._leave_alone,
            RECREATED: lambda rng: "operators" if simulation.recreate() else "",
        }
        self._kinds.update({moment: partial(simulation.moments.lay, moment) for moment in AMBUSHES})

    def strike(self, fault: Fault) -> None:
        """Carry out one fault, or set it up; a fault that hits nothing is not logged."""
        if not self._sim.calm and not self._sim.aim.hold(fault, partial(self._strike, fault)):
            self._strike(fault)

    def _strike(self, fault: Fault) -> bool:
        """Carry out the fault; returns whether it hit anything."""
        sim = self._sim
        if sim.calm:
            return False
        victim = self._kinds[fault.kind](random.Random(fault.seed))
        sim.happened(f"fault {fault.number}: {fault.kind} {victim or '(no victim)'}")
        if victim and fault.kind not in STRIKE_LATER:
            sim.struck(fault.kind, victim)
        return bool(victim)

    # -------------------------------------------------------------- processes and machines
    def _victim(self, rng: random.Random) -> SimReplica:
        """Choose a replica: leaders more often than followers."""
        leading = [r for r in self._sim.replicas if r.up and r.node.is_leader]
        wanted, any_one = rng.random() < 0.6, rng.choice(self._sim.replicas)
        return rng.choice(leading) if leading and wanted else any_one

    def _crash(self, rng: random.Random, power: bool) -> str:
        """Crash one replica or, sometimes, several at the same moment."""
        victims = [self._victim(rng)]
        if rng.random() < 0.15:
            victims = [r for r in self._sim.replicas if rng.random() < 0.7]
        victims = [victim for victim in victims if victim.up]
        for victim in victims:
            self._sim.crash(victim, power, rng)
        return "+".join(victim.name for victim in victims)

    def _crash_at_effect(self, rng: random.Random) -> str:
        """Crash one or more replicas in the middle of a tick, a delivery or a sync."""
        chosen = [self._victim(rng)]
        if rng.random() < 0.2:
            chosen = [r for r in self._sim.replicas if rng.random() < 0.7]
        for victim in (victims := [v for v in chosen if v.up]):
            victim.crash_at_effect(rng.randrange(rng.choice((4, 40))), rng.random() < 0.7)
        return "+".join(victim.name for victim in victims)

    def _jump_wall(self, rng: random.Random) -> str:
        """Set the wall clock forwards or backwards, by a moment or by days.

        The jump is less than the topics' retention: a leader whose clock is that far ahead rightly removes
        messages.
        """
        victim = self._victim(rng)
        victim.wall_ahead_s = rng.choice((-1, 1)) * rng.choice((0.05, 2.0, 3600.0, 2e5)) * rng.random()
        return victim.name

    def _jump_ahead(self, rng: random.Random) -> str:
        """A virtual machine was halted: when it resumes, its monotonic clock has jumped."""
        victim = self._victim(rng)
        victim.clock_ahead_s += rng.choice((0.1, 1.0, 30.0)) * rng.random()
        return victim.name if victim.up else ""  # a jump while it is down has no effect

    def _jump_leaders(self, rng: random.Random) -> str:
        """The leader's wall clock jumps ahead, by moments or by days, and stays there."""
        leading = [r for r in self._sim.replicas if r.up and r.node.is_leader]
        for victim in leading:
            victim.wall_ahead_s += rng.choice(AHEAD_S) * rng.random()
        return "+".join(victim.name for victim in leading)

    # -------------------------------------------------------------- segments, checkpoints, retention, pauses
    def _roll(self, rng: random.Random) -> str:
        """For a moment, start a new segment after each entry."""
        victim = self._victim(rng)
        if not victim.up:
            return ""
        self._sim.roll(victim, rng.choice((0.0, 0.05)))
        return victim.name

    def _ask_all(self, rng: random.Random, ask: Callable[[Application], None]) -> str:
        asked = [r for r in self._sim.replicas if r.up and rng.random() < 0.7]
        for replica in asked:
            replica.guarded(functools.partial(ask, replica.app))
        return "+".join(replica.name for replica in asked)

    def _pause(self, rng: random.Random) -> str:
        victim = self._victim(rng)
        if not victim.up:
            return ""
        victim.paused_until = self._sim.world.now + rng.random() * rng.choice((0.1, 1.0))
        return victim.name

    def _hand_over(self, rng: random.Random) -> str:
        victim = self._victim(rng)
        if not victim.up:
            return ""
        begins = victim.node.is_leader and not victim.node.transferring
        victim.node.transfer_leadership()
        victim.kick()
        return victim.name if begins else ""

    # -------------------------------------------------------------- disks
    def _fill_disk(self, rng: random.Random) -> str:
        victim = self._victim(rng)
        fill_disk(self._sim, victim, rng)
        return victim.name

    def _fail_disk(self, rng: random.Random) -> str:
        victim = self._victim(rng)
        if not victim.up:
            return ""
        victim.disk.fail_next(rng.choice(EIO_OPERATIONS), partial(self._sim.struck, "eio", victim.name))
        return victim.name

    def _fail_sync(self, rng: random.Random) -> str:
        """A sync fails. If the machine stays up, the next process may see bytes the disk lacks (disk.py)."""
        victim = self._victim(rng)
        if not victim.up:
            return ""
        victim.disk.fail_next("sync", partial(self._sim.struck, "failed-fsync", victim.name))
        return victim.name

    def _hang_disk(self, rng: random.Random) -> str:
        """The next sync takes seconds: as long as a transfer of leadership, or longer."""
        victim = self._victim(rng)
        victim.disk_hangs_s = rng.choice((1.0, 4.0))
        return victim.name

    def _lose_disk(self, rng: random.Random) -> str:
        """Lose a disk, a minority at a time, since no group survives two lost disks of three.

        The disk must not have the only sound copy of an entry that is damaged elsewhere.
        """
        sim, victim = self._sim, self._victim(rng)
        if not self._minority_with(victim) or not others_have_all(sim, victim):
            return ""
        sim.wipes += 1
        victim.lose_disk()
        sim.world.later(rng.random(), victim.start)
        return victim.name

    def _flip(self, rng: random.Random, flip: Callable[[SimReplica, random.Random], bool]) -> str:
        """Flip a bit (see damage.py), on a minority at a time. The replica may have to copy or to learn."""
        victim = self._victim(rng)
        if not victim.up or not self._minority_with(victim) or not others_have_all(self._sim, victim):
            return ""
        if not flip(victim, rng):
            return ""
        victim.spoilt = True
        return victim.name

    def _flip_log(self, rng: random.Random) -> str:
        """Flip bits in the logs of any replicas in turn, at different places and at the same places."""
        struck = []
        for _ in range(rng.choice((1, 1, 2, 5))):
            victim = self._victim(rng)
            if victim.up and not victim.learner and flip_in_log(self._sim, victim, rng):
                victim.flipped = True
                struck.append(victim.name)
        return "+".join(struck)

    def _tear(self, rng: random.Random) -> str:
        """Part of a file reads as zeros, or its end is missing; in a log only what other replicas have."""
        if rng.random() < 0.5:
            return self._flip(rng, tear_state)
        victim = self._victim(rng)
        if not victim.up or victim.learner or not tear_log(self._sim, victim, rng):
            return ""
        victim.flipped = True
        return victim.name

    def _minority_with(self, victim: SimReplica) -> bool:
        """Whether only a minority would have lost what it knew, or its state, if ``victim`` lost its too."""
        lost = sum(knows_less(r) or r is victim for r in self._sim.replicas)
        return 2 * lost < len(self._sim.replicas) and self._sim.leaves_a_majority(victim)

    # -------------------------------------------------------------- network
    def _storm(self, rng: random.Random) -> str:
        """Seconds of latency on all links; in the wild network also losses, and copies of old messages."""
        self._sim.network.storm(rng.random() * rng.choice((0.5, 2.0)), rng.choice((0.05, 0.5, 3.0)))
        return "network"

    def _cut(self, rng: random.Random) -> str:
        if len(self._sim.names) < 2:  # possible where members change
            return ""
        a, b = rng.sample(self._sim.names, 2)
        return f"{a}-{b}" if self._sim.network.cut(a, b) else ""

    def _partition(self, rng: random.Random) -> str:
        """Cut off one replica, or a minority from the majority, or one direction of one link."""
        names, one = self._sim.names, self._victim(rng).name
        if len(names) < 2:
            return ""
        kind = rng.random()
        links: list[Link]
        if kind < 0.4:
            other = rng.choice([name for name in names if name != one])
            links = [rng.choice(((one, other), (other, one)))]
            where = "->".join(links[0])
        else:
            side = {one}
            if len(names) > 3 and kind < 0.7:
                side.add(rng.choice([name for name in names if name != one]))
            links = [(a, b) for a in names for b in names if a != b and (a in side) != (b in side)]
            where = "+".join(sorted(side))
        met = self._sim.network.block(links)
        duration = rng.choice((0.1, 0.7, 1.5)) * (0.5 + rng.random())
        self._sim.world.later(duration, self._sim.network.unblock, links)
        return where if met else ""

    def _leave_alone(self, rng: random.Random) -> str:
        """Cut a leader off from all other replicas for about as long as these need to elect another one."""
        leading = [r.name for r in self._sim.replicas if r.up and r.node.is_leader]
        if not leading:
            return ""
        one = rng.choice(leading)
        links = [link for name in self._sim.names if name != one for link in ((one, name), (name, one))]
        self._sim.network.block(links)
        self._sim.world.later(rng.choice((0.7, 1.5)) * (0.5 + rng.random()), self._sim.network.unblock, links)
        return one
