"""Joining a Ray cluster from any process of Spark: the driver, its planners, and the executors' workers.

The address is always explicit: a machine may run several Ray clusters, and a worker forked by Spark
knows nothing of the driver's. Ray itself waits for minutes at a wrong address and then ends the
process, so the port is tried first.
"""

from __future__ import annotations

import logging
import socket
from dataclasses import fields
from typing import Any

import ray

from escrowmq.actors.topology import SUPERVISOR, ClusterInfo
from escrowmq.replication.errors import ClusterNotFound, ConfigError
from escrowmq.spark_integration.options import parse_address

#: A live port answers within a network's round trip; a firewall that swallows packets never does.
CONNECT_TIMEOUT_S = 3.0
#: The supervisor answers in milliseconds; it may just be restarting.
INFO_TIMEOUT_S = 30.0


def check_reachable(address: str) -> None:
    """Raise ClusterNotFound unless something listens at ``address``."""
    host, port = parse_address(address)
    try:
        socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise ClusterNotFound(
            f"no Ray cluster at {address!r} ({error}); start one with 'ray start --head' or "
            "escrowmq.start_local(), or correct the address"
        ) from error


def join_ray(address: str, namespace: str) -> None:
    """Connect this process unless it is connected already. Raises ClusterNotFound, ConfigError."""
    if ray.is_initialized():
        here = ray.get_runtime_context().gcs_address
        if not same_address(here, address):
            check_reachable(address)
            raise ConfigError(f"address {address!r}: this process is connected to the Ray cluster at {here}")
        return
    check_reachable(address)
    try:
        # Spark owns this process's output: Ray must neither write to it nor replace its logging.
        ray.init(
            address=address,
            namespace=namespace,
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=False,
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ClusterNotFound(f"cannot join the Ray cluster at {address!r}: {error}") from error


def same_address(one: str, other: str) -> bool:
    """Whether two host:port mean the same place (``localhost`` and the node's own address may)."""
    (host_a, port_a), (host_b, port_b) = parse_address(one), parse_address(other)
    if port_a != port_b:
        return False
    try:
        return host_a == host_b or bool(_addresses(host_a) & _addresses(host_b))
    except OSError:
        return False


def _addresses(host: str) -> set[str]:
    found = {str(info[4][0]) for info in socket.getaddrinfo(host, None, proto=socket.IPPROTO_TCP)}
    if any(address.startswith("127.") or address == "::1" for address in found):
        found.add(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
    return found


def cluster_info(namespace: str, address: str) -> ClusterInfo:
    """The shape of the EscrowMQ cluster in a namespace. Raises ClusterNotFound."""
    try:
        supervisor: Any = ray.get_actor(SUPERVISOR, namespace=namespace)
        answer: Any = ray.get(supervisor.info.remote(), timeout=INFO_TIMEOUT_S)
    except (ValueError, ray.exceptions.RayError) as error:
        raise ClusterNotFound(
            f"no EscrowMQ cluster in namespace {namespace!r} of the Ray cluster at {address!r} ({error}); "
            "start one with 'escrowmq up', or set the option escrowmq.namespace"
        ) from error
    return ClusterInfo(**{field.name: answer[field.name] for field in fields(ClusterInfo)})
