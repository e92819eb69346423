"""Disks whose free space hovers around the reserve: who has room leads, and all promises hold."""

from __future__ import annotations

from collections import Counter

import pytest

from escrowmq.replication.raft.elections import Handover, Readiness
from tests.sim.environment import disk_space as rooms
from tests.sim.environment.network import Weather
from tests.sim.environment.world import Violation
from tests.sim.faults.plan import SCARCE, Fault, draw_faults, draw_scarce
from tests.sim.group.simulation import Plan, Simulation

CHAOS_S = 20.0


def simulation(seed: int, faults: list[Fault] | None = None) -> Simulation:
    """Only this fault, on a good network: then a leader without room must not stay."""
    plan = Plan.of(seed, kind="fifo")
    if faults is None:
        faults = draw_scarce(seed, CHAOS_S)
        good = Weather("fifo", 0.0, 0.0, 0.002)
        plan = Plan(plan.size, good, plan.raft, plan.segment_bytes, 0.002, 1.0, 0.1)
    return Simulation(seed, plan, chaos_s=CHAOS_S, faults=faults)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else strikes, so the leader's first question must be enough; and room is lacking for long."""
    monkeypatch.setattr(rooms, "PATIENCE_S", rooms.GOOD_PATIENCE_S)
    monkeypatch.setattr(rooms, "HOVERS_S", (20.0,))
    monkeypatch.setattr(rooms, "CHANGES", (0,))


def counted(patch: pytest.MonkeyPatch) -> Counter[str]:
    """How those decided that were asked to take over, and with how much room."""
    counts: Counter[str] = Counter()
    takes_over, watch = Readiness.takes_over, Handover._watch_room

    def noted(self: Readiness, now: float) -> bool:
        taken = takes_over(self, now)
        little = (
            "without room" if self.lacks_room else "with little room" if self.little_room else "with room"
        )
        counts[f"{'takes over' if taken else 'declines'} {little}"] += 1
        return taken

    def watched(self: Handover, now: float, lacks_room: bool) -> None:
        counts["a leader lacks room"] += lacks_room
        watch(self, now, lacks_room)

    patch.setattr(Readiness, "takes_over", noted)
    patch.setattr(Handover, "_watch_room", watched)
    return counts


def test_who_has_room_leads_and_who_has_none_declines(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = counted(monkeypatch)
    for seed in range(6):
        made = simulation(seed)
        made.run()
        assert {kind for _, kind, _ in made.fault_log} == {SCARCE}
    assert counts["takes over with room"] > 6 and counts["declines without room"] > 6, counts
    assert counts["declines with little room"] > 0, counts


def test_promises_hold_beside_all_other_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = counted(monkeypatch)
    for seed in range(4):
        simulation(seed, draw_faults(seed, 10.0) + draw_scarce(seed, 10.0)).run()
    assert counts["a leader lacks room"] > 0, counts


@pytest.mark.usefixtures("impatient")
def test_a_leader_that_keeps_the_lead_without_room_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: nobody hands over for want of room."""
    for seed in range(3):
        simulation(seed).run()
    monkeypatch.setattr(Handover, "_watch_room", lambda self, now, lacks_room: None)
    with pytest.raises(Violation, match="leads without room") as caught:
        for seed in range(3):
            simulation(seed).run()
    assert caught.value.kind == "room-unused"


def test_the_plans_of_seeds_have_none_of_it() -> None:
    assert not any(fault.kind == SCARCE for seed in range(200) for fault in draw_faults(seed, 10.0))
