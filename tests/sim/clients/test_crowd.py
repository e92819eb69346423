"""Schedules with hundreds of topics of one app, and hundreds of apps that are used once."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.sim.across.scene import Scene
from tests.sim.across.simulation import ManyGroups
from tests.sim.clients import crowd
from tests.sim.clients.broker_workload import BrokerWorkload
from tests.sim.clients.ledger import Ledger
from tests.sim.group.simulation import Plan, Simulation


@pytest.fixture(autouse=True)
def crowded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowd, "SHARE", 1.0)


def of_the_crowd(ledger: Ledger) -> Counter[str]:
    """Numbers of transactions, of apps that were used once, and of topics of the one app."""
    many = [tx for (app, _), tx in ledger.transactions.items() if app == crowd.APP and tx.producer == app]
    once = {app for app, _ in ledger.transactions if app.startswith("once")}
    return Counter(transactions=len(many), once=len(once), topics=len({tx.sent[0].topic for tx in many}))


@pytest.mark.timeout(900)
def test_one_group() -> None:
    workload = BrokerWorkload()
    Simulation(1, Plan.of(1), workload=workload).run()
    assert workload.ledger is not None and workload.report is not None and workload.report.ok
    seen = of_the_crowd(workload.ledger)
    assert seen["topics"] > 0.5 * crowd.TOPICS and seen["once"] > 200, seen


@pytest.mark.timeout(900)
def test_several_groups() -> None:
    simulation = ManyGroups(4, Scene.of(4, 2), chaos_s=6.0)
    simulation.run()
    seen = of_the_crowd(simulation.workload.ledger)
    assert seen["topics"] > 0.2 * crowd.TOPICS and seen["once"] > 100, seen
