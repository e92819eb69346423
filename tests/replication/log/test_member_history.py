"""The log knows which configuration of its group holds at which entry, whatever is cut off and whenever it is
opened."""

from __future__ import annotations

import random

import pytest

from escrowmq.replication.format.membership import Members, encode_members, founding
from escrowmq.replication.format.segment_format import decode_sidecar, encode_sidecar, sidecar_name
from escrowmq.replication.log.journal import SegmentJournal
from escrowmq.replication.log.member_history import MemberHistory
from tests.sim.environment.disk import SimDisk

BEGINNING = founding(["0", "1", "2"])
WITH_3 = Members(2, ("0", "1", "2"), ("3",), "x", 3)
VOTED_IN = Members(3, ("0", "1", "2", "3"), (), "x", 3)


def journal(disk: SimDisk, segment_bytes: int = 1 << 20) -> SegmentJournal:
    opened = SegmentJournal(disk, segment_bytes=segment_bytes)
    opened.members.begin(0, BEGINNING)
    return opened


def filled(disk: SimDisk, segment_bytes: int = 1 << 20) -> SegmentJournal:
    """Entries 1 to 40; 10 and 20 are configurations."""
    log = journal(disk, segment_bytes)
    said = {10: encode_members(WITH_3), 20: encode_members(VOTED_IN)}
    for index in range(1, 41):
        log.add(said.get(index, b"\0" + b"x" * 50), index, 1)
    log.sync()
    return log


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk(random.Random(0))


def test_a_configuration_holds_from_its_entry_on(disk: SimDisk) -> None:
    log = filled(disk)
    assert [log.members.at(index) for index in (9, 10, 19, 20, 40)] == [
        BEGINNING, WITH_3, WITH_3, VOTED_IN, VOTED_IN,
    ]  # fmt: skip
    assert log.members.newest_index == 20
    assert log.members.since(12) == [WITH_3, VOTED_IN]


def test_what_is_cut_off_never_was(disk: SimDisk) -> None:
    log = filled(disk)
    edits = log.members.edits
    log.deleteEntriesFrom(19)
    assert log.members.current == WITH_3 and log.members.edits > edits
    log.deleteEntriesFrom(5)
    assert log.members.current == BEGINNING
    log.add(encode_members(VOTED_IN), 6, 2)
    assert log.members.newest_index == 6


@pytest.mark.parametrize("segment_bytes", [1 << 20, 600])
def test_a_start_finds_them_again(disk: SimDisk, segment_bytes: int) -> None:
    """The newest segment is scanned; the others have sidecars."""
    filled(disk, segment_bytes).close()
    again = journal(disk, segment_bytes)
    assert (again.members.current, again.members.at(15)) == (VOTED_IN, WITH_3)


def test_a_lost_sidecar_costs_nothing_but_a_scan(disk: SimDisk) -> None:
    filled(disk, 600).close()
    for name in [name for name in disk.names() if name.endswith(".pos")]:
        disk.remove(name)
    assert journal(disk, 600).members.at(15) == WITH_3
    assert journal(disk, 600).members.at(15) == WITH_3, "the rewritten sidecar says so, too"


def test_a_segment_that_is_cut_and_sealed_again_names_the_right_ones(disk: SimDisk) -> None:
    log = filled(disk, 600)
    log.deleteEntriesFrom(19)
    for index in range(20, 41):
        log.add(b"\0" + b"y" * 50, index, 2)
    log.close()
    again = journal(disk, 600)
    assert again.members.current == WITH_3


def test_retention_leaves_what_still_holds(disk: SimDisk) -> None:
    log = filled(disk, 600)
    first = log.drop_before(30)
    assert 20 < first <= 30
    assert log.members.current == log.members.at(first) == VOTED_IN
    assert log.members.said(40) == (20, encode_members(VOTED_IN)), "so that the next snapshot says it"


def test_after_retention_the_snapshot_tells(disk: SimDisk) -> None:
    log = filled(disk, 600)
    log.drop_before(30)
    said = log.members.said(35)
    log.close()
    again = SegmentJournal(disk, segment_bytes=600)
    assert again.members.current is None and said is not None
    again.members.begin(*said)
    again.members.begin(0, BEGINNING)
    assert again.members.current == VOTED_IN, "what the group began with is older"


def test_an_older_snapshot_does_not_hide_what_the_log_says_later(disk: SimDisk) -> None:
    filled(disk).close()
    again = SegmentJournal(disk)
    again.members.begin(10, encode_members(WITH_3))
    assert again.members.current == VOTED_IN and again.members.at(12) == WITH_3


def test_without_configurations_nothing_is_written_otherwise_than_before(disk: SimDisk) -> None:
    log = journal(disk, 600)
    for index in range(1, 41):
        log.add(b"\0" + b"x" * 50, index, 1)
    log.close()
    assert log.members.said(40) is None, "no snapshot says a word"
    name = sidecar_name(1)
    data = disk.read_all(name)
    found = decode_sidecar(data, 1)
    assert data[4] == 1 and found is not None
    assert encode_sidecar(1, found.positions, found.terms) == data


def test_a_sidecar_with_configurations_is_of_version_2(disk: SimDisk) -> None:
    filled(disk, 1200).close()
    first = next(info for info in (disk.read_all(n) for n in sorted(disk.names()) if n.endswith(".pos")))
    assert first[4] == 2
    found = decode_sidecar(first, 1)
    assert found is not None and found.members == [(10, encode_members(WITH_3))]
    for cut in range(len(first) - 1, 0, -1):
        assert decode_sidecar(first[:cut], 1) is None
    for at in range(len(first)):
        assert decode_sidecar(first[:at] + bytes((first[at] ^ 4,)) + first[at + 1 :], 1) is None


def test_entries_are_not_judged_before_somebody_asks() -> None:
    history = MemberHistory()
    history.begin(0, BEGINNING)
    history.note(7, b"\x02junk")
    assert history.at(6) == BEGINNING
    history.cut_after(6)
    assert history.current == BEGINNING
