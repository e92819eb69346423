"""The part of ``Admin`` about replicas and nodes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

import msgspec

from escrowmq.actors.admin.types import GroupMembers, MemberChange, NodeStatus, ReplicaShift
from escrowmq.actors.client.replica_calls import SUPERVISOR_RID
from escrowmq.actors.client.router import Router, result_of
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.replication.errors import EscrowMQError, Unavailable

# ------------------------------------------------------------------------------------------------------------
# What operators request for replicas and nodes; the supervisor records it and carries it out.
#
# A request is durable when the call returns. It is then carried out in steps that take as long as copying a
# log does, and that continue after a restart of the supervisor. Repeating a request changes nothing.


class Wanted:
    """Calls the supervisor. All methods raise Unavailable when it does not answer."""

    def __init__(self, router: Router, timeout_s: float) -> None:
        self._router, self._timeout_s = router, timeout_s

    def set_replicas(self, group: int, replicas: int) -> None:
        self._ask("set_replicas", group, replicas)

    def move_replica(self, group: int, replica: int, node: str) -> None:
        self._ask("move_replica", group, replica, node)

    def set_node(self, node: str, use: str, force: bool) -> None:
        self._ask("set_node", node, use, force)

    def changes(self) -> tuple[MemberChange, ...]:
        return tuple(msgspec.convert(line, MemberChange) for line in self._ask("changes"))

    def rebalance(self, apply: bool) -> tuple[ReplicaShift, ...]:
        return tuple(msgspec.convert(line, ReplicaShift) for line in self._ask("rebalance", apply))

    def nodes(self) -> tuple[NodeStatus, ...]:
        return tuple(msgspec.convert(line, NodeStatus) for line in self._ask("node_uses"))

    def _ask(self, method: str, *args: Any) -> Any:
        with _typed(method):
            return self._router.replica_call(0, SUPERVISOR_RID, method, *args).result(self._timeout_s)


@contextlib.contextmanager
def _typed(method: str) -> Iterator[None]:
    try:
        yield
    except EscrowMQError as error:
        cause = getattr(error, "cause", error)  # unwrapped from Ray's own error
        raise cause from None
    except FutureTimeout:
        raise Unavailable(f"the supervisor does not answer to {method}", 1.0) from None
    except Exception as error:  # the call of a dead actor, or looking it up, can fail in any way
        raise Unavailable(f"the supervisor does not answer to {method}: {error}", 1.0) from error


class MemberAdmin:
    """The part of ``Admin`` about replicas and nodes."""

    info: ClusterInfo
    router: Router
    _wanted: Wanted
    _timeout_s: float

    def members(self) -> tuple[GroupMembers, ...]:
        """The members of each broker group, as its leader knows them. Raises Unavailable."""
        asked = [
            self.router.leader_call(gid, "members", timeout_s=self._timeout_s)
            for gid in range(self.info.groups)
        ]
        found = [result_of(future, self._timeout_s) for future in asked]
        leaders = [channel.leader for channel in self.router.channels]
        return tuple(map(GroupMembers.of, range(self.info.groups), leaders, found))

    def set_replicas(self, group: int, replicas: int) -> None:
        """Sets the number of voting replicas of broker group ``group``: 1, 3, 5 or 7.

        Returns when the request is durable. Replicas are then added or removed one after the other while the
        group is in use; ``member_changes`` shows the progress. Raises ConfigError, Unavailable.
        """
        self._wanted.set_replicas(group, replicas)

    def move_replica(self, group: int, replica: int, node: str) -> None:
        """Replaces a replica by a new one, with a new number, on ``node``, which must be alive.

        Returns when the request is durable, as ``set_replicas`` does. The old replica and its directory are
        removed once the new one votes. Raises ConfigError, Unavailable.
        """
        self._wanted.move_replica(group, replica, node)

    def member_changes(self) -> tuple[MemberChange, ...]:
        """Broker groups whose replicas are not yet as requested, and the next step of each; () if all are as
        requested. Raises Unavailable."""
        return self._wanted.changes()

    def drain_node(self, node: str) -> None:
        """Requests that the node hold no replicas: each is replaced by one on another node, as far as there
        are nodes to take them. Returns when the request is durable, as ``set_replicas`` does. Raises
        ConfigError, Unavailable."""
        self._wanted.set_node(node, "drained", False)

    def begin_maintenance(self, node: str, *, force: bool = False) -> None:
        """Announces that the node will be away for a while: its replicas stay there and are not replaced, its
        leaders hand over, and nothing new is placed on it. Returns when the request is durable.

        Raises ConfigError if a group would have no running majority without it, unless ``force``;
        Unavailable.
        """
        self._wanted.set_node(node, "maintained", force)

    def open_node(self, node: str) -> None:
        """Ends what ``drain_node`` or ``begin_maintenance`` started. Raises ConfigError,
        Unavailable."""
        self._wanted.set_node(node, "open", False)

    def plan_rebalance(self) -> tuple[ReplicaShift, ...]:
        """The moves that would spread replicas and leaders better over the nodes; changes nothing. Groups
        whose replicas are not yet as requested are left out. Raises Unavailable."""
        return self._wanted.rebalance(False)

    def rebalance(self) -> tuple[ReplicaShift, ...]:
        """Carries out the moves that ``plan_rebalance`` would show, and returns them. Moves of replicas are
        durable when this returns, as those of ``move_replica``; leaders are asked once to hand over. Raises
        Unavailable."""
        return self._wanted.rebalance(True)

    def nodes(self) -> tuple[NodeStatus, ...]:
        """The intended use of each node, and what runs on it. Raises Unavailable."""
        return self._wanted.nodes()
