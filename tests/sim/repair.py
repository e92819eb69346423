"""How a simulated replica takes its leader's log: the broker's own code, reading simulated peers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.replication.errors import CorruptLog, DiskFailed, Unavailable
from escrowmq.replication.host.repair import (
    Manifest,
    check_log,
    copy_from_leader,
    damage_offered,
    offered_files,
)
from escrowmq.replication.log.marks import BEHIND

if TYPE_CHECKING:
    from tests.sim.replica import SimReplica
    from tests.sim.simulation import Simulation


class SimPeers:
    """The other replicas as the repair sees them: one answers if it is up and no partition is between."""

    def __init__(self, simulation: Simulation, replica: SimReplica) -> None:
        self._sim, self._replica = simulation, replica
        self._by_name = {r.name: r for r in simulation.replicas}

    def founded(self, peer: str) -> bool | None:
        source = self._reached(peer)
        return None if source is None else source.journal.last_index > 1

    def manifest(self, peer: str) -> Manifest | None:
        source = self._reached(peer)
        # Any leader will do, ready or not: where both others are too far behind, none becomes ready before.
        if source is None or not source.node.is_leader:
            return None
        state_files = source.app.repair_files(source.journal.durable_index)
        if state_files is None:
            return None
        segments = [(s.name, s.size) for s in source.journal.segments()]
        try:
            files = offered_files(source.disk, segments, None)
        except DiskFailed:
            return None
        files += [(name, source.disk.size_of(name)) for name in state_files if not name.endswith(".runs")]
        return Manifest(source.name, source.node.term, source.node.commit_index, files)

    def read(self, peer: str, name: str, pos: int, size: int) -> bytes:
        source = self._reached(peer)
        if source is None:
            raise Unavailable(f"{peer} does not answer", 0.1)
        try:
            return source.disk.open(name).read(pos, size)
        except DiskFailed as error:
            raise Unavailable(f"{peer} cannot read {name}: {error}", 0.1) from error

    def suspect(self, peer: str, name: str, size: int) -> None:
        source = self._reached(peer)
        if source is not None:
            source.guarded(lambda: _look_at(source, name, size))

    def _reached(self, peer: str) -> SimReplica | None:
        source = self._by_name[peer]
        there = source.up and self._sim.world.now >= source.paused_until
        return source if there and self._sim.network.reaches(self._replica.address, source.address) else None


def _look_at(source: SimReplica, name: str, size: int) -> None:
    damage = damage_offered(source.disk, name, size)
    if damage is not None:
        raise CorruptLog(damage)


def copy_log(simulation: Simulation, replica: SimReplica) -> bool:
    """Replace the files of ``replica``, which is down, by its leader's; False if no leader answers now."""
    if replica.wants_copy == BEHIND:
        check_log(replica.disk)
    peers = [r.name for r in simulation.replicas if r.name != replica.name]
    source = SimPeers(simulation, replica)
    try:
        copy_from_leader(replica.disk, peers, source, lambda s: None, 0.0, simulation.happened)
    except Unavailable:
        return False
    return True
