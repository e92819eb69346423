"""How a broker reaches the other replicas of its group, through Ray: where they listen, and their files.

Used rarely: to dial a Raft link, and to copy a checkpoint. Whatever goes wrong means "no answer now";
the caller asks again.
"""

from __future__ import annotations

from typing import Any

import ray

from escrowmq.actors.client.topology import ClusterInfo, broker_name
from escrowmq.replication.errors import Unavailable
from escrowmq.replication.host.repair import Manifest

#: A peer that is alive answers in milliseconds; Ray reports a dead one only after seconds.
ASK_S = 2.0
COPY_S = 30.0


class RayPeers:
    """The other replicas of one group. Any thread; blocks for a bounded time."""

    def __init__(self, info: ClusterInfo, gid: int) -> None:
        self._info, self._gid = info, gid

    def _ask(self, peer: str, method: str, *args: Any, timeout_s: float = ASK_S) -> Any:
        try:
            actor = ray.get_actor(broker_name(self._gid, int(peer)), namespace=self._info.namespace)
            return ray.get(getattr(actor, method).remote(*args), timeout=timeout_s)
        except (ValueError, ray.exceptions.RayError, ray.exceptions.GetTimeoutError, Unavailable):
            return None  # not created yet, dead, restarting, or busy

    def resolve(self, peer: str) -> tuple[str, int] | None:
        """Where the peer's Raft link listens."""
        address: tuple[str, int] | None = self._ask(peer, "raft_address")
        return address

    def founded(self, peer: str) -> bool | None:
        """Whether the peer's log has any history."""
        answer: bool | None = self._ask(peer, "founded")
        return answer

    def manifest(self, peer: str) -> Manifest | None:
        """What the peer offers, if it is the leader."""
        status, *rest = self._ask(peer, "checkpoint_manifest") or ("gone",)
        return rest[0] if status == "ok" else None

    def read(self, peer: str, name: str, pos: int, size: int) -> bytes:
        """Part of a file; raises Unavailable when the peer does not answer."""
        part: bytes | None = self._ask(peer, "checkpoint_read", name, pos, size, timeout_s=COPY_S)
        if part is None:
            raise Unavailable(f"replica {peer} of group {self._gid} does not answer", 1.0)
        return part

    def suspect(self, peer: str, name: str, size: int) -> None:
        """The copy of a file that the peer offers is damaged; it checks its own."""
        self._ask(peer, "checkpoint_suspect", name, size, timeout_s=COPY_S)
