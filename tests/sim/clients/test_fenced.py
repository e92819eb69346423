"""The product's own fence in virtual time: no row without its message, and no message without its row."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.sim.clients import purging
from tests.sim.clients.fenced import FencedWorkload
from tests.sim.environment.database import Access, ServerError, SimDatabase
from tests.sim.environment.fibres import Fibres
from tests.sim.environment.world import World
from tests.sim.running.schedules import carry_out, made

ROW = {"key": b"k" * 32, "app": b"shop", "tx_id": b"1", "at": 0}


def test_database_and_messages_agree_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Counter[str]()
    monkeypatch.setattr(purging, "SHARE", 0.0)
    for seed in (3, 5):
        simulation = made(seed, workload=FencedWorkload, chaos_s=4.0)
        workload = simulation.workload
        assert isinstance(workload, FencedWorkload)
        broken = carry_out(simulation)
        assert broken is None, (
            f"{broken}; again: python -m tests.sim --workload fenced --seeds 1 --seed {seed}"
        )
        assert workload.report is not None
        stored = workload.database.committed("orders")
        seen += workload.report.counts
        seen["checks first"] += len(workload.database.committed("escrowmq_fence")) - len(stored) - 1
    assert seen["transactions committed"] > 20 and seen["transactions rolled back"] > 20, seen
    assert seen["checks first"] > 10, "a check that comes first leaves its row"


def test_database_and_messages_agree_while_old_rows_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(purging, "SHARE", 1.0)
    monkeypatch.setattr(purging, "CHECK_AFTER_MS", (500,))
    simulation = made(3, workload=FencedWorkload, chaos_s=10.0)
    workload = simulation.workload
    assert isinstance(workload, FencedWorkload)
    broken = carry_out(simulation)
    assert broken is None, broken
    assert workload.purging.removed > 10


def test_a_database_that_refuses_the_name_of_its_table_is_asked_again() -> None:
    """SQLite refused the commit of the name: a reader was in the way. That counted as a wrong set-up."""
    simulation = made(2100160, workload=FencedWorkload, chaos_s=2.0)
    workload = simulation.workload
    assert isinstance(workload, FencedWorkload)
    broken = carry_out(simulation)
    assert broken is None, broken
    assert workload.database.kind == "sqlite" and workload.database.committed("orders")


def test_a_repeated_deletion_by_name_does_not_reach_the_topic_that_came_with_it() -> None:
    """The operator was answered while the same bytes, to delete and create, were in the log again."""
    assert (broken := carry_out(made(2400097, workload=FencedWorkload))) is None, broken


def test_a_removed_row_is_seen_until_its_removal_is_committed() -> None:
    """A transaction that inserts its key waits for that."""
    world = World(1)
    fibres = Fibres(world)
    database = SimDatabase(world, fibres, lambda: True, "postgresql")
    told: list[str] = []

    def first() -> None:
        with Access(database, "a").opening() as (_, link):
            link.run("INSERT INTO escrowmq_fence VALUES (:key, :app, :tx_id, 1, :at)", ROW)
            link.commit()
            link.run("DELETE FROM escrowmq_fence WHERE tx_key IN (:key)", ROW)
            told.append(f"{len(database.committed('escrowmq_fence'))} left at {world.elapsed_s:.1f}")
            fibres.wait(1.0)
            link.commit()
            told.append(f"{len(database.committed('escrowmq_fence'))} left at {world.elapsed_s:.1f}")

    def second() -> None:
        with Access(database, "b").opening() as (_, link):
            fibres.wait(0.1)
            link.run("INSERT INTO escrowmq_fence VALUES (:key, :app, :tx_id, 2, :at)", ROW)
            link.commit()
            told.append(f"inserted at {world.elapsed_s:.1f}")

    fibres.start("a", first)
    fibres.start("b", second)
    world.run(world.now + 5.0)
    assert told == ["1 left at 0.0", "0 left at 1.0", "inserted at 1.0"] and fibres.running == 0


def test_an_insert_waits_for_the_transaction_that_has_the_key() -> None:
    """The simulated database's own rules, which the fence relies on."""
    world = World(1)
    fibres = Fibres(world)
    database = SimDatabase(world, fibres, lambda: True, "postgresql")
    told: list[str] = []

    def first() -> None:
        with Access(database, "a").opening() as (_, link):
            link.order("1")
            fibres.wait(1.0)
            link.commit()
            told.append(f"committed at {world.elapsed_s:.1f}")

    def second() -> None:
        with Access(database, "b").opening() as (_, link):
            fibres.wait(0.1)
            try:
                link.order("1")
            except ServerError as error:
                told.append(f"{error.sqlstate} at {world.elapsed_s:.1f}")

    fibres.start("a", first)
    fibres.start("b", second)
    world.run(world.now + 5.0)
    assert sorted(told) == ["23505 at 1.0", "committed at 1.0"] and fibres.running == 0
