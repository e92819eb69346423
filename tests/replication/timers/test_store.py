"""The store of waiting messages against a sorted list."""

from __future__ import annotations

import random
from threading import Lock

from hypothesis import given, settings
from hypothesis import strategies as st

from escrowmq.replication.timers.record import (
    FIRST_KEY,
    KEY_BYTES,
    RECORD,
    RECORD_BYTES,
    Timer,
    at_the_earliest,
    deliver_ms_of,
    is_tombstone,
    key_of,
    last_key,
    tombstone,
)
from escrowmq.replication.timers.store import CHUNK, WIDER_FROM_MS, WIDTHS, TimerStore, records_in_order

NOW_MS = 1_700_000_000_000
#: Delays around the borders of buckets, and two that many records share.
DELAYS = st.sampled_from(
    [0, 1, 999, 1_000, 59_999, 119_999, 120_000, 7_199_999, 7_200_000, 90_000_000, 315_360_000_000]
)
KEYS = st.tuples(DELAYS, st.integers(0, 2), st.integers(0, 1), st.integers(0, 2))


def record(delay: int, slot: int = 0, owner: int = 0, ordinal: int = 0, *, index: int = 7) -> bytes:
    return RECORD.pack(NOW_MS + delay, slot, owner, ordinal, index, 30 + ordinal, 100)


def model_living(records: list[bytes]) -> list[bytes]:
    """Slow and plain."""
    dead = [
        (Timer(*RECORD.unpack(r))[:4], Timer(*RECORD.unpack(r)).log_index) for r in records if is_tombstone(r)
    ]
    return sorted(
        r
        for r in records
        if not is_tombstone(r)
        and not any(
            key == Timer(*RECORD.unpack(r))[:4] and index > Timer(*RECORD.unpack(r)).log_index
            for key, index in dead
        )
    )


def read_all(store: TimerStore, until_ms: int, limit: int) -> list[bytes]:
    after, found = FIRST_KEY, []
    while after < last_key(until_ms):
        more, after = store.due(after, until_ms, limit)
        found += more
    return found


def test_records_compare_in_the_order_of_delivery() -> None:
    fields = [(2, 1, 1, 1, 9, 9, 9), (1, 9, 9, 9, 9, 9, 9), (1, 9, 9, 10, 1, 1, 1), (256, 0, 0, 0, 0, 0, 1)]
    assert [RECORD.unpack(r) for r in sorted(RECORD.pack(*f) for f in fields)] == sorted(fields)
    assert key_of(*fields[0][:4]) == RECORD.pack(*fields[0])[:KEY_BYTES] <= last_key(2)


def test_a_time_behind_the_cursor_becomes_the_earliest_that_is_left() -> None:
    early, late = record(-5), record(5)
    (moved, same) = at_the_earliest([early, late], NOW_MS + 1)
    assert deliver_ms_of(moved) == NOW_MS + 1 and moved[8:] == early[8:] and same == late


@settings(max_examples=200, deadline=None)
@given(
    entries=st.lists(st.lists(st.tuples(KEYS, st.booleans()), max_size=6), max_size=12),
    freezes=st.sets(st.integers(0, 12)),
    limit=st.integers(1, 5),
    until=DELAYS,
)
def test_the_store_reads_as_a_sorted_list(
    entries: list[list[tuple[tuple[int, int, int, int], bool]]], freezes: set[int], limit: int, until: int
) -> None:
    store, model = TimerStore(), []
    for index, entry in enumerate(entries, 1):
        records = []
        for (delay, slot, owner, ordinal), kills in entry:
            key = key_of(NOW_MS + delay, slot, owner, ordinal)
            records.append(
                tombstone(key, index) if kills else record(delay, slot, owner, ordinal, index=index)
            )
        store.add(b"".join(records), NOW_MS + index)
        model += records
        if index in freezes:
            store.freeze()
    due = [r for r in model_living(model) if deliver_ms_of(r) <= NOW_MS + until]
    assert read_all(store, NOW_MS + until, limit) == due
    first = store.next_ms(FIRST_KEY)
    every = model_living(model)
    assert not every or (first is not None and first <= deliver_ms_of(every[0]))
    for key in {r[:KEY_BYTES] for r in model}:
        copies = [r for r in every if r.startswith(key)]
        assert store.find(key) == (copies, any(is_tombstone(r) for r in model if r.startswith(key)))
    assert store.find(key_of(NOW_MS, 9, 9, 9)) == ([], False)
    written = [r for part in records_in_order(store.freeze().young, FIRST_KEY, Lock()) for r in part]
    assert written == sorted(model)


def test_many_in_one_bucket_are_put_in_order_a_bounded_number_at_a_time() -> None:
    drawn = random.Random(1)
    records = [record(9_000_000 + drawn.randrange(3_000), owner=n) for n in range(20 * CHUNK)]
    store = TimerStore()
    store.add(b"".join(records), NOW_MS)
    until = NOW_MS + 9_010_000
    assert store.due(FIRST_KEY, until, 10) == ([], FIRST_KEY)
    assert not store.arrange(FIRST_KEY, until)
    calls = 0
    while not store.arrange(FIRST_KEY, until):
        calls += 1
    assert 2 <= calls <= 20
    assert read_all(store, until, 1_000) == sorted(records)


def test_a_tombstone_kills_what_is_older_and_nothing_of_its_own_entry() -> None:
    store = TimerStore()
    again = record(5_000, index=9)
    store.add(record(5_000, index=7) + tombstone(again[:KEY_BYTES], 9) + again, NOW_MS)
    assert store.find(again[:KEY_BYTES]) == ([again], True)
    assert store.due(FIRST_KEY, NOW_MS + 5_000, 10) == ([again], last_key(NOW_MS + 5_000))


def test_what_is_cancelled_in_a_row_does_not_hide_what_is_behind_it() -> None:
    """A leader asks again from the cursor, which only a release moves."""
    patient, store = TimerStore(), TimerStore(looks_per_call=2)
    many, last = [record(200, ordinal=n) for n in range(5_000)], record(200, owner=1)
    for each in (patient, store):
        each.add(b"".join((*many, last)), NOW_MS)
        each.add(b"".join(tombstone(r[:KEY_BYTES], 9) for r in many), NOW_MS)
    until = NOW_MS + 300
    assert patient.due(FIRST_KEY, until, 500) == ([last], last_key(until))
    found, reached = store.due(FIRST_KEY, until, 50)
    assert found == [] and FIRST_KEY < reached < last[:KEY_BYTES]
    assert read_all(store, until, 50) == [last]


def test_what_is_released_is_forgotten_with_its_bucket() -> None:
    store = TimerStore()
    store.add(b"".join(record(n * 500, ordinal=n) for n in range(100)), NOW_MS)
    assert store.young == 100
    store.release(last_key(NOW_MS + 25_000))
    assert store.young == 50
    assert store.next_ms(store.cursor) == NOW_MS + 25_000, "the bucket that has begun may have more"
    assert store.due(store.cursor, NOW_MS + 25_500, 10)[0] == [record(25_500, ordinal=51)]
    assert store.next_ms(store.cursor) == NOW_MS + 25_500, "exact once it is in order"


def test_far_deliveries_share_wide_buckets() -> None:
    store = TimerStore()
    year = 365 * 86_400_000
    records = [record(n * year // 3_000, ordinal=n) for n in range(3_000)]
    store.add(b"".join(records), NOW_MS)
    assert len(store._buckets(0, NOW_MS + 2 * year)) <= year // WIDTHS[-1] + 2
    assert WIDER_FROM_MS[-1] < year
    assert b"".join(read_all(store, NOW_MS + year, 500)) == b"".join(records)
    assert len(records[0]) == RECORD_BYTES


def test_what_is_due_in_the_last_millisecond_of_a_bucket_is_not_forgotten_with_it() -> None:
    """Releases take a bounded number: 3,000 messages of one millisecond need several, and the cursor stands
    among them meanwhile. Finds a bucket that is forgotten a millisecond early."""
    store, records = TimerStore(), [record(1_999, ordinal=n) for n in range(3_000)]
    store.add(b"".join(records), NOW_MS)
    until, released = NOW_MS + 1_999, list[bytes]()
    while len(released) < len(records):
        found, _ = store.due(store.cursor, until, 500)
        assert len(found) == 500, len(released)
        released += found
        store.release(found[-1][:KEY_BYTES])
    assert released == records
    store.release(last_key(NOW_MS + 2_000))
    assert store.young == 0
