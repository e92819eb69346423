"""What operators request for replicas and nodes; the supervisor records it and carries it out.

A request is durable when the call returns. It is then carried out in steps that take as long as copying a log
does, and that continue after a restart of the supervisor. Repeating a request changes nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

import msgspec

from escrowmq.actors.admin.types import MemberChange, NodeStatus, ReplicaShift
from escrowmq.actors.client.replica_calls import SUPERVISOR_RID
from escrowmq.actors.client.router import Router
from escrowmq.replication.errors import EscrowMQError, NotSupported, Unavailable


class Wanted:
    """Calls the supervisor. All methods raise Unavailable when it does not answer, and NotSupported if it is
    of an earlier version."""

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
    except AttributeError as error:
        raise NotSupported(f"the supervisor has no {method}: it is of an earlier version") from error
    except FutureTimeout:
        raise Unavailable(f"the supervisor does not answer to {method}", 1.0) from None
    except Exception as error:  # the call of a dead actor, or looking it up, can fail in any way
        raise Unavailable(f"the supervisor does not answer to {method}: {error}", 1.0) from error
