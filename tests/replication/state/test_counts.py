"""Counters kept beside the state: as many open and parked transactions as a full scan would find."""

from __future__ import annotations

import random

import pytest

from escrowmq.replication.format import ops
from escrowmq.replication.format.ops import PrepareExtra
from escrowmq.replication.metrics import LATENCY_S, Counts, Histogram
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.state.snapshot import capture, encode, restore
from escrowmq.replication.state.transactions import COMMITTED, ROLLED_BACK
from tests.support.fed_state import FedState


def looked_up(state: StateMachine) -> tuple[int, dict[str, set[str]]]:
    """How many are open, and by app which are parked."""
    parked: dict[str, set[str]] = {}
    records = list(state.transactions.iterate_open())
    for app, tx_id, record in records:
        if record.due_ms < 0:
            parked.setdefault(app, set()).add(tx_id)
    return len(records), parked


def counted(state: StateMachine) -> tuple[int, dict[str, set[str]]]:
    tables = state.transactions.apps.items()
    return state.transactions.open_count(), {app: table.parked for app, table in tables if table.parked}


@pytest.mark.parametrize("seed", range(4))
def test_open_and_parked_ones_are_counted_as_they_come_and_go(seed: int) -> None:
    rng, log = random.Random(seed), FedState()
    log.add(ops.settings({"settled_generation": 100}))
    alter(log, 2)
    now: list[tuple[str, str]] = []
    met = 0
    for step in range(500):
        app, action = (
            f"app-{rng.randrange(3)}",
            rng.choice(("open", "open", "check", "check", "settle", "more")),
        )
        if action == "open":
            now.append((app, f"x{step}"))
            extra = PrepareExtra(heard_ms=log.now_ms)
            log.add(ops.prepare(app, "t", [f"x{step}"], None, 0, 0, [1], -1, 0, extra))
        elif action == "more":  # parked by its second check, no longer parked once a third is allowed
            alter(log, rng.choice((2, 3)))
        elif now and action == "check":
            log.add(ops.checked(*_one(rng.choice(now))))
        elif now:
            decide = rng.choice((ops.commit, ops.rollback))
            log.add(decide(*_one(now.pop(rng.randrange(len(now))))))
        found = looked_up(log.state)
        met += bool(found[1])
        assert counted(log.state) == found, (seed, step, action)
    assert met > 100, "parked ones were there most of the time"
    again = StateMachine(0, 1)
    restore(again, "x.snap", b"".join(encode(capture(log.state, 1, []))))
    assert counted(again) == looked_up(again) == looked_up(log.state)


def alter(log: FedState, check_max: int) -> None:
    newest = log.state.topics.topics["t"].altered
    assert log.add(ops.alter_topic("t", {"check_max": check_max}, newest))[0][0] == 0


def _one(key: tuple[str, str]) -> tuple[str, list[str]]:
    return key[0], [key[1]]


def test_a_decider_that_nobody_knows_is_one_of_the_others() -> None:
    counts = Counts()
    for by in (
        "producer",
        "operator:ann",
        "operator:bob",
        "policy:check_max",
        "home:3",
        "feedback",
        "me",
        "you:",
    ):
        counts.decide(COMMITTED, by, 1)
    counts.decide(ROLLED_BACK, "producer", 5)
    committed = {who: n for (outcome, who), n in counts.decided.items() if outcome == COMMITTED}
    assert committed == {"producer": 1, "operator": 2, "policy": 1, "home": 1, "feedback": 1, "other": 2}
    assert counts.decided[ROLLED_BACK, "producer"] == 5


def test_a_value_at_a_bound_is_within_it_and_one_above_all_is_counted_last() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 2.1):
        histogram.observe(value)
    assert (histogram.counts, histogram.total) == ([2, 2, 1], 7.1)
    whole = Histogram.sum(histogram.bounds, [histogram, histogram])
    assert (whole.counts, whole.total) == ([4, 4, 2], 14.2)
    assert Histogram.sum(LATENCY_S, []).counts == [0] * (len(LATENCY_S) + 1)
