"""Operators of simulated groups leave a majority of voters with sound states and votes, although nobody has
found the damage yet. A planted rule takes that away, and the group is stuck."""

from __future__ import annotations

from dataclasses import replace

import pytest

from escrowmq.replication.log.vote import NAME as VOTE_FILE
from escrowmq.replication.log.vote import SLOT_POSITIONS
from escrowmq.replication.raft.members import Goal
from escrowmq.replication.raft.membership_changes import MembershipChanges
from tests.sim.clients.broker_workload import BrokerWorkload
from tests.sim.clients.workload import RawWorkload
from tests.sim.faults.unfound import has_damaged_state, has_damaged_vote
from tests.sim.group.members import Change, Operators
from tests.sim.group.replica import SimReplica
from tests.sim.group.simulation import Plan, Simulation
from tests.sim.running.schedules import carry_out, made

SEED = 7


def flip_vote(victim: SimReplica) -> None:
    for position in SLOT_POSITIONS:
        victim.disk.flip(VOTE_FILE, position + 20)
    victim.spoilt = True


def flip_state(victim: SimReplica) -> None:
    name = next(name for name in victim.disk.names() if name.endswith(".snap"))
    victim.disk.flip(name, victim.disk.size_of(name) // 2)
    victim.spoilt = True


def ask(simulation: Simulation, goal: Goal) -> Change:
    """An operator begins this change."""
    operators, change = simulation.operators, Change(goal)
    operators.begun += 1
    operators.under_way.append(change)
    operators.ask_soon()
    return change


def a_voter_goes_beside_a_damaged_one() -> Simulation:
    """Of three voters, the leader's vote is damaged unseen, an operator removes a follower, and the power
    fails."""
    plan = Plan.of(SEED, size=3, kind="fifo")
    simulation = Simulation(SEED, plan, workload=RawWorkload(), chaos_s=3.0, faults=[])

    def strike() -> None:
        (leader,) = [replica for replica in simulation.replicas if replica.node.is_leader]
        flip_vote(leader)
        gone = next(replica for replica in simulation.replicas if replica is not leader)
        ask(simulation, Goal("change-1", remove=(gone.name,)))

    def cut() -> None:
        for replica in (*simulation.replicas, *simulation.retired):
            simulation.crash(replica, True, simulation.rng)

    simulation.world.later(1.0, strike)
    simulation.world.later(2.0, cut)
    return simulation


def test_no_voter_goes_beside_one_whose_damage_nobody_has_found() -> None:
    """Of three voters one is damaged, which the group survives; without a third, the other one is stuck."""
    simulation = a_voter_goes_beside_a_damaged_one()
    broken = carry_out(simulation)
    assert broken is None, broken
    assert simulation.operators.misled and len(simulation.operators.done) == 1
    assert len(simulation.replicas) == 2, "it goes once the damaged one has copied a leader's log"


def test_otherwise_the_group_would_be_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Operators, "_is_damaged_unseen", lambda self, replica: False)
    simulation = a_voter_goes_beside_a_damaged_one()
    broken = carry_out(simulation)
    assert broken == "no leader after the calm: the group is stuck", "without its vote it elects nobody"


def test_a_damaged_run_file_of_both_snapshots_is_found_before_a_voter_goes() -> None:
    """A leader's run file was damaged, a voter was removed, and the power failed everywhere: of the two
    voters that stayed, one waited for a leader's copy, and the other for a vote."""
    broken = carry_out(made(2710557, groups=3))
    assert broken is None, broken


def test_none_votes_either_whose_damage_would_make_a_majority(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three voters and two learners, one of each may be damaged; of four voters, two may not."""
    monkeypatch.setattr(MembershipChanges, "caught_up", lambda self, replica: False)
    simulation = Simulation(SEED, Plan.of(SEED, size=3, kind="fifo"), chaos_s=2.0, faults=[])
    change = ask(simulation, Goal("change-1", add=("r3",)))
    seen = list[int]()

    def strike() -> None:
        (leader,) = [replica for replica in simulation.replicas if replica.node.is_leader]
        assert leader.node.members.learners == ("r3",)
        flip_vote(leader)
        learner = simulation.replicas[-1]
        flip_vote(learner)
        monkeypatch.undo()
        for sound in (False, True):
            leader.spoilt = learner.spoilt = not sound
            simulation.operators.ask_unless_misled(change, leader, leader.node.members.version)
            seen.append(simulation.operators.misled)
        leader.spoilt = learner.spoilt = True

    simulation.world.later(1.5, strike)
    simulation.run()
    assert seen == [1, 1]


def test_a_damaged_state_and_a_damaged_vote_are_seen_on_the_disk() -> None:
    plan = replace(Plan.of(SEED, size=3, kind="fifo"), segment_bytes=1000)
    simulation = Simulation(SEED, plan, workload=BrokerWorkload(), chaos_s=2.0, faults=[])
    simulation.run()
    for replica in simulation.replicas:
        assert not has_damaged_state(replica) and not has_damaged_vote(replica)
    one, two, three = simulation.replicas
    flip_state(one)
    flip_vote(two)
    three.disk.flip(VOTE_FILE, SLOT_POSITIONS[0] + 20)
    found = [(has_damaged_state(r), has_damaged_vote(r)) for r in (one, two, three)]
    assert found == [(True, False), (False, True), (False, False)], "one slot is enough"
