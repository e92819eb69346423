"""A simulated replica's work besides its ticks: it mends damaged entries, and scrubs its log for damage.

The broker's own Mender and Scrubber, as ``replication/host/maintenance.py`` drives them in threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.replication.host.maintenance import Scrubber, ScrubState
from escrowmq.replication.host.repair import Mender
from tests.sim.group.repair import SimPeers, replace_file

if TYPE_CHECKING:
    from tests.sim.group.replica import SimReplica
    from tests.sim.group.simulation import Simulation

SCRUB_PERIOD_S, SCRUB_STEP_S, SCRUB_PIECE_BYTES = 2.0, 0.01, 1000
MEND_S = 0.1  # from finding damage, or failing to mend it, to the next attempt


class Upkeep:
    """The upkeep of one process: it starts and ends with the process."""

    def __init__(self, simulation: Simulation, replica: SimReplica) -> None:
        self._sim, self._replica = simulation, replica
        self._others: list[str] = []
        self._mender = Mender(
            replica.journal, self._others, SimPeers(simulation, replica), replica.in_loop, simulation.happened
        )
        self._mending = False
        self._scrubber = self._make_scrubber()
        replica.later(SCRUB_STEP_S, self._scrub)

    def mend_soon(self) -> None:
        if not self._mending:
            self._mending = True
            self._replica.later(MEND_S, self._mend)

    def _mend(self) -> None:
        """One attempt. (A real replica waits longer if nothing could be done.)"""
        self._mending = False
        # As in the broker, replicas that joined the group since this process started are asked too.
        self._others[:] = [name for name in self._sim.names if name != self._replica.name]
        self._mender.round()

    def lost_next(self) -> bool:
        """Whether no replica has the entry to apply next, while another replica leads."""
        journal, node = self._replica.journal, self._replica.node
        waits_for, leader = node.applied_index + 1, node.leader_id
        if leader in (None, self._replica.name) or journal.damaged_after(waits_for - 1) != waits_for:
            return False
        return self._mender.lacks(waits_for, leader)

    def _make_scrubber(self) -> Scrubber:
        """A scrubber whose week lasts two seconds, in pieces of one or two entries. Its position is kept."""
        replica = self._replica
        return Scrubber(
            replica.journal,
            replica.disk,
            SCRUB_PERIOD_S,
            1 << 30,
            ScrubState.decode(replica.scrubbed),
            note=lambda state: setattr(replica, "scrubbed", state.encode()),
            in_loop=replica.in_loop,
            damaged=lambda name, error: replace_file(replica, name, error),
            busy=lambda: self._sim.world.now < replica.paused_until,
            clock=replica.clock,
            wall_ms=lambda: int(replica.wall_clock() * 1000),
            report=self._sim.happened,
            piece_bytes=SCRUB_PIECE_BYTES,
        )

    def _scrub(self) -> None:
        if self._sim.mended_checked:
            return  # nothing is damaged from here on, and reading it all again costs a third of a schedule
        pause_s = self._scrubber.step()
        self._replica.later(min(max(pause_s, SCRUB_STEP_S), SCRUB_PERIOD_S), self._scrub)


def note_mended(simulation: Simulation, replica: SimReplica) -> None:
    """Record what the journal counted, at the end of a process or of the schedule."""
    if not hasattr(replica, "journal"):  # a new member whose disk failed at its first start
        return
    holes = replica.journal.holes
    simulation.damage_found += holes.found
    simulation.mended += holes.mended
    holes.found = holes.mended = 0
