"""An answer with messages is lost on the way: no handler ever saw them, and that is no failure.

Calls are ``(number of the call, number of the last answer that was received)``. Answers are numbered from 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from escrowmq.replication.sharing.receipts import REMEMBERED_MS, Receipts
from tests.support.lease_dispatcher import LEASE_MS, ME, OTHER, TICK_MS, Desk


@pytest.fixture
def single(tmp_path: Path) -> Iterator[Desk]:
    running = Desk(tmp_path)
    running.begin()
    yield running
    running.close()


def values(single: Desk, call: int, received: int = -1, member: str = ME) -> list[tuple[str, int]]:
    """Value and expiries of what this call brings."""
    return [found[1::2] for found in single.take(member, told=(call, received))]


@pytest.mark.parametrize("tells", [True, False])
def test_what_was_lost_on_the_way_comes_again_at_once_and_counts_no_expiry(single: Desk, tells: bool) -> None:
    single.put("a", "b")
    for call in range(3):
        if tells:
            assert values(single, call) == [("a", 0), ("b", 0)]
        else:  # as a member does that does not tell
            assert single.values() == (["a", "b"] if call < 2 else ["a"])
            single.pass_ms(LEASE_MS + TICK_MS)
    assert single.replica.lease_dispatcher.unreceived == (4 if tells else 0)


def test_what_was_received_stays_leased(single: Desk) -> None:
    single.put("a")
    assert values(single, 0) == [("a", 0)]
    single.put("b")
    assert values(single, 1, 1) == [("b", 0)]
    assert values(single, 2, 2) == [] == values(single, 0, member=OTHER)
    single.pass_ms(LEASE_MS + TICK_MS)
    assert values(single, 3, 2) == [("a", 1), ("b", 1)], "a member that dies says nothing"


def test_two_copies_of_a_call_get_two_answers_and_one_is_lost(single: Desk) -> None:
    single.put("a", "b")
    assert [found[1] for found in single.take(ME, 1, told=(0, -1))] == ["a"]
    assert [found[1] for found in single.take(ME, 1, told=(0, -1))] == ["b"]
    assert values(single, 1, 2) == [("a", 0)], "the first answer is lost"


def test_what_expired_and_came_again_to_the_same_call_stays_leased(single: Desk) -> None:
    single.put("a", "b")
    assert len(values(single, 0)) == 2
    single.pass_ms(LEASE_MS + TICK_MS)
    assert [found[1] for found in single.take(ME, 1, told=(0, -1))] == ["a"]
    assert values(single, 1, 2) == [("b", 1)]


def test_a_copy_that_comes_late_gets_nothing_and_gives_nothing_back(single: Desk) -> None:
    waiting: list[Any] = single.ask(wait_ms=60_000, told=(0, -1))
    assert values(single, 1) == []
    single.put("a")
    assert waiting == [("ok", [])], "the member does not wait for it any more"
    assert values(single, 2) == [("a", 0)]
    assert values(single, 1) == [] == values(single, 0, member=OTHER)
    single.put("b")
    assert values(single, 3, 1) == [("b", 0)]


def test_a_new_leader_takes_nothing_back(single: Desk) -> None:
    single.put("a")
    assert values(single, 0) == [("a", 0)]
    single.fail_over()
    assert values(single, 1, 1) == [("a", 0)]
    assert values(single, 2, 2) == []


def test_members_that_are_silent_are_forgotten() -> None:
    receipts = Receipts()
    receipts.called(("g", ME), 0, -1, 1_000)
    receipts.called(("g", OTHER), 0, -1, 1_000 + REMEMBERED_MS)
    receipts.tidy(1_000 + REMEMBERED_MS)
    assert len(receipts) == 1
