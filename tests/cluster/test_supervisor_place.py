"""Where the supervisor may run: on Ray's head, also on one that was lost and comes back as another node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from escrowmq.actors.broker.config import BrokerConfig
from escrowmq.cluster import launch
from escrowmq.cluster.launch import create_supervisor
from escrowmq.cluster.settings import HEAD_RESOURCE, ClusterSettings, SupervisorSettings
from escrowmq.cluster.supervisor.supervisor import SupervisorPlan

PLAN = SupervisorPlan(ClusterSettings(), Path("/data"), None, BrokerConfig(), SupervisorSettings())
HEAD, WORKER = {HEAD_RESOURCE: 1.0, "CPU": 2.0}, {"CPU": 2.0}
LOST, BACK = "11" * 28, "22" * 28  # node ids of the same head: Ray gives another one at each start


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What Ray is asked for, instead of an actor."""
    asked: dict[str, Any] = {}

    class Actor:
        def options(self, **options: Any) -> Actor:
            asked.update(options)
            return self

        def remote(self, *args: Any) -> Actor:
            return self

    monkeypatch.setattr(launch.ray, "remote", lambda actor: Actor())
    return asked


def may_run(asked: dict[str, Any], node_id: str, resources: dict[str, float]) -> bool:
    """Whether Ray would start it on this node, as its documentation says."""
    strategy = asked.get("scheduling_strategy")
    if isinstance(strategy, NodeAffinitySchedulingStrategy):
        return bool(strategy.soft or strategy.node_id == node_id)
    needed = {"CPU": asked["num_cpus"], **asked.get("resources", {})}
    return all(resources.get(name, 0.0) >= amount for name, amount in needed.items())


def test_it_may_run_on_the_head_whatever_its_id_and_nowhere_else(asked: dict[str, Any]) -> None:
    create_supervisor(PLAN, None)
    assert may_run(asked, LOST, HEAD) and may_run(asked, BACK, HEAD)
    assert not may_run(asked, "33" * 28, WORKER)
    assert asked["max_restarts"] == -1 and asked["lifetime"] == "detached"


def test_planted_bound_to_a_node_id_it_would_never_come_back(asked: dict[str, Any]) -> None:
    create_supervisor(PLAN, LOST)
    assert may_run(asked, LOST, HEAD) and not may_run(asked, BACK, HEAD)
