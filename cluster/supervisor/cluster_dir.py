"""The supervisor's directory: the cluster's identity, its replicas' nodes, its secret and its lock.

``cluster.json`` is written when the cluster is founded, and before each addition, move or removal of a
replica: a supervisor that restarts must never start a replica on its former node, nor one that was removed.
The file also holds the changes of replicas and nodes that operators have asked for, and the groups that have
had a leader. Once a group has had a leader, an empty replica directory means that data were lost; such a
replica must never found its group again. The lock keeps a second cluster from being started over the same
data.

An earlier version may have to read what a later one has written, after a downgrade or on another head node.
It keeps the names that it does not know and writes them back unchanged, so that no operator's request is
lost. If that would be wrong, the later version writes a higher ``format_version``, which earlier versions
refuse. Unknown names inside a seat or a single wish are refused as well, because seats and wishes are removed
and rewritten one by one.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import secrets
import stat
import threading
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from escrowmq.cluster.settings import SECRET_BYTES_MIN, ClusterSettings, SecuritySettings
from escrowmq.cluster.supervisor.desired_state import DesiredState, Lead, Move, Size
from escrowmq.cluster.supervisor.member_steps import ReplicaKey, Seat
from escrowmq.replication.carried_settings import prepared
from escrowmq.replication.errors import (
    ConfigError,
    CorruptLog,
    DataDirMismatch,
    NotAuthorized,
    UnknownVersion,
)
from escrowmq.replication.log.datadir import take_lock
from escrowmq.replication.log.disk import RealDisk

# ------------------------------------------------------------------------------------------------------------
# The cluster secret, by which replicas authenticate each other on their Raft links.
#
# It comes from an environment variable or a file, or it is generated at the first start and kept in a file
# that only its owner can read. Brokers receive it as an argument inside Ray, which is protected by its own
# token. It must never appear in a log, an error text or a command line, so it is wrapped in a class that does
# not show it.

SECRET_FILE = "secret"


class Secret:
    """Bytes that appear in no ``repr`` or ``str``; only ``reveal`` returns them."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        self._value = value

    def reveal(self) -> bytes:
        """The bytes."""
        return self._value

    def fingerprint(self, cluster_id: str) -> str:
        """A keyed hash by which the secret is recognised later; the secret cannot be derived from it."""
        return hmac.new(self._value, f"escrowmq:{cluster_id}".encode(), hashlib.sha256).hexdigest()

    def __repr__(self) -> str:
        return "Secret(...)"


def given_secret(settings: SecuritySettings) -> Secret | None:
    """The secret from the configuration, if there is one. Raises ConfigError for an unsuitable file."""
    if settings.secret is not None:
        return Secret(settings.secret.get_secret_value().encode())
    if settings.secret_file is not None:
        return read_secret(settings.secret_file)
    return None


def kept_secret(data_dir: Path) -> Secret:
    """The secret in ``data_dir``; generated there if there is none yet."""
    path = data_dir / SECRET_FILE
    if not path.exists():
        fresh = f"{path}.{os.getpid()}.tmp"
        number = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(number, "w") as file:
            file.write(secrets.token_hex(32) + "\n")
            file.flush()
            os.fsync(number)
        os.rename(fresh, path)
    return read_secret(path)


def read_secret(path: Path) -> Secret:
    """The content of a secret file, without leading and trailing white space. Raises ConfigError."""
    try:
        mode = path.stat().st_mode
        value = path.read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"cannot read the secret file {path}: {error.strerror}") from None
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        raise ConfigError(f"every user can read or write the secret file {path}; run chmod 600 on it")
    if len(value) < SECRET_BYTES_MIN:
        raise ConfigError(f"the secret file {path} must hold at least {SECRET_BYTES_MIN} bytes")
    return Secret(value)


FORMAT_VERSION: Final = 1
CLUSTER_FILE, LOCK_FILE = "cluster.json", "supervisor.lock"
#: The type of the items of each list, by the list's name.
_ITEMS: Final = {"seats": Seat, "retired": Seat, "sizes": Size, "moves": Move, "leads": Lead}


log = logging.getLogger(__name__)


@prepared
@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """The content of ``cluster.json``.

    ``seats``: the node and incarnation of each replica; empty: the cluster is not founded yet. ``replicas``:
    the initial number of replicas of each group. ``founded``: groups that have had a leader. ``retired``:
    seats of replicas that are no longer members; they are not started, and their directories have yet to be
    removed.
    """

    cluster_id: str
    namespace: str
    groups: int
    replicas: int
    secret_fingerprint: str
    seats: dict[ReplicaKey, Seat] = field(default_factory=dict)
    founded: tuple[int, ...] = ()
    retired: tuple[Seat, ...] = ()
    wishes: DesiredState = field(default_factory=DesiredState)

    def with_seats(self, seats: Sequence[Seat]) -> ClusterRecord:
        """A copy with these seats added or replaced."""
        return replace(self, seats={**self.seats, **{seat.key: seat for seat in seats}})

    def with_retired(self, key: ReplicaKey) -> ClusterRecord:
        """A copy in which this replica is retired."""
        seats = dict(self.seats)
        return replace(self, seats=seats, retired=(*self.retired, seats.pop(key)))

    def without_retired(self, key: ReplicaKey) -> ClusterRecord:
        """A copy without this retired replica."""
        return replace(self, retired=tuple(seat for seat in self.retired if seat.key != key))

    def with_founded(self, groups: Collection[int]) -> ClusterRecord:
        """A copy that records that these groups have had a leader."""
        return replace(self, founded=tuple(sorted({*self.founded, *groups})))


class ClusterDir:
    """Opens and locks the directory. ``record`` is its content, or the record of a new cluster.

    Raises DataDirLocked, DataDirMismatch (another namespace), UnknownVersion, CorruptLog, ConfigError
    (another shape), NotAuthorized (another secret).
    """

    def __init__(self, path: Path, shape: ClusterSettings, secret: Secret | None) -> None:
        self.path = Path(path)
        self._changing = threading.Lock()
        self._carried: dict[str, Any] = {}  # unknown names in a later version's file
        self._carried_wishes: dict[str, Any] = {}
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = take_lock(
                self.path / LOCK_FILE,
                0o600,
                lambda holder: (
                    f"{self.path} is in use by a running cluster (process {holder}); connect to that "
                    "one, stop it first, or use another directory"
                ),
            )
        except OSError as error:
            raise ConfigError(
                f"cannot use the data directory {path}: {error.strerror}; set storage.data_dir (--data-dir)"
            ) from None
        try:
            self._disk = RealDisk(self.path)
            found = self._read()
            self.secret = secret or kept_secret(self.path)
            if found is None:
                cluster_id = uuid.uuid4().hex
                found = ClusterRecord(
                    cluster_id,
                    shape.namespace,
                    shape.groups,
                    shape.replicas,
                    self.secret.fingerprint(cluster_id),
                )
            self.record = found
            self._check(shape)
        except BaseException:
            self.close()
            raise

    def keep(self, record: ClusterRecord) -> None:
        """Write the record; durable when this returns."""
        content: dict[str, Any] = {"format_version": FORMAT_VERSION, **self._carried, **asdict(record)}
        content["wishes"] |= self._carried_wishes
        content["seats"] = [asdict(seat) for seat in record.seats.values()]
        self._disk.write_atomic(CLUSTER_FILE, (json.dumps(content, indent=1).encode() + b"\n",))
        self.record = record

    def change(self, edit: Callable[[ClusterRecord], ClusterRecord]) -> None:
        """Apply ``edit`` to the record, and write the result if it differs. Thread-safe."""
        with self._changing:
            edited = edit(self.record)
            if edited != self.record:
                self.keep(edited)

    def close(self) -> None:
        """Release the lock."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _read(self) -> ClusterRecord | None:
        if not self._disk.exists(CLUSTER_FILE):
            return None
        where = self.path / CLUSTER_FILE
        try:
            content = json.loads(self._disk.read_all(CLUSTER_FILE))
            version = content.pop("format_version")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CorruptLog(f"{where} is damaged: {error}; restore it from a backup") from None
        if version != FORMAT_VERSION:
            raise UnknownVersion(
                f"{where} has format version {version!r}; this software reads {FORMAT_VERSION}: upgrade"
            )
        try:
            self._carry_along(content)
            seats = msgspec.convert(content.pop("seats"), list[Seat])
            return msgspec.convert({**content, "seats": {}}, ClusterRecord).with_seats(seats)
        except (KeyError, TypeError, msgspec.ValidationError) as error:
            raise CorruptLog(f"{where} is damaged: {error}; restore it from a backup") from None

    def _carry_along(self, content: Mapping[str, Any]) -> None:
        """Keep the names that a later version has written and this one does not know.

        Raises UnknownVersion for unknown names inside list items.
        """
        wishes = content.get("wishes", {})
        self._carried = _unknown(ClusterRecord, content)
        self._carried_wishes = _unknown(DesiredState, wishes)
        for where in (content, wishes):
            for name in _ITEMS.keys() & where.keys():
                for item in where[name]:
                    if unknown := _unknown(_ITEMS[name], item):
                        raise UnknownVersion(
                            f"{self.path / CLUSTER_FILE} was written by a later version: this version does "
                            f"not know {', '.join(sorted(unknown))} in {name} and would lose it; "
                            "start the later version again"
                        )
        carried = sorted({*self._carried, *self._carried_wishes})
        if carried:
            log.warning(
                "cluster.json is of a later version: %s are kept and have no effect", ", ".join(carried)
            )

    def _check(self, shape: ClusterSettings) -> None:
        found = self.record
        if found.namespace != shape.namespace:
            raise DataDirMismatch(
                f"{self.path} belongs to the cluster in namespace {found.namespace!r}, not "
                f"{shape.namespace!r}; give each cluster its own data directory"
            )
        for name in ("groups", "replicas"):
            there, wanted = getattr(found, name), getattr(shape, name)
            if there != wanted:
                raise ConfigError(
                    f"the cluster in {self.path} was founded with {name}={there}, which cannot be changed "
                    f"to {wanted}; set {name}={there}, or start a new cluster in another directory"
                )
        if self.secret.fingerprint(found.cluster_id) != found.secret_fingerprint:
            raise NotAuthorized(
                f"the cluster in {self.path} was founded with another secret; give that one "
                "(security.secret, security.secret_file), or none to use the stored one"
            )


def _unknown(kind: type[Any], content: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a mapping that are not fields of the dataclass. Raises TypeError for a non-mapping."""
    if not isinstance(content, Mapping):
        raise TypeError(f"{content!r:.80} is not a mapping with the fields of {kind.__name__}")
    known = {one.name for one in fields(kind)}
    return {name: value for name, value in content.items() if name not in known}
