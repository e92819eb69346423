"""Files of timers: what is written comes back, damage is seen, and merging changes no answer."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from escrowmq.replication.errors import CorruptLog, UnknownVersion
from escrowmq.replication.timers import sealed_file
from escrowmq.replication.timers.record import (
    FIRST_KEY,
    KEY_BYTES,
    RECORD,
    RECORD_BYTES,
    key_of,
    last_key,
    living,
    living_count,
    settled,
    tombstone,
)
from escrowmq.replication.timers.runs import behind, in_order
from escrowmq.replication.timers.sealed_file import FAN_IN, SealedFile, choose, encode, merged, verify_timers
from escrowmq.replication.timers.store import TimerStore
from tests.support.golden_files import TIMERS, mend_timers
from tests.support.stored_bytes import StoredBytes

NOW_MS = 1_700_000_000_000
SMALL_CLASSES = 8, 64, 512


def timer(n: int, index: int = 1) -> bytes:
    return RECORD.pack(NOW_MS + n, 1, 2, 0, index, 30, 100)


def cancel(n: int, index: int = 9, copies: int = 1) -> bytes:
    return tombstone(key_of(NOW_MS + n, 1, 2, 0), index, copies)


def data_of(records: Iterable[bytes]) -> bytes:
    return b"".join(encode([sorted(records)]))


def file_of(records: Iterable[bytes], name: str = "a.timers") -> SealedFile:
    return SealedFile(name, StoredBytes(data_of(records)))


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three records a block, two a page."""
    monkeypatch.setattr(sealed_file, "PAGE", 2)
    monkeypatch.setattr(sealed_file, "BLOCK", 3)
    monkeypatch.setattr(sealed_file, "_BLOCK_BYTES", 3 * RECORD_BYTES)


# ------------------------------------------------------------------ one file


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6, 7])
def test_a_file_reads_as_what_was_written(small_blocks: None, count: int) -> None:
    records = [timer(n) for n in range(count)]
    file = file_of(records)
    assert len(file) == count and file.last_key == records[-1][:KEY_BYTES]
    assert file.rows(0, 100) == records and file.rows(count, 1) == []
    for n, record in enumerate(records):
        assert file.row_at(record[:KEY_BYTES]) == file.row_at(record[:8]) == n
        assert file.row_at(behind(record[:KEY_BYTES])) == n + 1
        assert file.living_after(record[:KEY_BYTES]) == count - n - 1
        assert 0 <= file.about_after(record[:KEY_BYTES]) - (count - n - 1) <= 3
    assert file.row_at(FIRST_KEY) == 0 and file.row_at(last_key(NOW_MS + count)) == count
    assert file.living_after(FIRST_KEY) == count


def test_copies_of_a_key_in_two_blocks_are_all_found(small_blocks: None) -> None:
    records = [timer(1), timer(2), *(timer(5, index) for index in range(1, 8)), timer(6)]
    file = file_of(records)
    key = timer(5)[:KEY_BYTES]
    assert (file.row_at(key), file.row_at(behind(key))) == (2, 9)
    assert [len(part) for part in in_order([file], FIRST_KEY, 1)] == [10]


def test_damage_is_seen_when_its_block_is_first_read_and_when_the_file_is_checked(small_blocks: None) -> None:
    good = data_of(timer(n) for n in range(7))
    for at in range(len(good)):
        data = bytearray(good)
        data[at] ^= 4
        with pytest.raises((CorruptLog, UnknownVersion)):
            SealedFile("a", StoredBytes(data)).rows(0, 7)
        with pytest.raises((CorruptLog, UnknownVersion)):
            checked(bytes(data))
    assert sum(checked(good)) == len(good)
    for size in range(len(good)):
        with pytest.raises(CorruptLog):
            SealedFile("a", StoredBytes(good[:size]))
        with pytest.raises(CorruptLog):
            checked(good[:size])


def checked(data: bytes, piece_bytes: int = 50) -> list[int]:
    return [*verify_timers("a", lambda at, size: data[at : at + size], len(data), piece_bytes)]


def test_other_blocks_of_a_damaged_file_can_be_read(small_blocks: None) -> None:
    data = bytearray(data_of(timer(n) for n in range(7)))
    data[8 + 4 * RECORD_BYTES] ^= 1
    file = SealedFile("a.timers", StoredBytes(data))
    assert (
        file.rows(0, 3) == [timer(0), timer(1), timer(2)] and file.row_at(behind(timer(6)[:KEY_BYTES])) == 7
    )
    with pytest.raises(CorruptLog, match=r"a\.timers: .*block 1"):
        file.rows(2, 2)


@pytest.mark.parametrize("seed", range(20))
def test_records_out_of_order_with_right_checksums_send_no_reader_round_in_circles(seed: int) -> None:
    rows, drawn = [timer(n) for n in range(1, 300)], random.Random(seed)
    drawn.shuffle(rows)
    data = data_of(timer(n) for n in range(300))
    data = data[: 8 + RECORD_BYTES] + b"".join(rows) + data[8 + 300 * RECORD_BYTES :]
    file = SealedFile("a", StoredBytes(mend_timers(data)))
    with pytest.raises(CorruptLog, match="not in order"):
        assert len([*islice(in_order([file], FIRST_KEY, 4), 500)]) == 500


def test_files_look_as_they_always_did() -> None:
    """After an intended change of format (raise the version first): write the file anew with ``to_hex``."""
    records = [timer(1), timer(2, index=5), cancel(2), timer(3_000)]
    assert data_of(records).hex() == TIMERS.hex()
    file = SealedFile("golden", StoredBytes(TIMERS))
    assert file.rows(0, 9) == records and file.living_after(FIRST_KEY) == 2 and file.size == len(TIMERS)


# ------------------------------------------------------------------ merging


def test_a_merge_leaves_out_what_is_released_and_what_is_killed_and_keeps_the_tombstone() -> None:
    files = [file_of([timer(1), timer(2), timer(3)]), file_of([cancel(2), cancel(3), timer(5)])]
    left = [r for part in merged(files, timer(1)[:KEY_BYTES]) for r in part]
    assert left == [cancel(2, copies=0), cancel(3, copies=0), timer(5)]
    assert living_count(left) == 1


def test_a_tombstone_whose_victim_is_in_another_file_counts_for_it_after_a_merge() -> None:
    left = [
        r
        for part in merged([file_of([timer(1)]), file_of([cancel(2, 9), cancel(2, 12)])], FIRST_KEY)
        for r in part
    ]
    assert left == [timer(1), cancel(2, 12, copies=2)]


RECORDS = st.lists(st.tuples(st.integers(0, 6), st.integers(1, 9), st.booleans()), min_size=1, max_size=40)


@settings(max_examples=150, deadline=None)
@given(RECORDS, st.data())
def test_merges_in_any_order_change_no_answer(
    drawn: list[tuple[int, int, bool]], data: st.DataObject
) -> None:
    """Each tombstone counts the copies that live before it, as a leader does."""
    records: list[bytes] = []
    for index, (n, _, kills) in enumerate(drawn, 1):
        copies = [r for r in living(sorted(records)) if r.startswith(timer(n)[:KEY_BYTES])]
        if not kills:
            records.append(timer(n, index))
        elif copies:
            records.append(cancel(n, index, len(copies)))
    cursor = key_of(NOW_MS + data.draw(st.integers(-1, 6)), 1, 2, 0)
    expected = [r for r in living(sorted(records)) if r > behind(cursor)]
    parts: list[list[bytes]] = [[] for _ in range(4)]
    for record in records:
        data.draw(st.sampled_from(parts)).append(record)
    files = [file_of(part) for part in parts if part]
    while True:
        found = [r for part in in_order(files, cursor, 5) for r in part]
        assert living(found) == expected == living(settled(found))
        assert sum(file.living_after(cursor) for file in files) == len(expected)
        if len(files) < 2:
            return
        some = data.draw(st.lists(st.sampled_from(files), min_size=1, max_size=3, unique=True))
        left = [r for part in merged(some, cursor) for r in part]
        files = [*(file for file in files if file not in some), *([file_of(left)] if left else [])]


def test_eight_files_of_a_class_become_one_and_there_are_never_many() -> None:
    store, written, most = TimerStore(), 0, 0
    for n in range(1_000):
        store.add(timer(n) + timer(5_000 + n), NOW_MS)
        frozen = store.freeze()
        store.sealed(frozen, file_of(r for part in store.to_write(frozen) for r in part))
        while chosen := choose(store.files, store.cursor, SMALL_CLASSES):
            left = [r for part in merged(chosen, store.cursor) for r in part]
            written += len(left)
            store.merged(chosen, file_of(left))
        most = max(most, len(store.files))
    assert most < 4 * FAN_IN and written <= 4 * 2_000
    until = NOW_MS + 10_000
    found, reached = store.due(FIRST_KEY, until, 5_000)
    more, end = store.due(reached, until, 5_000)
    assert found + more == [timer(n) for n in [*range(1_000), *range(5_000, 6_000)]] and end == last_key(
        until
    )


def test_a_large_file_that_is_mostly_released_is_written_anew(small_blocks: None) -> None:
    small, large = file_of(timer(n) for n in range(5)), file_of(timer(n) for n in range(30))
    assert choose([small, large], timer(10)[:KEY_BYTES], SMALL_CLASSES) == []
    assert choose([small, large], timer(20)[:KEY_BYTES], SMALL_CLASSES) == [large]


# ------------------------------------------------------------------ in the store


def test_files_that_the_cursor_has_passed_are_not_read_any_more() -> None:
    store = TimerStore()
    first, second = file_of([timer(1), timer(2)]), file_of([timer(2), timer(3)])
    store.restore([first, second])
    store.release(timer(1)[:KEY_BYTES])
    assert store.files == [first, second]
    store.release(timer(2)[:KEY_BYTES])
    assert store.files == [second] and store.retired == [first]
    assert store.find(timer(3)[:KEY_BYTES]).living == [timer(3)] and store.next_ms(store.cursor) == NOW_MS + 3


def test_what_is_being_written_is_still_read_from_memory() -> None:
    store = TimerStore()
    store.add(timer(1) + timer(2) + cancel(2), NOW_MS)
    frozen = store.freeze()
    store.add(timer(3), NOW_MS)
    for _ in range(2):  # the first attempt finds no room on the disk
        assert store.due(FIRST_KEY, NOW_MS + 5, 9)[0] == [timer(1), timer(3)]
        frozen = store.freeze()
    written = [r for part in store.to_write(frozen) for r in part]
    assert written == [timer(1), cancel(2, copies=0), timer(3)]
    store.sealed(frozen, file_of(written))
    assert store.due(FIRST_KEY, NOW_MS + 5, 9)[0] == [timer(1), timer(3)]
    assert store.young == 0 and store.freeze().young == []


def test_what_a_disk_has_lost_since_a_block_was_checked_is_not_taken_for_records(small_blocks: None) -> None:
    data = data_of(timer(n) for n in range(10))
    for record in range(10):
        stored = StoredBytes(data)
        file = SealedFile("a.timers", stored)
        assert len(file.rows(0, 10)) == 10
        at = data.index(timer(record))
        stored.data = data[:at] + bytes(8) + data[at + 8 :]
        with pytest.raises(CorruptLog, match="is not what it was at first"):
            file.rows(record, 1)
