"""What all faults need: choosing a victim, finding its processes, striking for a time, and healing.

A fault is a context manager: entering it strikes, leaving it heals, and another fault may strike inside it.
``struck_at`` is the time of the blow on the clock of the histories; the driver's probe starts right after it.
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
from escrowmq.cluster.supervisor.member_steps import ReplicaKey
from tests.chaos.deployment import Deployment, gone, until
from tests.chaos.fleet import Fleet
from tests.chaos.machines import Machines, data_dir
from tests.chaos.plan import Fault
from tests.chaos.recreated import RecreatedTopic

BACK_S = 120.0


@dataclass(slots=True)
class Blow:
    """What a fault did: when, and to which victim. ``going_on``: for a fault of many blows, whether there are
    more to come."""

    struck_at: int
    victim: str
    going_on: Callable[[], bool] | None = None


class Striking:
    """The base of faults on one cluster. ``directory``: the round's."""

    def __init__(
        self,
        deployment: Deployment,
        fleet: Fleet,
        machines: Machines | None,
        directory: Path,
        topic: RecreatedTopic,
    ) -> None:
        self.deployment, self.fleet, self.machines, self.topic = deployment, fleet, machines, topic
        self._directory = directory

    # -------------------------------------------------------------- victims

    def group(self, fault: Fault) -> int:
        """The broker group that is struck."""
        return fault.group % self.deployment.info.groups

    def leader(self, fault: Fault) -> ReplicaKey:
        gid = self.group(fault)
        return gid, self.deployment.leader(gid)

    def follower(self, fault: Fault) -> ReplicaKey:
        """A follower; the leader itself if it is the only voter."""
        gid, leader = self.leader(fault)
        others = [rid for rid in self.deployment.voters(gid) if rid != leader] or [leader]
        return gid, others[fault.target % len(others)]

    def leader_or_follower(self, fault: Fault, leaders: float) -> ReplicaKey:
        """The leader (in a share ``leaders`` of the cases) or a follower."""
        return self.leader(fault) if dice(fault, "who").random() < leaders else self.follower(fault)

    def rig(self) -> Machines:
        """The machines, which a plan with such faults always has."""
        assert self.machines is not None, "a plan for machines runs on machines"
        return self.machines

    def log_directory(self, replica: ReplicaKey) -> Path:
        """The current log directory of a replica, as this process reaches it."""
        seat = self.deployment.seat(*replica)
        data = data_dir(self._directory) if self.machines is None else self.machines.data_path(seat.node)
        return data / seat.directory / "log"

    # -------------------------------------------------------------- processes

    def pids(self, victims: list[ReplicaKey]) -> list[int]:
        """Wait until the victims' processes run (they may still be restarting after the last fault), and
        return their pids. Drops replicas that were removed meanwhile from ``victims``."""

        def found() -> Found | None:
            pids = self.deployment.broker_pids()
            if all(victim in pids and not gone(pids[victim]) for victim in victims):
                return Found(pids[victim] for victim in victims)
            seats = self.deployment.seats()
            if not all(victim in seats for victim in victims):
                victims[:] = [victim for victim in victims if victim in seats]
            if self.machines is not None:
                self.machines.revive()  # a node may die late after an earlier cut, and its broker with it
            return None

        pids: list[int] = until(f"{victims} run", found, BACK_S)
        return pids

    def living(self, name: str) -> int | None:
        """Pid of an actor, if it runs."""
        pid = self.deployment.pids().get(name)
        return None if pid is None or gone(pid) else pid

    def until_back(self, name: str, before: int) -> None:
        """Wait until an actor runs in another process than ``before``, or is a replica that was removed."""

        def back() -> bool:
            return (self.living(name) or before) != before or self.deployment.removed(name)

        until(f"{name} is back", back, BACK_S)

    @contextlib.contextmanager
    def killed(self, victims: list[ReplicaKey]) -> Iterator[Blow]:
        """Send SIGKILL to the victims' brokers."""
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
    """Strike many blows one after the other, in a thread, so that clients can be watched meanwhile."""
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
    """Strike, and heal after the fault's duration, whether or not the cluster is available meanwhile."""
    failures: list[BaseException] = []

    def healing() -> None:
        try:
            heal()
        except BaseException as error:
            failures.append(error)

    timer = threading.Timer(fault.seconds, healing)
    strike()
    blow = Blow(time.monotonic_ns(), victim)  # only now, since filling a disk takes a while
    timer.start()
    try:
        yield blow
    finally:
        timer.join()
    if failures:
        raise failures[0]


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may be gone."""
    if not gone(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def dice(fault: Fault, what: str) -> random.Random:
    """A random generator for a fault's additional choices; it is the same in every repetition."""
    return random.Random(f"{fault.target}/{what}")
