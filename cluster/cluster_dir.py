"""The supervisor's directory: which cluster this is, where its replicas live, its secret, its lock.

``cluster.json`` is written when the cluster is founded and whenever a replica comes, moves or goes, before
that is done: a supervisor that starts anew must never send a replica to where it was before, nor start one
that was removed. It says what operators want of replicas and nodes, too, and which groups have once had a
leader: from then on an empty directory is one that was lost, and never founds its group anew. The lock keeps
a second cluster from being started over the same data.

An earlier version may read what a later one has written, after a step back or from another head node. Names
that it does not know it carries along, as they are, in whatever it writes: what somebody wanted is not lost.
Where that would be wrong a later version writes a higher ``format_version``, which is refused. Unknown names
inside of a seat or of a single wish are refused, too, since these come and go.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from escrowmq.cluster.placement import ReplicaKey, Seat
from escrowmq.cluster.secret import Secret, kept_secret
from escrowmq.cluster.settings import ClusterSettings
from escrowmq.cluster.wishes import Lead, Move, Size, Wishes
from escrowmq.replication.errors import (
    ConfigError,
    CorruptLog,
    DataDirMismatch,
    NotAuthorized,
    UnknownVersion,
)
from escrowmq.replication.log.disk import RealDisk
from escrowmq.replication.log.lock_file import take_lock

FORMAT_VERSION: Final = 1
CLUSTER_FILE, LOCK_FILE = "cluster.json", "supervisor.lock"
#: What stands in lists, by the list's name.
_ITEMS: Final = {"seats": Seat, "retired": Seat, "sizes": Size, "moves": Move, "leads": Lead}


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """The content of ``cluster.json``. No seats: not founded yet. ``replicas``: of each group at its
    beginning. ``founded``: groups that have had a leader. ``retired``: seats of replicas that are no members
    any more; they are not started, and their directories are still to go."""

    cluster_id: str
    namespace: str
    groups: int
    replicas: int
    secret_fingerprint: str
    seats: dict[ReplicaKey, Seat] = field(default_factory=dict)
    founded: tuple[int, ...] = ()
    retired: tuple[Seat, ...] = ()
    wishes: Wishes = field(default_factory=Wishes)

    def with_seats(self, seats: Sequence[Seat]) -> ClusterRecord:
        """A copy with these seats put in."""
        return replace(self, seats={**self.seats, **{seat.key: seat for seat in seats}})

    def with_retired(self, key: ReplicaKey) -> ClusterRecord:
        """A copy in which this replica is none that runs."""
        seats = dict(self.seats)
        return replace(self, seats=seats, retired=(*self.retired, seats.pop(key)))

    def without_retired(self, key: ReplicaKey) -> ClusterRecord:
        """A copy that has forgotten a replica that was removed."""
        return replace(self, retired=tuple(seat for seat in self.retired if seat.key != key))

    def with_founded(self, groups: Collection[int]) -> ClusterRecord:
        """A copy that knows of these groups that they have had a leader."""
        return replace(self, founded=tuple(sorted({*self.founded, *groups})))


class ClusterDir:
    """Opens and locks the directory; ``record`` is what it says, or a new cluster's.

    Raises DataDirLocked, DataDirMismatch (another namespace), UnknownVersion, CorruptLog, ConfigError
    (another shape), NotAuthorized (another secret).
    """

    def __init__(self, path: Path, shape: ClusterSettings, secret: Secret | None) -> None:
        self.path = Path(path)
        self._changing = threading.Lock()
        self._carried: dict[str, Any] = {}  # of a later version's file: names that we do not know
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
        """Write what ``edit`` makes of the record, if it makes something else of it. From several threads."""
        with self._changing:
            edited = edit(self.record)
            if edited != self.record:
                self.keep(edited)

    def close(self) -> None:
        """Let go of the lock."""
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
            if "founded" not in content and seats:  # an earlier version's: its replicas have run long since
                content["founded"] = sorted({seat.gid for seat in seats})
            return msgspec.convert({**content, "seats": {}}, ClusterRecord).with_seats(seats)
        except (KeyError, TypeError, msgspec.ValidationError) as error:
            raise CorruptLog(f"{where} is damaged: {error}; restore it from a backup") from None

    def _carry_along(self, content: Mapping[str, Any]) -> None:
        """Note what a later version has written and we do not know. Raises UnknownVersion."""
        wishes = content.get("wishes", {})
        self._carried = _unknown(ClusterRecord, content)
        self._carried_wishes = _unknown(Wishes, wishes)
        for where in (content, wishes):
            for name in _ITEMS.keys() & where.keys():
                for item in where[name]:
                    if unknown := _unknown(_ITEMS[name], item):
                        raise UnknownVersion(
                            f"{self.path / CLUSTER_FILE} was written by a later version: it says "
                            f"{', '.join(sorted(unknown))} in {name}, which this software does not know and "
                            "would lose; start the later version again"
                        )
        carried = sorted({*self._carried, *self._carried_wishes})
        if carried:
            log.warning(
                "cluster.json of a later version: %s are kept, and have no effect", ", ".join(carried)
            )

    def _check(self, shape: ClusterSettings) -> None:
        found = self.record
        if found.namespace != shape.namespace:
            raise DataDirMismatch(
                f"{self.path} belongs to the cluster of namespace {found.namespace!r}, and this is "
                f"{shape.namespace!r}; give each cluster a data directory of its own"
            )
        for name in ("groups", "replicas"):
            there, wanted = getattr(found, name), getattr(shape, name)
            if there != wanted:
                raise ConfigError(
                    f"the cluster in {self.path} was founded with {name}={there}, which cannot become "
                    f"{wanted}; say {name}={there}, or start a new cluster in another directory"
                )
        if self.secret.fingerprint(found.cluster_id) != found.secret_fingerprint:
            raise NotAuthorized(
                f"the cluster secret is not the one that the cluster in {self.path} was founded with; give "
                "that one (security.secret, security.secret_file), or none to use the kept one"
            )


def _unknown(kind: type[Any], content: Mapping[str, Any]) -> dict[str, Any]:
    """What stands in the content and is no field of the dataclass. Raises TypeError for what has none."""
    if not isinstance(content, Mapping):
        raise TypeError(f"{content!r:.80} stands where the fields of {kind.__name__} belong")
    known = {one.name for one in fields(kind)}
    return {name: value for name, value in content.items() if name not in known}
