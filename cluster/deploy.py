"""Bringing a cluster up on a Ray cluster that runs already: what ``escrowmq up`` does.

The supervisor sits on Ray's head node, with which it shares its fate anyway. Doing it again is
harmless: a cluster that runs already is left as it is. If it has other settings, the caller is told what
differs: settings that silently do not count are found in production.
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
    """Start the cluster that ``settings`` describe, unless it runs; with ``wait``, until it is ready.

    ``stated``: paths of those that are no defaults (None: all). What the founding fixes is, where it was not
    stated, as the running cluster has it.

    Joins Ray, and leaves this process connected. A cluster that is not ready in time goes on starting;
    Unavailable says what is missing. Raises SettingsDiffer if one runs with other settings, which goes on;
    and ClusterNotFound, ConfigError, NotAuthorized, and the errors of the data directories, after which
    nothing is left running.
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
    """The supervisor of a cluster that runs already; None: there is none. Raises SettingsDiffer."""
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
            f"a cluster with other settings runs in namespace {namespace!r} and goes on as it is: "
            f"{', '.join(map(str, found))}; give the settings it has, or change them as it says in brackets",
            [asdict(difference) for difference in found],
        )
    return handle


def _settings_of(handle: Any, info: ClusterInfo) -> dict[str, dict[str, Any]]:
    """With which the cluster runs. A supervisor of an earlier version tells its shape and its directory.

    Raises Unavailable."""
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
    """Raise ClusterNotFound unless Ray has a live head node: the supervisor would wait for one for ever."""
    for entry in ray.nodes():  # type: ignore[no-untyped-call]
        if entry["Alive"] and HEAD_RESOURCE in entry["Resources"]:
            return
    raise ClusterNotFound("this Ray cluster has no live head node; start it with 'ray start --head'")
