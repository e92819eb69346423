"""Releases beside requests: a share of the time, and few entries of their own."""

from __future__ import annotations

from escrowmq.replication.replica.releases import (
    ALONE_MIN,
    PER_MS,
    RELEASED_BESIDE,
    RELEASED_MAX,
    REQUESTS_MS,
    ReleasePace,
)


def test_nothing_slows_releases_down_while_nobody_asks() -> None:
    pace = ReleasePace()
    for now_ms in 5, 5, 5, 6:
        assert pace.room(now_ms, beside=False) == RELEASED_MAX
        pace.released(now_ms, full=True)


def test_beside_requests_each_millisecond_brings_room_for_some() -> None:
    pace = ReleasePace()
    assert pace.room(1_000, beside=True) == RELEASED_BESIDE
    pace.released(1_000, full=True)
    assert pace.room(1_000, beside=True) == 0
    assert pace.room(1_003, beside=True) == 3 * PER_MS
    assert pace.room(9_000, beside=True) == RELEASED_BESIDE


def test_an_entry_of_its_own_waits_until_it_is_worth_it_while_requests_are_expected() -> None:
    pace = ReleasePace()
    pace.requests_ms = 1_000
    pace.released(1_000, full=True)
    room = [pace.room(1_000 + ms, beside=False) for ms in range(REQUESTS_MS + 1)]
    soon = ALONE_MIN // PER_MS
    assert room[:soon] == [0] * soon and room[soon] == ALONE_MIN
    assert max(room[:-1]) == RELEASED_BESIDE and room[-1] == RELEASED_MAX


def test_a_million_takes_at_most_50_seconds_beside_requests_in_every_entry() -> None:
    pace, now_ms, left = ReleasePace(), 0, 1_000_000
    while left > 0:
        now_ms += 7  # a slow disk
        left -= pace.room(now_ms, beside=True)
        pace.released(now_ms, full=True)
    assert now_ms < 50_000


def test_few_messages_are_on_time_beside_requests() -> None:
    pace = ReleasePace()
    for now_ms in 1_000, 1_001, 1_001:
        pace.requests_ms = now_ms
        assert pace.room(now_ms, beside=False) == RELEASED_BESIDE
        pace.released(now_ms, full=False)
