"""By which time a leader goes: for leases its monotonic clock, for entries the group's."""

from __future__ import annotations

from pathlib import Path

from tests.support.lease_dispatcher import LEASE_MS, ME, OTHER, Desk

A_DAY_MS = 86_400_000


def test_a_step_of_the_wall_clock_ends_no_lease(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    try:
        desk.begin()
        desk.put("a")
        desk.monotonic_ms = asked_ms = desk.now_ms
        assert desk.values(ME) == ["a"]
        desk.now_ms += A_DAY_MS
        desk.replica.on_timer(desk.now_ms)
        desk.put("b")  # in an entry with the new time
        assert desk.state.now_ms >= asked_ms + A_DAY_MS
        assert desk.values(OTHER) == ["b"], "the first is still leased"
        desk.monotonic_ms += LEASE_MS
        desk.replica.on_timer(desk.now_ms)
        assert [(value, expiries) for _, value, _, expiries in desk.take(OTHER)] == [
            ("a", 1),
            ("b", 1),
        ]
    finally:
        desk.close()


def test_a_new_leadership_does_not_go_on_from_the_time_of_an_earlier_one(tmp_path: Path) -> None:
    """That one's entries may have come to nothing, by a clock that was ahead."""
    desk = Desk(tmp_path)
    try:
        desk.begin()
        desk.replica.admission._last_ms = desk.now_ms + A_DAY_MS
        desk.fail_over()
        desk.put("a")
        assert desk.state.now_ms <= desk.now_ms
    finally:
        desk.close()
