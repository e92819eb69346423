"""The core leaves out a tick only if pysyncobj would have done nothing in it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from escrowmq.replication.raft.pysync import LEADER, Core
from tests.sim.group.simulation import Simulation
from tests.sim.running.schedules import carry_out, made


def _seen(core: Any) -> tuple[object, ...]:
    """Everything that pysyncobj's own tick may change, except its count of seconds."""
    names = ("raftElectionDeadline", "newAppendEntriesTime", "raftLeader", "noopIDx", "transferInProgress")
    private = [getattr(core, f"_SyncObj__{name}") for name in names]
    now = (core.role, core.term, core.commit_index, core.applied_index, core._journal.last_index)
    return *now, *private


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[bool, bool]]:
    """Run pysyncobj's own tick every time, and compare the state before and after if the tick would be left
    out. Counts (leads, left out)."""
    rests, stock = Core._rests, Core._onTick
    claimed: dict[Core, bool] = {}
    counted: Counter[tuple[bool, bool]] = Counter()

    def noted(self: Core, now: float, commit_cap: int, apply_limit: int) -> bool:
        claimed[self] = rests(self, now, commit_cap, apply_limit)
        return False

    def watched(self: Core, pause_s: float) -> None:
        before, leads = _seen(self), self.role == LEADER
        stock(self, pause_s)
        counted[leads, claimed[self]] += 1
        if claimed.pop(self):
            assert _seen(self) == before, "stock had something to do"

    monkeypatch.setattr(Core, "_rests", noted)
    monkeypatch.setattr(Core, "_onTick", watched)
    return counted


def test_a_tick_that_is_left_out_would_do_nothing(counts: Counter[tuple[bool, bool]]) -> None:
    for seed in range(4):  # of three and of five replicas, with elections, partitions and lost answers
        assert carry_out(made(seed, chaos_s=3.0)) is None
    for leads in (False, True):
        assert counts[leads, False] > 100, counts
        assert counts[leads, True] > counts[leads, False], "most ticks are such"


def test_the_tick_in_which_a_leader_gives_up_is_not_left_out(counts: Counter[tuple[bool, bool]]) -> None:
    simulation = made(1, size=3, kind="fifo", faults=[])
    assert isinstance(simulation, Simulation)
    world, network = simulation.world, simulation.network
    simulation.boot()
    for _ in range(5):  # its heartbeats come at different times in each round
        world.run(world.now + 2.0)
        (leader,) = [r for r in simulation.replicas if r.node.is_leader]
        links = [pair for n in simulation.names for pair in ((n, leader.name), (leader.name, n))]
        network.block(links)
        world.run(world.now + simulation.plan.raft.leader_fallback_s + 0.5)
        assert not leader.node.is_leader
        network.unblock(links)
    assert counts[True, True] > counts[True, False]
