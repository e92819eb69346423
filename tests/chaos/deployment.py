"""The cluster of a round as the driver needs it: its leaders, the pids of its processes, and its health.

Processes are found through Ray's own list of actors, so a pid always belongs to the intended actor and is
never guessed from a process name.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import psutil
import ray

from escrowmq import Cluster, EscrowMQError
from escrowmq.actors.admin.types import GroupStatus, ReplicaStatus
from escrowmq.actors.client.topology import SUPERVISOR, broker_name
from escrowmq.cluster.supervisor.member_steps import Condition, ReplicaKey, Seat
from escrowmq.replication.calling.answers import LevelReport
from escrowmq.replication.errors import Unavailable

POLL_S = 0.05


class Stuck(Exception):
    """The cluster did not become healthy in time, which is a violation of its promises."""


class Deployment:
    """A running cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.info = cluster.info

    def pids(self) -> dict[str, int]:
        """Pid of every live actor of the cluster, by its name."""
        from ray._private import state  # there is no public way without Ray's dashboard

        actors: Mapping[str, Mapping[str, Any]] = state.actors()  # type: ignore[no-untyped-call]
        return {str(a["Name"]): int(a["Pid"]) for a in actors.values() if a["State"] == "ALIVE" and a["Name"]}

    def broker_pids(self) -> dict[tuple[int, int], int]:
        """(group, replica) -> pid."""
        return {key: pid for name, pid in self.pids().items() if (key := replica_of(name)) is not None}

    def voters(self, gid: int) -> list[int]:
        """The voters of one group, as its leader reports them. Raises Stuck."""
        found = until(f"group {gid} tells its members", lambda: self.cluster.admin.members()[gid], 60.0)
        return sorted(found.voters)

    def removed(self, name: str) -> bool:
        """Whether the name is that of a broker that should no longer run."""
        key = replica_of(name)
        return key is not None and key not in self.seats()

    def feedback_names(self) -> list[str]:
        """Names of the live feedback actors."""
        return sorted(name for name in self.pids() if name.startswith("feedback-"))

    def supervisor_pid(self) -> int | None:
        """Pid of the supervisor; None while Ray restarts it."""
        return self.pids().get(SUPERVISOR)

    def seats(self) -> dict[ReplicaKey, Seat]:
        """The place of every replica, as the supervisor reports it; it may be dead for a while. Raises
        Stuck."""
        return {(one["group"], one["replica"]): _seat(one) for one in self._watched()}

    def seat(self, gid: int, rid: int) -> Seat:
        """The place of one replica."""
        return self.seats()[gid, rid]

    def running(self) -> set[ReplicaKey]:
        """Replicas that are full members, as the supervisor last saw them."""
        wanted = Condition.RUNNING.value
        return {(one["group"], one["replica"]) for one in self._watched() if one["condition"] == wanted}

    def _watched(self) -> list[dict[str, Any]]:
        replicas: list[dict[str, Any]] = until(
            "the supervisor answers", lambda: self.cluster.health()["replicas"], 60.0
        )
        return replicas

    def group(self, gid: int) -> GroupStatus:
        """The status of one group, as its replicas see it now."""
        return self.cluster.status().groups[gid]

    def leader(self, gid: int, within_s: float = 30.0) -> int:
        """The replica that leads a group. Raises Stuck."""
        return until(f"group {gid} has a leader", lambda: self._ready_leader(gid), within_s)

    def _ready_leader(self, gid: int) -> int | None:
        rid = leading(self.group(gid).replicas)
        # ``until`` waits for a true value, and replica 0 may be the leader.
        return None if rid is None else _Number(rid)

    def wait_level(self, level: int, within_s: float = 30.0) -> None:
        """Wait until every replica has applied that format level, as in a new cluster. Raises Stuck."""

        def reached() -> bool:
            names = [broker_name(*key) for key in self.seats()]
            brokers = [ray.get_actor(name, namespace=self.info.namespace) for name in names]
            reports: list[LevelReport] = ray.get([broker.levels.remote() for broker in brokers])
            return all(report.applied >= level for report in reports)

        until(f"all replicas have format level {level}", reached, within_s)

    def wait_well(self, within_s: float = 60.0) -> None:
        """Wait until the cluster is healthy. Raises Stuck."""
        until("every replica is back and has caught up", self.well, within_s)

    def well(self) -> bool:
        """Whether every replica answers, each group has a leader, and all have applied about the same.
        Raises Unavailable with what is wrong."""
        found = self.cluster.status()
        if found.problems:
            raise Unavailable("; ".join(found.problems), POLL_S)
        for group in found.groups:
            if not any(r.details.get("ready") for r in group.replicas):
                raise Unavailable(f"nobody leads group {group.group}", POLL_S)
            commit = max(replica.commit_index for replica in group.replicas)
            behind = [r.replica for r in group.replicas if commit - r.applied_index > 200]
            if behind:
                raise Unavailable(f"replicas {behind} of group {group.group} are behind", POLL_S)
        return True

    def same_everywhere(self, within_s: float = 60.0) -> None:
        """Wait until all replicas of each group have applied exactly the same."""

        def same() -> bool:
            return all(
                group.healthy and len({replica.applied_index for replica in group.replicas}) == 1
                for group in self.cluster.status().groups
            )

        until("all replicas have applied the same", same, within_s)


def replica_of(name: str) -> ReplicaKey | None:
    """The replica whose broker has this name; None if it is not a broker's name."""
    found = re.fullmatch(r"broker-g(\d+)-r(\d+)", name)
    return None if found is None else (int(found[1]), int(found[2]))


def leading(replicas: Iterable[ReplicaStatus]) -> int | None:
    """The ready leader with the latest term; a leader that is cut off may not know of a later one."""
    ready = [replica for replica in replicas if replica.reachable and replica.details.get("ready")]
    return max(ready, key=lambda replica: replica.term).replica if ready else None


def _seat(shown: Mapping[str, Any]) -> Seat:
    return Seat(shown["group"], shown["replica"], shown["node"], shown["incarnation"])


class _Number(int):
    """A number that is true even if it is 0."""

    def __bool__(self) -> bool:
        return True


def until(what: str, condition: Callable[[], Any], within_s: float) -> Any:
    """Wait until ``condition()`` returns something true, and return that. Raises Stuck."""
    deadline = time.monotonic() + within_s
    last: object = None
    while True:
        try:
            if found := condition():
                return found
            last = found
        except EscrowMQError as error:
            last = error
        if time.monotonic() >= deadline:
            raise Stuck(f"not within {within_s:g} s: {what}; last: {last!r}")
        time.sleep(POLL_S)


def gone(pid: int) -> bool:
    """Whether no such process runs (a zombie counts as gone)."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
