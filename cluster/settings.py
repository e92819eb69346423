"""Settings of the cluster itself: its shape, its directories, Ray, the supervisor. Frozen values.

Brokers, producers, consumers and feedback have theirs beside their code (``actors/broker/config.py``
and so on); ``config`` puts all of them into one tree. The ``#:`` comment over a default is its reason, and
docs/configuration.md is made from these comments: a default without a reason fails a test.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import SecretStr

from escrowmq.replication.carried_settings import by_name
from escrowmq.replication.errors import ConfigError
from escrowmq.replication.net.tls import TlsFiles
from escrowmq.replication.setting_checks import check_all_positive, check_positive

KIB, MIB = 1 << 10, 1 << 20
SECRET_BYTES_MIN = 16
_NAMESPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


def _default_cpus() -> int:
    return max(os.cpu_count() or 1, 8)


@by_name("namespace", "groups", "replicas")
@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """The shape of the cluster at its founding. Partitions are spread by the number of groups for ever."""

    #: Ray namespace of all actors. One Ray cluster can hold several EscrowMQ clusters, one in each.
    namespace: str = "escrowmq"
    #: Broker groups (one Raft log each). One saturates a disk and about two cores; more spread the
    #: partitions over more of both.
    groups: int = 1
    #: Replicas that each group begins with; `escrowmq members set` changes that later. Three survive the
    #: loss of one; five the loss of two, at two more copies of every byte. One is for tries only: a lost
    #: disk is then lost data.
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
                "and survives no more losses"
            )


@by_name()
@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSettings:
    """Where replicas keep their data."""

    #: Directory on every node; each replica has its own in it. None: /var/lib/escrowmq for `escrowmq
    #: up`, and a temporary directory, removed at the end, for start_local.
    data_dir: Path | None = None


@by_name()
@dataclass(frozen=True, slots=True, kw_only=True)
class SecuritySettings:
    """How replicas know each other: a secret, and certificates if wanted. Clients are let in by Ray."""

    #: The secret itself, for ESCROWMQ_SECURITY__SECRET from a secret store; never write it into a file
    #: that others can read. None: see secret_file.
    secret: SecretStr | None = None
    #: File that holds the secret, readable by its owner only. None: generated at the first start and
    #: kept in the data directory of the supervisor's node, so nothing needs to be set up.
    secret_file: Path | None = None
    #: TLS between replicas. The certificate of each node (PEM, followed by what leads to the authority), at
    #: this path on every node, read when a replica starts. None, with the other two: plain TCP.
    tls_cert_file: Path | None = None
    #: The certificate's private key (PEM, not encrypted), at this path on every node; it stays there.
    tls_key_file: Path | None = None
    #: The authority whose certificates are let in. Make one for this cluster alone: whatever else it signs
    #: may knock at the replicas too (and then needs the secret).
    tls_ca_file: Path | None = None

    def __post_init__(self) -> None:
        if self.secret is not None and self.secret_file is not None:
            raise ConfigError("give secret or secret_file, not both")
        if self.secret is not None:
            if len(self.secret.get_secret_value()) < SECRET_BYTES_MIN:
                raise ConfigError(f"secret must have at least {SECRET_BYTES_MIN} characters")
            if any("\ud800" <= c <= "\udfff" for c in self.secret.get_secret_value()):
                raise ConfigError(
                    "secret must be text in UTF-8; put other bytes into a file, see secret_file"
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
            if not path.is_absolute():  # brokers have a working directory of their own
                raise ConfigError(f"{name} must be an absolute path")  # not shown: it may be the key itself
        return TlsFiles(cert, key, ca)


@by_name()
@dataclass(frozen=True, slots=True, kw_only=True)
class RaySettings:
    """The Ray cluster: which to join, and how an embedded one is started."""

    #: Address of the Ray cluster for commands and connect(). "auto": the one this process is connected
    #: to, else RAY_ADDRESS, else the only one that runs on this machine.
    address: str = "auto"
    #: Logical CPUs of an embedded Ray. Brokers take none; Spark executors and your own tasks are
    #: counted against this number, and should not wait for each other on a small machine.
    num_cpus: int = field(default_factory=_default_cpus)
    #: Object store of an embedded Ray. None: Ray's own choice (30 % of memory, taken as it is used).
    object_store_bytes: int | None = None
    #: Logs and sockets of an embedded Ray. None: Ray's own (/tmp/ray). Sockets allow no long path.
    temp_dir: Path | None = None
    #: Arguments up to this size travel inside a call. At Ray's 100 KiB, 256 KB batches move at
    #: 140 MB/s; at 1 MiB at 249 MB/s; beyond that the call path itself becomes slower.
    direct_call_bytes: int = 1 * MIB
    #: Ray asks a node whether it lives this often, and waits as long for the answer ...
    health_check_period_s: float = 0.5
    #: ... and takes it for dead after so many failures: 1 to 3 s, where Ray's defaults take 14 to 64.
    #: Fail-over does not wait for it (that is Raft's), but the restart of a replica does.
    health_check_failures: int = 3

    def __post_init__(self) -> None:
        check_positive(
            self, "num_cpus", "direct_call_bytes", "health_check_period_s", "health_check_failures"
        )


@by_name(
    "nodes_min",
    "check_every_s",
    "start_timeout_s",
    "replace_after_s",
    "retry_min_s",
    "retry_max_s",
    "stop_timeout_s",
)
@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorSettings:
    """How replicas are watched and restarted."""

    #: A new cluster is founded when so many nodes are there. 1, since a machine alone is the common first
    #: try; on several nodes give the number of replicas, else all of them are placed on the first node.
    nodes_min: int = 1
    #: One look at all replicas and nodes. Ray itself restarts a process that died on a living node
    #: within 2 to 4 s; this is for nodes that went and came back.
    check_every_s: float = 1.0
    #: Time for all replicas to start and every group to elect a leader before start_local and `escrowmq
    #: up` give up. A cold machine needs 5 s; recovery after a power cut can take longer.
    start_timeout_s: float = 60.0
    #: A replica whose node stays away this long is built anew on another node, from its peers. Ten
    #: minutes outlast a reboot: copying a large log for nothing would cost more than waiting. A node that is
    #: merely cut off from Ray's head keeps its processes for as long as they wait for the head (ten minutes,
    #: too, as ray_cluster.yaml starts Ray); peers refuse the old replica once it is replaced.
    replace_after_s: float = 600.0
    #: First pause before a replica that failed to start is tried again; doubled each time ...
    retry_min_s: float = 1.0
    #: ... up to this, so that a directory with a problem is not hammered, nor forgotten.
    retry_max_s: float = 30.0
    #: Time for a replica to hand over its leadership, sync and close when the cluster is stopped.
    stop_timeout_s: float = 10.0

    def __post_init__(self) -> None:
        check_all_positive(self)
