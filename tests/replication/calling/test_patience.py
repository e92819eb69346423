"""Pauses that grow, and patience that ends."""

from __future__ import annotations

import random

import pytest

from escrowmq.replication.calling.patience import Backoff, Patience, patiently
from escrowmq.replication.errors import Overloaded, Unavailable


def test_pauses_double_up_to_the_longest() -> None:
    backoff = Backoff(first_s=0.1, longest_s=1.0)
    assert [backoff.pause_s(n) for n in (0, 1, 2, 3, 4, 10_000)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert Backoff(0.5, 9.0, factor=3.0).pause_s(2) == 4.5


def test_chance_draws_a_pause_out_and_never_shortens_it() -> None:
    backoff, rng = Backoff(first_s=1.0, longest_s=2.0, jitter=0.5), random.Random(7)
    pauses = [backoff.pause_s(3, rng) for _ in range(200)]
    assert min(pauses) >= 2.0 and max(pauses) <= 3.0 and max(pauses) - min(pauses) > 0.8


def test_who_asks_for_a_pause_gets_it_up_to_the_longest() -> None:
    backoff = Backoff(first_s=0.1, longest_s=2.0)
    assert backoff.pause_s(0, asked_s=0.7) == 0.7
    assert backoff.pause_s(3, asked_s=0.7) == 0.8
    assert backoff.pause_s(0, asked_s=60.0) == 2.0


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


def attempts(clock: Clock, *outcomes: Exception | str, each_s: float = 0.0) -> str:
    left = list(outcomes)

    def attempt() -> str:
        clock.now += each_s
        outcome = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    patience = Patience(10.0, Backoff(0.1, 1.0))
    return patiently(attempt, patience, (Unavailable, Overloaded), clock=clock, sleep=clock.sleep)


def test_what_passes_is_waited_for() -> None:
    clock = Clock()
    assert attempts(clock, Unavailable("a"), Overloaded("b", 0.5), Unavailable("c"), "answer") == "answer"
    assert clock.pauses == [0.1, 0.5, 0.4]


def test_what_does_not_pass_is_raised_at_once() -> None:
    clock = Clock()
    with pytest.raises(ValueError):
        attempts(clock, ValueError("no"))
    assert not clock.pauses


def test_patience_ends_with_the_last_error() -> None:
    clock = Clock()
    with pytest.raises(Unavailable):
        attempts(clock, Unavailable("down"), each_s=2.0)
    assert 10.0 < clock.now < 14.0


def test_only_vain_time_counts_and_an_answer_begins_it_again() -> None:
    patience, error = Patience(3.0, Backoff(0.5, 0.5)), Unavailable("down")
    assert patience.pause_s(2.0, error) == 0.5
    patience.heard()
    assert patience.pause_s(2.0, error) == 0.5
    assert patience.pause_s(1.0, error) is None
    patience.answered()
    assert patience.pause_s(2.0, error) == 0.5
