"""Messages whose leases have expired: the one that kills its process ends as a failure, and no other.

A *death* is a member that is never heard of again: what it held expires.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from escrowmq.replication.model import ResultCode
from escrowmq.replication.sharing.leases import DRAIN_MS
from tests.support.lease_dispatcher import DEAD, LEASE_MS, ME, OTHER, RETRY, TICK_MS, Desk

FINE = [f"fine {n}" for n in range(6)]


@pytest.fixture
def single(tmp_path: Path) -> Iterator[Desk]:
    running = Desk(tmp_path)
    running.begin()
    yield running
    running.close()


def consume(single: Desk, calls: int, first: int = 0) -> list[str]:
    """So many calls, each of a new member that dies at "kills", and otherwise acknowledges what it got.
    Returns what was handled."""
    done: list[str] = []
    for call in range(first, first + calls):
        records = single.take(f"{call:032x}", 100)
        if any(value == "kills" for _, value, _, _ in records):
            single.pass_ms(LEASE_MS + 2 * TICK_MS)
            continue
        for topic, value, offset, _ in records:
            single.ack(offset, offset, topic=topic)
            done.append(value)
    return done


def test_only_the_message_that_kills_becomes_a_dead_letter(tmp_path: Path) -> None:
    single = Desk(tmp_path)
    single.begin(max_attempts=1)
    single.put(*FINE[:3], "kills", *FINE[3:])
    done = consume(single, 20)
    dead = [value for _, value, _, _ in single.take(topics=(DEAD,), wanted=100)]
    assert dead == ["kills"] and sorted(done) == FINE
    single.close()


def killed_twice(single: Desk, *values: str) -> None:
    """All of these have been leased together by two members that died."""
    single.put(*values)
    for member in (ME, OTHER):
        assert len(single.take(member)) == len(values)
        single.pass_ms(LEASE_MS + TICK_MS)


def test_a_last_chance_comes_alone_to_a_member_that_holds_nothing(single: Desk) -> None:
    single.put("held")
    assert single.values(ME) == ["held"]
    single.replica.lease_dispatcher.extend("g", ME, "t", 0, [(0, 0)], single.now_ms + 100 * LEASE_MS)
    single.put("a", "b")
    for member in ("cc" * 16, "dd" * 16):
        assert len(single.take(member)) == 2
        single.pass_ms(LEASE_MS + TICK_MS)
    single.put("fresh")
    waiting = single.ask(ME, wait_ms=60_000)
    assert not waiting, "it is to finish what it holds"
    assert [found[1::2] for found in single.take(OTHER)] == [("a", 2)]
    assert single.take(OTHER) == [], "nothing beside it"
    single.ack(0, 0)
    single.send()
    ((_, rows),) = waiting
    assert [found[1::2] for row in rows for found in single.read(row)] == [("b", 2)]
    assert single.values("cc" * 16) == ["fresh"], "no last chance waits"
    single.ack(1, 2)
    assert single.values(OTHER) == []


def test_who_never_finishes_delays_last_chances_only_so_long(single: Desk) -> None:
    single.put("held")
    assert single.values("cc" * 16) == ["held"]
    single.replica.lease_dispatcher.extend("g", "cc" * 16, "t", 0, [(0, 0)], single.now_ms + 100 * LEASE_MS)
    killed_twice(single, "a")
    single.put("fresh")
    waiting = single.ask("cc" * 16, wait_ms=2 * DRAIN_MS)
    single.pass_ms(DRAIN_MS // 2)
    assert not waiting
    single.pass_ms(DRAIN_MS // 2)
    ((_, rows),) = waiting
    assert [found[1] for row in rows for found in single.read(row)] == ["a"]
    assert single.values(OTHER) == ["fresh"]


def test_the_last_chance_that_expires_is_a_failure(single: Desk) -> None:
    killed_twice(single, "a", "b")
    assert single.values(ME) == ["a"] and single.values(OTHER) == ["b"]
    assert single.ack(1, 1) == [0]
    single.pass_ms(LEASE_MS + 3 * TICK_MS)
    assert [found[:2] for found in single.take()] == [(RETRY, "a")]


def test_a_last_chance_can_be_given_back_and_acknowledged_by_others(single: Desk) -> None:
    killed_twice(single, "a", "b")
    assert single.values(ME) == ["a"]
    assert single.replica.lease_dispatcher.release("g", ME, "t", 0, [(0, 0)]) == []
    assert single.values(OTHER) == ["a"]
    assert single.nack(0, member=ME) == [ResultCode.PARTIAL, [[0, ResultCode.LEASE_LOST, None]]]
    assert single.ack(0, 1) == [0]
    single.put("c")
    assert single.values(ME) == ["c"]
    assert not single.replica.lease_dispatcher.leases.doubtful
