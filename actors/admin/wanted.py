"""What operators want of replicas and nodes: told to the supervisor, which keeps it and sees to it.

A wish is kept when the call returns, and comes about in steps that take as long as copying a log does; they
go on if the supervisor is started anew. Repeating a wish changes nothing.
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
    """Asks the supervisor. All raise Unavailable when it does not answer, NotSupported where it is of an
    earlier version."""

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
        cause = getattr(error, "cause", error)  # without what Ray wraps around it
        raise cause from None
    except AttributeError as error:
        raise NotSupported(f"the supervisor has no {method}: it is of an earlier version") from error
    except FutureTimeout:
        raise Unavailable(f"the supervisor does not answer to {method}", 1.0) from None
    except Exception as error:  # whatever the call of a dead actor, or looking it up, ends in
        raise Unavailable(f"the supervisor does not answer to {method}: {error}", 1.0) from error
