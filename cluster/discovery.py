"""Learns a cluster's shape from its supervisor, or from any broker while the supervisor is away.

The supervisor is lost with Ray's head node and comes back with it. Brokers on other nodes keep working
meanwhile, and a program that starts then must find them. Ray's own look-ups wait up to a minute for a lost
head, so they run in a separate thread, and callers wait for it no longer than their own time limit.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any, TypeVar

import ray

from escrowmq.actors.client.topology import ClusterInfo, broker_name
from escrowmq.cluster.asking_ray import within
from escrowmq.cluster.launch import ANSWER_TIMEOUT_S, find_supervisor, named_actors
from escrowmq.cluster.settings import HOW_TO
from escrowmq.replication.carried_settings import from_names
from escrowmq.replication.errors import ClusterNotFound, Unavailable

log = logging.getLogger(__name__)
T = TypeVar("T")

#: The supervisor answers in milliseconds. If it has not after this time, the brokers are asked as well.
SUPERVISOR_FIRST_S = 1.0
ASK_AGAIN_S = 0.2
#: Clusters that this process has connected to, by (address, namespace). The names of their brokers are known
#: without a look-up in Ray.
_known: dict[tuple[str, str], ClusterInfo] = {}
#: The replicas (group, replica) of these clusters as the supervisor last reported them.
_seated: dict[tuple[str, str], list[tuple[int, int]]] = {}
#: Number of clusters remembered. A program that connects to more (tests do) has to look up again those that
#: it connected to longest ago.
KNOWN_MAX = 16


def discover(namespace: str, address: str, wait_s: float = ANSWER_TIMEOUT_S) -> ClusterInfo:
    """The cluster in ``namespace`` of the Ray cluster at ``address``, which this process has joined.

    Raises ClusterNotFound if there is none, Unavailable if nothing has answered after ``wait_s``.
    """
    deadline = time.monotonic() + wait_s
    known = _known.get((address, namespace))
    info = within(wait_s + 1.0, address, lambda: _discover(namespace, address, known, deadline))
    remember(_known, (address, namespace), info)
    return info


def remember(table: dict[tuple[str, str], T], cluster: tuple[str, str], value: T) -> None:
    table.pop(cluster, None)
    table[cluster] = value
    for oldest in list(table)[:-KNOWN_MAX]:
        log.info("connected to more than %d clusters: %s will be looked up next time", KNOWN_MAX, oldest)
        table.pop(oldest, None)


def _discover(namespace: str, address: str, known: ClusterInfo | None, deadline: float) -> ClusterInfo:
    first: ClusterNotFound | None = None
    try:
        supervisor = find_supervisor(namespace, address)
    except ClusterNotFound as error:
        first, supervisor = error, None
    else:
        patience = min(time.monotonic() + SUPERVISOR_FIRST_S, deadline)
        seated = supervisor.seated.remote()
        info = _first_answer([supervisor.about.remote()], patience)
        if info is not None:
            _note_seated((address, namespace), seated)
            return info
    brokers = _brokers(namespace, known, _seated.get((address, namespace)))
    if first is not None and not brokers:
        raise first
    while True:
        asked = [*brokers, *([] if supervisor is None else [supervisor])]
        calls = [actor.about.remote() for actor in asked]
        info = _first_answer(calls, min(time.monotonic() + SUPERVISOR_FIRST_S, deadline))
        if info is not None:
            log.info("the supervisor does not answer; a broker has answered")
            return info
        if time.monotonic() >= deadline:
            raise Unavailable(
                f"neither the supervisor nor a broker in namespace {namespace!r} at {address} answers; if "
                f"Ray's head node was lost, {HOW_TO}",
                1.0,
            )
        time.sleep(ASK_AGAIN_S)


def _note_seated(cluster: tuple[str, str], asked: Any) -> None:
    """Remember the replicas, for times when the supervisor is away."""
    try:
        seated: dict[int, list[int]] = ray.get(asked, timeout=SUPERVISOR_FIRST_S)
    except (ray.exceptions.RayError, ray.exceptions.GetTimeoutError) as error:
        log.debug("the supervisor did not report its replicas: %s", error)
    else:
        remember(_seated, cluster, [(gid, rid) for gid, rids in seated.items() for rid in rids])


def _brokers(
    namespace: str, known: ClusterInfo | None, seated: Sequence[tuple[int, int]] | None
) -> list[Any]:
    """Handles of brokers. For a known cluster, Ray has most of them cached and needs no head to find them."""
    if known is not None:
        founders = [(gid, rid) for gid in range(known.groups) for rid in range(known.replicas)]
        names = [broker_name(gid, rid) for gid, rid in seated or founders]
    else:
        names = [
            entry["name"]
            for entry in named_actors()
            if entry["namespace"] == namespace and entry["name"].startswith("broker-")
        ]
    found = []
    for name in names:
        try:
            found.append(ray.get_actor(name, namespace=namespace))
        except ValueError:  # it has ended meanwhile
            continue
    return found


def _first_answer(calls: Sequence[Any], deadline: float) -> ClusterInfo | None:
    """The first good answer before ``deadline``; None if there was none."""
    left = list(calls)
    while left and (seconds := deadline - time.monotonic()) > 0:
        done, left = ray.wait(left, num_returns=1, timeout=seconds)
        for call in done:
            try:
                answer: dict[str, Any] = ray.get(call)
            except (ray.exceptions.RayError, Unavailable) as error:  # dead, restarting, or starting
                log.debug("no answer: %s", error)
                continue
            return from_names(ClusterInfo, answer)
    return None
