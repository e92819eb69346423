"""Apart from ``handle``, because it imports Ray: the calls of a ``Cluster`` to its supervisor."""

from __future__ import annotations

from typing import Any

import ray

from escrowmq.cluster.asking_ray import within
from escrowmq.cluster.launch import ANSWER_TIMEOUT_S, find_supervisor
from escrowmq.replication.errors import Unavailable

#: Limit for a search of every node, which takes seconds on a node without a worker process.
LEFTOVERS_TIMEOUT_S = 120.0


def health(namespace: str, address: str) -> dict[str, Any]:
    """See ``Cluster.health``."""

    def ask() -> dict[str, Any]:
        handle = find_supervisor(namespace, address)
        found: dict[str, Any] = ray.get(handle.health.remote(), timeout=ANSWER_TIMEOUT_S)
        return found

    try:
        return within(ANSWER_TIMEOUT_S + 1.0, address, ask)
    except (ray.exceptions.RayError, ray.exceptions.GetTimeoutError) as error:
        raise Unavailable(f"the supervisor does not answer: {error}", 1.0) from error


def leftovers(namespace: str, address: str, remove: bool) -> list[dict[str, Any]]:
    """See ``Cluster.leftovers``."""
    handle = find_supervisor(namespace, address)
    try:
        found: list[dict[str, Any]] = ray.get(handle.leftovers.remote(remove), timeout=LEFTOVERS_TIMEOUT_S)
    except (ray.exceptions.RayError, ray.exceptions.GetTimeoutError) as error:
        raise Unavailable(f"the supervisor does not answer: {error}", 1.0) from error
    return found
