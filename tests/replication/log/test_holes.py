"""Damaged entries: which are found, what proves that another log's entry is ours, and what a crash leaves."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from escrowmq.replication.errors import CorruptLog, DamagedEntry
from escrowmq.replication.format.entry import scan
from escrowmq.replication.format.segment_format import FILE_HEADER_SIZE, log_name
from escrowmq.replication.host.repair import RANGE_BYTES_MAX, end_is_known, mend_before_start
from escrowmq.replication.log.holes import StoredEntry, read_stored
from escrowmq.replication.log.journal import SegmentJournal
from escrowmq.replication.log.recovery import read_files, segment_firsts, survey_log
from tests.sim.environment.disk import PowerCut, SimDisk
from tests.support.storage import command, fill, indexes, set_content, sim_disk

SEGMENT_BYTES = 200  # two entries
TERMS = {1: 1, 2: 1, 3: 1, 4: 2, 5: 2, 6: 2, 7: 4, 8: 4, 9: 4, 10: 5, 11: 5}


def log(terms: dict[int, int] = TERMS, *, segment_bytes: int = SEGMENT_BYTES) -> SimDisk:
    disk = sim_disk()
    journal = SegmentJournal(disk, segment_bytes=segment_bytes)
    for index, term in terms.items():
        fill(journal, [index], term=term)
        journal.sync()
    journal.setCurrentTerm(max(terms.values()), None)
    journal.close()
    return disk


class Peers:
    """Other replicas: their disks, read as when they are opened."""

    def __init__(self, *disks: SimDisk) -> None:
        self.disks = {f"r{n}": disk for n, disk in enumerate(disks)}

    def entries(self, peer: str, first: int, last: int) -> bytes | None:
        return read_files(self.disks[peer], first, last, RANGE_BYTES_MAX)


def mend(disk: SimDisk, *others: SimDisk) -> bool:
    peers = Peers(*others)
    return mend_before_start(disk, list(peers.disks), peers, lambda text: None)


def commands(disk: SimDisk) -> dict[int, tuple[int | None, bytes]]:
    journal = SegmentJournal(disk, segment_bytes=SEGMENT_BYTES)
    return {index: (journal.term_at(index), journal.read(index)) for index in indexes(journal)}


def drop_sidecars(disk: SimDisk) -> None:
    for name in disk.names():
        if name.endswith(".pos"):
            disk.remove(name)


def test_a_log_that_ends_with_the_hole_mends_it_if_one_leader_wrote_its_end_and_what_follows_here() -> None:
    """Entries 1 to 3 are damaged and their terms unknown; the peer lacks entry 4, which would settle them."""

    def damaged(terms: dict[int, int]) -> SimDisk:
        disk = log(terms, segment_bytes=1 << 20)
        name = log_name(1)
        data = bytearray(disk.read_all(name))
        data[FILE_HEADER_SIZE + 3 : len(data) - 80] = bytes(len(data) - 80 - FILE_HEADER_SIZE - 3)
        set_content(disk, name, bytes(data))
        return disk

    disk = damaged({1: 1, 2: 1, 3: 2, 4: 2})
    assert [(hole.first, hole.last) for hole in survey_log(disk).holes] == [(1, 3)]
    assert not mend(disk, log({1: 1, 2: 1, 3: 1})), "nothing tells that entry 3 of term 1 is ours"
    assert not mend(disk, log({1: 1, 2: 1}))
    assert mend(disk, log({1: 1, 2: 1, 3: 2}))
    assert commands(disk) == commands(log({1: 1, 2: 1, 3: 2, 4: 2}, segment_bytes=1 << 20))


@pytest.mark.parametrize("sidecars", [True, False])
@pytest.mark.parametrize("segment_bytes", [SEGMENT_BYTES, 1 << 20])
def test_whichever_byte_is_damaged_a_peer_mends_it(sidecars: bool, segment_bytes: int) -> None:
    """Every byte except those of the last entry, whose damage cannot be told from a torn write."""
    sound = log(segment_bytes=segment_bytes)
    expected = commands(sound)
    for name in [n for n in sound.names() if n.endswith((".log", ".pos"))]:
        newest = name == max(n for n in sound.names() if n.endswith(".log"))
        for byte in range(sound.size_of(name) - (72 if newest else 0)):
            if newest and segment_bytes == SEGMENT_BYTES:
                continue  # it has one entry, the last
            disk = sound.frozen()
            disk.flip(name, byte, 1 << byte % 8)
            if not sidecars:
                drop_sidecars(disk)
            assert end_is_known(disk), (name, byte)
            assert mend(disk, sound), (name, byte)
            assert commands(disk) == expected, (name, byte)


@pytest.mark.parametrize("sidecars", [True, False])
def test_a_running_log_is_opened_with_what_is_damaged_and_mended(sidecars: bool) -> None:
    disk = log()
    disk.flip("0000000000000003.log", 60)
    if not sidecars:
        drop_sidecars(disk)
        with pytest.raises(CorruptLog, match="mended from a peer"):  # of term 1 or of term 2?
            SegmentJournal(disk, segment_bytes=SEGMENT_BYTES, mendable=True)
        assert survey_log(disk).term_of(3) is None
        return
    journal = SegmentJournal(disk, segment_bytes=SEGMENT_BYTES, mendable=True)
    assert journal.damaged_after(0) is None, "nobody has looked yet"
    with pytest.raises(DamagedEntry):
        journal.read(3)
    assert journal.damaged_after(0) == 3 and journal.damaged_after(3) is None
    (hole,) = journal.holes.all()
    for wrong in (
        StoredEntry(3, 2, command(3)),
        StoredEntry(3, 4, command(3)),
        StoredEntry(4, 1, command(3)),
    ):
        assert not journal.mend(hole, wrong)
    assert journal.mend(hole, StoredEntry(3, 1, command(3)))
    journal.sync()
    assert journal.read(3) == command(3) and not journal.holes
    assert journal.holes.found == journal.holes.mended == 1
    assert commands(disk) == commands(log())


@pytest.mark.parametrize("size", [0, 32, 60])
def test_a_first_segment_without_a_sound_entry_is_mended_from_a_peer(size: int) -> None:
    """Found by the simulator (seed 2710659): no term was known before the second segment, and the replica
    ended with an IndexError at each start, so nothing mended it."""
    disk = log()
    set_content(disk, log_name(1), disk.read_all(log_name(1))[:size])
    drop_sidecars(disk)
    with pytest.raises(CorruptLog, match="from a peer"):
        SegmentJournal(disk, segment_bytes=SEGMENT_BYTES, mendable=True)
    assert mend(disk, log())
    SegmentJournal(disk, segment_bytes=SEGMENT_BYTES, mendable=True).close()
    assert commands(disk) == commands(log())


def test_an_entry_of_another_term_is_not_taken() -> None:
    """A acknowledged entry 10 of term 5, and its copy is damaged; B was cut off and holds another entry 10,
    of term 4, which was never committed. If A took B's, A would lose an acknowledged entry."""
    cut_off = log({**{n: t for n, t in TERMS.items() if n < 10}, 10: 4, 11: 4, 12: 4})
    for sidecars in (True, False):
        disk = log()
        disk.flip("0000000000000009.log", 32 + 72 + 50)
        if not sidecars:
            drop_sidecars(disk)
        assert not mend(disk, cut_off)
        assert mend(disk, cut_off, log())
        assert commands(disk) == commands(log())


def test_what_lies_behind_a_hole_proves_what_lies_in_it() -> None:
    """Three entries of unknown terms and positions; a peer with the same next entry has the same before
    it."""
    disk, sound = log(segment_bytes=1 << 20), log(segment_bytes=1 << 20)
    name = "0000000000000001.log"
    data = bytearray(disk.read_all(name))
    data[32 + 2 * 72 + 5 : 32 + 5 * 72 - 5] = b"\xff" * (3 * 72 - 10)
    set_content(disk, name, bytes(data))
    (hole,) = survey_log(disk).holes
    assert (hole.first, hole.last) == (3, 5)
    assert not mend(disk, log({n: 3 if n > 3 else 1 for n in TERMS}, segment_bytes=1 << 20))
    assert mend(disk, sound)
    assert commands(disk) == commands(sound)


def test_two_that_are_damaged_at_different_places_mend_each_other() -> None:
    a, b = log(), log()
    a.flip("0000000000000003.log", 60)
    b.flip("0000000000000005.log", 60)
    b.flip("0000000000000007.log", 160)
    drop_sidecars(a)
    assert mend(a, b) and mend(b, a)
    assert commands(a) == commands(b) == commands(log())


def test_entries_that_all_have_lost_are_not_invented() -> None:
    a, b = log(), log()
    for disk in (a, b):
        disk.flip("0000000000000003.log", 60)
    assert not mend(a, b)
    assert survey_log(a).holes and end_is_known(a)


@pytest.mark.parametrize("size", [0, 10, 31, 32, 33, 100, 104, 150, 175])
@pytest.mark.parametrize("sidecars", [True, False])
def test_a_segment_that_was_cut_short_grows_again(size: int, sidecars: bool) -> None:
    disk, name = log(), "0000000000000005.log"
    set_content(disk, name, disk.read_all(name)[:size])
    if not sidecars:
        drop_sidecars(disk)
    assert end_is_known(disk)
    assert mend(disk, log())
    assert commands(disk) == commands(log())


def crashed(disk: SimDisk, step: Callable[[], object]) -> bool:
    """Whether the power failed before ``step`` was done."""
    try:
        step()
    except PowerCut:
        disk.power_cut()
        return True
    return False


@pytest.mark.parametrize("kind", ["flip", "several", "short", "header"])
@pytest.mark.parametrize("seed", range(8))
def test_a_crash_at_any_step_of_mending_leaves_nothing_worse(kind: str, seed: int) -> None:
    """Every sound entry stays sound, and the next attempt restores the rest."""
    sound = log(segment_bytes=1 << 20)
    for operations in range(12):
        disk = log(segment_bytes=600)  # seven entries, then four
        disk.rng.seed(seed)
        name = "0000000000000001.log"
        data = bytearray(disk.read_all(name))
        if kind == "header":
            data[3] ^= 1
        elif kind == "short":
            del data[300:]
        else:
            data[200 : 201 if kind == "flip" else 330] = bytes(
                b ^ 8 for b in data[200 : 201 if kind == "flip" else 330]
            )
        set_content(disk, name, bytes(data))
        before = {i for i in TERMS if read_stored(read_files(disk, i, i, 1), i)}
        disk.stop_after(operations)
        went_down = crashed(disk, lambda disk=disk: mend(disk, sound))  # type: ignore[misc]
        after = {i for i in TERMS if read_stored(read_files(disk, i, i, 1), i)}
        assert before <= after, (operations, before - after)
        disk.kill()
        while not mend(disk, sound):
            pass
        assert commands(disk) == commands(sound)
        if not went_down:
            return
    raise AssertionError("it never came to its end")


@pytest.mark.parametrize("seed", range(8))
def test_a_crash_while_a_running_log_is_mended_leaves_nothing_worse(seed: int) -> None:
    """The repair is written in a group commit, together with new entries."""
    for operations in range(20):
        disk = log(segment_bytes=1 << 20)
        disk.rng.seed(seed)
        disk.flip("0000000000000001.log", 360)
        journal = SegmentJournal(disk, segment_bytes=1 << 20, mendable=True)
        (hole,) = journal.holes.all()
        fill(journal, [12, 13], term=5)
        assert journal.mend(hole, StoredEntry(hole.first, TERMS[hole.first], command(hole.first)))
        disk.stop_after(operations)
        went_down = crashed(disk, journal.sync)
        disk.kill()
        again = SegmentJournal(disk, segment_bytes=1 << 20, mendable=True)
        assert set(TERMS) <= set(indexes(again))
        assert [h.first for h in again.holes.all()] in ([], [hole.first])
        for index in TERMS:
            if index != hole.first or not again.holes:
                assert again.read(index) == command(index)
        if not went_down:
            assert not again.holes and again.last_index == 13
            return
    raise AssertionError("it never came to its end")


def test_a_cut_of_the_log_takes_what_was_to_be_mended_with_it() -> None:
    disk = log(segment_bytes=1 << 20)
    disk.flip("0000000000000001.log", 32 + 7 * 72 + 40)
    journal = SegmentJournal(disk, segment_bytes=1 << 20, mendable=True)
    (hole,) = journal.holes.all()
    assert hole.first == 8 and journal.mend(hole, StoredEntry(8, 4, command(8)))
    journal.deleteEntriesFrom(6)  # Raft: a conflict from entry 7 on
    assert not journal.holes
    fill(journal, [7, 8], term=6)
    journal.close()
    again = SegmentJournal(disk, segment_bytes=1 << 20)
    assert indexes(again) == list(range(1, 9)) and again.term_at(8) == 6


def test_the_term_of_what_is_missing_at_the_end_is_not_guessed() -> None:
    """The power failed at a roll, so the sidecar is lost; the full segment has lost its last entries, exactly
    at an entry's end. They were acknowledged in term 7; a replica that was cut off has others of term 1
    there."""
    ours = {1: 1, 2: 1, 3: 1, 4: 1, 5: 7, 6: 7}
    disk = log(ours, segment_bytes=1 << 20)
    (first,) = segment_firsts(disk)
    data = disk.read_all(log_name(first))
    cut = scan(memoryview(data), FILE_HEADER_SIZE, first).positions[4]
    set_content(disk, log_name(first), data[:cut])
    disk.open(log_name(7), create=True).sync()
    disk.sync_dir()
    drop_sidecars(disk)
    assert (survey_log(disk).last, survey_log(disk).end) == (6, None), "it can neither vote nor be mended"
    assert not mend(disk, log(dict.fromkeys(range(1, 7), 1), segment_bytes=1 << 20))
