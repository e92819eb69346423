"""What a producer accepts follows what is answered in time, shown by a queue in virtual time."""

from __future__ import annotations

from collections import deque

import pytest

from escrowmq.actors.producer.core import BYTES_MIN, BufferBound

MIB = 1 << 20


def served(bound: BufferBound, rate: float, offered: float, seconds: float, warm: float) -> list[float]:
    """Waiting times in a queue served at ``rate`` bytes/s, when ``offered`` bytes/s arrive."""
    queue: deque[tuple[float, int]] = deque()
    waits, buffered, credit, owed, now = [], 0, 0.0, 0.0, 0.0
    while now < seconds:
        now += 0.01
        owed = min(owed + offered * 0.01, 4 * MIB)
        while owed >= 1_000:
            owed -= 1_000
            if buffered < bound.limit:
                buffered += 1_000
                queue.append((now, 1_000))
        credit += rate * 0.01
        while queue and credit >= 1_000:
            taken_on, size = queue.popleft()
            credit -= size
            bound.answered(taken_on, now, buffered)
            buffered -= size
            if now >= warm:
                waits.append(now - taken_on)
        if not queue:
            credit = 0.0
    return waits


@pytest.mark.parametrize("rate", [100_000, 1_000_000, 8_000_000])
def test_four_times_too_much_waits_about_as_long_as_wanted(rate: float) -> None:
    bound = BufferBound(32 * MIB, 1.0)
    waits = sorted(served(bound, rate, 4 * rate, 80.0, warm=20.0))
    assert waits[int(0.99 * len(waits))] <= 1.7
    assert sum(waits) / len(waits) >= 0.25, "and nothing is refused that could be answered in time"
    assert len(waits) * 1_000 >= 0.98 * rate * 60


def test_where_calls_are_what_costs_the_buffer_grows_until_they_are_large() -> None:
    bound = BufferBound(32 * MIB, 1.0)
    bound.answered(0.0, 5.0, 100_000)
    assert bound.limit == 20_000
    for n in range(60):
        bound.answered(10.0 + n, 10.7 + n, bound.limit)
    assert bound.limit == 32 * MIB


def test_below_what_is_sustainable_nothing_is_ever_refused() -> None:
    bound = BufferBound(32 * MIB, 1.0)
    served(bound, 1_000_000, 900_000, 60.0, warm=0.0)
    assert bound.limit == 32 * MIB


def test_a_fail_over_costs_one_cut_and_some_round_trips() -> None:
    bound = BufferBound(32 * MIB, 1.0)
    bound.answered(0.0, 5.0, 600_000)
    assert bound.limit == 120_000
    bound.answered(4.0, 5.0, 600_000)
    assert bound.limit == 120_000, "taken on before the cut: it says nothing about it"
    for n in range(10):
        bound.answered(5.3 + n / 3, 5.305 + n / 3, 1_000)
    assert bound.limit == 32 * MIB


def test_it_never_falls_below_some_requests_or_rises_above_the_bytes() -> None:
    bound = BufferBound(32 * MIB, 1.0)
    for n in range(50):
        bound.answered(10.0 * n, 10.0 * n + 9, 100)
    assert bound.limit == BYTES_MIN
    small = BufferBound(1_000, 1.0)
    small.answered(0.0, 9.0, 100)
    assert small.limit == 1_000
