"""The broker group under test, and how its work is measured: requests, bytes, CPU time by process."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psutil

from benchmarks.measure import CpuMeter, CpuUse
from escrowmq.actors.client.linked_calls import LinkedCalls
from escrowmq.actors.client.ray_calls import RayCalls
from escrowmq.actors.client.replica_calls import OnAnswer
from escrowmq.actors.producer.config import ProducerConfig
from escrowmq.actors.producer.producer import Producer

if TYPE_CHECKING:
    from escrowmq import Cluster

GROUP = 0


class CountingCalls(LinkedCalls):
    """A client's calls, which also count the submits and their bytes."""

    submits = 0
    request_bytes = 0

    def call(self, gid: int, rid: int, method: str, args: tuple[Any, ...], done: OnAnswer) -> None:
        if method == "submit":
            self.submits += 1
            self.request_bytes += len(args[0])
        super().call(gid, rid, method, args, done)


@dataclass(frozen=True)
class Traffic:
    """What a measurement sent, and its cost."""

    items: int
    seconds: float
    calls: int
    bytes: int
    cpu: CpuUse

    @property
    def per_s(self) -> float:
        return self.items / self.seconds

    @property
    def bytes_per_s(self) -> float:
        return self.bytes / self.seconds

    @property
    def bytes_per_item(self) -> float:
        return self.bytes / max(1, self.items)

    @property
    def bytes_per_call(self) -> float:
        return self.bytes / max(1, self.calls)


class GroupUnderTest:
    """A cluster of one group; hands out producers whose requests are counted."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._calls: list[CountingCalls] = []

    def producer(self, config: ProducerConfig | None = None, app: str = "bench") -> Producer:
        """A producer without a querier, so that no checks disturb the measurement."""
        calls = CountingCalls(RayCalls(self.cluster.info))
        self._calls.append(calls)
        return Producer(self.cluster.info, app=app, config=config, calls=calls)

    def pids(self) -> dict[str, int]:
        """The present process ids, by role."""
        replicas = self.cluster.admin.status(wait_s=10.0).groups[GROUP].replicas
        named: dict[str, int] = {}
        followers = 0
        for replica in replicas:
            if replica.role == "leader":
                named["leader"] = int(replica.details["pid"])
            else:
                followers += 1
                named[f"follower {followers}"] = int(replica.details["pid"])
        named["client"] = os.getpid()
        for process in psutil.process_iter(["name"]):
            if process.info["name"] in ("raylet", "gcs_server"):
                named.setdefault(process.info["name"], process.pid)
        return named

    def log_bytes(self) -> int:
        """Bytes of the leader's log files."""
        replicas = self.cluster.admin.status(wait_s=10.0).groups[GROUP].replicas
        return max(int(replica.details.get("log_bytes", 0)) for replica in replicas)

    def measure(self, work: Callable[[], tuple[int, float]]) -> Traffic:
        """Run ``work``, which returns (items done, seconds), and count what it sent."""
        calls = sum(c.submits for c in self._calls)
        sent = sum(c.request_bytes for c in self._calls)
        meter = CpuMeter(self.pids())
        items, seconds = work()
        cpu = meter.stop(items)
        return Traffic(
            items,
            seconds,
            sum(c.submits for c in self._calls) - calls,
            sum(c.request_bytes for c in self._calls) - sent,
            cpu,
        )


def side_by_side(workers: int, work: Callable[[int], int]) -> int:
    """Run ``work(number)`` in ``workers`` threads at once; returns the sum of their results."""
    done = [0] * workers
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            done[number] = work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return sum(done)
