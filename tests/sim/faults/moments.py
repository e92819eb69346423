"""Faults that wait for a certain moment: a vote just given, a leader just elected, a log just truncated.

Faults at random times miss situations that last microseconds. An ambush is set up at a time of the plan and
strikes the replica that next does what it waits for, at once or some steps later: what that replica has sent
is on its way, and what it has not synced is lost.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.sim.group.replica import SimReplica
    from tests.sim.group.simulation import Simulation

VOTE, ELECTION, CUT = "at-vote", "at-election", "at-cut"
AMBUSHES = (VOTE, ELECTION, CUT)
DELAYS_S = (0.0, 0.0, 0.002, 0.02)


@dataclass(slots=True)
class _Ambush:
    moment: str
    left: int  # number of strikes left
    rng: random.Random


class Moments:
    """Observes every step of every replica; called together with the checker."""

    def __init__(self, simulation: Simulation) -> None:
        self._sim = simulation
        self._armed: list[_Ambush] = []
        #: replica -> incarnation, (term, vote), whether it leads, generation of its log
        self._seen: dict[str, tuple[int, tuple[int, str | None], bool, int]] = {}

    @property
    def waiting(self) -> bool:
        """Whether an ambush is set up, so that every step has to be observed."""
        return bool(self._armed)

    def lay(self, moment: str, rng: random.Random) -> str:
        """Wait for ``moment``, and strike the next few times that it occurs."""
        ambush = _Ambush(moment, rng.choice((1, 2, 4)), rng)
        self._armed.append(ambush)
        return f"{ambush.left} times"

    def look(self, replica: SimReplica) -> None:
        """After a step of ``replica``."""
        if not self._armed:
            self._seen.clear()  # nothing is recorded until the next ambush is set up
            return
        journal, node = replica.journal, replica.node
        vote = (journal.getCurrentTerm(), journal.getVotedForNodeId())
        now = (replica.incarnation, vote, node.is_leader, journal.generation)
        before, self._seen[replica.name] = self._seen.get(replica.name), now
        if before is None or before[0] != now[0] or before == now or self._sim.calm:
            return
        if vote != before[1] and vote[1] not in (None, replica.name):
            self._came(VOTE, replica)
        if node.is_leader and not before[2]:
            self._came(ELECTION, replica)
        if journal.generation != before[3]:
            self._came(CUT, replica)

    def _came(self, moment: str, replica: SimReplica) -> None:
        for ambush in self._armed:
            if ambush.moment == moment:
                ambush.left -= 1
                if not ambush.left:
                    self._armed.remove(ambush)
                delay = ambush.rng.choice(DELAYS_S)
                self._sim.world.later(delay, self._strike, replica, replica.incarnation, ambush)
                return

    def _strike(self, replica: SimReplica, incarnation: int, ambush: _Ambush) -> None:
        sim, rng = self._sim, ambush.rng
        if not replica.up or replica.incarnation != incarnation or sim.calm:
            return
        what = rng.choice(("kill", "kill", "power-cut", "pause", "isolate"))
        sim.happened(f"{ambush.moment} of {replica.name}: {what}")
        met = True
        if what == "pause":
            replica.paused_until = sim.world.now + rng.random() * rng.choice((0.1, 1.0))
        elif what == "isolate":
            links = [
                pair
                for n in sim.names
                if n != replica.name
                for pair in ((n, replica.name), (replica.name, n))
            ]
            met = sim.network.block(links)
            sim.world.later(rng.choice((0.3, 1.0)) * (0.5 + rng.random()), sim.network.unblock, links)
        else:
            sim.crash(replica, what == "power-cut", rng)
        if met:
            sim.struck(ambush.moment, replica.name)
