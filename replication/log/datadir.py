"""A replica's data directory: which replica it belongs to, that only one process uses it, and that this
software can read it.

It also says which process of its replica may use it: the incarnation, which the supervisor counts, and the
random id that the directory was given when it was created (peer_marks.py explains why).

The identity is written once, while the directory is empty; from then on a replica started with another
cluster, group or number is rejected instead of mixing two logs. The lock lives as long as the
process, so a second replica started on the same directory cannot write into it, and a dead one
blocks no other process.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from escrowmq.replication.errors import CorruptLog, DataDirLocked, DataDirMismatch, UnknownVersion
from escrowmq.replication.log.disk import Disk, RealDisk, raise_typed
from escrowmq.replication.log.peer_marks import DISK_ID_MAX, Incarnation, PeerMarks
from escrowmq.replication.log.peer_marks import NAME as PEERS_FILE

# ------------------------------------------------------------------ the lock
# The lock of a directory that only one process may use at a time.
#
# It is a kernel lock on an open file: it ends with its process, however that ends, so a dead process blocks
# nobody. The file contains the process's number, for the error message to a process that comes too late.


def process_started(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if it is not running (or is a zombie)."""
    try:
        said = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    state, *numbers = said.rpartition(b")")[2].split()  # the name before it may contain any character
    return None if state in (b"Z", b"X") else int(numbers[18])


def take_lock(path: Path, mode: int, in_use: Callable[[str], str]) -> int:
    """Lock the file at ``path``, created with ``mode`` if missing; returns the descriptor that holds the
    lock.

    Raises DataDirLocked with the text that ``in_use`` makes of the holder's process number.
    """
    number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.pread(number, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(number)
        if holder.isdecimal() and process_started(int(holder)) is None:
            holder += ", which has ended: one of its child processes holds the lock"
        raise DataDirLocked(in_use(holder)) from None
    with contextlib.suppress(OSError):  # e.g. a full disk: the number only improves a message
        os.ftruncate(number, 0)
        os.pwrite(number, f"{os.getpid()}\n".encode(), 0)
    return number


# ------------------------------------------------------------------ datadir


#: What the files in it look like (docs/log-format.md). A later version reads all formats from 1 on.
FORMAT: Final = 1
_IDENTITY: Final = "identity.json"
_LOCK: Final = "lock"


@dataclass(frozen=True)
class Identity:
    """Who a data directory belongs to. ``incarnation``: how often the replica was replaced before."""

    cluster_id: str
    group: int
    replica: int
    incarnation: int = 0

    def __str__(self) -> str:
        which = f", incarnation {self.incarnation}," if self.incarnation else ""
        return f"replica {self.replica}{which} of group {self.group} of cluster {self.cluster_id!r}"


class DataDir:
    """Opens (or creates) and locks a data directory; use ``disk`` for everything in it.

    ``incarnation``: its number and disk id. ``fresh``: the directory was created just now. Its replica may
    have voted and acknowledged on a disk that is gone, so it must not vote before it has caught
    up. Raises DataDirLocked, DataDirMismatch, UnknownVersion, CorruptLog, DiskFull, DiskFailed.
    """

    def __init__(self, path: Path, identity: Identity, disk: Callable[[Path], Disk] = RealDisk) -> None:
        self.path, self.identity = Path(path), identity
        self.disk = disk(self.path)
        try:
            self._lock = take_lock(
                self.path / _LOCK,
                0o644,
                lambda holder: (
                    f"{self.path} is in use by process {holder}; stop that replica first, or use another "
                    "directory"
                ),
            )
        except OSError as error:
            raise_typed(error, f"cannot lock {self.path}")
        try:
            self.fresh = not self.disk.exists(_IDENTITY)
            self.incarnation = self._create() if self.fresh else self._check()
            for name in self.disk.names():
                if name.endswith(".tmp"):  # an atomic write that a crash interrupted
                    self.disk.remove(name)
        except BaseException:
            self.close()
            raise

    def marks(self) -> PeerMarks:
        """What this replica knows of its peers' incarnations. Raises CorruptLog where that is lost."""
        return PeerMarks(self.disk, self.incarnation, must_exist=True)

    def forget_marks(self) -> PeerMarks:
        """Start over in place of a lost file; only for a replica that is already marked as a learner."""
        self.disk.remove(PEERS_FILE)
        return PeerMarks(self.disk, self.incarnation)

    def _create(self) -> Incarnation:
        own = (_LOCK, PEERS_FILE)
        strangers = [name for name in self.disk.names() if name not in own and not name.endswith(".tmp")]
        if strangers:
            raise DataDirMismatch(
                f"{self.path} holds {strangers[0]!r} but no {_IDENTITY}, so its owner is not known; "
                "give this replica an empty directory"
            )
        incarnation = self._write(self.identity)
        _sync_parents(self.path)
        return incarnation

    def _write(self, identity: Identity) -> Incarnation:
        """Give the directory an id. A directory that has an id also has the file of the peers'
        incarnations."""
        incarnation = Incarnation(identity.incarnation, uuid.uuid4().hex)
        if not self.disk.exists(PEERS_FILE):
            PeerMarks(self.disk, incarnation).close()
        content = {"format": FORMAT, **asdict(identity), "disk_id": incarnation.disk_id}
        self.disk.write_atomic(_IDENTITY, (json.dumps(content, indent=1).encode() + b"\n",))
        return incarnation

    def _check(self) -> Incarnation:
        try:
            content = json.loads(self.disk.read_all(_IDENTITY))
            if "format_version" in content:  # before format 1 it was called so
                raise UnknownVersion(
                    f"{self.path} was written by a development version from before format 1, and cannot be "
                    "read: start with empty directories, or use the software that wrote them"
                )
            found_format = content["format"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CorruptLog(f"{self.path / _IDENTITY} is damaged: {error}") from error
        if found_format != FORMAT:
            raise UnknownVersion(
                f"{self.path} has format {found_format!r}; this software reads {FORMAT}: upgrade it"
            )
        disk_id, number = content.get("disk_id"), content.get("incarnation")
        found = Identity(content.get("cluster_id"), content.get("group"), content.get("replica"), number)
        if found != self.identity:
            raise DataDirMismatch(
                f"{self.path} belongs to {found}, and this is {self.identity}; "
                "point it at its own directory, or at an empty one"
            )
        if type(disk_id) is not str or not 0 < len(disk_id) <= DISK_ID_MAX:
            raise CorruptLog(f"{self.path / _IDENTITY} is damaged: disk id {disk_id!r}")
        return Incarnation(self.identity.incarnation, disk_id)

    def close(self) -> None:
        """Release the lock. The end of the process releases it too."""
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


# ------------------------------------------------------------------------------------------------------------
# Small files beside the log that tell the next start of a replica what this one knew.
#
# ``wants-copy``: the leader's log must be copied first, and why. ``learner``: this replica has lost its
# log and may have promised what it no longer knows; its text ``newcomer``: or it never was a member, which
# the copied log will tell. ``superseded``: another process has taken its place, and which incarnation; it
# must never take part again. ``raft-port``: where it listened. ``scrubbed``: how far its files have been
# scrubbed. ``members``: the group's members, once they have changed, for tools that look for all of its
# directories. The text of a damaged file cannot be trusted, so the first three take effect by existing.

WANTS_COPY, LEARNER, SUPERSEDED, PORT_FILE = "wants-copy", "learner", "superseded", "raft-port"
SCRUBBED, MEMBERS = "scrubbed", "members"
BEHIND, DAMAGED = "behind", "damaged"  # why a copy is wanted
LOST, NEWCOMER = "1", "newcomer"  # texts of the learner mark


class Marks:
    """The marks in one data directory."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def read(self, name: str) -> str | None:
        """The mark's text; None if it is not set. Raises DiskFailed."""
        return read_text(self._disk.read_all(name)) if self._disk.exists(name) else None

    def write(self, name: str, text: str) -> None:
        """Set it, durable at return. Raises DiskFull, DiskFailed."""
        self._disk.write_atomic(name, [text.encode()])

    def remove(self, name: str) -> None:
        """Remove it, durably at return. If a power cut brought back the mark of a learner that counts again,
        its group could lose a majority with the next disk."""
        if self._disk.exists(name):
            self._disk.remove(name)
            self._disk.sync_dir()

    def superseded_by(self) -> int | None:
        """The incarnation that took this replica's place; -1: one that is no longer known; None: it was not
        replaced."""
        text = self.read(SUPERSEDED)
        if text is None:
            return None
        return int(text) if text.isdecimal() and len(text) < 20 else -1

    def port(self) -> int:
        """The port used last time; 0 (any) if it is not known."""
        return read_port(self._disk.read_all(PORT_FILE)) if self._disk.exists(PORT_FILE) else 0


def read_text(content: bytes) -> str:
    """A mark's text, however damaged."""
    return content.decode("ascii", errors="replace").strip()


def read_port(content: bytes) -> int:
    """The port that a file names; 0 (any) if it names none, since nothing depends on it."""
    text = read_text(content)
    return int(text) if text.isdecimal() and len(text) <= 5 and int(text) < 1 << 16 else 0
