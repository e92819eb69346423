"""Starts a cluster on a running Ray cluster: what ``escrowmq up`` does.

The supervisor runs on Ray's head node, whose loss it could not survive anyway. Repeating ``up`` is harmless:
a running cluster is left as it is. If it has other settings, an error lists the differences; settings that
were silently ignored would show only in production.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ray

from escrowmq.actors.client.topology import SUPERVISOR, ClusterInfo
from escrowmq.cluster.address import AUTO, find_address, join_ray
from escrowmq.cluster.config import Config
from escrowmq.cluster.differences import AS_FOUNDED, differences
from escrowmq.cluster.head import HEAD_RESOURCE
from escrowmq.cluster.launch import ANSWER_TIMEOUT_S, cluster_info, launch, require_ready, typed_errors
from escrowmq.cluster.secret import given_secret
from escrowmq.cluster.supervisor import SupervisorPlan, settings_in
from escrowmq.replication.errors import ClusterNotFound, SettingsDiffer, Unavailable

DATA_DIR = Path("/var/lib/escrowmq")


def deploy(
    settings: Config,
    address: str = AUTO,
    *,
    wait: bool = True,
    adopt: bool = False,
    stated: Collection[str] | None = None,
) -> ClusterInfo:
    """Start the cluster that ``settings`` describe, unless it is running. ``wait``: return when it is ready.

    ``stated``: paths of the settings that were given explicitly (None: all). A setting that is fixed when the
    cluster is founded is compared with the running cluster only if it was given explicitly.

    Joins Ray and leaves this process connected. If the cluster is not ready in time, it raises Unavailable,
    which says what is missing; the start continues in the background. Raises SettingsDiffer if a cluster with
    other settings is running; that cluster is not affected. Raises ClusterNotFound, ConfigError,
    NotAuthorized, and the errors of the data directories; nothing is left running then.
    """
    where = find_address(settings.ray.address if address == AUTO else address)
    secret = given_secret(settings.security)
    join_ray(where, settings.cluster.namespace)
    wait_s = settings.supervisor.start_timeout_s if wait else 0.0
    plan = SupervisorPlan(
        shape=settings.cluster,
        data_dir=(settings.storage.data_dir or DATA_DIR).absolute(),
        secret=secret,
        broker=settings.broker,
        settings=settings.supervisor,
        tls=settings.security.tls_files(),
        adopt=adopt,
    )
    running = _running(plan, stated)
    if running is not None:
        if wait:
            with typed_errors():
                require_ready(
                    ray.get(running.wait_ready.remote(wait_s), timeout=wait_s + ANSWER_TIMEOUT_S), wait_s
                )
        return cluster_info(running)
    check_head()
    return launch(plan, None, wait_s=wait_s, keep_if_late=True)


def _running(plan: SupervisorPlan, stated: Collection[str] | None) -> Any:
    """The supervisor of the running cluster, None if there is none. Raises SettingsDiffer."""
    namespace = plan.shape.namespace
    try:
        handle = ray.get_actor(SUPERVISOR, namespace=namespace)
    except ValueError:
        return None
    info = cluster_info(handle)
    wanted = settings_in(plan)
    for path in () if stated is None else AS_FOUNDED - set(stated):
        section, _, name = path.partition(".")
        del wanted[section][name]
    if plan.secret is not None:
        wanted["security"]["secret"] = plan.secret.fingerprint(info.cluster_id)
    found = differences(_settings_of(handle, info), wanted)
    if found:
        raise SettingsDiffer(
            f"a cluster with other settings is running in namespace {namespace!r} and was not changed: "
            f"{', '.join(map(str, found))}; give the settings it has, or change them as the brackets say",
            [asdict(difference) for difference in found],
        )
    return handle


def _settings_of(handle: Any, info: ClusterInfo) -> dict[str, dict[str, Any]]:
    """The settings that the cluster runs with. Raises Unavailable.

    A supervisor of an earlier version reports only the cluster's shape and data directory.
    """
    shape = {"namespace": info.namespace, "groups": info.groups, "replicas": info.replicas}
    try:
        if not hasattr(handle, "settings"):
            health = ray.get(handle.health.remote(), timeout=ANSWER_TIMEOUT_S)
            return {"cluster": shape, "storage": {"data_dir": health["data_dir"]}}
        with typed_errors():
            told: dict[str, Any] = ray.get(handle.settings.remote(), timeout=ANSWER_TIMEOUT_S)
    except (ray.exceptions.RayError, ray.exceptions.GetTimeoutError) as error:
        raise Unavailable(f"the supervisor does not answer: {error}", 1.0) from error
    security = {**told["security"], "secret": told.pop("secret_fingerprint")}
    return {**told, "cluster": shape, "security": security}


def check_head() -> None:
    """Raise ClusterNotFound unless Ray has a live head node: the supervisor would wait for one forever."""
    for entry in ray.nodes():  # type: ignore[no-untyped-call]
        if entry["Alive"] and HEAD_RESOURCE in entry["Resources"]:
            return
    raise ClusterNotFound("this Ray cluster has no live head node; start it with 'ray start --head'")
