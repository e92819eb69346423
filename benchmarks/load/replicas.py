"""The three replicas of the group under test: who leads, how far they are, and their processes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

from benchmarks.group import GROUP
from escrowmq.actors.admin.types import ReplicaStatus


class Replicas:
    """Looks at, freezes and kills replicas of a cluster's first group."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster

    def all(self) -> tuple[ReplicaStatus, ...]:
        found: tuple[ReplicaStatus, ...] = self._cluster.admin.status(wait_s=5.0).groups[GROUP].replicas
        return found

    def leader(self) -> ReplicaStatus:
        return self.when(lambda r: r.role == "leader" and bool(r.details.get("ready")))

    def followers(self) -> list[ReplicaStatus]:
        return [r for r in self.all() if r.role == "follower"]

    def one(self, number: int) -> ReplicaStatus:
        return self.all()[number]

    def when(self, wanted: Callable[[ReplicaStatus], bool], timeout_s: float = 120.0) -> ReplicaStatus:
        """The first replica of which that holds, as soon as it does."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            for replica in self.all():
                if replica.reachable and wanted(replica):
                    return replica
            time.sleep(0.05)
        raise TimeoutError(f"not so within {timeout_s:g} s: {self.all()}")

    def restarted(self, old: ReplicaStatus) -> None:
        """Until another process serves as that replica."""

        def is_new(replica: ReplicaStatus) -> bool:
            known = replica.replica == old.replica and pid_of(replica) != pid_of(old)
            return known and replica.role in ("leader", "follower")

        self.when(is_new)

    def whole(self, number: int, opened: int) -> None:
        """Until that replica has so many open: one that is back has yet to apply what it missed."""
        self.when(lambda r: r.replica == number and r.open_transactions == opened)

    def caught_up(self, number: int, timeout_s: float = 600.0) -> float:
        """Seconds until replica ``number`` has applied what the leader had committed when it looked."""
        begin = time.monotonic()
        while time.monotonic() - begin < timeout_s:
            replicas = self.all()
            mine = replicas[number]
            leader = next((r for r in replicas if r.role == "leader"), None)
            follows = leader is not None and mine.reachable and mine.role == "follower"
            # Under load it is never quite there; some entries behind is.
            if leader is not None and follows and mine.applied_index >= leader.commit_index - 50:
                return time.monotonic() - begin
            time.sleep(0.05)
        raise TimeoutError(f"replica {number} does not catch up: {self.all()}")


def pid_of(replica: ReplicaStatus) -> int:
    """Its process."""
    return int(replica.details["pid"])


def send_signal(pid: int, number: signal.Signals) -> None:
    """To a broker of this run's own cluster; nothing if it is gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
