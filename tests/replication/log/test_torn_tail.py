"""What recovery cuts off and what it refuses: only a write that was never synced may be lost."""

from __future__ import annotations

import pytest

from escrowmq.replication.errors import CorruptLog, UnknownVersion
from escrowmq.replication.format.entry import HEADER_SIZE, MAGIC, encode_header
from escrowmq.replication.format.segment_format import FILE_HEADER_SIZE, encode_file_header
from escrowmq.replication.log.holes import SECTOR
from escrowmq.replication.log.journal import SegmentJournal
from escrowmq.replication.log.recovery import survey_log
from tests.sim.environment.disk import SimDisk
from tests.support.storage import NEWEST, command, fill, indexes, set_content, sim_disk, synced_log

SIZE = 40
RECORD = HEADER_SIZE + SIZE


def at(index: int) -> int:
    """Where entry ``index`` begins in a log of entries of equal size."""
    return FILE_HEADER_SIZE + (index - 1) * RECORD


def at_byte(position: int) -> int:
    """The entry that this byte belongs to, in such a log."""
    return (position - FILE_HEADER_SIZE) // RECORD + 1


def assert_refused(disk: SimDisk, *texts: str) -> None:
    """Asserts that opening raises CorruptLog with these texts, and changes no file."""
    before = {name: disk.read_all(name) for name in disk.names()}
    with pytest.raises(CorruptLog) as caught:
        SegmentJournal(disk)
    for text in texts:
        assert text in str(caught.value)
    assert {name: disk.read_all(name) for name in disk.names()} == before


@pytest.mark.parametrize("lost", range(1, RECORD + 1))
def test_a_last_entry_cut_off_at_any_byte_is_a_torn_tail(lost: int) -> None:
    disk = sim_disk()
    synced_log(disk, 3)
    set_content(disk, NEWEST, disk.read_all(NEWEST)[:-lost])
    journal = SegmentJournal(disk)
    assert indexes(journal) == [1, 2]
    assert disk.open(NEWEST).size() == at(3), "cut back to the border of the last whole entry"
    fill(journal, [3, 4])
    journal.close()
    assert indexes(SegmentJournal(disk)) == [1, 2, 3, 4]


@pytest.mark.parametrize("byte", range(RECORD))
def test_a_damaged_last_entry_is_a_torn_tail(byte: int) -> None:
    disk = sim_disk()
    synced_log(disk, 3)
    disk.flip(NEWEST, at(3) + byte)
    assert indexes(SegmentJournal(disk)) == [1, 2]


@pytest.mark.parametrize("tail", [b"\0", bytes(5000), b"garbage" * 9, MAGIC, MAGIC * 50])
def test_whatever_follows_the_last_entry_is_cut_off(tail: bytes) -> None:
    disk = sim_disk()
    synced_log(disk, 2)
    set_content(disk, NEWEST, disk.read_all(NEWEST) + tail)
    journal = SegmentJournal(disk)
    assert indexes(journal) == [1, 2]
    assert disk.open(NEWEST).size() == at(3)


@pytest.mark.parametrize("each", [True, False], ids=["one sync each", "one sync for all"])
@pytest.mark.parametrize("byte", range(RECORD))
def test_a_damaged_entry_before_the_last_is_corruption(byte: int, each: bool) -> None:
    disk = sim_disk()
    synced_log(disk, 4, each=each)
    disk.flip(NEWEST, at(2) + byte)
    assert_refused(disk, NEWEST, f"byte {at(2)}")


def test_a_lost_sector_of_an_unfinished_sync_is_a_torn_tail() -> None:
    """Pages of one sync reach the disk in any order: later entries may be whole."""
    disk = sim_disk()
    journal = SegmentJournal(disk)
    fill(journal, [1])
    journal.sync()
    fill(journal, range(2, 60))
    journal.sync()
    data = bytearray(disk.read_all(NEWEST))
    data[2 * SECTOR : 3 * SECTOR] = bytes(SECTOR)
    set_content(disk, NEWEST, bytes(data))
    recovered = indexes(SegmentJournal(disk))
    assert recovered == list(range(1, len(recovered) + 1))
    assert at(len(recovered)) + RECORD <= 2 * SECTOR < at(len(recovered) + 1) + RECORD


def test_a_lost_sector_of_a_finished_sync_is_corruption() -> None:
    disk = sim_disk()
    journal = SegmentJournal(disk)
    fill(journal, range(1, 59))
    journal.sync()
    fill(journal, [59])
    journal.sync()  # its header says that everything before was durable
    data = bytearray(disk.read_all(NEWEST))
    data[2 * SECTOR : 3 * SECTOR] = bytes(SECTOR)
    set_content(disk, NEWEST, bytes(data))
    assert_refused(disk, NEWEST)


@pytest.mark.parametrize("lost", ["a sector", "a byte"])
def test_where_entries_can_be_mended_a_finished_sync_is_not_taken_for_a_torn_tail(lost: str) -> None:
    """Entry 59 was synced later, so all before it had been acknowledged. Cut off as a torn tail, they would
    be lost without a word; as a hole they are mended."""
    disk = sim_disk()
    journal = SegmentJournal(disk)
    fill(journal, range(1, 59))
    journal.sync()
    fill(journal, [59])
    journal.sync()
    journal.setCurrentTerm(1, None)
    journal.close()
    data = bytearray(disk.read_all(NEWEST))
    if lost == "a sector":
        data[2 * SECTOR : 3 * SECTOR] = bytes(SECTOR)
    else:
        data[2 * SECTOR] ^= 1
    set_content(disk, NEWEST, bytes(data))
    survey = survey_log(disk)
    assert survey.end == (1, 59) and [hole.first for hole in survey.holes] == [at_byte(2 * SECTOR)]
    if lost == "a byte":
        opened = SegmentJournal(disk, mendable=True)
        assert opened.last_index == 59 and opened.holes.after(0) == at_byte(2 * SECTOR)
        return
    before = disk.read_all(NEWEST)  # several entries, so it is mended before it is opened
    with pytest.raises(CorruptLog, match="mended from a peer"):
        SegmentJournal(disk, mendable=True)
    assert disk.read_all(NEWEST) == before


@pytest.mark.parametrize("mendable", [True, False])
def test_a_lost_sector_of_an_unfinished_sync_is_torn_wherever_it_is_opened(mendable: bool) -> None:
    """What was never acknowledged is cut off, and no peer is asked for it: it may be nowhere else."""
    disk = sim_disk()
    synced_log(disk, 3)
    journal = SegmentJournal(disk)
    fill(journal, range(4, 60))
    journal.close()
    data = bytearray(disk.read_all(NEWEST))
    data[2 * SECTOR : 3 * SECTOR] = bytes(SECTOR)
    set_content(disk, NEWEST, bytes(data))
    opened = SegmentJournal(disk, mendable=mendable)
    assert opened.last_index == at_byte(2 * SECTOR) - 1 and not opened.holes


def test_a_copy_of_log_bytes_inside_a_message_is_not_mistaken_for_the_log() -> None:
    """A torn entry whose body holds an old piece of a log: older entries prove nothing."""
    disk = sim_disk()
    journal = SegmentJournal(disk)
    fill(journal, range(1, 10))
    journal.sync()
    old_log = disk.read_all(NEWEST)
    journal.add(b"backup of the log: " + old_log, 10, 1)
    journal.close()
    set_content(disk, NEWEST, disk.read_all(NEWEST)[:-1])
    assert indexes(SegmentJournal(disk)) == list(range(1, 10))


def test_forged_magics_in_a_torn_body_cost_a_bounded_time_and_lose_nothing() -> None:
    """Thousands of plausible headers: the search gives up, and giving up counts as corruption."""
    disk = sim_disk()
    forged = encode_header(b"", 3, 1, 0)[:8] + (60_000).to_bytes(4, "little") + bytes(4)
    forged += (1).to_bytes(8, "little") + (3).to_bytes(8, "little")
    journal = SegmentJournal(disk)
    fill(journal, [1])
    journal.add(forged * 4000, 2, 1)
    journal.close()
    set_content(disk, NEWEST, disk.read_all(NEWEST)[:-1])
    assert_refused(disk, NEWEST)


@pytest.mark.parametrize("size", range(FILE_HEADER_SIZE))
def test_a_torn_creation_of_a_segment_leaves_the_log_before_it(size: int) -> None:
    disk = sim_disk()
    synced_log(disk, 3)
    set_content(disk, "0000000000000004.log", encode_file_header(4)[:size])
    journal = SegmentJournal(disk)
    assert indexes(journal) == [1, 2, 3]
    fill(journal, [4])
    journal.close()
    assert indexes(SegmentJournal(disk)) == [1, 2, 3, 4]


def test_before_a_torn_creation_nothing_may_be_torn() -> None:
    """A segment is synced before the next is created, so its last entry was durable."""
    disk = sim_disk()
    synced_log(disk, 3)
    disk.flip(NEWEST, at(3) + 5)
    set_content(disk, "0000000000000004.log", b"")
    assert_refused(disk, NEWEST, f"byte {at(3)}")


@pytest.mark.parametrize("byte", range(FILE_HEADER_SIZE))
def test_a_damaged_file_header_is_corruption(byte: int) -> None:
    disk = sim_disk()
    synced_log(disk, 3)
    disk.flip(NEWEST, byte)
    assert_refused(disk, NEWEST, "byte 0")


def test_a_missing_segment_is_corruption() -> None:
    disk = sim_disk()
    synced_log(disk, 12, segment_bytes=200)
    disk.remove("0000000000000005.log")
    assert_refused(disk, "0000000000000007.log", "a segment is missing")


def test_a_segment_under_another_name_is_corruption() -> None:
    disk = sim_disk()
    synced_log(disk, 3)
    disk.rename(NEWEST, "0000000000000002.log")
    assert_refused(disk, "0000000000000002.log")


def test_a_sound_entry_in_the_wrong_place_is_corruption() -> None:
    disk = sim_disk()
    synced_log(disk, 2)
    for index, term in ((5, 1), (3, 0)):
        disk.kill()
        body = command(index)
        stray = encode_header(body, index, term, 0) + body
        data = disk.read_all(NEWEST)
        set_content(disk, NEWEST, data + stray)
        assert_refused(disk, NEWEST, f"byte {at(3)}", f"entry {index} of term {term}")
        set_content(disk, NEWEST, data)


def test_entries_and_files_of_a_newer_version_are_named_as_such() -> None:
    disk = sim_disk()
    synced_log(disk, 2)
    data = disk.read_all(NEWEST)
    newer = _with_version(encode_header(b"later", 3, 1, 0), b"later")
    set_content(disk, NEWEST, data + newer + b"later")
    with pytest.raises(UnknownVersion, match=r"0000000000000001\.log.*version 2.*upgrade"):
        SegmentJournal(disk)
    head = bytearray(encode_file_header(1))
    head[4] = 9
    set_content(disk, NEWEST, _resummed(bytes(head)) + data[FILE_HEADER_SIZE:])
    with pytest.raises(UnknownVersion, match="version 9"):
        SegmentJournal(disk)


def _with_version(header: bytes, body: bytes) -> bytes:
    from google_crc32c import value

    raw = bytearray(header)
    raw[4] = 2
    crc: int = value(bytes(raw[:12]) + bytes(raw[16:]) + body)
    raw[12:16] = crc.to_bytes(4, "little")
    return bytes(raw)


def _resummed(head: bytes) -> bytes:
    from google_crc32c import value

    crc: int = value(head[:-4])
    return head[:-4] + crc.to_bytes(4, "little")
