"""Checks, now and then and at the end, that a replica's state rebuilt from its disk equals its state.

The disk is opened as a restart would open it, from the newest snapshot or, if the log is still complete, from
nothing, and every entry is applied again. The checker compares each intermediate state with what any replica
had after the same entry.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from escrowmq.replication.errors import CorruptLog
from escrowmq.replication.log.journal import SegmentJournal
from escrowmq.replication.replica.damage import STATE_FILES
from tests.sim.clients.workload import CHECKPOINT, ReplicaContext
from tests.sim.environment.world import Violation

if TYPE_CHECKING:
    from tests.sim.group.replica import SimReplica
    from tests.sim.group.simulation import Simulation

#: Number of checks during the chaos: as much work as checking all replicas at the end.
MOMENTS = 4
FILES_OF_A_STATE = (*STATE_FILES, CHECKPOINT)


def check_now_and_then(simulation: Simulation) -> None:
    """Check a replica that is up at MOMENTS random times of the chaos."""
    chance = simulation.world.stream(f"rebuild-moments{simulation.prefix}")

    def check() -> None:
        up = [replica for replica in simulation.replicas if replica.up]
        if up:
            check_rebuilt(simulation, chance.choice(up), f"-{simulation.world.elapsed_s:.6f}")

    for _ in range(MOMENTS):
        simulation.world.later(chance.random() * simulation.chaos_s, check)


def check_rebuilt(simulation: Simulation, replica: SimReplica, moment: str = "") -> None:
    """Raise Violation if state and log do not lead to what this replica has."""
    if replica.node.applied_index <= 1:  # every log starts with this entry, and each start creates it again
        return
    chance = simulation.world.stream(f"rebuild-{replica.name}{moment}")
    disk = replica.disk.frozen()
    if replica.journal.first_index == 1 and chance.random() < 0.5:
        for name in disk.names():
            if name.endswith(FILES_OF_A_STATE):
                disk.remove(name)
    try:
        journal = SegmentJournal(disk, segment_bytes=simulation.plan.segment_bytes)
        app = simulation.workload.open(
            ReplicaContext(
                replica.name,
                replica.address,
                disk,
                journal,
                random.Random(0),
                replica.clock,
                lambda delay_s, fn: None,
                lambda fn: fn(),
            )
        )
        index, last = app.applied_index, replica.node.applied_index
        if not journal.first_index - 1 <= index <= last <= journal.last_index:
            # For example a run file that both snapshots use: the next start finds and repairs it.
            if replica.flipped or replica.spoilt:
                return
            raise Violation(
                f"{replica.name} would restart at entry {index} of {journal.first_index}.."
                f"{journal.last_index}, and has applied {last}",
                "restart-differs",
            )
        while index < last:
            index += 1
            term, command = journal.term_at(index), journal.read(index)
            assert term is not None
            command = command if command[0] == 0 else b""
            app.apply(index, term, command)
            shown = command or journal.members.command(index) or b""
            simulation.checker.applied(replica, index, term, shown, app.digest())
        if journal.members.said(last) != replica.journal.members.said(last):
            raise Violation(
                f"{replica.name} would restart with {journal.members.said(last)}, and has applied "
                f"{replica.journal.members.said(last)}",
                "restart-differs",
            )
        simulation.checker.rebuilt(replica, replica.app.digest(force=True), app.digest(force=True))
    except CorruptLog:
        if not replica.flipped and not replica.spoilt:  # otherwise the next start would find and repair it
            raise
