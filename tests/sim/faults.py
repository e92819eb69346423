"""What goes wrong in a simulation, and how often: one fault after the other, drawn from the seed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.sim.network import Link
    from tests.sim.replica import SimReplica
    from tests.sim.simulation import Simulation

MEAN_PAUSE_S = 0.4  # between two faults


class Faults:
    """Strikes until the calm."""

    def __init__(self, simulation: Simulation) -> None:
        self._sim, self._rng = simulation, simulation.rng
        self._kinds = (
            (35, self._crash),
            (20, self._cut),
            (25, self._partition),
            (10, self._pause),
            (4, self._fill_disk),
            (3, self._fail_disk),
            (3, self._hand_over),
            (3, self._lose_disk),
            (2, self._hang_disk),
        )

    def strike(self) -> None:
        if self._sim.calm:
            return
        weights = [weight for weight, _ in self._kinds]
        kinds = [kind for _, kind in self._kinds]
        self._rng.choices(kinds, weights)[0]()
        self._sim.world.later(self._rng.expovariate(1 / MEAN_PAUSE_S), self.strike)

    # -------------------------------------------------------------- processes and machines
    def _victim(self) -> SimReplica:
        """Leaders more often than followers."""
        leading = [r for r in self._sim.replicas if r.up and r.node.is_leader]
        return self._rng.choice(leading if leading and self._rng.random() < 0.6 else self._sim.replicas)

    def _crash(self) -> None:
        victims = list(self._sim.replicas) if self._rng.random() < 0.1 else [self._victim()]
        power = self._rng.random() < 0.6
        for victim in victims:
            if victim.up:
                self._sim.crash(victim, power)

    def _pause(self) -> None:
        self._victim().paused_until = self._sim.world.now + self._rng.random() * self._rng.choice((0.1, 1.0))

    def _hand_over(self) -> None:
        victim = self._victim()
        if victim.up:
            victim.node.transfer_leadership()
            victim.kick()

    # -------------------------------------------------------------- disks
    def _fill_disk(self) -> None:
        victim = self._victim()
        victim.disk.capacity = victim.disk.used_bytes() + self._rng.choice((0, 100, 2000))
        self._sim.world.later(self._rng.random(), self._make_room, victim)

    def _make_room(self, victim: SimReplica) -> None:
        victim.disk.capacity = None

    def _fail_disk(self) -> None:
        victim = self._victim()
        if victim.up:
            victim.disk.fail_next(self._rng.choice(("append", "sync")))

    def _hang_disk(self) -> None:
        """The next sync takes seconds: as long as it takes a leader to hand over, and longer."""
        self._victim().disk_hangs_s = self._rng.choice((1.0, 4.0))

    def _lose_disk(self) -> None:
        """One at a time: two lost disks of three are more than any group survives.

        Only with connections: a message of the lost replica that arrives after its successor has
        introduced itself cannot come out of a TCP connection, but it does come out of ``wild``.
        """
        sim, victim = self._sim, self._victim()
        if sim.plan.weather.kind == "fifo" and not any(r.learner for r in sim.replicas):
            sim.wipes += 1
            victim.lose_disk()
            sim.world.later(self._rng.random(), victim.start)

    # -------------------------------------------------------------- network
    def _cut(self) -> None:
        a, b = self._rng.sample(self._sim.names, 2)
        self._sim.network.cut(a, b)

    def _partition(self) -> None:
        """One replica from all others, a minority from the majority, or one direction of one link."""
        names, one = self._sim.names, self._victim().name
        kind = self._rng.random()
        links: list[Link]
        if kind < 0.4:
            other = self._rng.choice([name for name in names if name != one])
            links = [self._rng.choice(((one, other), (other, one)))]
        else:
            side = {one}
            if len(names) > 3 and kind < 0.7:
                side.add(self._rng.choice([name for name in names if name != one]))
            links = [(a, b) for a in names for b in names if a != b and (a in side) != (b in side)]
        self._sim.network.block(links)
        duration = self._rng.choice((0.1, 0.7, 1.5)) * (0.5 + self._rng.random())
        self._sim.world.later(duration, self._sim.network.unblock, links)
