"""Reads bodies of waiting messages before the replica's thread needs them (``replica/releases.py``).

As leader it reads what becomes due in the next two seconds and lies in older segments, in the order of
delivery, up to 16 MiB; and before that what the replica's thread asks for. It has a thread of its own, which
sleeps while nothing waits, or nothing old. What it has read is forgotten once it is released, and with
the leadership. Bodies never change, so what it has is right, however old its view of the timers is.

A body that cannot be read counts as read: the replica's thread reads it itself then, and meets the error,
which is handled there. If this thread fails in any other way, all bodies count as read from then on.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from escrowmq.replication.errors import EscrowMQError
from escrowmq.replication.state.timers import Timers
from escrowmq.replication.timers.record import KEY_BYTES, LOCATION, deliver_ms_of, key_bytes, last_key

log = logging.getLogger(__name__)

#: How far ahead it reads, and how much at most.
AHEAD_MS: Final = 2_000
AHEAD_BYTES: Final = 16 << 20
#: Records that are looked up at a time: some milliseconds.
RECORDS: Final = 512
#: How often it looks as leader if nobody wakes it, and while there is nothing old.
LOOK_S: Final = 0.25
IDLE_S: Final = 1.0

#: Between two steps, so that the replica's thread gets the interpreter.
REST_S: Final = 0.0005

#: Log index and position of a body.
Location = tuple[int, int]


class OldLog(Protocol):
    """What is needed of the journal. Thread-safe."""

    @property
    def last_index(self) -> int: ...
    def segment_start(self, index: int) -> int: ...
    def read_range(self, index: int, pos: int, size: int) -> bytes: ...


class BodyPrefetcher:
    """``Bodies`` of one replica. ``step`` does the work, in any one thread; ``start`` begins one for it."""

    def __init__(
        self,
        timers: Timers,
        log: OldLog,
        *,
        leads: Callable[[], bool],
        now_ms: Callable[[], int],
        replica: int = 0,
        ahead_ms: int = AHEAD_MS,
        ahead_bytes: int = AHEAD_BYTES,
    ) -> None:
        """``now_ms``: the group's time, as it was told last."""
        self._timers, self._log, self._leads, self._now_ms = timers, log, leads, now_ms
        self._ahead_ms, self._ahead_bytes = ahead_ms, ahead_bytes
        self._ahead: dict[Location, bytes | None] = {}  # None: it could not be read
        self._order: deque[tuple[bytes, Location, int]] = deque()  # by key; the last one is its size
        self._bytes = 0
        self._reached = b""  # all up to this key was looked at
        self._wanted: dict[str, Sequence[bytes]] = {}  # by who wants it
        self._answered: dict[str, dict[Location, bytes | None]] = {}
        self._wakeup, self._stopping, self._failed = threading.Event(), threading.Event(), False
        self._thread = threading.Thread(target=self._run, name=f"read-ahead-{replica}", daemon=True)
        #: Bodies that were read since the start.
        self.read = 0

    # -------------------------------------------------------------- the replica's thread

    def has(self, index: int, pos: int) -> bool:
        """See ``Bodies``."""
        location = index, pos
        return location in self._ahead or self._failed or any(location in one for one in self._answers())

    def get(self, index: int, pos: int, size: int) -> bytes | None:
        """See ``Bodies``. Bodies that lie side by side in one entry are asked for together."""
        parts: list[bytes] = []
        while size > 0:
            part = self._held((index, pos))
            if part is None or len(part) > size:
                return None
            parts.append(part)
            pos += len(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def want(self, who: str, records: Sequence[bytes]) -> None:
        """See ``Bodies``."""
        self._wanted[who] = records
        self._wakeup.set()

    def wake(self) -> None:
        """See ``Bodies``."""
        if self._order:
            self._wakeup.set()

    def _answers(self) -> list[dict[Location, bytes | None]]:
        return list(self._answered.values())

    def _held(self, location: Location) -> bytes | None:
        body = self._ahead.get(location)
        return body or next((found for one in self._answers() if (found := one.get(location))), None)

    # -------------------------------------------------------------- reading

    @property
    def held_bytes(self) -> int:
        """Of the bodies that were read ahead, and not because somebody wanted them."""
        return self._bytes

    def step(self) -> float:
        """Read some; returns the seconds until the next step, if nobody wakes it."""
        if not self._leads():
            self._forget()
            return IDLE_S
        self._read_wanted()
        self._forget_released()
        segment = self._log.segment_start(self._log.last_index)
        oldest = self._timers.counts.oldest_index()
        if oldest is None or oldest >= segment:
            return IDLE_S
        return self._read_ahead(segment)

    def _read_wanted(self) -> None:
        """What somebody waits for: in place of what the same one has wanted before."""
        for who, records in list(self._wanted.items()):
            before = self._answered.get(who, {})
            if len(before) == len(records) and all(location_of(record) in before for record in records):
                continue
            held = {location: self._held(location) for location in map(location_of, records)}
            answered = self._answered[who] = {location: body for location, body in held.items() if body}
            for record in records:
                if (location := location_of(record)) not in answered:
                    answered[location] = self._body(*LOCATION.unpack_from(record, KEY_BYTES))
                if self._wanted.get(who) is not records or self._stopping.is_set():
                    break  # there is something newer

    def _read_ahead(self, segment: int) -> float:
        until_ms = self._now_ms() + self._ahead_ms
        after = max(self._reached, self._timers.released)
        if self._bytes >= self._ahead_bytes or deliver_ms_of(after) > until_ms:
            return LOOK_S
        records, reached = self._timers.store.due(after, until_ms, RECORDS)
        wanted = self._wanted.copy()
        for record in records:
            index, pos, size = LOCATION.unpack_from(record, KEY_BYTES)
            location, key = (index, pos), key_bytes(record)
            if index < segment and size <= self._ahead_bytes and location not in self._ahead:
                if self._bytes and self._bytes + size > self._ahead_bytes:
                    return LOOK_S  # until some are released
                self._ahead[location] = self._held(location) or self._body(index, pos, size)
                self._order.append((key, location, size))
                self._bytes += size
            self._reached = key
            if self._wanted != wanted or self._stopping.is_set():
                return 0.0
        if records or reached < last_key(until_ms):
            return 0.0
        # Messages may still come that are due sooner; those lie in this segment, or are asked for.
        self._reached = reached
        return LOOK_S

    def _body(self, index: int, pos: int, size: int) -> bytes | None:
        self.read += 1
        try:
            return self._log.read_range(index, pos, size)
        except EscrowMQError:  # damaged, or gone: the replica's thread finds that out by itself
            return None

    def _forget_released(self) -> None:
        released = self._timers.released
        while self._order and self._order[0][0] <= released:
            _, location, size = self._order.popleft()
            del self._ahead[location]
            self._bytes -= size
        for who, records in list(self._wanted.items()):
            if records and key_bytes(records[-1]) <= released:
                self._wanted[who] = ()
                self._answered[who] = {}

    def _forget(self) -> None:
        self._ahead, self._answered, self._wanted = {}, {}, {}
        self._order.clear()
        self._bytes, self._reached = 0, b""

    # -------------------------------------------------------------- the thread

    def start(self) -> Callable[[], bool]:
        """Begin to read; returns ``stop``."""
        self._thread.start()
        return self.stop

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                try:
                    pause_s = self.step()
                except EscrowMQError:  # the replica's thread will meet it, and knows what to do
                    pause_s = LOOK_S
                self._wakeup.wait(max(pause_s, REST_S))
                self._wakeup.clear()
        except Exception:  # a defect, or damage that whoever reads next meets, too
            log.exception("bodies of delayed messages are read in the replica's thread from now on")
            self._failed = True
            self._forget()

    def stop(self, timeout_s: float = 10.0) -> bool:
        """Returns whether the thread has ended, or never ran."""
        self._stopping.set()
        self._wakeup.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()


def location_of(record: bytes) -> Location:
    """Where its body begins."""
    index, pos, _ = LOCATION.unpack_from(record, KEY_BYTES)
    return index, pos
