"""Intents: records in the query's checkpoint of what an epoch commits, written before it is committed.

``<checkpoint>/escrowmq/<epoch>.json`` names the task attempts whose chunks form the epoch (one directory
deeper for writes in foreachBatch). It is written once, by one driver; a second driver finds it and carries it
out instead of its own attempts. From then on, the epoch counts as committed ("presumed commit"), whatever
happens to the process. The file and its directory entry are durable before anything is done because of it. An
incomplete file never appears under that name. An intent is never changed; it is removed when Spark itself has
forgotten the epoch.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from escrowmq.actors.producer.encoding.encoder import crc32c
from escrowmq.replication.errors import ConfigError, CorruptLog, UnknownVersion

VERSION = 1
#: Number of epochs whose intents are kept, as in Spark's own logs (spark.sql.streaming.minBatchesToRetain).
KEPT = 100
#: The ids of writes of Ray Data begin with this; those of Spark's queries and writes do not.
RAY_DATA = "ray-data-"
_NAME = re.compile(r"(\d+)\.json")


@dataclass(frozen=True, slots=True)
class Attempt:
    """A finished task attempt. ``chunks``: the number of chunks that it prepared in each broker group."""

    name: str
    chunks: Mapping[int, int]

    def ids(self, epoch_id: str) -> dict[int, list[str]]:
        """Transaction ids by group, in the order in which their messages become readable."""
        return {
            gid: [chunk_id(epoch_id, self.name, gid, number) for number in range(count)]
            for gid, count in self.chunks.items()
        }


@dataclass(frozen=True, slots=True)
class Intent:
    """What one epoch commits.

    ``epoch_id``: the ``tx_id`` of its messages. ``offsets``: the :meth:`IntentStore.offsets_digest` of the
    batch, "" if it could not be read.
    """

    epoch: int
    epoch_id: str
    attempts: tuple[Attempt, ...]
    offsets: str = ""

    def ids(self) -> dict[int, list[str]]:
        """Transaction ids by broker group, in the order of tasks.

        Groups are in ascending order, which every process uses to settle them. So if two processes settle an
        epoch at once, the second one meets the first one's decision at the first group.
        """
        by_group: dict[int, list[str]] = {}
        for attempt in self.attempts:
            for gid, ids in attempt.ids(self.epoch_id).items():
                by_group.setdefault(gid, []).extend(ids)
        return dict(sorted(by_group.items()))


def app_of(query_id: str) -> str:
    """The app of a query's transactions."""
    return query_id if query_id.startswith(RAY_DATA) else f"spark-{query_id}"


def epoch_id_of(query_id: str, epoch: int) -> str:
    """The transaction id that readers and operators see: one for each epoch of a query."""
    return f"{query_id}:{epoch}" if query_id.startswith(RAY_DATA) else f"spark:{query_id}:{epoch}"


def chunk_id(epoch_id: str, attempt: str, gid: int, number: int) -> str:
    """The transaction id of one part (chunk) of an epoch."""
    return f"{epoch_id}/{attempt}/{gid}.{number}"


def epoch_of(epoch_id: str) -> int | None:
    """The epoch number in an :func:`epoch_id_of` or :func:`chunk_id` of Spark; None for any other id."""
    found = re.match(r"spark:[^:/]+:(\d+)(/|$)", epoch_id)
    return None if found is None else int(found[1])


def query_of(epoch_id: str) -> str:
    """The query id in an :func:`epoch_id_of`."""
    return epoch_id.removeprefix("spark:").rpartition(":")[0]


def encode(intent: Intent) -> bytes:
    """An intent as the bytes of its file."""
    body = {
        "version": VERSION,
        "epoch": intent.epoch,
        "epoch_id": intent.epoch_id,
        "attempts": [[a.name, {str(g): n for g, n in a.chunks.items()}] for a in intent.attempts],
        **({"offsets": intent.offsets} if intent.offsets else {}),
    }
    text = json.dumps(body, separators=(",", ":"), sort_keys=True)
    return json.dumps({"intent": body, "crc32c": crc32c(text.encode())}, sort_keys=True).encode() + b"\n"


def decode(data: bytes, where: str) -> Intent:
    """Inverse of :func:`encode`. Raises CorruptLog, UnknownVersion; ``where`` names the file."""
    try:
        outer = json.loads(data)
        body = outer["intent"]
        version = body["version"]
        if isinstance(version, int) and version > VERSION:
            raise UnknownVersion(f"{where} has version {version}; this software reads up to {VERSION}")
        text = json.dumps(body, separators=(",", ":"), sort_keys=True)
        if crc32c(text.encode()) != outer["crc32c"]:
            raise ValueError("its checksum is wrong")
        attempts = tuple(
            Attempt(str(name), {int(gid): int(count) for gid, count in chunks.items()})
            for name, chunks in body["attempts"]
        )
        return Intent(int(body["epoch"]), str(body["epoch_id"]), attempts, str(body.get("offsets", "")))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise CorruptLog(
            f"{where} is damaged ({error!r}); restore it from a copy of the checkpoint. If there is none, "
            "find out the state of its epoch (escrowmq txn list), settle that by hand, and remove the file"
        ) from error


class IntentStore:
    """The intents in one checkpoint directory, given as a local path or as a URI that pyarrow supports."""

    def __init__(self, checkpoint: str, name: str = "") -> None:
        """``name``: tells several sinks with the same checkpoint apart."""
        parsed = urlparse(checkpoint)
        self.checkpoint, self.name = checkpoint, name
        self._local: Path | None = None
        self._files: Any = None
        if parsed.scheme in ("", "file"):
            self._local = Path(unquote(parsed.path) if parsed.scheme else checkpoint)
            self.root = str(self._local)
        else:
            import pyarrow.fs

            try:
                self._files, self.root = pyarrow.fs.FileSystem.from_uri(checkpoint.rstrip("/"))
            except (OSError, ValueError, ImportError) as error:
                raise ConfigError(
                    f"option 'checkpointLocation': {checkpoint!r} cannot be opened: {error}"
                ) from error
        self.base = f"{self.root}/escrowmq" + (f"/{name}" if name else "")

    # ------------------------------------------------------------ intents

    def path_of(self, epoch: int) -> str:
        """The path of an epoch's intent, whether or not it exists."""
        return f"{self.base}/{epoch}.json"

    def read(self, epoch: int) -> Intent | None:
        """The epoch's intent or None. It is durable on return. Raises CorruptLog, UnknownVersion."""
        data = self._get(self.path_of(epoch))
        if data is None:
            return None
        intent = decode(data, self.path_of(epoch))
        if intent.epoch != epoch:
            raise CorruptLog(
                f"{self.path_of(epoch)} is the intent of epoch {intent.epoch}; it was moved or copied"
            )
        if self._local is not None:
            # Its creator may have died after creating the name and before the directory's fsync. Then what is
            # done because of the intent would survive a power failure, but the intent would not.
            _sync_directories(Path(self.base), self._local)
        return intent

    def create(self, intent: Intent) -> Intent:
        """Write the intent unless the epoch has one; returns the one in force, which is durable then."""
        name = self.path_of(intent.epoch)
        if self._local is not None:
            _create_local(Path(name), encode(intent))
        else:
            self._create_remote(name, encode(intent))
        found = self.read(intent.epoch)
        if found is None:
            raise CorruptLog(f"{name} was removed while it was written")
        return found

    def remove(self, epoch: int) -> None:
        """Remove an epoch's intent, for operators and for pruning."""
        name = self.path_of(epoch)
        if self._local is not None:
            Path(name).unlink(missing_ok=True)
        else:
            self._files.delete_file(name)

    def epochs(self) -> list[int]:
        """The epochs that have an intent, in ascending order."""
        return sorted(int(found[1]) for name in self._list(self.base) if (found := _NAME.fullmatch(name)))

    def names(self) -> list[str]:
        """The names of all sinks that share this checkpoint, including "" for the one without a name."""
        found = self._list(f"{self.root}/escrowmq")
        return ["", *sorted(name for name in found if not name.endswith((".json", ".tmp")))]

    def prune(self, newest: int) -> None:
        """Remove the intents of epochs that are KEPT or more before ``newest``."""
        for epoch in self.epochs():
            if epoch <= newest - KEPT:
                self.remove(epoch)

    # ------------------------------------------------------------ Spark's part of the checkpoint

    def committed_epoch(self) -> int:
        """The last epoch in Spark's own commit log; -1 if there is none."""
        names = self._list(f"{self.root}/commits")
        return max((int(name) for name in names if name.isdecimal()), default=-1)

    def offsets_digest(self, epoch: int) -> str:
        """A digest that tells a batch from another batch with the same number; "" if it cannot be read here.

        It is the SHA-256 of ``offsets/<epoch>``, which Spark writes once, before the batch runs.
        """
        try:
            planned = self._get(f"{self.root}/offsets/{epoch}")
        except OSError:
            return ""
        return "" if planned is None else hashlib.sha256(planned).hexdigest()

    def query_id(self) -> str:
        """The query's id, which restarts do not change, and the sink's name.

        Raises ConfigError if no query has used this checkpoint.
        """
        data = self._get(f"{self.root}/metadata")
        try:
            return str(json.loads(data or b"")["id"]) + (f".{self.name}" if self.name else "")
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{self.checkpoint!r} is not a checkpoint of a streaming query: it has no readable 'metadata'"
            ) from error

    # ------------------------------------------------------------ files

    def _get(self, name: str) -> bytes | None:
        try:
            if self._local is not None:
                return Path(name).read_bytes()
            with self._files.open_input_stream(name) as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return None

    def _list(self, directory: str) -> list[str]:
        if self._local is not None:
            with contextlib.suppress(FileNotFoundError):
                return os.listdir(directory)
            return []
        import pyarrow.fs

        selector = pyarrow.fs.FileSelector(directory, allow_not_found=True)
        return [info.base_name for info in self._files.get_file_info(selector)]

    def _create_remote(self, name: str, data: bytes) -> None:
        """Create a file on a file system that cannot create exclusively: check first, then move into place.

        If two drivers use one checkpoint at the same moment, this is safe only if the file system refuses to
        move onto an existing file, as HDFS does.
        """
        if self._get(name) is not None:
            return
        self._files.create_dir(self.base, recursive=True)
        temporary = f"{self.base}/.{uuid.uuid4().hex}.tmp"
        with self._files.open_output_stream(temporary) as stream:
            stream.write(data)
        try:
            self._files.move(temporary, name)
        except OSError:
            if self._get(name) is None:
                raise


def _create_local(path: Path, data: bytes) -> None:
    """Create ``path`` with ``data``, unless it exists; an incomplete file is never visible.

    It is durable once its directory has been synced, which ``IntentStore.read`` does.
    """
    fresh = [directory for directory in path.parents if not directory.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{uuid.uuid4().hex}.tmp"
    try:
        with temporary.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)  # fails if the name exists, unlike rename
    finally:
        temporary.unlink(missing_ok=True)
    for made in fresh:
        _sync_directories(made.parent, made.parent)


def _sync_directories(directory: Path, top: Path) -> None:
    """Make the entries of ``directory`` durable, and those of its parents up to ``top``."""
    above = [directory, *directory.parents]
    for each in above[: above.index(top) + 1]:
        handle = os.open(each, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
