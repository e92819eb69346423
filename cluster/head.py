"""What Ray's head node means for a cluster: whether its loss is survived, and for how long everybody waits.

Ray keeps what it knows in one process on the head, its control store. Kept in memory, it is lost with that
process, and all of Ray with it. Kept in RocksDB or Redis, the head can come back, and everybody goes on who
has waited for it (actors/client/head_patience.py). Nothing here asks Ray: these are decisions over what the
processes say of themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from escrowmq.actors.client.head_patience import RECONNECT_VARIABLE, reconnect_s

#: The resource that Ray gives to the head node and to no other, and what a supervisor takes of its 1.0.
HEAD_RESOURCE, HEAD_SHARE = "node:__internal_head__", 0.001
#: A reboot of the head takes minutes. A cluster that waits less is told so.
RECONNECT_S_MIN = 300.0
HOW_TO = "see docs/operations.md, 'When Ray's head is lost'"


@dataclass(frozen=True, slots=True)
class Head:
    """Where Ray's control store keeps its tables ("memory", "rocksdb", "redis"), and how long the processes
    of the head node wait for it."""

    storage: str
    reconnect_s: float

    @property
    def durable(self) -> bool:
        """Whether a control store that is started again knows what the lost one knew."""
        return self.storage != "memory"


def head_of(environment: Mapping[str, str]) -> Head:
    """The head as the environment of a process on the head node shows it: Ray gives its own on."""
    storage = environment.get("RAY_gcs_storage", "memory")
    if environment.get("RAY_REDIS_ADDRESS"):
        storage = "redis"
    return Head(storage, reconnect_s(environment))


def head_problem(head: Head, waits: Mapping[str, float]) -> str | None:
    """Why the loss of the head would end the cluster, in a line for operators; None: it would not.

    ``waits``: node -> how long its processes wait for the head, where that is known.
    """
    shortest = min([head.reconnect_s, *waits.values()])
    if not head.durable:
        return f"not fault tolerant: all of Ray ends {shortest:g} s after the loss of its head; {HOW_TO}"
    if shortest >= RECONNECT_S_MIN:
        return None
    hasty = sorted(node for node, wait in waits.items() if wait == shortest) or ["the head itself"]
    return (
        f"fault tolerant ({head.storage}), but processes of {', '.join(hasty)} end {shortest:g} s after its "
        f"loss: set {RECONNECT_VARIABLE} on every node; {HOW_TO}"
    )


def head_in_words(head: Head, waits: Mapping[str, float]) -> str:
    """A line for operators, also when all is well. ``waits`` as above."""
    shortest = min([head.reconnect_s, *waits.values()])
    well = f"fault tolerant ({head.storage}): the cluster works without its head for {shortest:g} s"
    return head_problem(head, waits) or well
