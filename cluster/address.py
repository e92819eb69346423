"""Finds a Ray cluster and joins it, without hanging if the address is wrong.

At a wrong address, Ray itself waits for minutes and may then end the process. So this module tries the port
first: a live port answers within a round trip, and a gRPC server, such as Ray's, identifies itself in its
first bytes. Several Ray clusters may run on one machine. If it is not clear which one is meant, an error
asks for the address; none is joined by chance.
"""

from __future__ import annotations

import logging
import os
import socket

import ray

from escrowmq.cluster.ray_use import (
    as_guest,
    changing_ray,
    leave_with_the_last,
    refuse_after_fork,
    stay_connected,
    touch_ray,
)
from escrowmq.cluster.settings import HOW_TO
from escrowmq.replication.errors import ClusterNotFound, ConfigError, NotAuthorized

AUTO = "auto"
#: A live port answers within a network round trip; a firewall that drops packets never answers.
CONNECT_TIMEOUT_S = 3.0
#: The HTTP/2 client preface (RFC 9113, 3.4): a fixed text and an empty SETTINGS frame.
_HTTP2_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
_FRAME_HEADER_BYTES, _SETTINGS = 9, 4
_HOW_TO_START = "start one with 'ray start --head' or escrowmq.start_local()"


def find_address(address: str = AUTO) -> str:
    """``host:port`` of the Ray cluster to use.

    "auto": the one that this process is connected to, else RAY_ADDRESS, else the only one on this machine.

    Raises ClusterNotFound, ConfigError. Does not check whether anything listens at the address.
    """
    if address != AUTO:
        parse_address(address)
        return address
    if ray.is_initialized():
        return current_address()
    named = os.environ.get("RAY_ADDRESS", "")
    if named not in ("", AUTO):
        parse_address(named)
        return named
    running = running_here()
    if not running:
        raise ClusterNotFound(f"no Ray cluster runs on this machine; {_HOW_TO_START}, or give its address")
    if len(running) > 1:
        raise ClusterNotFound(
            f"several Ray clusters run on this machine ({', '.join(running)}): say which with address=... "
            "(--address)"
        )
    return running[0]


def current_address() -> str:
    """The Ray cluster that this process is connected to."""
    return str(ray.get_runtime_context().gcs_address)


def running_here() -> list[str]:
    """Addresses of Ray's control stores on this machine, from the list of processes."""
    from ray._private import services  # Ray's own commands use it too; there is no public API

    services.find_gcs_addresses.cache_clear()  # type: ignore[attr-defined]
    return sorted(services.find_gcs_addresses())  # type: ignore[no-untyped-call]


def parse_address(address: str) -> tuple[str, int]:
    """``host:port`` as a pair. Raises ConfigError."""
    host, separator, port = address.rpartition(":")
    if "://" in address:
        raise ConfigError(
            f"address {address!r}: EscrowMQ needs a direct connection, not Ray Client; run on a node of the "
            "cluster and give host:port"
        )
    if not separator or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(f"address must be 'auto' or host:port, not {address!r}")
    return host.strip("[]"), int(port)


def check_reachable(address: str) -> None:
    """Raise ClusterNotFound unless a server that speaks HTTP/2, as Ray's does, listens at ``address``."""
    host, port = parse_address(address)
    try:
        with socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S) as link:
            if os.environ.get("RAY_USE_TLS", "0") in ("", "0") and not _greets(link):
                raise ClusterNotFound(
                    f"the server at {address!r} is not Ray; give the address that 'ray start --head' printed"
                )
    except OSError as error:
        why = error.strerror or error
        raise ClusterNotFound(
            f"no Ray cluster at {address!r} ({why}); {_HOW_TO_START}, or correct the address; if a cluster "
            f"was running there, its head node was lost: {HOW_TO}"
        ) from error


def _greets(link: socket.socket) -> bool:
    link.sendall(_HTTP2_HELLO)
    answer = b""
    while len(answer) < _FRAME_HEADER_BYTES:
        part = link.recv(_FRAME_HEADER_BYTES - len(answer))
        if not part:
            return False
        answer += part
    return answer[3] == _SETTINGS


def join_ray(address: str, namespace: str, *, leave_other: bool = False, for_handle: bool = False) -> None:
    """Connect this process to the Ray cluster at ``host:port``, unless it is connected to it already.

    ``for_handle``: the last handle leaves the connection, if it was made here. Otherwise the process stays
    connected, whoever joined. Raises ClusterNotFound, NotAuthorized, Unavailable, and ConfigError if this
    process is connected to another Ray cluster. With ``leave_other`` it disconnects from the other one
    instead, provided that ``address`` answers.
    """
    refuse_after_fork()
    if not ray.is_initialized():
        check_reachable(address)  # out of turn: threads that have a wrong address do not wait for each other
    with changing_ray():
        if ray.is_initialized():
            here = current_address()
            if same_address(here, address):
                if not for_handle:
                    stay_connected()
                return
            if not leave_other:
                raise ConfigError(
                    f"address {address!r}: this process is connected to the Ray cluster at {here}; "
                    "use that one, or connect from another process"
                )
        check_reachable(address)
        if ray.is_initialized():
            ray.shutdown()
        _init(address, namespace)
        if for_handle:
            leave_with_the_last(started=False)


def _init(address: str, namespace: str) -> None:
    touch_ray()
    try:
        _check_token(address)
        with as_guest():
            # Logging and output belong to the application.
            ray.init(
                address=address,
                namespace=namespace,
                log_to_driver=False,
                logging_level=logging.ERROR,
                configure_logging=False,
            )
    except ray.exceptions.AuthenticationError as error:
        raise NotAuthorized(
            f"the Ray cluster at {address!r} requires its token; set RAY_AUTH_MODE=token, and copy "
            "~/.ray/auth_token from its head node or set RAY_AUTH_TOKEN_PATH to a copy"
        ) from error
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ClusterNotFound(f"cannot join the Ray cluster at {address!r}: {error}") from error


def _check_token(address: str) -> None:
    """Connect to Ray's control store once, to check the token.

    Raises Ray's AuthenticationError at once; ``ray.init`` would retry for 20 s and then report that there is
    no cluster.

    A token file on this machine is used for clusters on this machine without further settings, as Ray does
    for its own "auto". It is sent to other machines only if RAY_AUTH_MODE says so.
    """
    from ray._private.authentication import authentication_token_setup  # there is no public API
    from ray._raylet import GcsClient  # type: ignore[attr-defined]

    if same_address(address, f"127.0.0.1:{parse_address(address)[1]}"):
        with as_guest():
            authentication_token_setup.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
    GcsClient(address=address)


def same_address(one: str, other: str) -> bool:
    """Whether two ``host:port`` mean the same server (``localhost`` and the node's own address may)."""
    (host_a, port_a), (host_b, port_b) = parse_address(one), parse_address(other)
    if port_a != port_b:
        return False
    try:
        return host_a == host_b or bool(_ips(host_a) & _ips(host_b))
    except OSError:
        return False


def _ips(host: str) -> set[str]:
    found = {str(info[4][0]) for info in socket.getaddrinfo(host, None, proto=socket.IPPROTO_TCP)}
    if any(ip.startswith("127.") or ip == "::1" for ip in found):
        found.add(str(ray.util.get_node_ip_address()))  # type: ignore[no-untyped-call]
    return found
