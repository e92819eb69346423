"""Settings of the cluster itself: its shape, its directories, Ray, the supervisor. All are immutable.

The settings of brokers, producers, consumers and feedback are beside their code (``actors/broker/config.py``
and so on); ``config`` combines all of them in one tree. The ``#:`` comment above a default is its reason.
docs/configuration.md is generated from these comments, and a default without a reason fails a test.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import SecretStr

from escrowmq.actors.client.topology import RECONNECT_VARIABLE, reconnect_s
from escrowmq.replication.carried_settings import by_name, check_all_positive, check_positive
from escrowmq.replication.errors import ConfigError
from escrowmq.replication.net.tls import TlsFiles

KIB, MIB = 1 << 10, 1 << 20
SECRET_BYTES_MIN = 16
_NAMESPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


def _default_cpus() -> int:
    return max(os.cpu_count() or 1, 8)


@by_name
@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """The shape of the cluster when it is founded. The number of groups, over which partitions are spread,
    never changes."""

    #: Ray namespace of all actors. One Ray cluster can hold several EscrowMQ clusters, one per namespace.
    namespace: str = "escrowmq"
    #: Broker groups, each with its own Raft log. One group saturates a disk and about two cores; more groups
    #: spread the partitions over more disks and cores.
    groups: int = 1
    #: Initial number of replicas of each group; `escrowmq members set` changes it later. Three replicas
    #: survive the loss of one, and five the loss of two, at the cost of two more copies of every byte. One is
    #: for experiments only: if its disk is lost, its data are lost.
    replicas: int = 3

    def __post_init__(self) -> None:
        if not _NAMESPACE.fullmatch(self.namespace):
            raise ConfigError(
                f"namespace must be letters, digits, '_', '.' or '-', at most 100, not {self.namespace!r}"
            )
        if not 1 <= self.groups <= 64:
            raise ConfigError(f"groups must be 1 to 64, not {self.groups}")
        if self.replicas not in (1, 3, 5, 7):
            raise ConfigError(
                f"replicas must be 1, 3, 5 or 7, not {self.replicas}: an even number needs a larger majority "
                "without surviving more losses"
            )


@by_name
@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSettings:
    """Where replicas keep their data."""

    #: Directory on every node, in which each replica has its own directory. None: /var/lib/escrowmq for
    #: `escrowmq up`, and for start_local a temporary directory that is removed at the end.
    data_dir: Path | None = None


@by_name
@dataclass(frozen=True, slots=True, kw_only=True)
class SecuritySettings:
    """How replicas authenticate each other: by a secret, and optionally certificates. Clients are
    authenticated by Ray."""

    #: The secret itself, meant for ESCROWMQ_SECURITY__SECRET set from a secret store. Never write it into a
    #: file that others can read. None: see secret_file.
    secret: SecretStr | None = None
    #: File that contains the secret, readable only by its owner. None: a secret is generated at the first
    #: start and kept in the data directory on the supervisor's node, so nothing needs to be set up.
    secret_file: Path | None = None
    #: TLS between replicas: the node's certificate (PEM, followed by any intermediate certificates), at this
    #: path on every node, read when a replica starts. If all three TLS settings are None: plain TCP.
    tls_cert_file: Path | None = None
    #: The certificate's private key (PEM, not encrypted), at this path on every node; it stays there.
    tls_key_file: Path | None = None
    #: The certificate authority whose certificates are accepted. Use one for this cluster alone: anything
    #: else that it signs is accepted by the replicas, too (but then still needs the secret).
    tls_ca_file: Path | None = None

    def __post_init__(self) -> None:
        if self.secret is not None and self.secret_file is not None:
            raise ConfigError("secret and secret_file are both set; give only one of them")
        if self.secret is not None:
            if len(self.secret.get_secret_value()) < SECRET_BYTES_MIN:
                raise ConfigError(f"secret must have at least {SECRET_BYTES_MIN} characters")
            if any("\ud800" <= c <= "\udfff" for c in self.secret.get_secret_value()):
                raise ConfigError(
                    "secret must be valid UTF-8 text; put other bytes into a file, see secret_file"
                )
        self.tls_files()

    def tls_files(self) -> TlsFiles | None:
        """The three files of TLS; None without TLS."""
        cert, key, ca = self.tls_cert_file, self.tls_key_file, self.tls_ca_file
        if cert is None and key is None and ca is None:
            return None
        if cert is None or key is None or ca is None:
            raise ConfigError(
                "TLS between replicas needs all three of tls_cert_file, tls_key_file and tls_ca_file, or none"
            )
        for name, path in (("tls_cert_file", cert), ("tls_key_file", key), ("tls_ca_file", ca)):
            if not path.is_absolute():  # brokers have another working directory
                raise ConfigError(f"{name} must be an absolute path")  # value not shown: it may be the key
        return TlsFiles(cert, key, ca)


@by_name
@dataclass(frozen=True, slots=True, kw_only=True)
class RaySettings:
    """The Ray cluster: which one to join, and how an embedded one is started."""

    #: Address of the Ray cluster for commands and connect(). "auto": the cluster that this process is
    #: connected to, else RAY_ADDRESS, else the only one that runs on this machine.
    address: str = "auto"
    #: Logical CPUs of an embedded Ray. Brokers use none of them; Spark executors and your own tasks do. The
    #: default is at least 8, so that these do not wait for each other on a small machine.
    num_cpus: int = field(default_factory=_default_cpus)
    #: Object store of an embedded Ray. None: Ray's default (30 % of memory, allocated as it is used).
    object_store_bytes: int | None = None
    #: Directory for logs and sockets of an embedded Ray. None: Ray's default (/tmp/ray). Keep it short: the
    #: paths of sockets have a small maximum length.
    temp_dir: Path | None = None
    #: Arguments up to this size are sent inside the call. With Ray's default of 100 KiB, batches of 256 KB
    #: reach 140 MB/s, with 1 MiB 249 MB/s; with more, the calls themselves become slower.
    direct_call_bytes: int = 1 * MIB
    #: How often Ray checks whether a node is alive, and how long it waits for the answer ...
    health_check_period_s: float = 0.5
    #: ... and the number of failures after which a node counts as dead: 1 to 3 s, instead of 14 to 64 s with
    #: Ray's defaults. Fail-over (by Raft) does not wait for this, but the restart of a replica does.
    health_check_failures: int = 3

    def __post_init__(self) -> None:
        check_positive(
            self, "num_cpus", "direct_call_bytes", "health_check_period_s", "health_check_failures"
        )


@by_name
@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorSettings:
    """How replicas are watched and restarted."""

    #: A new cluster is founded once this many nodes are up. The default suits a first try on one machine. On
    #: several nodes, give the number of replicas; otherwise all of them are placed on the first node.
    nodes_min: int = 1
    #: Interval between looks at all replicas and nodes. Ray itself restarts a process that died on a live
    #: node within 2 to 4 s; the supervisor deals with nodes that went away and came back.
    check_every_s: float = 1.0
    #: How long start_local and `escrowmq up` wait for all replicas to start and every group to elect a
    #: leader. A cold machine needs 5 s; recovery after a power failure can take longer.
    start_timeout_s: float = 60.0
    #: A replica whose node stays away this long is rebuilt from its peers on another node. Ten minutes are
    #: longer than a reboot; copying a large log needlessly would cost more than waiting. A node that is only
    #: cut off from Ray's head keeps its processes as long as they wait for the head (also ten minutes, as
    #: ray_cluster.yaml starts Ray); peers refuse the old replica once it is replaced.
    replace_after_s: float = 600.0
    #: First pause before a replica that failed to start is started again; it doubles each time ...
    retry_min_s: float = 1.0
    #: ... up to this limit, so that a directory with a problem is tried neither constantly nor too rarely.
    retry_max_s: float = 30.0
    #: Time for a replica to hand over its leadership, sync and close when the cluster is stopped.
    stop_timeout_s: float = 10.0

    def __post_init__(self) -> None:
        check_all_positive(self)


# ------------------------------------------------------------------------------------------------------------
# Whether a cluster survives the loss of Ray's head node, and how long its processes wait for the head.
#
# Ray keeps its state in one process on the head, the control store. If the state is kept in memory, it is
# lost with that process, and all of Ray ends. If it is kept in RocksDB or Redis, the head can come back, and
# the processes that have waited for it continue (actors/client/topology.py). This module does not ask
# Ray; it decides from what the processes report about themselves.

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
