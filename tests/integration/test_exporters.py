"""Two exporters over one cluster, read without a pause while replicas stand still and die.

No reader waits longer than docs/metrics.md says, and ``/healthz`` and ``/readyz`` tell what is so.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from escrowmq import Cluster
from tests.support.exporting import exporting
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.long]

#: As docs/metrics.md has it.
SCRAPE_MAX_S = 1.0
#: From a change to what both exporters tell of it: they look twice a second, and wait a second for answers.
SEEN_S = 10.0


class Reader(threading.Thread):
    """Asks one exporter for all of its pages, again and again."""

    def __init__(self, address: str) -> None:
        super().__init__(name=f"reader-{address}", daemon=True)
        self.address, self.ready = address, False
        self.slowest_s, self.rounds = 0.0, 0
        self.unwell: list[str] = []
        self._ending = threading.Event()

    def run(self) -> None:
        while not self._ending.wait(0.02):
            for path in ("metrics", "healthz"):
                status, text = self.get(path)
                if status != 200:
                    self.unwell.append(f"{path}: {status} {text}")
            self.ready = self.get("readyz")[0] == 200
            self.rounds += 1

    def get(self, path: str) -> tuple[int, str]:
        """Status and body."""
        began = time.monotonic()
        try:
            with urllib.request.urlopen(f"http://{self.address}/{path}", timeout=30) as answer:
                status, body = answer.status, answer.read()
        except urllib.error.HTTPError as refused:
            with refused:
                status, body = refused.code, refused.read()
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)
        return status, body.decode()

    def series(self, name: str) -> float:
        """Its value."""
        text = self.get("metrics")[1]
        return next(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name))

    def end(self) -> None:
        self._ending.set()
        self.join(60)


class Group:
    """The one group's replicas, and signals to them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def pids(self, role: str) -> list[int]:
        replicas = self._cluster.status().groups[0].replicas
        return [int(replica.details["pid"]) for replica in replicas if replica.role == role]

    @contextmanager
    def stopped(self, *pids: int) -> Iterator[None]:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def well(self) -> None:
        wait_until(lambda: self._cluster.status().healthy, 60.0, "the group's health", 0.2)


@pytest.mark.timeout(300)
def test_no_reader_waits_and_the_exporters_tell_the_truth(cluster: Cluster) -> None:
    group = Group(cluster)
    with ExitStack() as stack:
        addresses = [stack.enter_context(exporting(cluster)) for _ in range(2)]
        readers = [Reader(address) for address in addresses]
        for reader in readers:
            wait_until(lambda reader=reader: reader.get("healthz")[0] == 200, 60.0, "the first look", 0.1)
            reader.start()
            stack.callback(reader.end)

        def both(ready: bool) -> bool:
            return all(reader.ready is ready for reader in readers)

        def tell(name: str, value: float) -> bool:
            return all(reader.series(name) == value for reader in readers)

        wait_until(lambda: both(ready=True), 60.0, "a leader")
        changes = [reader.series("escrowmq_group_leader_changes_total") for reader in readers]

        with group.stopped(group.pids("follower")[0]):
            wait_until(lambda: tell("escrowmq_group_spare_replicas", 0), SEEN_S, "a replica less")
            assert both(ready=True), "two of three lead on"
        group.well()
        with group.stopped(*group.pids("leader")):
            # A stopped replica does not lead; the others elect a new leader within a second.
            wait_until(lambda: tell("escrowmq_group_spare_replicas", 0), SEEN_S, "a replica less")
            wait_until(lambda: both(ready=True), SEEN_S, "the next leader")
        group.well()
        with group.stopped(*group.pids("follower")):
            wait_until(lambda: both(ready=False), SEEN_S, "no majority")
            assert tell("escrowmq_group_has_leader", 0) and tell("escrowmq_supervisor_up", 1)
        group.well()
        wait_until(lambda: both(ready=True), SEEN_S, "a majority again")
        (leader,) = group.pids("leader")
        os.kill(leader, signal.SIGKILL)
        wait_until(lambda: tell("escrowmq_group_spare_replicas", 0), SEEN_S, "a replica less")
        wait_until(lambda: both(ready=True), SEEN_S, "the next leader")
        group.well()
        wait_until(lambda: tell("escrowmq_group_spare_replicas", 1), SEEN_S, "all three")
        for reader, before in zip(readers, changes, strict=True):
            assert reader.series("escrowmq_group_leader_changes_total") >= before + 2
    assert [reader.unwell for reader in readers] == [[], []]
    assert min(reader.rounds for reader in readers) > 100
    assert max(reader.slowest_s for reader in readers) < SCRAPE_MAX_S
