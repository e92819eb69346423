"""Calls that go to chosen replicas, so that a read shows what exactly these replicas have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from escrowmq.actors.client.ray_calls import RayCalls
from escrowmq.actors.client.replica_calls import OnAnswer
from escrowmq.actors.client.topology import ClusterInfo


class OneReplica:
    """Sends all calls to one chosen replica of each group. ``rids``: that replica, by group."""

    def __init__(self, info: ClusterInfo, rids: Sequence[int]) -> None:
        self._calls, self._rids = RayCalls(info), rids

    def call(self, gid: int, rid: int, method: str, args: tuple[Any, ...], done: OnAnswer) -> None:
        """See ReplicaCalls."""
        self._calls.call(gid, self._rids[gid], method, args, done)

    def close(self) -> None:
        """See ReplicaCalls."""
        self._calls.close()
