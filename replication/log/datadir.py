"""A replica's data directory: whose it is, that nobody else uses it, and that we can read it.

The identity is written once, when the directory is empty; after that a replica started with another
cluster, group or number is turned away instead of mixing two logs. The lock lives as long as the
process, so a second replica started on the same directory cannot write into it, and a dead one
blocks nobody.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from escrowmq.replication.errors import CorruptLog, DataDirMismatch, UnknownVersion
from escrowmq.replication.log.disk import RealDisk
from escrowmq.replication.log.lock_file import take_lock

FORMAT_VERSION: Final = 1
_IDENTITY: Final = "identity.json"
_LOCK: Final = "lock"


@dataclass(frozen=True)
class Identity:
    """Who a data directory belongs to."""

    cluster_id: str
    group: int
    replica: int

    def __str__(self) -> str:
        return f"replica {self.replica} of group {self.group} of cluster {self.cluster_id!r}"


class DataDir:
    """Opens (or creates) and locks a data directory; use ``disk`` for everything in it.

    ``fresh`` says that the directory was created now: this replica may have voted and acknowledged
    on a disk that is gone, so it must not vote before it has caught up. Raises DataDirLocked,
    DataDirMismatch, UnknownVersion, CorruptLog.
    """

    def __init__(self, path: Path, identity: Identity) -> None:
        self.path, self.identity = Path(path), identity
        self.disk = RealDisk(self.path)
        self._lock = take_lock(
            self.path / _LOCK,
            0o644,
            lambda holder: (
                f"{self.path} is in use by process {holder}; stop that replica first, or use another "
                "directory"
            ),
        )
        try:
            self.fresh = not self.disk.exists(_IDENTITY)
            if self.fresh:
                self._create()
            else:
                self._check()
            for name in self.disk.names():
                if name.endswith(".tmp"):  # an atomic write that a crash interrupted
                    self.disk.remove(name)
        except BaseException:
            self.close()
            raise

    def _create(self) -> None:
        strangers = [name for name in self.disk.names() if name != _LOCK and not name.endswith(".tmp")]
        if strangers:
            raise DataDirMismatch(
                f"{self.path} holds {strangers[0]!r} but no {_IDENTITY}, so it is not known whose it is; "
                "give this replica an empty directory"
            )
        content = {"format_version": FORMAT_VERSION, **asdict(self.identity)}
        self.disk.write_atomic(_IDENTITY, (json.dumps(content, indent=1).encode() + b"\n",))
        _sync_parents(self.path)

    def _check(self) -> None:
        try:
            content = json.loads(self.disk.read_all(_IDENTITY))
            version = content["format_version"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CorruptLog(f"{self.path / _IDENTITY} is damaged: {error}") from error
        if version != FORMAT_VERSION:
            raise UnknownVersion(
                f"{self.path} has format version {version!r}; this software reads {FORMAT_VERSION}: upgrade"
            )
        found = Identity(content.get("cluster_id"), content.get("group"), content.get("replica"))
        if found != self.identity:
            raise DataDirMismatch(
                f"{self.path} belongs to {found}, and this is {self.identity}; "
                "point it at its own directory, or at an empty one"
            )

    def close(self) -> None:
        """Let go of the lock. The process's end does it too."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _sync_parents(path: Path) -> None:
    """The directory was just created: make its own name durable, up to two levels."""
    for parent in list(path.resolve().parents)[:2]:
        number = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
