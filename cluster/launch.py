"""Starts and stops a cluster on the Ray cluster that this process is connected to.

Used by ``start_local`` and ``escrowmq up``. A start that fails leaves nothing running and raises the typed
error of the component that refused. A cluster is stopped through its supervisor; processes that do not answer
are killed, which is safe because the log is durable at every moment.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from typing import Any

import ray

from escrowmq.actors.client.topology import SUPERVISOR, ClusterInfo
from escrowmq.cluster.head import HEAD_RESOURCE, HEAD_SHARE
from escrowmq.cluster.supervisor import Supervisor, SupervisorPlan
from escrowmq.replication import errors
from escrowmq.replication.carried_settings import from_names
from escrowmq.replication.errors import ClusterNotFound, ConfigError, EscrowMQError, Unavailable

log = logging.getLogger(__name__)

#: The supervisor's process starts in a second or two, on a cold and busy machine in ten.
OPEN_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 10.0
GONE_TIMEOUT_S = 10.0


@contextlib.contextmanager
def typed_errors() -> Iterator[None]:
    """Re-raise an EscrowMQError that an actor raised, without Ray's wrapper."""
    try:
        yield
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, EscrowMQError):
            raise error.cause from None
        raise


def launch(
    plan: SupervisorPlan, node_id: str | None, *, wait_s: float, keep_if_late: bool = False
) -> ClusterInfo:
    """Create the supervisor on a node (None: the head) and wait until every group has a leader.

    Raises ConfigError if the namespace already has a cluster, the typed errors of the data directory, and
    Unavailable if the cluster is not ready in time. Nothing is left running then, except that with
    ``keep_if_late`` a cluster that is only late continues to start.
    """
    namespace = plan.shape.namespace
    try:
        handle = create_supervisor(plan, node_id)
    except ValueError as error:
        raise ConfigError(
            f"an EscrowMQ cluster is already running in namespace {namespace!r}; connect to it with "
            "escrowmq.connect(...), or give another namespace"
        ) from error
    late: dict[str, Any] | None = None
    try:
        with typed_errors():
            info = from_names(ClusterInfo, ray.get(handle.open.remote(), timeout=OPEN_TIMEOUT_S))
            if wait_s > 0:
                health = ray.get(handle.wait_ready.remote(wait_s), timeout=wait_s + ANSWER_TIMEOUT_S)
                if keep_if_late and not health["refusal"]:
                    late = health
                else:
                    require_ready(health, wait_s)
                info = cluster_info(handle)  # adopting data changes the id
    except ray.exceptions.RayError as error:
        stop_cluster(namespace)
        raise Unavailable(f"the supervisor did not start: {error}", 1.0) from error
    except BaseException:
        stop_cluster(namespace)
        raise
    if late is not None:
        require_ready(late, wait_s)
    return info


def create_supervisor(plan: SupervisorPlan, node_id: str | None) -> Any:
    """Create the named, detached actor; returns its handle. Raises ValueError if the name is taken.

    ``node_id`` None: on the head node. The actor is then bound to the head's resource and not to a node id,
    because a head that is lost and comes back has a new id, and an actor bound to the old id would never be
    restarted.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    place: dict[str, Any] = (
        {"resources": {HEAD_RESOURCE: HEAD_SHARE}}
        if node_id is None
        else {"scheduling_strategy": NodeAffinitySchedulingStrategy(node_id, soft=False)}
    )
    return (
        ray.remote(Supervisor)
        .options(
            name=SUPERVISOR,
            namespace=plan.shape.namespace,
            lifetime="detached",
            max_restarts=-1,
            max_task_retries=0,
            max_concurrency=16,
            num_cpus=0,
            **place,
        )
        .remote(plan.packed())
    )


def require_ready(health: dict[str, Any], waited_s: float) -> None:
    """Raise the error that keeps a cluster from being ready, if there is one."""
    refusal = health["refusal"]
    if refusal is not None:
        kind = getattr(errors, refusal["type_name"], EscrowMQError)
        raise kind(refusal["text"])
    if not health["ready"]:
        raise Unavailable(f"the cluster is not ready after {waited_s:g} s: {describe(health)}", 5.0)


def describe(health: dict[str, Any]) -> str:
    """What is missing, as one sentence."""
    if not health["founded"]:
        if health["problem"]:
            return str(health["problem"]["text"])
        return f"{len(health['nodes'])} of {health['nodes_min']} nodes are up"
    late = [r for r in health["replicas"] if r["condition"] != "running"]
    if not late:
        return f"only groups {health['groups_led']} have a leader"
    return "; ".join(
        f"replica {r['replica']} of group {r['group']} on {r['node']} is {r['condition']}"
        + (f" ({r['failure']['text']})" if r["failure"] else "")
        for r in late
    )


def ask_about(supervisor: Any) -> Any:
    """The call that a supervisor answers with the fields of ClusterInfo, as far as its version knows them."""
    try:
        return supervisor.about.remote()
    except AttributeError:  # an earlier version
        return supervisor.info.remote()


def find_supervisor(namespace: str, address: str) -> Any:
    """The supervisor's handle. Raises ClusterNotFound, naming the namespaces that have one."""
    try:
        return ray.get_actor(SUPERVISOR, namespace=namespace)
    except ValueError:
        others = sorted({name["namespace"] for name in named_actors() if name["name"] == SUPERVISOR})
        hint = (
            f"there is one in namespace {', '.join(map(repr, others))}" if others else "none is running there"
        )
        raise ClusterNotFound(
            f"Ray runs at {address}, but no EscrowMQ cluster in namespace {namespace!r} ({hint}); start one "
            "with 'escrowmq up', or give its namespace"
        ) from None


def cluster_info(handle: Any, timeout_s: float = ANSWER_TIMEOUT_S) -> ClusterInfo:
    """The cluster's shape, from a supervisor that may be restarting. Raises Unavailable."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            left = max(deadline - time.monotonic(), 0.1)
            return from_names(ClusterInfo, ray.get(ask_about(handle), timeout=left))
        except (ray.exceptions.RayError, ray.exceptions.GetTimeoutError) as error:
            if time.monotonic() >= deadline:
                raise Unavailable(f"the supervisor does not answer: {error}", 1.0) from error
            time.sleep(0.1)


def named_actors() -> list[dict[str, str]]:
    """The named actors of all namespaces."""
    found: list[dict[str, str]] = ray.util.list_named_actors(all_namespaces=True)
    return found


def stop_cluster(namespace: str, timeout_s: float = 30.0) -> None:
    """End the cluster of this namespace: brokers gracefully, then every actor. Data stay on disk."""
    with contextlib.suppress(ValueError):
        supervisor = ray.get_actor(SUPERVISOR, namespace=namespace)
        try:
            ray.get(supervisor.shut_down.remote(), timeout=timeout_s)
        except (ray.exceptions.RayError, ray.exceptions.GetTimeoutError) as error:
            log.warning("the supervisor did not stop gracefully: %s", error)
        with contextlib.suppress(Exception):
            ray.kill(supervisor, no_restart=True)
    deadline = time.monotonic() + GONE_TIMEOUT_S
    while (left := _ours(namespace)) and time.monotonic() < deadline:
        for name in left:
            with contextlib.suppress(Exception):
                ray.kill(ray.get_actor(name, namespace=namespace), no_restart=True)
        time.sleep(0.05)


def _ours(namespace: str) -> list[str]:
    """Names of this cluster's actors: the supervisor, brokers, feedback."""
    names = [entry["name"] for entry in named_actors() if entry["namespace"] == namespace]
    return [name for name in names if name == SUPERVISOR or name.startswith(("broker-", "feedback-"))]
