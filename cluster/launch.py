"""Starts and stops a cluster on the Ray cluster that this process is connected to.

Used by ``start_local`` and ``escrowmq up``. A start that fails leaves nothing running and raises the typed
error of the component that refused. A cluster is stopped through its supervisor; processes that do not answer
are killed, which is safe because the log is durable at every moment.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import ray

from escrowmq.actors.client.topology import SUPERVISOR, ClusterInfo
from escrowmq.cluster.address import AUTO, find_address, join_ray
from escrowmq.cluster.config import Config
from escrowmq.cluster.settings import HEAD_RESOURCE, HEAD_SHARE
from escrowmq.cluster.supervisor.cluster_dir import given_secret
from escrowmq.cluster.supervisor.supervisor import Supervisor, SupervisorPlan, settings_in
from escrowmq.replication import errors
from escrowmq.replication.carried_settings import from_names
from escrowmq.replication.errors import (
    ClusterNotFound,
    ConfigError,
    EscrowMQError,
    SettingsDiffer,
    Unavailable,
)

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

    options: dict[str, Any] = (
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
            **options,
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
            return from_names(ClusterInfo, ray.get(handle.about.remote(), timeout=left))
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


# ------------------------------------------------------------------------------------------------------------
# Starts a cluster on a running Ray cluster: what ``escrowmq up`` does.
#
# The supervisor runs on Ray's head node, whose loss it could not survive anyway. Repeating ``up`` is
# harmless: a running cluster is left as it is. If it has other settings, an error lists the differences;
# settings that were silently ignored would show only in production.

# ------------------------------------------------------------------------------------------------------------
# The differences between the running cluster and the one that ``escrowmq up`` was asked for. Pure.
#
# All settings that the supervisor was given are compared, including those left at their defaults: a default
# that has changed since the cluster was started takes effect after the next stop and start. Not compared are
# settings that matter only when the cluster is founded or to the command itself. Settings that were fixed
# when the cluster was founded are compared only if they were given explicitly.

#: Not compared: one matters only at the founding, the other only to the command, which uses its own value.
_OF_THE_COMMAND = frozenset(("supervisor.nodes_min", "supervisor.start_timeout_s"))
#: Fixed when the cluster was founded; compared only if given explicitly.
AS_FOUNDED = frozenset(("cluster.groups", "cluster.replicas", "storage.data_dir"))
_FIXED = "fixed when the cluster was founded: give that value, or start a new cluster in another namespace"
_MOVED = "'escrowmq down', move the directory on every node, 'escrowmq up'"
_RESTART = "'escrowmq down', then 'escrowmq up' with this value"
#: How a setting is changed, by the longest matching prefix of its path.
_HOW = {
    "cluster.": _FIXED,
    "cluster.replicas": "fixed when the cluster was founded: give that, and use 'escrowmq members set'",
    "security.secret": _FIXED,
    "storage.data_dir": _MOVED,
    "": _RESTART,
}
#: Shown in place of secrets (running, wanted).
_HIDDEN = {"security.secret": ("another one", "the given one")}


@dataclass(frozen=True, slots=True)
class Difference:
    """One setting: its running value, the wanted value, and how to change it."""

    path: str
    running: Any
    wanted: Any
    how: str

    def __str__(self) -> str:
        return f"{self.path} is {self.running}, not {self.wanted} ({self.how})"


def differences(
    running: Mapping[str, Mapping[str, Any]], wanted: Mapping[str, Mapping[str, Any]]
) -> list[Difference]:
    """The differences of two trees ``{section: {name: value}}``, in the order of the second.

    A setting that only one of the two versions knows is ignored: the other version behaves as it always did.
    """
    there, asked = dict(_leaves(running)), dict(_leaves(wanted))
    found = []
    for path, value in asked.items():
        if path in there and there[path] != value and path not in _OF_THE_COMMAND:
            was, is_to_be = _HIDDEN.get(path, (there[path], value))
            found.append(Difference(path, was, is_to_be, how_to_change(path)))
    return found


def how_to_change(path: str) -> str:
    """A text that says how to change the setting at ``path``."""
    return _HOW[max((start for start in _HOW if path.startswith(start)), key=len)]


def _leaves(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{above}{name}.")
        elif name != "version":
            yield above + name, value


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
    """The settings that the cluster runs with. Raises Unavailable."""
    shape = {"namespace": info.namespace, "groups": info.groups, "replicas": info.replicas}
    try:
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
