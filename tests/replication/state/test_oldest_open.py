"""The oldest open transaction of all apps, and housekeeping: correct, and without scanning all apps."""

from __future__ import annotations

import random

import pytest

from escrowmq.replication.format import ops
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.state.open_tx import OpenTable, OpenTx
from escrowmq.replication.state.snapshot import capture, encode, release, restore
from tests.support.fed_state import FedState


def opened(log: FedState, app: str, tx_id: str) -> None:
    log.add(ops.prepare(app, "t", [tx_id], None, 0, 0, [1], -1, 0))


def by_looking_at_all(state: StateMachine) -> int | None:
    return min((record.log_index for _, _, record in state.transactions.iterate_open()), default=None)


@pytest.mark.parametrize("seed", range(5))
def test_it_is_that_of_a_look_at_all_of_them(seed: int) -> None:
    rng, log, views = random.Random(seed), FedState(), []
    log.add(ops.settings({"settled_generation": 100, "producers_generation": 2, "groups_kept": 2}))
    now: list[tuple[str, str]] = []
    for step in range(600):
        action = rng.choice(("open", "open", "settle", "settle", "hold", "release", "tidy"))
        if action == "open":
            now.append((f"app-{rng.randrange(12)}", f"x{step}"))
            opened(log, *now[-1])
        elif action == "settle" and now:
            app, tx_id = now.pop(0 if rng.random() < 0.5 else rng.randrange(len(now)))
            log.add(ops.rollback(app, [tx_id]))
        elif action == "hold" and not views:
            views.append(capture(log.state, 1, []))
        elif action == "release" and views:
            release(log.state, views.pop())
        elif action == "tidy":
            log.state.transactions.tidy()
        if rng.random() < 0.3:
            assert log.state.transactions.oldest_index() == by_looking_at_all(log.state), step
    again = StateMachine(0, 1)
    restore(again, "x.snap", b"".join(encode(capture(log.state, 1, []))))
    assert again.transactions.oldest_index() == by_looking_at_all(log.state)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """A list with one element for each look at an app's table."""
    seen: list[None] = []
    oldest, tidy = OpenTable.oldest, OpenTable.tidy

    def counted(self: OpenTable) -> OpenTx | None:
        seen.append(None)
        return oldest(self)

    def counted_too(self: OpenTable, *budget: int) -> int:
        seen.append(None)
        return tidy(self, *budget)

    monkeypatch.setattr(OpenTable, "oldest", counted)
    monkeypatch.setattr(OpenTable, "tidy", counted_too)
    return seen


def test_the_work_does_not_grow_with_the_number_of_apps(looks: list[None]) -> None:
    log, count = FedState(), 5_000
    for n in range(count):
        opened(log, f"app-{n}", "x")
    for _ in range(100):
        assert log.state.transactions.oldest_index() is not None
        log.state.transactions.tidy()
    assert len(looks) == 200
    for n in range(count - 1):  # apps that are used once: each leaves one
        log.add(ops.rollback(f"app-{n}", ["x"]))
    looks.clear()
    for _ in range(100):
        log.state.transactions.tidy()
        assert log.state.transactions.oldest_index() == log.index - count + 1
    assert len(looks) < count + 300


def test_a_tick_looks_at_a_bounded_number_of_them(looks: list[None]) -> None:
    log, count = FedState(), 2_000
    for n in range(count):
        opened(log, f"app-{n}", "x")
    held = capture(log.state, 1, [])
    for n in range(count):
        log.add(ops.rollback(f"app-{n}", ["x"]))
    release(log.state, held)
    looks.clear()
    log.state.transactions.tidy()
    assert len(looks) <= 2_048 + 256
    for _ in range(10):
        log.state.transactions.tidy()
    looks.clear()
    log.state.transactions.tidy()
    assert not looks, "nothing is left to do"
