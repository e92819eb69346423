"""A link that never works: one directed link between two replicas of a group, cut for the whole schedule.

TCP loses the way back with it: what was sent goes unacknowledged, so a connection that is up is closed after
``DEAD_PEER_MS``, and none is made again. Such a cut does not heal when the faults end. If then some replica,
with those that it reaches and whose logs are not ahead of its own, is a majority of full members without
damage, the group must have a leader and acknowledge something (``link-blocks``). After that the link works
again, since the end of a schedule compares all replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from escrowmq.replication.net.tcp import DEAD_PEER_MS
from tests.sim.environment.world import Violation

if TYPE_CHECKING:
    from tests.sim.group.replica import SimReplica
    from tests.sim.group.simulation import Simulation

SHARE = 0.06  # of schedules; of several groups, of each group
BEGINS_S = (0.0, 0.0, 3.0)  # at the earliest: not before something was acknowledged
WITHIN_S, STEP_S = 20.0, 0.5  # in the calm, until something is acknowledged


class BrokenLink:
    """The broken link of one group, if it has one."""

    def __init__(self, simulation: Simulation) -> None:
        self.sim = simulation
        rng = simulation.world.stream(f"broken-link{simulation.prefix}")
        works = rng.random() < SHARE
        #: From one replica to another, by name.
        self.link = tuple(rng.sample(simulation.names, 2)) if works else None
        self._begun = False
        self.proved = False  # something was acknowledged in the calm while it was broken
        if self.link is not None:
            simulation.world.later(rng.choice(BEGINS_S), self._break)

    def _break(self) -> None:
        if self.link is None or self._begun:
            return
        if not self.works(0):
            self.sim.world.later(STEP_S, self._break)
            return
        self._begun = True
        a, b = self.link
        self.sim.network.block([(a, b)])
        self.sim.world.later(DEAD_PEER_MS / 1000, self._close)
        self.sim.happened(f"the link from {a} to {b} breaks for ever")

    def _close(self) -> None:
        """The kernel gives up a connection whose other side acknowledges nothing."""
        if self.link is not None and not self.sim.network.reaches(*self.link):
            self.sim.network.cut(*self.link)
            self.sim.world.later(DEAD_PEER_MS / 1000, self._close)

    def healed(self) -> None:
        """All faults end, but for this one."""
        if not self._begun:
            self.link = None
        if self.link is not None:
            self.sim.network.block([self.link])

    def mend(self) -> None:
        """It works from now on."""
        if self.link is not None:
            self.sim.network.unblock([self.link])
            self.link = None

    # -------------------------------------------------------------- the promise

    def works(self, before: int) -> bool:
        """Whether more was acknowledged than the ``before`` entries of the time when the faults ended."""
        return len(self.sim.checker.acknowledged) > before

    def judge(self) -> None:
        """It does not work, long after the faults."""
        if self._may_lead():
            leading = [one.name for one in self.sim.replicas if one.up and one.node.ready]
            text = f"{self.link} is broken, {leading} lead, and nothing is acknowledged"
            raise Violation(text, "link-blocks")

    def _may_lead(self) -> bool:
        """Whether some replica reaches a majority of full members."""
        sim = self.sim
        up = [replica for replica in sim.replicas if replica.up]
        fit = [one for one in up if not (one.node.rejoining or one.flipped or one.wants_copy)]
        voters = [members.voters for members in sim.configurations()] or [sim.names]

        def reached(center: SimReplica) -> set[str]:
            """Who would vote for it: nobody whose log is ahead of its own."""
            return {
                one.name
                for one in fit
                if one is center
                or (sim.network.reaches(center.name, one.name) and _log_of(one) <= _log_of(center))
            }

        return any(
            all(2 * len(reached(one).intersection(names)) > len(names) for names in voters) for one in fit
        )


def _log_of(replica: SimReplica) -> tuple[int, int]:
    """Term and index of its last entry, as votes compare them."""
    journal = replica.journal
    return journal.last_term, journal.last_index


def prove(links: Sequence[BrokenLink], before: Sequence[int], act: Callable[[], None]) -> None:
    """Let time pass until each group with a broken link has acknowledged something; then mend the links."""
    broken = [(link, n) for link, n in zip(links, before, strict=True) if link.link is not None]
    if not broken:
        return
    world = broken[0][0].sim.world
    until = world.now + WITHIN_S
    while world.now < until and not all(link.works(n) for link, n in broken):
        act()
        world.run(world.now + STEP_S)
    for link, n in broken:
        link.proved = link.works(n)
        if not link.proved:
            link.judge()
        link.mend()
