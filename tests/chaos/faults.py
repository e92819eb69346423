"""Inflicting faults. Each ends healed: what was stopped runs, what was cut is joined, what was full is empty.

A fault is a context: entering it strikes, leaving it heals; another may strike inside it. ``struck_at`` is
the moment of the blow on the clock of the histories; the driver's probe starts right after it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import ray

from escrowmq.actors.client.topology import SUPERVISOR, broker_name
from tests.chaos.deployment import Deployment, gone, until
from tests.chaos.fleet import Fleet
from tests.chaos.kinds import Kind
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


class Faults:
    """Strikes one cluster and its clients."""

    def __init__(self, deployment: Deployment, fleet: Fleet, machines: Machines | None) -> None:
        self.deployment, self.fleet, self.machines = deployment, fleet, machines

    @contextlib.contextmanager
    def inflicted(self, fault: Fault) -> Iterator[Blow]:
        """Strike, and strike again while it lasts if the plan says so; heal at the end."""
        with getattr(self, method_of(fault.kind))(fault) as blow:
            if fault.meanwhile is None:
                yield blow
                return
            time.sleep(fault.meanwhile.before_s)
            with getattr(self, method_of(fault.meanwhile.kind))(fault.meanwhile) as second:
                yield replace(second, victim=f"{blow.victim}; {second.victim}")

    # -------------------------------------------------------------- brokers

    def _leader_kill(self, fault: Fault) -> Any:
        gid = fault.group % self.deployment.info.groups
        return self._killed([(gid, self.deployment.leader(gid))])

    def _follower_kill(self, fault: Fault) -> Any:
        return self._killed([self._follower(fault)])

    def _brokers_kill(self, fault: Fault) -> Any:
        return self._killed(sorted(self.deployment.broker_pids()))

    def _leader_pause(self, fault: Fault) -> Any:
        gid = fault.group % self.deployment.info.groups
        return self._paused((gid, self.deployment.leader(gid)), fault)

    def _follower_pause(self, fault: Fault) -> Any:
        return self._paused(self._follower(fault), fault)

    def _follower(self, fault: Fault) -> tuple[int, int]:
        gid = fault.group % self.deployment.info.groups
        leader = self.deployment.leader(gid)
        others = [rid for rid in range(self.deployment.info.replicas) if rid != leader]
        return gid, others[fault.target % len(others)]

    @contextlib.contextmanager
    def _killed(self, victims: list[tuple[int, int]]) -> Iterator[Blow]:
        pids = self._pids(victims)
        blow = Blow(time.monotonic_ns(), ", ".join(broker_name(*victim) for victim in victims))
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        yield blow

    def _paused(self, victim: tuple[int, int], fault: Fault) -> Any:
        (pid,) = self._pids([victim])

        def go_on() -> None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

        return self._timed(fault, broker_name(*victim), lambda: os.kill(pid, signal.SIGSTOP), go_on)

    @contextlib.contextmanager
    def _timed(
        self, fault: Fault, victim: str, strike: Callable[[], None], heal: Callable[[], None]
    ) -> Iterator[Blow]:
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

    def _pids(self, victims: list[tuple[int, int]]) -> list[int]:
        """Of processes that run: the one before may still be coming back from the last fault."""

        def found() -> list[int] | None:
            pids = self.deployment.broker_pids()
            if all(victim in pids and not gone(pids[victim]) for victim in victims):
                return [pids[victim] for victim in victims]
            if self.machines is not None:
                self.machines.revive()  # a node may die late of an earlier cut, and its broker with it
            return None

        pids: list[int] = until(f"{victims} run", found, BACK_S)
        return pids

    # -------------------------------------------------------------- others of the cluster

    def _feedback_kill(self, fault: Fault) -> Any:
        names = until("a feedback actor lives", self.deployment.feedback_names, BACK_S)
        return self._actor_killed(names[fault.target % len(names)])

    def _supervisor_kill(self, fault: Fault) -> Any:
        return self._actor_killed(SUPERVISOR)

    @contextlib.contextmanager
    def _actor_killed(self, name: str) -> Iterator[Blow]:
        pid = until(f"{name} runs", lambda: self._living(name), BACK_S)
        blow = Blow(time.monotonic_ns(), name)
        os.kill(pid, signal.SIGKILL)
        yield blow
        until(f"{name} is back", lambda: (self._living(name) or pid) != pid, BACK_S)

    def _living(self, name: str) -> int | None:
        pid = self.deployment.pids().get(name)
        return None if pid is None or gone(pid) else pid

    @contextlib.contextmanager
    def _rolling_restart(self, fault: Fault) -> Iterator[Blow]:
        """In a thread, so that clients are looked at while it goes on."""
        failures: list[BaseException] = []

        def restart() -> None:
            try:
                self._restart_all()
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=restart, name="rolling-restart", daemon=True)
        blow = Blow(time.monotonic_ns(), "all, one after the other", thread.is_alive)
        thread.start()
        try:
            yield blow
        finally:
            thread.join()
        if failures:
            raise failures[0]

    def _restart_all(self) -> None:
        info = self.deployment.info
        for gid in range(info.groups):
            for rid in range(info.replicas):
                name = broker_name(gid, rid)
                actor = ray.get_actor(name, namespace=info.namespace)
                ray.get(actor.stop.remote(), timeout=30.0)
                ray.kill(actor, no_restart=False)
                self.deployment.wait_well(BACK_S)
        for name in [*self.deployment.feedback_names(), SUPERVISOR]:
            before = until(f"{name} runs", lambda name=name: self._living(name), BACK_S)
            ray.kill(ray.get_actor(name, namespace=info.namespace), no_restart=False)
            until(
                f"{name} is back",
                lambda name=name, before=before: (self._living(name) or before) != before,
                BACK_S,
            )

    # -------------------------------------------------------------- clients

    def _producer_kill(self, fault: Fault) -> Any:
        return self._client_killed("producer", fault)

    def _consumer_kill(self, fault: Fault) -> Any:
        return self._client_killed("consumer", fault)

    @contextlib.contextmanager
    def _client_killed(self, role: str, fault: Fault) -> Iterator[Blow]:
        names = self.fleet.names(role)
        name = names[fault.target % len(names)]
        self.fleet.kill(name)
        yield Blow(time.monotonic_ns(), name)

    # -------------------------------------------------------------- machines

    def _rig(self) -> Machines:
        assert self.machines is not None, "a plan for machines runs on machines"
        return self.machines

    def _network(self, fault: Fault, rid: int, change: Callable[[], None]) -> Any:
        return self._timed(fault, f"replica {rid}", change, self._rig().heal)

    def _leader_cut(self, fault: Fault) -> Any:
        leader = self.deployment.leader(0)
        return self._network(fault, leader, lambda: self._rig().cut_off(leader))

    def _follower_cut(self, fault: Fault) -> Any:
        _, rid = self._follower(fault)
        return self._network(fault, rid, lambda: self._rig().cut_off(rid))

    def _link_cut(self, fault: Fault) -> Any:
        leader, (_, other) = self.deployment.leader(0), self._follower(fault)
        return self._network(fault, leader, lambda: self._rig().cut(leader, other))

    def _slow_links(self, fault: Fault) -> Any:
        leader = self.deployment.leader(0)
        return self._network(fault, leader, lambda: self._rig().delay(leader, fault.delay_s))

    def _disk_full(self, fault: Fault) -> Any:
        (_, rid), rig = self._with_disk(fault)
        victim = f"replica {rid} ({'leader' if fault.target % 3 else 'follower'})"
        return self._timed(fault, victim, lambda: rig.fill_disk(rid), lambda: rig.free_disk(rid))

    @contextlib.contextmanager
    def _disk_full_restart(self, fault: Fault) -> Iterator[Blow]:
        """The disk stays full until the process has started on it, and for the fault's seconds after that."""
        victim, rig = self._with_disk(fault)
        (pid,) = self._pids([victim])
        name = broker_name(*victim)
        rig.fill_disk(victim[1])
        try:
            blow = Blow(time.monotonic_ns(), name)
            os.kill(pid, signal.SIGKILL)
            yield blow
            until(f"{name} is back, on a full disk", lambda: (self._living(name) or pid) != pid, BACK_S)
            time.sleep(fault.seconds)
        finally:
            rig.free_disk(victim[1])

    def _with_disk(self, fault: Fault) -> tuple[tuple[int, int], Machines]:
        """Two times out of three the leader."""
        leader = fault.target % 3 > 0
        return (0, self.deployment.leader(0)) if leader else self._follower(fault), self._rig()

    def _node_kill(self, fault: Fault) -> Any:
        """The raylet alone, whose processes must notice by themselves, or the whole machine."""
        rid, rig = self.deployment.leader(0), self._rig()
        if fault.target % 2:
            return self._timed(fault, f"raylet of replica {rid}", lambda: rig.kill_raylet(rid), rig.mend)
        return self._timed(fault, f"node of replica {rid}", lambda: rig.kill_node(rid), rig.mend)


def method_of(kind: Kind) -> str:
    """Name of the method of ``Faults`` that inflicts a kind."""
    return "_" + kind.value.replace("-", "_")
