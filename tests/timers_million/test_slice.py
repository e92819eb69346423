"""A slice of ``make timers-million`` for every run of the tests: everything is killed while messages come."""

from __future__ import annotations

import pytest

from tests.timers_million.running import RunPlan, run

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(240)]

MESSAGES = 20_000


def test_each_delayed_message_comes_once_though_everything_was_killed_meanwhile() -> None:
    out = run(RunPlan(seed=1, messages=MESSAGES, batch=1_000, span_ms=8_000, kills=("reading",)))
    print(out)
    assert out.problems == []
    assert len(out.struck) == 1 and out.acknowledged == out.read == MESSAGES
