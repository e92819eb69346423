"""Retention in the simulator leaves the copies that a group needs; otherwise its majority would be lost.

When a group has no leader in the end, the simulator says rightly whether its disks are enough for one.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from escrowmq.replication.format.membership import Members, encode_members
from escrowmq.replication.log.journal import SegmentJournal
from escrowmq.replication.replica.checkpoints import snapshot_name
from tests.sim.clients.workload import RawWorkload
from tests.sim.environment.disk import SimDisk
from tests.sim.faults.damage import a_majority_holds, flip_in_vote, may_drop, sound_on_disk
from tests.sim.faults.unfound import has_damaged_state, has_damaged_vote
from tests.sim.group.replica import SimReplica
from tests.sim.group.simulation import Plan, Simulation

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


@pytest.mark.parametrize("lost", ["forgotten", "spoilt"])
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
    group.replicas[1].forgotten = True
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


# ------------------------------------------------------------------ what a majority keeps
@pytest.fixture
def retained() -> Simulation:
    """Three replicas whose logs have lost their beginnings to retention."""
    plan = replace(Plan.of(SEED, size=3, kind="fifo"), segment_bytes=1000)
    simulation = Simulation(SEED, plan, chaos_s=4.0, faults=[])
    simulation.run()
    first = min(simulation.checker.acknowledged)
    assert all(replica.journal.first_index > first for replica in simulation.replicas)
    return simulation


def keeps_all(group: Simulation) -> bool:
    return a_majority_holds(group, group.checker.acknowledged)


def test_two_of_three_sound_copies_are_a_majority(group: Simulation) -> None:
    damage(group.replicas[1], DAMAGED + 1)
    assert keeps_all(group), "each entry has two"
    damage(group.replicas[1], DAMAGED)
    assert not keeps_all(group)


def test_only_voters_count(group: Simulation) -> None:
    """The others have removed one of them, and its own log does not say so."""
    assert keeps_all(group)
    for replica in group.replicas[:2]:
        two = Members(2, ("r0", "r1"), (), "change-1", 2)
        replica.journal.members.note(replica.journal.last_index + 1, encode_members(two))
    assert not keeps_all(group), "one of the two has a damaged entry"


def test_an_empty_disk_keeps_nothing(group: Simulation) -> None:
    group.replicas[1].disk = SimDisk(random.Random(0))
    assert not keeps_all(group)


def test_what_retention_removed_is_kept_by_the_state(retained: Simulation) -> None:
    """Broker seed 2710557 over three groups: a log without its beginning counted as a copy of everything,
    although the run file of the snapshots was damaged."""
    for spoilt, replica in enumerate(retained.replicas):
        assert keeps_all(retained) == (spoilt < 2)
        replica.disk.write_atomic(snapshot_name(1), [b"damaged"])
        assert has_damaged_state(replica)


def test_who_has_lost_its_vote_elects_nobody(group: Simulation) -> None:
    assert keeps_all(group)
    rng = random.Random(0)
    while not has_damaged_vote(group.replicas[1]):
        assert flip_in_vote(group.replicas[1], rng)
    assert not keeps_all(group), "the first one has a damaged entry"
