"""Files that a leader offers for a copy, and the leader who offers them: a disk in memory, no network."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from escrowmq.replication.host.repair import (
    Begin,
    Manifest,
    NoPeers,
    at_once,
    copy_from_leader,
    damage_offered,
)
from escrowmq.replication.log.disk import Disk
from escrowmq.replication.log.install import MARKER, staged_name, switch_files
from escrowmq.replication.log.journal import SegmentJournal
from escrowmq.replication.replica.damage import damage_in
from tests.sim.environment.disk import PowerCut, SimDisk
from tests.support.golden_files import RUNS, SNAPSHOT, TIMERS
from tests.support.storage import NEWEST, fill, sim_disk

SNAP_NAME, RUNS_NAME, TIMERS_NAME = f"{3:016x}.snap", f"{3:016x}.runs", f"{3:016x}.timers"
KINDS = [NEWEST, SNAP_NAME, RUNS_NAME, TIMERS_NAME]


class Offering(NoPeers):
    """A leader that offers these files; keeps what it was told to look at."""

    def __init__(self, disk: Disk, names: Sequence[str]) -> None:
        self._disk, self._names = disk, names
        self.suspected: list[str] = []

    def manifest(self, peer: str) -> Manifest | None:
        files = [(name, len(self._disk.read_all(name))) for name in self._names]
        return Manifest(peer, 3, 1, [f for f in files if f[1] or not f[0].endswith(".log")])

    def read(self, peer: str, name: str, pos: int, size: int) -> bytes:
        return self._disk.open(name).read(pos, size)

    def suspect(self, peer: str, name: str, size: int) -> None:
        assert damage_offered(self._disk, name, size) is not None, "it looks for itself, and finds it too"
        self.suspected.append(name)


def files() -> dict[str, bytes]:
    disk = sim_disk()
    journal = SegmentJournal(disk)
    fill(journal, range(1, 6), term=2)
    journal.close()
    return {NEWEST: disk.read_all(NEWEST), SNAP_NAME: SNAPSHOT, RUNS_NAME: RUNS, TIMERS_NAME: TIMERS}


def disk_with(content: dict[str, bytes]) -> SimDisk:
    disk = sim_disk()
    for name, data in content.items():
        disk.write_atomic(name, [data])
    return disk


def content(disk: Disk, names: Sequence[str] | None = None) -> dict[str, bytes]:
    """What these files have, or all."""
    return {name: disk.read_all(name) for name in (disk.names() if names is None else names)}


def copy(own: Disk, source: Offering, reports: list[str] | None = None, begin: Begin = at_once) -> None:
    """One attempt, without patience. ``reports``: what is said of it."""
    told: list[str] = [] if reports is None else reports
    copy_from_leader(own, ["r0"], source, lambda s: None, 0.0, told.append, begin)


def decided_switches(remove: Sequence[str]) -> Iterator[SimDisk]:
    """Disks on which the switch to ``files()`` is decided, and ever more of it done: a power cut after each
    operation. ``remove``: the files that go, which hold something older."""
    for operations in range(40):
        disk = disk_with(dict.fromkeys((*remove, *KINDS), b"older"))
        for name, data in files().items():
            disk.write_atomic(staged_name(name), [data])
        disk.stop_after(operations)
        with contextlib.suppress(PowerCut):
            switch_files(disk, KINDS, remove=remove)
        disk.kill()
        if disk.exists(MARKER):
            yield disk


def damage_in_bytes(name: str, data: bytes) -> str | None:
    """What is wrong with a file of this content."""
    return damage_in(name, disk_with({name: data}).open(name))
