"""What goes wrong in a simulation: carries out the faults of the plan, one after the other."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tests.sim.faultplan import Fault
from tests.sim.moments import AMBUSHES

if TYPE_CHECKING:
    from tests.sim.network import Link
    from tests.sim.replica import SimReplica
    from tests.sim.simulation import Simulation


class Faults:
    """Strikes at the running simulation. Each fault draws from a stream of its own."""

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
            "empty-disk": self._lose_disk,
        } | {moment: partial(simulation.moments.lay, moment) for moment in AMBUSHES}

    def strike(self, fault: Fault) -> None:
        """Carry out one fault, and log it with its victim ("" if it met nothing that it could harm)."""
        sim = self._sim
        if sim.calm:
            return
        victim = self._kinds[fault.kind](random.Random(fault.seed))
        sim.fault_log.append((sim.world.elapsed_s, fault.kind, victim))
        sim.happened(f"fault {fault.number}: {fault.kind} {victim or '(no victim)'}")

    # -------------------------------------------------------------- processes and machines
    def _victim(self, rng: random.Random) -> SimReplica:
        """Leaders more often than followers."""
        leading = [r for r in self._sim.replicas if r.up and r.node.is_leader]
        wanted, any_one = rng.random() < 0.6, rng.choice(self._sim.replicas)
        return rng.choice(leading) if leading and wanted else any_one

    def _crash(self, rng: random.Random, power: bool) -> str:
        """One replica, and now and then any subset of them at the same moment."""
        victims = [self._victim(rng)]
        if rng.random() < 0.15:
            victims = [r for r in self._sim.replicas if rng.random() < 0.7]
        victims = [victim for victim in victims if victim.up]
        for victim in victims:
            self._sim.crash(victim, power, rng)
        return "+".join(victim.name for victim in victims)

    def _pause(self, rng: random.Random) -> str:
        victim = self._victim(rng)
        victim.paused_until = self._sim.world.now + rng.random() * rng.choice((0.1, 1.0))
        return victim.name

    def _hand_over(self, rng: random.Random) -> str:
        victim = self._victim(rng)
        if not victim.up:
            return ""
        victim.node.transfer_leadership()
        victim.kick()
        return victim.name

    # -------------------------------------------------------------- disks
    def _fill_disk(self, rng: random.Random) -> str:
        victim = self._victim(rng)
        victim.disk.capacity = victim.disk.used_bytes() + rng.choice((0, 100, 2000))
        self._sim.world.later(rng.random(), self._make_room, victim)
        return victim.name

    def _make_room(self, victim: SimReplica) -> None:
        victim.disk.capacity = None

    def _fail_disk(self, rng: random.Random) -> str:
        victim = self._victim(rng)
        if not victim.up:
            return ""
        victim.disk.fail_next("append")
        return victim.name

    def _fail_sync(self, rng: random.Random) -> str:
        victim = self._victim(rng)
        if not victim.up:
            return ""
        victim.disk.fail_next("sync")
        return victim.name

    def _hang_disk(self, rng: random.Random) -> str:
        """The next sync takes seconds: as long as it takes a leader to hand over, and longer."""
        victim = self._victim(rng)
        victim.disk_hangs_s = rng.choice((1.0, 4.0))
        return victim.name

    def _lose_disk(self, rng: random.Random) -> str:
        """One at a time: two lost disks of three are more than any group survives.

        Only with connections: a message of the lost replica that arrives after its successor has
        introduced itself cannot come out of a TCP connection, but it does come out of ``wild``.
        """
        sim, victim = self._sim, self._victim(rng)
        if sim.plan.weather.kind != "fifo" or any(r.learner for r in sim.replicas):
            return ""
        sim.wipes += 1
        victim.lose_disk()
        sim.world.later(rng.random(), victim.start)
        return victim.name

    # -------------------------------------------------------------- network
    def _cut(self, rng: random.Random) -> str:
        a, b = rng.sample(self._sim.names, 2)
        self._sim.network.cut(a, b)
        return f"{a}-{b}"

    def _partition(self, rng: random.Random) -> str:
        """One replica from all others, a minority from the majority, or one direction of one link."""
        names, one = self._sim.names, self._victim(rng).name
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
        self._sim.network.block(links)
        duration = rng.choice((0.1, 0.7, 1.5)) * (0.5 + rng.random())
        self._sim.world.later(duration, self._sim.network.unblock, links)
        return where
