"""The log of faults has each fault when it took effect, and none that was only prepared or had no victim."""

from __future__ import annotations

import random

import pytest

from escrowmq.replication.errors import DiskFailed, DiskFull, FsyncFailed
from tests.sim.clients.workload import RawWorkload
from tests.sim.environment.disk import SimDisk
from tests.sim.environment.world import START_S
from tests.sim.faults.carrying_out import EIO_OPERATIONS, STRIKE_LATER, Faults
from tests.sim.faults.moments import AMBUSHES
from tests.sim.faults.plan import KINDS, LONE_LEADER, RECREATED, Fault
from tests.sim.group.simulation import Plan, Simulation

#: A lone leader is a part of other faults and is never logged itself. Topics are created again only in worlds
#: with brokers (test_steering.py).
NOT_HERE = {LONE_LEADER, RECREATED}


@pytest.fixture
def sim() -> Simulation:
    return started(retain=False)


def started(*, retain: bool) -> Simulation:
    """Three replicas with a leader, and clients, after two seconds without faults."""
    plan, workload = Plan.of(5, size=3, kind="fifo"), RawWorkload(retain)
    simulation = Simulation(5, plan, workload=workload, faults=[], chaos_s=60.0)
    simulation.boot()
    simulation.world.later(0.5, simulation.act)
    simulation.world.run(START_S + 2.0)
    assert simulation.leaders() and all(r.up for r in simulation.replicas)
    return simulation


def strike(sim: Simulation, kind: str, count: int = 1) -> None:
    faults = Faults(sim)
    for number in range(count):
        faults.strike(Fault(number, sim.world.elapsed_s, kind, number))


def stop_all(sim: Simulation, *, power: bool = False) -> None:
    for replica in sim.replicas:
        replica.crash(power)


def depose_leader(sim: Simulation) -> None:
    """Cut the leader off until another is elected: votes, an election, and a log that must be cut."""
    name = next(r.name for r in sim.replicas if r.node.is_leader)
    links = [(a, b) for a in sim.names for b in sim.names if a != b and name in (a, b)]
    sim.network.block(links)
    sim.world.run(sim.world.now + 2.0)
    sim.network.unblock(links)


def kinds(sim: Simulation) -> list[str]:
    return [kind for _, kind, _ in sim.fault_log]


@pytest.mark.parametrize("kind", ["pause", "cut-link", "partition", "hand-over", "clock-ahead", "kill"])
def test_what_meets_nobody_is_not_logged(sim: Simulation, kind: str) -> None:
    strike(sim, kind, 3)
    assert kinds(sim).count(kind) >= 1
    sim.fault_log.clear()
    stop_all(sim)
    strike(sim, kind, 8)
    assert sim.fault_log == []


@pytest.mark.parametrize("kind", sorted(STRIKE_LATER - NOT_HERE))
def test_what_is_laid_is_logged_when_it_strikes(sim: Simulation, kind: str) -> None:
    laid_at = sim.world.elapsed_s
    strike(sim, kind, 3)
    assert sim.fault_log == []
    if kind == "disk-full":
        for replica in sim.replicas:  # the fault may leave more room than the clients fill in this time
            if replica.disk.capacity is not None:
                replica.disk.capacity = replica.disk.used_bytes()
    if kind in AMBUSHES:  # they wait for something that only another fault causes
        depose_leader(sim)
    sim.world.run(sim.world.now + 5.0)
    assert set(kinds(sim)) == {kind}, sim.fault_log
    assert all(at > laid_at and victim in sim.names for at, _, victim in sim.fault_log)


def test_a_leader_that_is_left_alone_is_not_logged(sim: Simulation) -> None:
    strike(sim, LONE_LEADER, 3)
    sim.world.run(sim.world.now + 5.0)
    assert sim.fault_log == []


def test_every_kind_can_be_logged() -> None:
    assert {*KINDS, *NOT_HERE} >= STRIKE_LATER


def test_an_ambush_that_waits_in_vain_is_not_logged(sim: Simulation) -> None:
    for moment in AMBUSHES:
        strike(sim, moment)
    sim.world.run(sim.world.now + 5.0)
    assert sim.fault_log == []


@pytest.mark.parametrize("kind", ["eio", "failed-fsync", "crash-at-effect"])
@pytest.mark.parametrize("power", [False, True])
def test_what_is_armed_is_forgotten_in_a_crash(sim: Simulation, kind: str, power: bool) -> None:
    for replica in sim.replicas:
        replica.job = None  # the part of a sync that a crash completes could meet the failure
    strike(sim, kind, 6)
    stop_all(sim, power=power)
    for replica in sim.replicas:
        replica.start()
    sim.world.run(sim.world.now + 5.0)
    assert sim.leaders() and sim.fault_log == []


@pytest.mark.parametrize("kind", ["append", "read", "sync"])
def test_a_disk_tells_when_an_armed_failure_strikes(kind: str) -> None:
    disk, told = SimDisk(random.Random(0)), []
    file = disk.open("f", create=True)
    disk.fail_next(kind, lambda: told.append(1))
    disk.fail_next(kind, lambda: told.append(2))
    does = {"append": lambda: file.append((b"x",)), "read": lambda: file.read(0, 1), "sync": file.sync}[kind]
    for expected in ([1], [1, 2]):
        with pytest.raises((DiskFailed, FsyncFailed)):
            does()
        assert told == expected
    does()
    disk.fail_next(kind, lambda: told.append(3))
    disk.kill()
    again = disk.open("f")
    {"append": lambda: again.append((b"x",)), "read": lambda: again.read(0, 1), "sync": again.sync}[kind]()
    assert told == [1, 2]


@pytest.mark.parametrize("kind", ["write_at", "rename", "remove"])
def test_an_operation_that_fails_has_changed_nothing(kind: str) -> None:
    disk, told = SimDisk(random.Random(0)), []
    file = disk.open("f", create=True)
    file.append((b"abc",))
    does = {
        "write_at": lambda: file.write_at(0, b"x"),
        "rename": lambda: disk.rename("f", "g"),
        "remove": lambda: disk.remove("f"),
    }[kind]
    disk.fail_next(kind, lambda: told.append(kind))
    with pytest.raises(DiskFailed):
        does()
    assert told == [kind] and disk.names() == ["f"] and disk.peek("f") == b"abc"
    does()
    assert told == [kind]


@pytest.mark.parametrize("kind", EIO_OPERATIONS)
def test_a_group_meets_every_operation_that_may_fail_and_goes_on(kind: str) -> None:
    """Votes are written in an election; checkpoints rename, and retention removes."""
    sim, told = started(retain=True), []
    for replica in sim.replicas:
        replica.disk.fail_next(kind, lambda: told.append(kind))
    depose_leader(sim)
    if kind == "read":  # entries still in memory are not read from the disk, except at a start
        stop_all(sim)
        for replica in sim.replicas:
            replica.disk.fail_next(kind, lambda: told.append(kind))
            replica.start()
    before = len(sim.checker.acknowledged)
    sim.world.run(sim.world.now + 5.0)
    assert told and sim.leaders() and all(r.up for r in sim.replicas)
    assert len(sim.checker.acknowledged) > before


def test_a_full_disk_tells_when_something_finds_no_room() -> None:
    disk, told = SimDisk(random.Random(0), capacity=4), []
    disk.on_full = lambda: told.append(disk.used_bytes())
    file = disk.open("f", create=True)
    file.append((b"abc",))
    assert told == []
    with pytest.raises(DiskFull):
        file.append((b"de",))
    assert told == [3]
