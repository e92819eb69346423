"""The cluster of a round as the driver needs it: who leads, which process is who, is it well again.

Processes are found through Ray's own list of actors, so a pid is always that of the actor meant and
never a guess by name.
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
from escrowmq.cluster.placement import Condition, ReplicaKey, Seat
from escrowmq.replication.calling.answers import LevelReport
from escrowmq.replication.errors import Unavailable

POLL_S = 0.05


class Stuck(Exception):
    """The cluster did not become well in time: a violation of its promises."""


class Deployment:
    """A running cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.info = cluster.info

    def pids(self) -> dict[str, int]:
        """Pid of every living actor of the cluster by its name."""
        from ray._private import state  # there is no public way without Ray's dashboard

        actors: Mapping[str, Mapping[str, Any]] = state.actors()  # type: ignore[no-untyped-call]
        return {str(a["Name"]): int(a["Pid"]) for a in actors.values() if a["State"] == "ALIVE" and a["Name"]}

    def broker_pids(self) -> dict[tuple[int, int], int]:
        """(group, replica) -> pid."""
        return {key: pid for name, pid in self.pids().items() if (key := replica_of(name)) is not None}

    def voters(self, gid: int) -> list[int]:
        """Of one group, as its leader tells them. Raises Stuck."""
        found = until(f"group {gid} tells its members", lambda: self.cluster.admin.members()[gid], 60.0)
        return sorted(found.voters)

    def removed(self, name: str) -> bool:
        """Whether a broker of that name is none that is to run."""
        key = replica_of(name)
        return key is not None and key not in self.seats()

    def feedback_names(self) -> list[str]:
        """Feedback actors that live."""
        return sorted(name for name in self.pids() if name.startswith("feedback-"))

    def supervisor_pid(self) -> int | None:
        """None: Ray is bringing it back."""
        return self.pids().get(SUPERVISOR)

    def seats(self) -> dict[ReplicaKey, Seat]:
        """Where every replica lives now, as the supervisor says; it may be dead for a while. Raises Stuck."""
        return {(one["group"], one["replica"]): _seat(one) for one in self._watched()}

    def seat(self, gid: int, rid: int) -> Seat:
        """Of one replica."""
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
        """As its replicas see it now."""
        return self.cluster.status().groups[gid]

    def leader(self, gid: int, within_s: float = 30.0) -> int:
        """The replica that leads. Raises Stuck."""
        return until(f"group {gid} has a leader", lambda: self._ready_leader(gid), within_s)

    def _ready_leader(self, gid: int) -> int | None:
        rid = leading(self.group(gid).replicas)
        # Truthiness is the condition of ``until``, and replica 0 is as good a leader as any.
        return None if rid is None else _Number(rid)

    def wait_level(self, level: int, within_s: float = 30.0) -> None:
        """Until every replica has applied that format level, as those of a new cluster do. Raises Stuck."""

        def reached() -> bool:
            names = [broker_name(*key) for key in self.seats()]
            brokers = [ray.get_actor(name, namespace=self.info.namespace) for name in names]
            reports: list[LevelReport] = ray.get([broker.levels.remote() for broker in brokers])
            return all(report.applied >= level for report in reports)

        until(f"all replicas have format level {level}", reached, within_s)

    def wait_well(self, within_s: float = 60.0) -> None:
        """Until all is well. Raises Stuck."""
        until("every replica is back and has caught up", self.well, within_s)

    def well(self) -> bool:
        """Whether every replica answers, each group is led, and all have applied about the same. Raises
        Unavailable that says what is not well."""
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
        """Until all replicas of each group have applied exactly the same."""

        def same() -> bool:
            return all(
                group.healthy and len({replica.applied_index for replica in group.replicas}) == 1
                for group in self.cluster.status().groups
            )

        until("all replicas have applied the same", same, within_s)


def replica_of(name: str) -> ReplicaKey | None:
    """Whose broker bears this name; None: it is no broker's."""
    found = re.fullmatch(r"broker-g(\d+)-r(\d+)", name)
    return None if found is None else (int(found[1]), int(found[2]))


def leading(replicas: Iterable[ReplicaStatus]) -> int | None:
    """Who leads and is ready to: the one of the latest term, since one that is cut off may not know of it."""
    ready = [replica for replica in replicas if replica.reachable and replica.details.get("ready")]
    return max(ready, key=lambda replica: replica.term).replica if ready else None


def _seat(shown: Mapping[str, Any]) -> Seat:
    return Seat(shown["group"], shown["replica"], shown["node"], shown["incarnation"])


class _Number(int):
    """A number that is true even if it is 0."""

    def __bool__(self) -> bool:
        return True


def until(what: str, condition: Callable[[], Any], within_s: float) -> Any:
    """Wait until ``condition()`` gives something true, and give that. Raises Stuck."""
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
    """Whether no such process runs (a zombie does not)."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
