"""Taking over a peer's log: the old one or the new one, complete, whenever the power fails."""

from __future__ import annotations

import contextlib
import json

import pytest
from google_crc32c import value as crc32c

from escrowmq.replication.errors import CorruptLog, UnknownVersion
from escrowmq.replication.log.install import MARKER, PREFIX, VERSION, staged_name, switch_files
from escrowmq.replication.log.journal import SegmentJournal
from tests.sim.environment.disk import PowerCut, SimDisk
from tests.support.storage import NEWEST, command, fill, indexes, sim_disk, synced_log

CHECKPOINT = "0000000000000020.snap"


def peer_log() -> SimDisk:
    """A peer whose log begins at entry 11."""
    disk = sim_disk()
    journal = SegmentJournal(disk, segment_bytes=200)
    fill(journal, range(11, 21), term=4)
    journal.sync()
    return disk


def stage(disk: SimDisk, peer: SimDisk) -> list[str]:
    """Copies the peer's segments and a checkpoint next to the log."""
    names = [name for name in peer.names() if name.endswith((".log", ".pos"))]
    for name in names:
        file = disk.open(staged_name(name), create=True)
        file.append((peer.read_all(name),))
        file.sync()
    checkpoint = disk.open(staged_name(CHECKPOINT), create=True)
    checkpoint.append((b"state at entry 10",))
    checkpoint.sync()
    return [*names, CHECKPOINT]


def install(disk: SimDisk, staged: list[str]) -> None:
    """Install as a repair does while the log is not in use: the staged files replace the whole log."""
    ours = [name for name in disk.names() if not name.startswith(PREFIX)]
    switch_files(disk, staged, remove=[name for name in ours if name.endswith((".log", ".pos"))])


def test_the_log_of_a_peer_replaces_ours() -> None:
    disk = sim_disk()
    synced_log(disk, 6, segment_bytes=200)
    install(disk, stage(disk, peer_log()))
    journal = SegmentJournal(disk, segment_bytes=200)
    assert indexes(journal) == list(range(11, 21))
    assert journal.last_term == 4
    assert journal.durable_index == 20
    assert disk.read_all(CHECKPOINT) == b"state at entry 10"
    fill(journal, [21], term=4)
    journal.close()
    assert indexes(SegmentJournal(disk)) == list(range(11, 22))
    assert not [name for name in disk.names() if "incoming" in name or name == MARKER]


def test_an_undecided_install_leaves_the_old_log() -> None:
    disk = sim_disk()
    synced_log(disk, 6, segment_bytes=200)
    stage(disk, peer_log())
    assert indexes(SegmentJournal(disk)) == [1, 2, 3, 4, 5, 6]
    assert not [name for name in disk.names() if "incoming" in name]


def test_what_was_not_staged_cannot_be_installed() -> None:
    disk = sim_disk()
    synced_log(disk, 6, segment_bytes=200)
    with pytest.raises(FileNotFoundError):
        install(disk, ["000000000000000b.log"])
    assert indexes(SegmentJournal(disk)) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("power", [True, False], ids=["power cut", "kill"])
def test_stopped_anywhere_it_is_one_log_or_the_other(power: bool) -> None:
    outcomes = set()
    for seed in range(6):
        for operations in range(60):
            disk = sim_disk(seed)
            synced_log(disk, 6, segment_bytes=200)
            names = stage(disk, peer_log())
            disk.stop_after(operations)
            finished = True
            try:
                install(disk, names)
            except PowerCut:
                finished = False
            for again in range(3):  # recovery may be interrupted, too
                disk.power_cut() if power else disk.kill()
                disk.stop_after(seed + 2 * again)
                try:
                    SegmentJournal(disk)
                except PowerCut:
                    continue
            disk.power_cut() if power else disk.kill()
            found = SegmentJournal(disk)
            outcome = (found.first_index, found.last_index, disk.exists(CHECKPOINT))
            assert outcome in ((1, 6, False), (11, 20, True)), f"seed {seed}, step {operations}"
            assert all(found.read(i) == command(i) for i in indexes(found))
            outcomes.add(outcome)
            if finished:
                assert outcome == (11, 20, True)
                break
    assert len(outcomes) == 2


# ------------------------------------------------------------------ a damaged marker, or a missing file
def decided(stop: int) -> tuple[SimDisk, list[str]]:
    """A disk on which a switch was decided, and interrupted ``stop`` operations later; and the new files."""
    for operations in range(100):
        disk = sim_disk()
        synced_log(disk, 6, segment_bytes=200)
        names = stage(disk, peer_log())
        disk.stop_after(operations)
        with contextlib.suppress(PowerCut):
            install(disk, names)
        disk.kill()
        if disk.exists(MARKER):
            disk = sim_disk()
            synced_log(disk, 6, segment_bytes=200)
            names = stage(disk, peer_log())
            disk.stop_after(operations + stop)
            with pytest.raises(PowerCut):
                install(disk, names)
            disk.kill()
            assert disk.exists(MARKER)
            return disk, names
    raise AssertionError("no switch was decided")


def content(disk: SimDisk) -> dict[str, bytes]:
    return {name: disk.read_all(name) for name in disk.names()}


def refused(disk: SimDisk) -> str:
    """Asserts that opening the log is refused and has changed nothing."""
    before = content(disk)
    with pytest.raises(CorruptLog, match=MARKER) as error:
        SegmentJournal(disk)
    assert content(disk) == before
    return str(error.value)


def test_a_damaged_marker_removes_nothing_whichever_bit_is_wrong() -> None:
    disk, _ = decided(stop=0)
    for at in range(disk.size_of(MARKER)):
        for bit in range(8):
            disk.flip(MARKER, at, 1 << bit)
            assert "nothing was removed" in refused(disk)
            disk.flip(MARKER, at, 1 << bit)
    for size in range(disk.size_of(MARKER)):
        cut = disk.frozen()
        cut.write_atomic(MARKER, [disk.read_all(MARKER)[:size]])
        refused(cut)
    assert indexes(SegmentJournal(disk)) == list(range(11, 21))


@pytest.mark.parametrize("stop", [0, 2, 5])
def test_a_file_that_the_marker_promises_is_missed_before_anything_is_removed(stop: int) -> None:
    for lost in decided(stop)[1]:
        disk, _ = decided(stop)
        disk.remove(staged_name(lost) if disk.exists(staged_name(lost)) else lost)
        if not disk.exists(lost):
            assert f"promises {lost}, which does not exist" in refused(disk)


def test_a_file_of_another_size_is_not_the_one_that_was_staged() -> None:
    disk, names = decided(stop=0)
    disk.write_atomic(staged_name(names[0]), [b"x"])
    assert "and it has 1" in refused(disk)


def marker(line: bytes) -> bytes:
    """This line, with its checksum."""
    line += b"\n"
    return line + b"%08x\n" % crc32c(line)


def changed(**changes: object) -> bytes:
    """A sound marker, except for these changes; ``"left out"``: without that name."""
    disk = sim_disk()
    sizes = {name: len(disk.read_all(staged_name(name))) for name in stage(disk, peer_log())}
    content = {"version": VERSION, "rename": sizes, "remove": [NEWEST], **changes}
    kept = {name: value for name, value in content.items() if value != "left out"}
    return marker(json.dumps(kept).encode())


def with_marker(data: bytes) -> SimDisk:
    disk = sim_disk()
    synced_log(disk, 6)
    stage(disk, peer_log())
    disk.write_atomic(MARKER, [data])
    return disk


def test_a_marker_with_nothing_changed_is_finished() -> None:
    disk = with_marker(changed())
    assert indexes(SegmentJournal(disk)) == list(range(11, 21))
    assert not disk.exists(NEWEST)


@pytest.mark.parametrize(
    "data",
    [
        b"{", b"", b"5", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"version": ' + b"9" * 5000 + b"}",
        b'{"rename":5}', changed()[:-1], changed() + b"\n", changed().splitlines()[0], b"\n" + changed(),
    ],
    ids=range(13),
)  # fmt: skip
def test_a_marker_whose_checksum_does_not_fit_is_refused(data: bytes) -> None:
    assert "checksum" in refused(with_marker(data))


@pytest.mark.parametrize(
    "data",
    [
        *map(marker, (
            b"{", b"", b"5", b"[]", b"null", b"\xff\xfe", b"[" * 100_000,
            b'{"version": ' + b"9" * 5000 + b"}", b'{"rename":5}',
        )),
        changed(rename=5), changed(rename=[5]), changed(rename=["0000000000000010.log"]),
        changed(rename={"0000000000000010.log": -1}), changed(rename={"0000000000000010.log": None}),
        changed(rename={"0000000000000010.log": True}), changed(rename=None), changed(rename="left out"),
        changed(remove=None), changed(remove="left out"), changed(rename={"000000000000000b.lof": 1}),
        changed(rename={"../vote": 1}), changed(rename={"\ud800": 1}), changed(rename={"\0": 1}),
        changed(rename={"vote": 1}), changed(remove=["vote"]), changed(remove=["../identity.json"]),
        changed(remove=[CHECKPOINT]), changed(remove=[NEWEST, NEWEST]), changed(version=0),
        changed(version=True), changed(version=None), changed(version="left out"),
    ],
    ids=range(32),
)  # fmt: skip
def test_a_marker_that_makes_no_sense_is_refused(data: bytes) -> None:
    refused(with_marker(data))


def test_a_marker_of_a_newer_version_is_told_from_a_damaged_one() -> None:
    disk = with_marker(marker(b'{"version": 2}'))
    before = content(disk)
    with pytest.raises(UnknownVersion, match="version 2"):
        SegmentJournal(disk)
    assert content(disk) == before
