"""Bodies of waiting messages that somebody reads from the log before the leader's thread needs them.

A message that has waited long lies in an older segment and is copied when it is released, or carried. To read
it from a disk can take ten milliseconds, and a release holds a thousand: in the thread that sends heartbeats
that would cost the leadership. So the leader takes only what is in memory, and asks for the rest. Who reads
is passed in (``host/body_prefetcher.py``); without anybody, bodies are read where they are needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from escrowmq.replication.timers.record import KEY_BYTES, PLACE

#: When the leader looks again for bodies that it has asked for.
AGAIN_MS = 5


class LogReader(Protocol):
    """What admission needs from the journal."""

    @property
    def last_index(self) -> int: ...
    def segment_start(self, index: int) -> int: ...
    def read_range(self, index: int, pos: int, size: int) -> bytes: ...


class PrefetchedBodies(Protocol):
    """Whoever reads. All of it returns at once."""

    def has(self, index: int, pos: int) -> bool:
        """Whether that body was read, or could not be: then its error is met where it is needed."""

    def get(self, index: int, pos: int, size: int) -> bytes | None:
        """That part of an entry, if it is in memory."""

    def want(self, who: str, records: Sequence[bytes]) -> None:
        """Read the bodies of these next, and keep them; what the same one wanted before is not needed any
        more. Bounded by the caller."""

    def wake(self) -> None:
        """Some are released: there is room for others."""


class NobodyReads:
    """Bodies are read where they are needed: in one thread there is nobody else."""

    def has(self, index: int, pos: int) -> bool:
        return True

    def get(self, index: int, pos: int, size: int) -> bytes | None:
        return None

    def want(self, who: str, records: Sequence[bytes]) -> None: ...

    def wake(self) -> None: ...


class LogBehindBodies:
    """Reads what is in memory from there, everything else from the log."""

    def __init__(self, log: LogReader, bodies: PrefetchedBodies) -> None:
        self._log, self._bodies = log, bodies

    @property
    def last_index(self) -> int:
        return self._log.last_index

    def segment_start(self, index: int) -> int:
        return self._log.segment_start(index)

    def read_range(self, index: int, pos: int, size: int) -> bytes:
        found = self._bodies.get(index, pos, size)
        return self._log.read_range(index, pos, size) if found is None else found


def needed(records: Iterable[bytes], segment: int, copied: int) -> list[bytes]:
    """Those whose bodies must be read. ``segment``: later entries are referred to, or were written just now;
    ``copied``: larger bodies are referred to, too."""
    found = []
    for record in records:
        index, _, size = PLACE.unpack_from(record, KEY_BYTES)
        if index < segment and size <= copied:
            found.append(record)
    return found


def is_lacking(record: bytes, bodies: PrefetchedBodies) -> bool:
    """Whether its body is still to be read."""
    index, pos, _ = PLACE.unpack_from(record, KEY_BYTES)
    return not bodies.has(index, pos)
