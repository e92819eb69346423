"""Bringing a cluster up on a Ray cluster that runs already: what ``escrowmq up`` does.

The supervisor sits on Ray's head node, with which it shares its fate anyway. Doing it again is
harmless: a cluster of that shape which runs already is left as it is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ray

from escrowmq.actors.client.topology import SUPERVISOR, ClusterInfo
from escrowmq.cluster.address import AUTO, find_address, join_ray
from escrowmq.cluster.config import Config
from escrowmq.cluster.launch import ANSWER_TIMEOUT_S, cluster_info, launch, require_ready, typed_errors
from escrowmq.cluster.secret import given_secret
from escrowmq.cluster.supervisor import SupervisorPlan
from escrowmq.replication.errors import ClusterNotFound, ConfigError

DATA_DIR = Path("/var/lib/escrowmq")
#: The resource that Ray gives to the head node and to no other.
_HEAD = "node:__internal_head__"


def deploy(settings: Config, address: str = AUTO, *, wait: bool = True, adopt: bool = False) -> ClusterInfo:
    """Start the cluster that ``settings`` describe, unless it runs; with ``wait``, until it is ready.

    Joins Ray, and leaves this process connected. A cluster that is not ready in time goes on starting;
    Unavailable says what is missing. Raises ClusterNotFound, ConfigError, NotAuthorized, and the errors
    of the data directories, after which nothing is left running.
    """
    where = find_address(settings.ray.address if address == AUTO else address)
    secret = given_secret(settings.security)
    join_ray(where, settings.cluster.namespace)
    wait_s = settings.supervisor.start_timeout_s if wait else 0.0
    running = _running(settings)
    if running is not None:
        if wait:
            with typed_errors():
                require_ready(
                    ray.get(running.wait_ready.remote(wait_s), timeout=wait_s + ANSWER_TIMEOUT_S), wait_s
                )
        return cluster_info(running)
    plan = SupervisorPlan(
        shape=settings.cluster,
        data_dir=(settings.storage.data_dir or DATA_DIR).absolute(),
        secret=secret,
        broker=settings.broker,
        settings=settings.supervisor,
        tls=settings.security.tls_files(),
        adopt=adopt,
    )
    return launch(plan, head_node_id(), wait_s=wait_s, keep_if_late=True)


def _running(settings: Config) -> Any:
    """The supervisor of a cluster that runs already, if its shape is the one asked for."""
    shape = settings.cluster
    try:
        handle = ray.get_actor(SUPERVISOR, namespace=shape.namespace)
    except ValueError:
        return None
    info = cluster_info(handle)
    if (info.groups, info.replicas) != (shape.groups, shape.replicas):
        raise ConfigError(
            f"namespace {shape.namespace!r} has a running cluster of {info.groups} groups of {info.replicas} "
            f"replicas, not {shape.groups} of {shape.replicas}; give another namespace, or the numbers it has"
        )
    return handle


def head_node_id() -> str:
    """Ray's id of the head node."""
    for entry in ray.nodes():  # type: ignore[no-untyped-call]
        if entry["Alive"] and _HEAD in entry["Resources"]:
            return str(entry["NodeID"])
    raise ClusterNotFound("this Ray cluster has no live head node; start it with 'ray start --head'")
