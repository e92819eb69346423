"""What a peer offers for a copy is looked at before it is believed, whichever byte of it is wrong."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from escrowmq.replication.disk import Disk
from escrowmq.replication.errors import Unavailable
from escrowmq.replication.journal import SegmentJournal
from escrowmq.replication.repair import Manifest, NoPeers, copy_from_leader, damage_offered
from escrowmq.replication.verify import damage_in
from tests.fuzz.test_log_files import RUNS, SNAPSHOT, mend_segment
from tests.replication.storage import NEWEST, fill, sim_disk

SNAP_NAME, RUNS_NAME = f"{3:016x}.snap", f"{3:016x}.runs"
KINDS = [NEWEST, SNAP_NAME, RUNS_NAME]


class Offering(NoPeers):
    """A leader that offers these files; keeps what it was told to look at."""

    def __init__(self, disk: Disk, names: Sequence[str]) -> None:
        self._disk, self._names = disk, names
        self.suspected: list[str] = []

    def manifest(self, peer: str) -> Manifest | None:
        return Manifest(peer, 3, 1, [(name, len(self._disk.read_all(name))) for name in self._names])

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
    return {NEWEST: disk.read_all(NEWEST), SNAP_NAME: SNAPSHOT, RUNS_NAME: RUNS}


def disk_with(content: dict[str, bytes]) -> Disk:
    disk = sim_disk()
    for name, data in content.items():
        disk.write_atomic(name, [data])
    return disk


def refused_copy(content: dict[str, bytes], names: Sequence[str]) -> tuple[list[str], list[str]]:
    """What the leader was told to look at, and the reports; nothing of our own has changed."""
    own = disk_with(files())
    before = {name: own.read_all(name) for name in own.names()}
    source, reports = Offering(disk_with(content), names), list[str]()
    with pytest.raises(Unavailable, match="no leader to copy the log from"):
        copy_from_leader(own, ["r0"], source, lambda s: None, 0.0, reports.append)
    assert {name: own.read_all(name) for name in own.names() if not name.startswith("incoming-")} == before
    return source.suspected, reports


def test_sound_files_are_taken() -> None:
    own, source = sim_disk(), Offering(disk_with(files()), KINDS)
    copy_from_leader(own, ["r0"], source, lambda s: None, 0.0, lambda text: None)
    assert {name: own.read_all(name) for name in KINDS} == files()
    assert source.suspected == []


@pytest.mark.parametrize("name", KINDS)
def test_a_flipped_version_is_damage_that_its_owner_hears_of(name: str) -> None:
    """A snapshot's and a run file's version is under no checksum; the copy ended with UnknownVersion, the
    leader never heard of it, and the replica's start failed every 5 s for ever."""
    data = bytearray(files()[name])
    data[4] ^= 0x40
    suspected, reports = refused_copy({**files(), name: bytes(data)}, KINDS)
    assert suspected == [name]
    assert "version" in reports[0] or "damaged" in reports[0]


def test_an_entry_of_another_version_is_damage_too() -> None:
    data = bytearray(files()[NEWEST])
    data[32 + 4] ^= 0x40
    suspected, reports = refused_copy({**files(), NEWEST: mend_segment(bytes(data))}, KINDS)
    assert suspected == [NEWEST]
    assert "version 65" in reports[0] and "newer" in reports[0]


@pytest.mark.parametrize("name", KINDS)
def test_no_flipped_bit_of_an_offered_file_goes_unseen(name: str) -> None:
    good = files()[name]
    assert damage_in(name, good) is None
    for at in range(len(good)):
        data = bytearray(good)
        data[at] ^= 1 << at % 8
        assert damage_in(name, bytes(data)) is not None, at


@pytest.mark.parametrize(
    "name", ["../vote", "/etc/x.log", "vote", "install.json", "x.log", ".log", "incoming-x"]
)
def test_what_is_no_file_of_a_log_is_not_taken(name: str) -> None:
    own = disk_with(files())
    suspected, reports = refused_copy({**files(), name: b"x"}, [name, *KINDS])
    assert suspected == [] and repr(name) in reports[0]
    assert "incoming-" + name not in own.names()
