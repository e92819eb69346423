"""How a simulated replica repairs its log or copies its leader's: the broker's real code, reading from
simulated peers. As in the broker, a replica that is still being opened serves entries, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.replication.errors import CorruptLog, DiskFailed, Unavailable
from escrowmq.replication.host.mending import BEYOND_MENDING, RANGE_BYTES_MAX, mend_before_start
from escrowmq.replication.host.repair import (
    Manifest,
    copy_from_leader,
    damage_offered,
    knows_its_end,
    offered_files,
)
from escrowmq.replication.log.install import finish_install
from escrowmq.replication.log.recovery import segment_firsts
from escrowmq.replication.log.survey import read_files
from escrowmq.replication.replica.checkpoints import STATE_PARTS
from escrowmq.replication.replica.damage import STATE_FILES
from tests.sim.broker_app import BrokerApplication
from tests.sim.damage import scrub

if TYPE_CHECKING:
    from tests.sim.replica import SimReplica
    from tests.sim.simulation import Simulation


class SimPeers:
    """The other replicas as the repair sees them: one answers if it is up and reachable."""

    def __init__(self, simulation: Simulation, replica: SimReplica) -> None:
        self._sim, self._replica = simulation, replica

    def founded(self, peer: str) -> bool | None:
        source = self._reached(peer)
        return None if source is None else source.journal.last_index > 1

    def manifest(self, peer: str) -> Manifest | None:
        source = self._reached(peer)
        # Any leader will do, ready or not: if both others are too far behind, none can become ready before.
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
        files += [(name, source.disk.size_of(name)) for name in state_files if not name.endswith(STATE_PARTS)]
        return Manifest(source.name, source.node.term, source.node.commit_index, files)

    def never_voted(self, peer: str, rid: int) -> bool | None:
        return None  # here a newcomer's log fills over its links

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

    def entries(self, peer: str, first: int, last: int) -> bytes | None:
        source = self.named(peer)
        if source is None or not self._sim.network.reaches(self._replica.address, source.address):
            return None
        try:
            if source.opening:
                return read_files(source.disk, first, last, RANGE_BYTES_MAX)
            running = self._reached(peer)
            return None if running is None else running.journal.stored(first, last, RANGE_BYTES_MAX)
        except DiskFailed:
            return None

    def named(self, peer: str) -> SimReplica | None:
        """The replica with this name now, which may be a successor; None if it is no longer a member."""
        return next((r for r in self._sim.replicas if r.name == peer), None)

    def _reached(self, peer: str) -> SimReplica | None:
        source = self.named(peer)
        if source is None:
            return None
        there = source.up and self._sim.world.now >= source.paused_until
        return source if there and self._sim.network.reaches(self._replica.address, source.address) else None


def _look_at(source: SimReplica, name: str, size: int) -> None:
    """As ``Offers.checkpoint_suspect``: entries are repaired; any other damage ends the process."""
    damage = damage_offered(source.disk, name, size)
    if damage is None:
        return
    if name.endswith(".log"):
        scrub(source)
    else:
        replace_file(source, name, CorruptLog(damage))


def replace_file(replica: SimReplica, name: str, error: CorruptLog) -> None:
    """As ``RunningReplica.replace_file``."""
    is_of_a_snapshot = name.endswith(STATE_FILES) and isinstance(replica.app, BrokerApplication)
    if not (is_of_a_snapshot and replica.app.checkpoints.drop_damaged(name)):  # type: ignore[union-attr]
        raise error


def mend_log(simulation: Simulation, replica: SimReplica) -> bool | None:
    """Fill the holes of a log that is not open; returns whether all is sound, None if that is impossible."""
    peers = [r.name for r in simulation.replicas if r.name != replica.name]
    try:
        finish_install(replica.disk)
        source = SimPeers(simulation, replica)
        if not mend_before_start(replica.disk, peers, source, simulation.happened):
            return False
        return True if has_forgotten_nothing(replica) else None
    except BEYOND_MENDING as error:
        simulation.happened(f"{replica.name}: {error}")
        return None


def has_forgotten_nothing(replica: SimReplica) -> bool:
    """Whether it still knows the end of its log and its vote."""
    return bool(segment_firsts(replica.disk)) and knows_its_end(replica.disk)


def copy_log(simulation: Simulation, replica: SimReplica) -> bool:
    """Replace the files of ``replica``, which is down, by its leader's; False if no leader answers."""
    peers = [r.name for r in simulation.replicas if r.name != replica.name]
    source = SimPeers(simulation, replica)
    try:
        copy_from_leader(replica.disk, peers, source, lambda s: None, 0.0, simulation.happened)
    except Unavailable:
        return False
    return True
