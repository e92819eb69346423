"""Inflicts faults. Each heals at its end: stopped processes run, cut links are joined, full disks have room.

This module has the faults on processes (brokers, other processes of the cluster, clients) and on a topic. The
others are in ``node_faults``, ``disk_faults``, ``member_faults`` and ``clock_faults``.
"""

from __future__ import annotations

import contextlib
import itertools
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import ray

from escrowmq.actors.client.topology import SUPERVISOR, broker_name
from escrowmq.cluster.supervisor.member_steps import ReplicaKey
from tests.chaos.clock_faults import ClockFaults
from tests.chaos.deployment import gone, until
from tests.chaos.kinds import Kind
from tests.chaos.plan import Fault
from tests.chaos.striking import BACK_S, Blow, dice, in_thread, send, timed

#: How often a topic is recreated at least in one fault, however busy the machine is.
RECREATED_MIN = 2


class Faults(ClockFaults):
    """Inflicts faults on one cluster and its clients."""

    @contextlib.contextmanager
    def inflicted(self, fault: Fault) -> Iterator[Blow]:
        """Strike; during the fault strike with a second one if the plan has it; heal at the end."""
        with getattr(self, method_of(fault.kind))(fault) as blow:
            if fault.meanwhile is None:
                yield blow
                return
            time.sleep(fault.meanwhile.before_s)
            with getattr(self, method_of(fault.meanwhile.kind))(fault.meanwhile) as second:
                yield replace(second, victim=f"{blow.victim}; {second.victim}")

    # -------------------------------------------------------------- brokers

    def _leader_kill(self, fault: Fault) -> Any:
        return self.killed([self.leader(fault)])

    def _follower_kill(self, fault: Fault) -> Any:
        return self.killed([self.follower(fault)])

    def _brokers_kill(self, fault: Fault) -> Any:
        return self.killed(sorted(self.deployment.broker_pids()))

    def _leader_pause(self, fault: Fault) -> Any:
        return self._paused(self.leader(fault), fault)

    def _follower_pause(self, fault: Fault) -> Any:
        return self._paused(self.follower(fault), fault)

    def _paused(self, victim: ReplicaKey, fault: Fault) -> Any:
        pids = self.pids([victim])

        def all_get(number: signal.Signals) -> None:
            for pid in pids:
                send(pid, number)

        stop, go_on = (lambda: all_get(signal.SIGSTOP)), (lambda: all_get(signal.SIGCONT))
        return timed(fault, broker_name(*victim), stop, go_on)

    # -------------------------------------------------------------- other processes of the cluster

    def _feedback_kill(self, fault: Fault) -> Any:
        return self._actor_killed(self._feedback(fault))

    def _feedback(self, fault: Fault) -> str:
        names: list[str] = until("a feedback actor lives", self.deployment.feedback_names, BACK_S)
        return names[fault.target % len(names)]

    def _supervisor_kill(self, fault: Fault) -> Any:
        return self._actor_killed(SUPERVISOR)

    @contextlib.contextmanager
    def _actor_killed(self, name: str) -> Iterator[Blow]:
        pid = until(f"{name} runs", lambda: self.living(name), BACK_S)
        blow = Blow(time.monotonic_ns(), name)
        send(pid, signal.SIGKILL)
        yield blow
        self.until_back(name, pid)

    @contextlib.contextmanager
    def _container_stop(self, fault: Fault) -> Iterator[Blow]:
        """Stop a process as a container runtime does: SIGTERM, and SIGKILL if it still runs after a while."""
        role = dice(fault, "container").choice(["broker", "broker", "feedback", "supervisor", "producer"])
        if role == "producer":
            name = self._client(fault, "producer")
            pid = self.fleet.stop(name)
        else:
            chosen = {
                "broker": lambda: broker_name(*self.leader_or_follower(fault, 0.5)),
                "feedback": lambda: self._feedback(fault),
                "supervisor": lambda: SUPERVISOR,
            }[role]

            def running() -> tuple[str, int] | None:  # chosen again each time: replicas may come and go
                name = chosen()
                pid = self.living(name)
                return None if pid is None else (name, pid)

            name, pid = until(f"a {role} runs", running, BACK_S)
            send(pid, signal.SIGTERM)
        ended: list[bool] = []

        def kill() -> None:
            ended.append(gone(pid))
            send(pid, signal.SIGKILL)

        with timed(fault, f"{name}, {fault.seconds:g} s", lambda: None, kill) as blow:
            yield blow
        blow.victim += ": ended by itself" if ended[0] else ": SIGKILL"
        if role != "producer":
            self.until_back(name, pid)

    def _rolling_restart(self, fault: Fault) -> Any:
        return in_thread("all, one after the other", self._restart_all)

    def _restart_all(self) -> None:
        info = self.deployment.info
        for gid in range(info.groups):
            for rid in self.deployment.voters(gid):
                name = broker_name(gid, rid)
                actor = ray.get_actor(name, namespace=info.namespace)
                ray.get(actor.stop.remote(), timeout=30.0)
                ray.kill(actor, no_restart=False)
                self.deployment.wait_well(BACK_S)
        for name in [*self.deployment.feedback_names(), SUPERVISOR]:
            before = until(f"{name} runs", lambda name=name: self.living(name), BACK_S)
            ray.kill(ray.get_actor(name, namespace=info.namespace), no_restart=False)
            self.until_back(name, before)

    # -------------------------------------------------------------- topics

    def _recreated_topic(self, fault: Fault) -> Any:
        """Delete a topic and create it again, at once or after a pause; at least twice, and until the fault's
        time is over."""
        rng, end = dice(fault, "lives"), time.monotonic() + fault.seconds

        def recreate() -> None:
            for count in itertools.count(1):
                self.topic.recreate(rng.choice([0.0, rng.uniform(0.0, 1.0)]))
                if count >= RECREATED_MIN and time.monotonic() >= end:
                    return
                time.sleep(rng.uniform(0.1, 1.5))

        return in_thread("a topic that clients use", recreate)

    # -------------------------------------------------------------- clients

    def _producer_kill(self, fault: Fault) -> Any:
        return self._client_killed(fault, "producer", "scheduler")

    def _consumer_kill(self, fault: Fault) -> Any:
        return self._client_killed(fault, "consumer", "sharer")

    def _client(self, fault: Fault, *roles: str) -> str:
        names = self.fleet.names(*roles)
        return names[fault.target % len(names)]

    @contextlib.contextmanager
    def _client_killed(self, fault: Fault, *roles: str) -> Iterator[Blow]:
        name = self._client(fault, *roles)
        self.fleet.kill(name)
        yield Blow(time.monotonic_ns(), name)


def method_of(kind: Kind) -> str:
    """Name of the method of ``Faults`` that inflicts a kind."""
    return "_" + kind.value.replace("-", "_")
