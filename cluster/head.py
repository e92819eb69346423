"""Whether a cluster survives the loss of Ray's head node, and how long its processes wait for the head.

Ray keeps its state in one process on the head, the control store. If the state is kept in memory, it is lost
with that process, and all of Ray ends. If it is kept in RocksDB or Redis, the head can come back, and the
processes that have waited for it continue (actors/client/head_patience.py). This module does not ask Ray; it
decides from what the processes report about themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from escrowmq.actors.client.head_patience import RECONNECT_VARIABLE, reconnect_s

#: The resource that Ray gives only to the head node, and the share of its 1.0 that a supervisor reserves.
HEAD_RESOURCE, HEAD_SHARE = "node:__internal_head__", 0.001
#: A reboot of the head takes minutes. If processes wait for less than this, the operator is told.
RECONNECT_S_MIN = 300.0
HOW_TO = "see docs/operations.md, 'When Ray's head is lost'"


@dataclass(frozen=True, slots=True)
class Head:
    """Ray's head.

    ``storage``: where the control store keeps its tables ("memory", "rocksdb", "redis"). ``reconnect_s``: how
    long processes on the head node wait for a lost control store.
    """

    storage: str
    reconnect_s: float

    @property
    def durable(self) -> bool:
        """Whether a restarted control store still has its tables."""
        return self.storage != "memory"


def head_of(environment: Mapping[str, str]) -> Head:
    """The head, from the environment of a process on the head node, which inherits Ray's settings."""
    storage = environment.get("RAY_gcs_storage", "memory")
    if environment.get("RAY_REDIS_ADDRESS"):
        storage = "redis"
    return Head(storage, reconnect_s(environment))


def head_problem(head: Head, waits: Mapping[str, float]) -> str | None:
    """Why losing the head would end the cluster, as one line for operators; None if it would not.

    ``waits``: node -> seconds that its processes wait for the head, if known.
    """
    shortest = min([head.reconnect_s, *waits.values()])
    if not head.durable:
        return f"not fault tolerant: all of Ray ends {shortest:g} s after losing its head; {HOW_TO}"
    if shortest >= RECONNECT_S_MIN:
        return None
    hasty = sorted(node for node, wait in waits.items() if wait == shortest) or ["the head itself"]
    return (
        f"fault tolerant ({head.storage}), but processes on {', '.join(hasty)} end {shortest:g} s after its "
        f"loss: set {RECONNECT_VARIABLE} on every node; {HOW_TO}"
    )


def head_in_words(head: Head, waits: Mapping[str, float]) -> str:
    """One line for operators about the head, whether or not there is a problem. ``waits``: as above."""
    shortest = min([head.reconnect_s, *waits.values()])
    well = f"fault tolerant ({head.storage}): the cluster works without its head for {shortest:g} s"
    return head_problem(head, waits) or well
