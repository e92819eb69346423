"""Where a group commit runs: beside heartbeats only while it is small and the disk is quick."""

from __future__ import annotations

from escrowmq.replication.host.driver import (
    AVOID_S,
    INLINE_BYTES_MAX,
    QUICK_RUN,
    QUICK_S,
    SETTLE_S,
    SLOW_S,
    SyncChoice,
)


def quick(times: int = QUICK_RUN) -> SyncChoice:
    choice = SyncChoice()
    for _ in range(times):
        choice.took(QUICK_S, 0.0)
    return choice


def test_a_quick_disk_is_known_after_a_run_of_quick_syncs() -> None:
    assert not quick(QUICK_RUN - 1).inline(100, 0.0)
    assert quick().inline(100, 0.0)


def test_large_writes_and_more_than_an_append_go_to_the_other_thread() -> None:
    assert quick().inline(INLINE_BYTES_MAX, 0.0)
    assert not quick().inline(INLINE_BYTES_MAX + 1, 0.0)
    assert not quick().inline(None, 0.0)


def test_one_that_is_not_quick_starts_the_run_again() -> None:
    choice = quick()
    choice.took(QUICK_S * 1.01, 0.0)
    assert not choice.inline(100, 0.0)
    for _ in range(QUICK_RUN):
        choice.took(0.0, 0.0)
    assert choice.inline(100, 0.0)


def test_beside_a_snapshot_and_shortly_after_the_other_thread_works() -> None:
    choice = quick()
    choice.other_work_begins()
    choice.other_work_begins()
    choice.other_work_ended(5.0)
    assert not choice.inline(100, 50.0), "one is still under way"
    choice.other_work_ended(60.0)
    assert not choice.inline(100, 59.9 + SETTLE_S)
    assert choice.inline(100, 60.0 + SETTLE_S)


def test_a_disk_that_has_hung_is_avoided_for_a_minute_however_quick_it_is_then() -> None:
    choice = quick()
    choice.took(SLOW_S * 1.01, 10.0)
    for _ in range(10 * QUICK_RUN):
        choice.took(0.0, 11.0)
    assert not choice.inline(100, 9.9 + AVOID_S)
    assert choice.inline(100, 10.0 + AVOID_S)
