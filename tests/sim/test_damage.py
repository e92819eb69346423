"""Retention in the simulator leaves the copies that a group needs; otherwise its majority would be lost."""

from __future__ import annotations

import pytest

from escrowmq.replication.log.journal import SegmentJournal
from tests.sim.damage import may_drop, sound_on_disk
from tests.sim.replica import SimReplica
from tests.sim.simulation import Plan, Simulation
from tests.sim.workload import RawWorkload

SEED = 7
DAMAGED = 10  # entry of the first replica


@pytest.fixture
def group() -> Simulation:
    """Three replicas that have everything, except that an entry is damaged on the first one."""
    plan = Plan.of(SEED, size=3, kind="fifo")
    simulation = Simulation(SEED, plan, workload=RawWorkload(retain=False), chaos_s=1.5, faults=[])
    simulation.run()
    damage(simulation.replicas[0], DAMAGED)
    return simulation


def damage(replica: SimReplica, index: int) -> None:
    journal, before = replica.journal, sound_on_disk(replica)
    (name,) = [segment.name for segment in journal.segments()]
    command = journal.read(index)
    at = replica.disk.peek(name).index(command)
    replica.disk.flip(name, at, 1)
    replica.flipped = True
    assert {gone for gone, _ in before - sound_on_disk(replica)} == {index}


def test_what_another_one_still_has_may_be_dropped(group: Simulation) -> None:
    for keeper in group.replicas:
        assert may_drop(group, keeper, DAMAGED + 5)


def test_the_last_copy_may_be_dropped_while_the_others_can_lead(group: Simulation) -> None:
    """Then the damaged one needs a leader's copy, and it is the only one."""
    damage(group.replicas[1], DAMAGED)
    group.replicas[1].flipped = False  # as if retention had removed it there
    assert may_drop(group, group.replicas[2], DAMAGED + 5)


@pytest.mark.parametrize("lost", ["learner", "spoilt"])
def test_the_last_copy_stays_while_another_one_has_lost_what_it_knew(group: Simulation, lost: str) -> None:
    """Raw seed 2500134: a disk was lost, then the only copies of damaged entries went: nobody could lead."""
    setattr(group.replicas[1], lost, True)
    keeper = group.replicas[2]
    assert may_drop(group, keeper, DAMAGED) and not may_drop(group, keeper, DAMAGED + 1)
    assert may_drop(group, group.replicas[0], DAMAGED + 1), "it needs no copy of what it drops"


def test_it_stays_if_two_could_not_be_mended_any_more(group: Simulation) -> None:
    damage(group.replicas[1], DAMAGED)
    assert not may_drop(group, group.replicas[2], DAMAGED + 1)


def test_the_journals_ask(group: Simulation) -> None:
    group.replicas[1].learner = True
    journal = group.replicas[2].journal
    group.roll(group.replicas[2])
    for _ in range(3):
        journal.add(b"\0more", journal.last_index + 1, group.replicas[2].node.term)
    job = journal.begin_sync()
    assert job is not None
    job.run()
    journal.end_sync(job)
    assert journal.drop_before(journal.last_index) == 1
    assert SegmentJournal.drop_before(journal, journal.last_index) > DAMAGED, "without the question"
