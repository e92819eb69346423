"""One search in one partition: reads the rows of candidates, or all rows, and compares them."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from escrowmq.replication.errors import CorruptLog, Unavailable
from escrowmq.replication.format.find_rows import is_sought, split_rows
from escrowmq.replication.replica.fetching import FetchRequest, FetchResult
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.state.topics import Partition

#: Bytes of rows that are read at once: a few milliseconds of work, between which other threads run.
READ_BYTES = 128 << 10
#: Attempts to read a run that a commit extends meanwhile: each of them needs another commit.
ATTEMPTS = 100
#: Bytes of the rows of one answer. A single larger row is an answer, too.
ANSWER_BYTES = 4 << 20


class Sought(NamedTuple):
    """A question: ``kind`` is one of find_table.py's, or ``IN_HEADER``, then ``name`` is the header's."""

    topic: str
    partition: int
    topic_id: int
    kind: int
    needle: bytes
    name: str = ""


class Fetch(Protocol):
    """As ``Reads.fetch``."""

    def __call__(self, requests: list[FetchRequest], max_bytes: int, wait_s: float) -> list[FetchResult]: ...


class Search:
    """What one call has found. Compares the rows themselves; keeps the last run that it has read."""

    def __init__(
        self, state: StateMachine, fetch: Fetch, partition: Partition, sought: Sought, limit: int
    ) -> None:
        self._state, self._fetch, self.partition = state, fetch, partition
        self.sought, self._limit = sought, limit
        self.offsets: list[int] = []
        self.times_ms: list[int] = []
        self.rows: list[bytes] = []
        self._bytes = 0
        self._run: tuple[int, int, list[bytes]] = 0, 0, []

    def is_full(self) -> bool:
        """Whether the answer is as long as it may be."""
        return len(self.offsets) >= self._limit or self._bytes >= ANSWER_BYTES

    def look_at(self, offset: int) -> None:
        """Add the message at this offset if it is sought."""
        base, time_ms, rows = self._run
        if not base <= offset < base + len(rows):
            base, time_ms, rows = self._run = self._run_with(offset)
        if base <= offset < base + len(rows):
            self._take(offset, time_ms, rows[offset - base])

    def _run_with(self, offset: int) -> tuple[int, int, list[bytes]]:
        """Base, time and rows of the run with this offset; no rows if they are gone, or are none."""
        for _ in range(ATTEMPTS):
            runs, blob = fetched(self._fetch, self.partition, offset, offset + 1, 1)
            if runs:
                base, count, time_ms, size = runs[0]
                try:
                    return base, time_ms, [bytes(row) for row in split_rows(blob[:size], count)]
                except CorruptLog:
                    break
            if self.is_gone(offset):
                break
        else:
            raise Unavailable(f"offset {offset} of {self.partition.topic} cannot be read now", 0.1)
        return offset, 0, []

    def is_gone(self, offset: int) -> bool:
        """Whether the message, which was there, has been removed meanwhile."""
        alive = self._state.topics.slots.get(self.partition.slot) is self.partition
        return not alive or self.partition.index.start > offset

    def _take(self, offset: int, time_ms: int, row: bytes) -> None:
        if is_sought(row, self.sought.kind, self.sought.needle, self.sought.name):
            self.offsets.append(offset)
            self.times_ms.append(time_ms)
            self.rows.append(row)
            self._bytes += len(row)

    def scan(self, at: int, end: int) -> int:
        """Look at some rows from ``at`` on; returns the offset behind the last one."""
        runs, blob = fetched(self._fetch, self.partition, at, end)
        if not runs and self.is_gone(at):
            return min(max(at + 1, self.partition.index.start), end)
        if not runs:
            return at  # see ``fetched``
        pos, name = 0, self.sought.name.encode()
        for base, count, time_ms, size in runs:
            run = blob[pos : pos + size]
            pos += size
            if self.sought.needle in run and name in run:  # few rows have to be decoded
                try:
                    rows = split_rows(run, count)
                except CorruptLog:
                    continue
                for offset, row in enumerate(rows, base):
                    if at <= offset < end and not self.is_full():
                        self._take(offset, time_ms, bytes(row))
                        last = offset
                if self.is_full():
                    return last + 1
        return min(runs[-1][0] + runs[-1][1], end)


def fetched(
    fetch: Fetch, partition: Partition, at: int, until: int, max_bytes: int = READ_BYTES
) -> tuple[list[tuple[int, int, int, int]], bytes]:
    """``(runs, rows)`` from ``at`` on, whole runs. None if they are gone, or if a commit extends the run at
    this moment: then the next attempt has it."""
    request = partition.topic, partition.number, at, until, partition.topic_id
    ((_, _, code, _, _, runs, blob),) = fetch([request], max_bytes, 0.0)
    return ([], b"") if code else (runs, bytes(blob))
