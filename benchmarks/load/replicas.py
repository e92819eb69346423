"""The three replicas of the group under test: the leader, their progress, and their processes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

from benchmarks.group import GROUP
from escrowmq.actors.admin.types import ReplicaStatus


class Replicas:
    """The replicas of one of a cluster's groups, by default of the first."""

    def __init__(self, cluster: Any, group: int = GROUP) -> None:
        self._cluster, self._group = cluster, group

    def all(self) -> tuple[ReplicaStatus, ...]:
        found: tuple[ReplicaStatus, ...] = self._cluster.admin.status(wait_s=5.0).groups[self._group].replicas
        return found

    def leader(self) -> ReplicaStatus:
        return self.when(lambda r: r.role == "leader" and bool(r.details.get("ready")))

    def followers(self) -> list[ReplicaStatus]:
        return [r for r in self.all() if r.role == "follower"]

    def one(self, number: int) -> ReplicaStatus:
        return self.all()[number]

    def when(self, wanted: Callable[[ReplicaStatus], bool], timeout_s: float = 120.0) -> ReplicaStatus:
        """Wait for a replica for which ``wanted`` is true, and return it. Raises TimeoutError."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            for replica in self.all():
                if replica.reachable and wanted(replica):
                    return replica
            time.sleep(0.05)
        raise TimeoutError(f"no replica was as wanted within {timeout_s:g} s: {self.all()}")

    def restarted(self, old: ReplicaStatus) -> None:
        """Wait until a new process runs that replica."""

        def is_new(replica: ReplicaStatus) -> bool:
            known = replica.replica == old.replica and pid_of(replica) != pid_of(old)
            return known and replica.role in ("leader", "follower")

        self.when(is_new)

    def whole(self, number: int, opened: int) -> None:
        """Wait until a replica has ``opened`` open transactions; after a restart it first has to catch up."""
        self.when(lambda r: r.replica == number and r.open_transactions == opened)

    def caught_up(self, number: int, timeout_s: float = 600.0) -> float:
        """Wait until replica ``number`` has applied what the leader has committed; returns the seconds."""
        begin = time.monotonic()
        while time.monotonic() - begin < timeout_s:
            replicas = self.all()
            mine = replicas[number]
            leader = next((r for r in replicas if r.role == "leader"), None)
            follows = leader is not None and mine.reachable and mine.role == "follower"
            # Under load it is always a few entries behind.
            if leader is not None and follows and mine.applied_index >= leader.commit_index - 50:
                return time.monotonic() - begin
            time.sleep(0.05)
        raise TimeoutError(f"replica {number} did not catch up: {self.all()}")


def pid_of(replica: ReplicaStatus) -> int:
    """The process id of a replica."""
    return int(replica.details["pid"])


def send_signal(pid: int, number: signal.Signals) -> None:
    """Send a signal to a broker of this run's own cluster, unless it has ended."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
