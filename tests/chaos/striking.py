"""What all faults need: who is struck, by which process, for how long, and that each ends healed.

A fault is a context: entering it strikes, leaving it heals; another may strike inside it. ``struck_at`` is
the moment of the blow on the clock of the histories; the driver's probe starts right after it.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from escrowmq.actors.client.topology import broker_name
from escrowmq.cluster.placement import ReplicaKey
from tests.chaos.deployment import Deployment, gone, until
from tests.chaos.fleet import Fleet
from tests.chaos.machines import Machines
from tests.chaos.plan import Fault

BACK_S = 120.0


@dataclass(slots=True)
class Blow:
    """What was done: the moment, and to whom. ``going_on``: of a fault that is many blows one after the
    other, whether there are more to come."""

    struck_at: int
    victim: str
    going_on: Callable[[], bool] | None = None


class Striking:
    """One cluster and its clients. ``data_dir``: of a cluster without machines."""

    def __init__(
        self, deployment: Deployment, fleet: Fleet, machines: Machines | None, data_dir: Path
    ) -> None:
        self.deployment, self.fleet, self.machines = deployment, fleet, machines
        self._data_dir = data_dir

    # -------------------------------------------------------------- who

    def group(self, fault: Fault) -> int:
        """The broker group that is struck."""
        return fault.group % self.deployment.info.groups

    def leader(self, fault: Fault) -> ReplicaKey:
        gid = self.group(fault)
        return gid, self.deployment.leader(gid)

    def follower(self, fault: Fault) -> ReplicaKey:
        """The leader itself where nobody else votes."""
        gid, leader = self.leader(fault)
        others = [rid for rid in self.deployment.voters(gid) if rid != leader] or [leader]
        return gid, others[fault.target % len(others)]

    def leader_or_follower(self, fault: Fault, leaders: float) -> ReplicaKey:
        """``leaders``: the share of times in which it is the leader."""
        return self.leader(fault) if dice(fault, "who").random() < leaders else self.follower(fault)

    def rig(self) -> Machines:
        """The machines; a plan for machines runs on machines."""
        assert self.machines is not None, "a plan for machines runs on machines"
        return self.machines

    def log_directory(self, replica: ReplicaKey) -> Path:
        """Where the log of a replica lies now, as this process reaches it."""
        seat = self.deployment.seat(*replica)
        data = self._data_dir if self.machines is None else self.machines.data_path(seat.node)
        return data / seat.directory / "log"

    # -------------------------------------------------------------- processes

    def pids(self, victims: list[ReplicaKey]) -> list[int]:
        """Of processes that run: the one before may still be coming back from the last fault. Without those
        of replicas that were removed meanwhile."""

        def found() -> Found | None:
            pids = self.deployment.broker_pids()
            if all(victim in pids and not gone(pids[victim]) for victim in victims):
                return Found(pids[victim] for victim in victims)
            seats = self.deployment.seats()
            if not all(victim in seats for victim in victims):
                victims[:] = [victim for victim in victims if victim in seats]
            if self.machines is not None:
                self.machines.revive()  # a node may die late of an earlier cut, and its broker with it
            return None

        pids: list[int] = until(f"{victims} run", found, BACK_S)
        return pids

    def living(self, name: str) -> int | None:
        """Pid of an actor, if it runs."""
        pid = self.deployment.pids().get(name)
        return None if pid is None or gone(pid) else pid

    def until_back(self, name: str, before: int) -> None:
        """Until an actor runs in another process than that one, or is a replica that was removed."""

        def back() -> bool:
            return (self.living(name) or before) != before or self.deployment.removed(name)

        until(f"{name} is back", back, BACK_S)

    @contextlib.contextmanager
    def killed(self, victims: list[ReplicaKey]) -> Iterator[Blow]:
        """SIGKILL of their brokers."""
        pids = self.pids(victims)
        blow = Blow(time.monotonic_ns(), ", ".join(broker_name(*victim) for victim in victims))
        for pid in pids:
            send(pid, signal.SIGKILL)
        yield blow


class Found(list[int]):
    """A list that is true even if it is empty."""

    def __bool__(self) -> bool:
        return True


@contextlib.contextmanager
def in_thread(victim: str, work: Callable[[], None]) -> Iterator[Blow]:
    """Many blows one after the other, in a thread, so that clients are looked at while it goes on."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, name=victim, daemon=True)
    blow = Blow(time.monotonic_ns(), victim, thread.is_alive)
    thread.start()
    try:
        yield blow
    finally:
        thread.join()
    if failures:
        raise failures[0]


@contextlib.contextmanager
def timed(fault: Fault, victim: str, strike: Callable[[], None], heal: Callable[[], None]) -> Iterator[Blow]:
    """Healed after the fault's seconds, whether or not the cluster is available meanwhile."""
    failures: list[BaseException] = []

    def healing() -> None:
        try:
            heal()
        except BaseException as error:
            failures.append(error)

    timer = threading.Timer(fault.seconds, healing)
    strike()
    blow = Blow(time.monotonic_ns(), victim)  # now it is complete: filling a disk takes a while
    timer.start()
    try:
        yield blow
    finally:
        timer.join()
    if failures:
        raise failures[0]


def send(pid: int, number: signal.Signals) -> None:
    """A signal to a process that may be gone."""
    if not gone(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def dice(fault: Fault, what: str) -> random.Random:
    """For choices of a fault that its kind alone has; the same in every repetition."""
    return random.Random(f"{fault.target}/{what}")
