"""Schedules in every test run, and proof that the simulator finds what it must find.

More of them: ``make simulate SEEDS=10000 SEED=0``.
"""

from __future__ import annotations

import random
import subprocess
import sys

import pytest

from escrowmq.replication.host.repair import has_history
from tests.sim.checks.repeated import check_the_same_everywhere
from tests.sim.group.simulation import Plan, Simulation
from tests.sim.running.schedules import run_seed

CHUNK = 10
#: Guards that random schedules alone prove necessary. The others have targeted tests in
#: tests/replication/raft/test_defects_*.py; keep-next is only for speed.
FOUND_BY_CHANCE = ("log-matching", "commit-cap", "ack-cap", "snapshot-commit", "hold-acks", "self-durable")


@pytest.mark.parametrize("first", range(0, 20, CHUNK))
def test_no_promise_is_broken(first: int) -> None:
    for seed in range(first, first + CHUNK):
        _, broken = run_seed(seed, chaos_s=6.0)
        assert broken is None, (
            f"{broken}; again: python -m tests.sim --seed {seed} --seeds 1 --workload raw --chaos 6"
        )


@pytest.mark.parametrize("guard", FOUND_BY_CHANCE)
@pytest.mark.filterwarnings("ignore")
def test_without_a_guard_something_breaks_soon(guard: str) -> None:
    for seed in range(70, 130):  # without snapshot-commit about one in sixty breaks something
        _, broken = run_seed(seed, drop=(guard,), chaos_s=6.0)
        if broken is not None:
            return
    pytest.fail(f"60 schedules without {guard} broke nothing: the simulator does not look closely")


@pytest.mark.parametrize("power", [False, True])
def test_a_group_that_stops_right_after_its_first_election_goes_on(power: bool) -> None:
    """The first leader's entry is on no other disk: its followers may not take themselves for replicas that
    have lost theirs, since no leader can be elected without them."""
    for seed in range(4):
        simulation = Simulation(seed, Plan.of(seed, size=3, kind="fifo"), chaos_s=0.1, faults=[])
        simulation.boot()
        world = simulation.world
        while not simulation.leaders():
            assert world.elapsed_s < 5.0
            world.run(world.now + 0.0005)
        leader = next(r for r in simulation.replicas if r.node.is_leader)
        leader.journal.sync()
        assert [r for r in simulation.replicas if has_history(r.disk)] == [leader]
        for replica in simulation.replicas:
            simulation.crash(replica, power, world.stream("stops"))
        simulation.calm_down()
        assert simulation.prove_alive(0) == []


def test_a_group_whose_logs_were_not_synced_at_its_first_vote_goes_on() -> None:
    """A vote without a log looks like a log that was lost. So the first log is durable before the first vote,
    however slow the disk is."""

    class SlowAtFirst(Simulation):
        slow = True

        def sync_latency_s(self, rng: random.Random) -> float:
            return 60.0 if self.slow else super().sync_latency_s(rng)

    for seed in range(3):
        simulation = SlowAtFirst(seed, Plan.of(seed, size=3, kind="fifo"), chaos_s=0.1, faults=[])
        simulation.boot()
        world = simulation.world
        while sum(r.up and r.journal.getCurrentTerm() > 0 for r in simulation.replicas) < 2:
            assert world.elapsed_s < 5.0
            world.run(world.now + 0.0005)
        for replica in simulation.replicas:
            simulation.crash(replica, True, world.stream("stops"))
        simulation.slow = False
        simulation.checker.acknowledged[1] = 0  # so the supervisor says that the group has a history
        simulation.calm_down()
        assert simulation.prove_alive(0) == []


@pytest.mark.parametrize("workload", ["RawWorkload", "BrokerWorkload"])
def test_a_seed_is_the_same_schedule_in_every_process(workload: str) -> None:
    check_the_same_everywhere(f"410016, workload={workload}")


def test_a_broken_seed_comes_with_the_command_that_replays_it() -> None:
    command = [sys.executable, "-m", "tests.sim", "--seeds", "30", "--jobs", "1", "--workload", "raw"]
    command += ["--drop", "hold-acks"]
    result = subprocess.run(
        command,
        env={"PYTHONPATH": ":".join(sys.path), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1, result.stdout
    assert "again: python -m tests.sim --seed" in result.stdout
    assert "--drop hold-acks" in result.stdout
