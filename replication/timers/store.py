"""All waiting messages of a broker group, as one replica has them: young ones in memory, older ones in files.

The thread that applies entries adds records and moves the cursor. A leader reads what is due; other threads
look keys up. Writing and merging files happens in jobs, whose results the applying thread puts in place.
"""

from __future__ import annotations

from threading import Lock
from typing import Final, NamedTuple

from escrowmq.replication.timers.record import (
    FIRST_KEY,
    deliver_ms_of,
    is_tombstone,
    last_key,
    living,
)
from escrowmq.replication.timers.runs import Run, behind, living_after, records_of
from escrowmq.replication.timers.young import CHUNK, Bucket, Young

#: Records in memory at which a checkpoint is due: 40 MB.
YOUNG_MAX: Final = 1_000_000
#: Records that one call sorts before it reads: 15 ms.
SORTED_PER_CALL: Final = 5 * CHUNK


class Found(NamedTuple):
    """What is stored under one key."""

    living: list[bytes]  # records; one, or several if the same key was given several times
    cancelled: bool  # there is a tombstone


class TimerStore:
    """The records of one broker group. What it holds follows from the log alone; how it is split into memory
    and files does not, and no answer depends on it."""

    def __init__(self) -> None:
        self.cursor = FIRST_KEY  # all keys up to this one are released
        self._lock = Lock()  # held by whoever sorts or reads the lists below, for some ms at most
        self._young = Young()
        self._sealing: list[Young] = []  # of checkpoints that are not written yet
        self._files: list[Run] = []

    # -------------------------------------------------------------- the applying thread

    @property
    def young(self) -> int:
        """Records in memory since the last checkpoint began, also those released since: see ``YOUNG_MAX``."""
        return self._young.records

    def add(self, records: bytes | bytearray | memoryview, now_ms: int) -> None:
        """Add records and tombstones, one after the other, in any order. All keys must be higher than the
        cursor. ``now_ms``: time of the entry."""
        with self._lock:
            self._young.add(memoryview(records), now_ms)

    def release(self, cursor: bytes) -> None:
        """Everything up to this key is released, and is forgotten. Reads nothing."""
        self.cursor = cursor
        with self._lock:
            self._young.forget_before(deliver_ms_of(cursor))

    def freeze(self) -> list[Young]:
        """A checkpoint begins: what is in memory now, to be written by it, and read from there until then."""
        with self._lock:
            if self._young.records:
                self._sealing.append(self._young)
                self._young = Young()
            return self._sealing.copy()

    # -------------------------------------------------------------- any thread

    def next_ms(self, after: bytes) -> int | None:
        """The time of the next delivery after a key; None: there is none. It may be too early, when records
        are not in order yet or cancelled: ``due`` with this time puts them in order."""
        with self._lock:
            files = self._files.copy()
            times = [ms for young in self._generations() if (ms := young.next_ms(after)) is not None]
        for run in files:
            times += map(deliver_ms_of, run.rows(run.row_at(behind(after)), 1))
        return min(times, default=None)

    def due(self, after: bytes, until_ms: int, limit: int) -> tuple[list[bytes], bytes]:
        """``(records, reached)``: living records of keys higher than ``after`` that are delivered by
        ``until_ms``, in order, at most ``limit`` (but all copies of a key); and the key up to which nothing
        else lives: ``last_key(until_ms)`` if these are all.

        One call does a bounded amount of work: with much to put in order it returns nothing and ``after``;
        call again. A leader should call ``arrange`` some seconds ahead. Raises CorruptLog.
        """
        runs = self._in_order(after, until_ms, SORTED_PER_CALL)
        if runs is None:
            return [], after
        reached = last_key(until_ms)
        found, place = living_after(runs, after, behind(reached), limit)
        return found, reached if place is None else place

    def arrange(self, after: bytes, until_ms: int, records: int = CHUNK) -> bool:
        """Put about ``records`` more in order of those that are delivered after a key, until a time; returns
        whether all are."""
        return self._in_order(after, until_ms, records) is not None

    def find(self, key: bytes) -> Found:
        """What is stored under a key, released or not. Raises CorruptLog."""
        ms = deliver_ms_of(key)
        found: list[bytes] = []
        while True:
            with self._lock:
                buckets = self._buckets(ms, ms)
                unsorted = next((bucket for bucket in buckets if len(bucket.parts) > 1), None)
                if unsorted is None:
                    files = self._files.copy()
                    for bucket in buckets:
                        found += bucket.of(key)
                    break
                unsorted.sort_one()
        for run in files:
            found += records_of(run, key)
        found.sort()
        return Found(living(found), any(map(is_tombstone, found)))

    def listed(self, after: bytes, until_ms: int, limit: int) -> tuple[list[bytes], bytes]:
        """As ``due``, for whoever lists what waits: it takes the time that it needs."""
        while not self.arrange(after, until_ms):
            pass
        return self.due(after, until_ms, limit)

    # -------------------------------------------------------------- inside

    def _in_order(self, after: bytes, until_ms: int, records: int) -> list[Run] | None:
        """All runs with records of these times; None: more than ``records`` of them are not in order."""
        while True:
            with self._lock:
                buckets = self._buckets(deliver_ms_of(after), until_ms)
                unsorted = next((bucket for bucket in buckets if bucket.parts), None)
                if unsorted is None:
                    return [*self._files, *(run for bucket in buckets for run in bucket.chunks)]
                if records <= 0:
                    return None
                unsorted.sort_one()
            records -= CHUNK

    def _generations(self) -> list[Young]:
        return [*self._sealing, self._young]

    def _buckets(self, begin_ms: int, until_ms: int) -> list[Bucket]:
        return [bucket for young in self._generations() for bucket in young.between(begin_ms, until_ms)]
