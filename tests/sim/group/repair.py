"""How a simulated replica opens its directory, repairs its log or copies its leader's: the broker's real code
(host/restoring.py), reading from simulated peers. As in the broker, a replica that is still being opened
serves entries, too."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from escrowmq.replication.errors import CorruptLog, DiskFailed, Unavailable
from escrowmq.replication.host.repair import (
    RANGE_BYTES_MAX,
    Manifest,
    damage_offered,
    has_history,
    offered_files,
)
from escrowmq.replication.host.replica_setup import PeerList
from escrowmq.replication.host.restoring import Restoring
from escrowmq.replication.log.datadir import LOST
from escrowmq.replication.log.recovery import read_files
from escrowmq.replication.replica.checkpoints import STATE_PARTS
from escrowmq.replication.replica.damage import STATE_FILES
from tests.sim.faults.damage import scrub
from tests.sim.group.broker_app import BrokerApplication

if TYPE_CHECKING:
    from tests.sim.group.replica import SimReplica
    from tests.sim.group.simulation import Simulation


class SimPeers:
    """The other replicas as the repair sees them: one answers if it is up and reachable."""

    def __init__(self, simulation: Simulation, replica: SimReplica) -> None:
        self._sim, self._replica = simulation, replica

    def founded(self, peer: str) -> bool | None:
        """A process answers from its first moment on."""
        source = self.named(peer)
        if source is None or not self._sim.network.reaches(self._replica.address, source.address):
            return None
        if source.up:
            return source.journal.last_index > 1 if self._reached(peer) else None
        return has_history(source.disk) if source.opening or not source.began else None

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
    if not (is_of_a_snapshot and replica.app.replica.drop_damaged(name)):  # type: ignore[union-attr]
        raise error


class NotNow(Exception):
    """The opening would wait here: another attempt comes later, in virtual time."""


class Unexplained(BaseException):
    """Damage that nobody has done. Not an Exception: nothing may repair it."""

    def __init__(self, error: CorruptLog) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True)
class _Surroundings:
    """What the opening asks around a simulated replica (``restoring.Surroundings``)."""

    name: str
    peers: PeerList
    source: SimPeers
    founded: Callable[[], bool | None]
    report: Callable[[str], None]
    ask_members: Callable[[], Iterable[int]] = tuple
    joining: bool = False
    never_replaced: bool = True

    def __str__(self) -> str:
        return self.name


class SimRestoring(Restoring["SimReplica"]):
    """The broker's real steps from a directory to an open log. It adds only what the simulation keeps count
    of, and crashes in the middle of a copy."""

    def __init__(self, simulation: Simulation, replica: SimReplica, patience_s: float) -> None:
        self._sim, self._replica = simulation, replica
        others = {r.name for r in simulation.replicas if r is not replica and r.name != replica.name}
        around = _Surroundings(
            replica.name,
            PeerList(replica.name, others),
            SimPeers(simulation, replica),
            lambda: simulation.supervisor.tells_of_a_group(replica),
            simulation.happened,
        )
        notes = replica.notes
        super().__init__(replica.disk, notes, around, _not_now, patience_s, replica.recover)

    def _has_lost_its_log(self) -> bool:
        """A newcomer's log fills over its links here (see never_voted), unless it is too far behind."""
        return not self._replica.is_new and super()._has_lost_its_log()

    def _mend(self) -> bool:
        mended = super()._mend()
        if mended:
            self._sim.happened(f"{self._replica.name} has mended its log")
        return mended

    def _copy(self, patience_s: float, *, lost_log: bool, mark: str = LOST) -> None:
        replica = self._replica
        replica.may_crash_while_it_copies()
        if lost_log and not replica.learner:
            replica.lose_log()
        super()._copy(patience_s, lost_log=lost_log, mark=mark)
        self._sim.repairs += 1
        replica.flipped = replica.spoilt = False
        self._sim.happened(f"{replica.name} has copied the leader's log")


def _not_now(seconds: float) -> None:
    raise NotNow
