"""Scrubbing: all that a replica has stored is read again, slowly, so that damage is found in time.

An old segment may not be read for months. Rot in it would be found only when the segment is needed: when
another replica's copy is damaged too, or lost, or when a reader comes. So every replica reads its whole log
in each period, a week by default, no faster than it must and no faster than the limit, and hardly at all
while it is busy or its disk is slow. Damaged entries become holes, which the mender fills; file headers and
sidecars are rewritten from what is known; a damaged file of the state is reported to ``damaged``.

It decides and reads; it owns no thread, and the time is passed in. It must never run in the thread that
sends heartbeats, or ignore damage that it has found.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Final, Protocol

from escrowmq.replication.errors import CorruptLog, DiskFull, OffsetGone
from escrowmq.replication.log.disk import Disk
from escrowmq.replication.replica.damage import STATE_FILES, verify_state_file

#: How much is read at once, or one entry: a millisecond of a fast disk.
PIECE_BYTES: Final = 1 << 20
#: The slowest pace: a small log is read in minutes, and then scrubbing rests.
RATE_MIN: Final = 64 << 10
#: A piece that took longer than this met a slow disk; the pause after it is this many times as long.
SLOW_S, SLOW_REST = 0.1, 20
#: Scrubbing pauses this long while the replica is busy, and at most this many times before the next piece.
BUSY_S, BUSY_MAX = 1.0, 60
#: How often the position of a pass is stored: after a restart it continues there.
NOTE_EVERY_S: Final = 60.0


@dataclass(slots=True)
class ScrubState:
    """Progress; kept over restarts. Times in ms since the epoch, 0: never."""

    begun_ms: int = 0  # the pass under way, or the last one
    done_ms: int = 0  # end of the last full pass
    next_index: int = 0  # entry to continue with; 0: no pass is under way
    bytes: int = 0  # read in the pass under way, or in the last one
    last_bytes: int = 0  # read in the last full pass

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str | None) -> ScrubState:
        """The state in a mark; an unusable text means: start over."""
        try:
            found = json.loads(text or "{}")
            if isinstance(found, dict) and all(type(n) is int and 0 <= n < 1 << 63 for n in found.values()):
                return cls(**found)
        except (ValueError, TypeError, RecursionError):
            pass
        return cls()


class ScrubbedLog(Protocol):
    """What scrubbing needs from the journal. Thread-safe."""

    @property
    def first_index(self) -> int: ...
    @property
    def durable_index(self) -> int: ...
    def stored_bytes(self) -> int: ...
    def verify(self, index: int, bytes_max: int, *, cold: bool = False) -> tuple[int, int]: ...
    def segment_start(self, index: int) -> int: ...
    def frame_is_sound(self, index: int) -> bool: ...
    def mend_frame(self, index: int) -> bool: ...


@dataclass(slots=True)
class Scrubber:
    """One replica's scrubber. ``step`` does a piece of the work, in any one thread."""

    log: ScrubbedLog
    disk: Disk
    period_s: float  # 0: never
    bytes_per_s: int
    state: ScrubState
    note: Callable[[ScrubState], None]  # store it over restarts
    in_loop: Callable[[Callable[[], bool]], bool]  # run in the loop thread, which syncs afterwards
    damaged: Callable[[str, CorruptLog], None]  # a file's name, or "": the log cannot be mended
    busy: Callable[[], bool]
    clock: Callable[[], float]  # seconds, monotonic
    wall_ms: Callable[[], int]
    report: Callable[[str], None]
    piece_bytes: int = PIECE_BYTES
    _noted_at: float = float("-inf")
    _put_off: int = 0
    _segment: int = 0  # whose frame has been checked
    _files: Iterator[int] | None = field(default=None)

    def step(self) -> float:
        """Do the next piece; returns the seconds until the one after it."""
        if not self.period_s:
            return 3600.0
        state, now_ms = self.state, self.wall_ms()
        if not state.next_index and self._files is None:
            due_s = (state.begun_ms - now_ms) / 1000 + self.period_s
            if state.begun_ms and 0 < due_s <= self.period_s:  # else it is due, or the clock was set back
                return min(due_s, 60.0)
            state.begun_ms, state.next_index, state.bytes, self._segment = now_ms, 1, 0, 0
        if self._put_off < BUSY_MAX and self.busy():
            self._put_off += 1
            return BUSY_S
        self._put_off = 0
        before = self.clock()
        size = self._piece()
        took = self.clock() - before
        state.bytes += size
        if before - self._noted_at >= NOTE_EVERY_S or not (state.next_index or self._files):
            self._noted_at = before
            self._keep()
        pause = size / self._rate(now_ms) - took
        return max(pause, took * SLOW_REST if took > SLOW_S else 0.0, 0.0)

    # -------------------------------------------------------------- a piece
    def _piece(self) -> int:
        """Read a piece; returns its bytes."""
        try:
            return self._entries() if self.state.next_index else self._state_files()
        except CorruptLog as error:
            self.state.next_index = 0  # the next start checks the whole log
            self._files = self._read_state_files()
            self.damaged("", error)
            return 0

    def _entries(self) -> int:
        log, state = self.log, self.state
        index = max(state.next_index, log.first_index)
        if index > log.durable_index:
            state.next_index = 0
            self._files = self._read_state_files()
            return 0
        try:
            if (segment := log.segment_start(index)) != self._segment:
                if not log.frame_is_sound(index):
                    self.report(f"the header or the sidecar of segment {segment} was damaged; rewritten")
                    self.in_loop(lambda: log.mend_frame(index))
                self._segment = segment
            state.next_index, size = log.verify(index, self.piece_bytes, cold=True)
        except OffsetGone:  # retention dropped it, or a conflict cut it off
            if log.first_index <= index:
                state.next_index = 0
                self._files = self._read_state_files()
            return 0
        return size

    def _state_files(self) -> int:
        assert self._files is not None
        size = next(self._files, None)
        if size is None:
            self._files = None
            self.state.done_ms, self.state.last_bytes = self.wall_ms(), self.state.bytes
            return 0
        return size

    def _read_state_files(self) -> Iterator[int]:
        """The files of the state, a piece at a time. A file that disappears meanwhile is skipped."""
        for name in self.disk.names():
            if name.endswith(STATE_FILES):
                try:
                    yield from verify_state_file(name, self.disk.open(name), self.piece_bytes)
                except FileNotFoundError:
                    continue
                except CorruptLog as error:
                    if self.disk.exists(name):
                        self.damaged(name, error)

    # -------------------------------------------------------------- pace and memory
    def _rate(self, now_ms: int) -> float:
        """Bytes a second, such that the pass is done after nine tenths of the period."""
        left_s = self.state.begun_ms / 1000 + 0.9 * self.period_s - now_ms / 1000
        left = max(0, self.log.stored_bytes() - self.state.bytes)
        needed = left / left_s if left_s > 0 else float("inf")
        return min(max(needed, RATE_MIN), self.bytes_per_s)

    def _keep(self) -> None:
        try:
            self.note(self.state)
        except DiskFull:  # then a restart starts the pass over
            pass
