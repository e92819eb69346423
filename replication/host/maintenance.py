"""The thread that keeps a replica's files sound while it runs: it scrubs, and has damaged entries mended.

It may wait for peers and for the disk, which the thread that sends heartbeats must never do.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import asdict, dataclass, field
from typing import Final, Protocol

from escrowmq.replication.errors import Closed, CorruptLog, DiskFull, OffsetGone, Overloaded
from escrowmq.replication.host.repair import Mender
from escrowmq.replication.log.disk import Disk
from escrowmq.replication.metrics import LONG_S, Histogram
from escrowmq.replication.replica.checkpoints import Job
from escrowmq.replication.replica.damage import STATE_FILES, verify_state_file

# ------------------------------------------------------------------------------------------------------------
# Scrubbing: all that a replica has stored is read again, slowly, so that damage is found in time.
#
# An old segment may not be read for months. Rot in it would be found only when the segment is needed: when
# another replica's copy is damaged too, or lost, or when a reader comes. So every replica reads its whole log
# in each period, a week by default, no faster than it must and no faster than the limit, and hardly at all
# while it is busy or its disk is slow. Damaged entries become holes, which the mender fills; file headers and
# sidecars are rewritten from what is known; a damaged file of the state is reported to ``damaged``.
#
# It decides and reads; it owns no thread, and the time is passed in. It must never run in the thread that
# sends heartbeats, or ignore damage that it has found.

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
    rate_min: int = RATE_MIN
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
        return min(max(needed, self.rate_min), self.bytes_per_s)

    def _keep(self) -> None:
        try:
            self.note(self.state)
        except DiskFull:  # then a restart starts the pass over
            pass


#: At this rate fetching entries to mend is no burden, even if a whole file has to be mended.
MEND_BYTES_PER_S: Final = 50 << 20
#: A start reads enough by itself, and peers may want copies: scrubbing begins after this time
#: (or a period, if that is shorter).
FIRST_SCRUB_S: Final = 30.0
#: Pause if the replica's loop did not answer.
AGAIN_S: Final = 1.0


class Maintenance:
    """One per running replica. ``start``, ``wake`` from any thread, ``stop``."""

    def __init__(self, name: str, end: Callable[[BaseException], None]) -> None:
        """``end(error)``: called if this replica cannot continue."""
        self._end = end
        self._work, self._stopping = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._mender: Mender | None = None
        self._scrubber: Scrubber | None = None

    def start(self, mender: Mender, scrubber: Scrubber) -> None:
        self._mender, self._scrubber = mender, scrubber
        self._thread.start()

    def wake(self) -> None:
        """Something is damaged: mend it."""
        self._work.set()

    def pace(self, size: int) -> None:
        """Wait for as long as ``size`` bytes should take."""
        self._stopping.wait(size / MEND_BYTES_PER_S)

    def stop(self, timeout_s: float) -> bool:
        """Returns whether the thread has ended, or never ran."""
        self._stopping.set()
        self._work.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        assert self._mender is not None and self._scrubber is not None
        mend_at: float | None = None
        scrub_at = time.monotonic() + min(FIRST_SCRUB_S, self._scrubber.period_s)
        while not self._stopping.is_set():
            now = time.monotonic()
            until = scrub_at if mend_at is None else min(scrub_at, mend_at)
            if mend_at is not None:
                self._stopping.wait(max(0.0, until - now))
            elif self._work.wait(max(0.0, until - now)):
                self._work.clear()
                mend_at = time.monotonic()
            now = time.monotonic()
            try:
                if mend_at is not None and now >= mend_at:
                    pause_s = self._mender.round()
                    mend_at = None if pause_s is None else time.monotonic() + pause_s
                if now >= scrub_at and not self._stopping.is_set():
                    scrub_at = now + self._scrubber.step()
            except Closed:
                return
            except (FutureTimeout, Overloaded):
                mend_at = time.monotonic() + AGAIN_S
                scrub_at = max(scrub_at, mend_at)  # otherwise it is due, and would be tried without a pause
            except Exception as error:  # above all the disk's
                self._end(error)
                return


# ------------------------------------------------------------------ room on the disk
# How much room the replica's disk has: looked at in a thread of its own.
#
# A file system that hangs (a network file system, a failing disk) does not answer ``statvfs`` either. The
# thread that sends heartbeats must not wait for it, so it takes the value of the last look. A look that
# hangs or fails changes no decision; it is told to operators. At most one look is under way.
#
# It also sees whether the replica's files are still there. A directory that is deleted under a process
# stays usable through open descriptors: the replica would go on acknowledging into files that have no name,
# which the next start would not find. Two looks in a row must say so, since files also go in the ordinary
# course.


#: At 100 MB/s, 10 MB are written between two looks: far less than what is kept free (256 MiB).
EVERY_S: Final = 0.1
#: A look takes microseconds.
HANGS_S: Final = 2.0
#: The thread only looks, so a replica that stops leaves one that hangs behind.
STOP_S: Final = 1.0


class RoomWatch:
    """``start``; then read ``free_bytes``, ``size_bytes`` and ``problem`` in any thread; ``stop``."""

    def __init__(
        self,
        name: str,
        free_bytes: Callable[[], int],
        size_bytes: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
        *,
        missing: Callable[[], str] = lambda: "",
        on_missing: Callable[[str], None] = lambda what: None,
        hangs_s: float = HANGS_S,
    ) -> None:
        """``missing()``: which of the replica's files has gone; "": none. ``on_missing(what)`` is called at
        most once, and no look follows it."""
        self._free, self._size, self._clock = free_bytes, size_bytes, clock
        self._missing, self._on_missing, self._missed = missing, on_missing, ""
        self._hangs_s = hangs_s
        #: What the last look found; None: none has succeeded yet.
        self.free_bytes: int | None = None
        self.size_bytes = 0
        self._error = ""
        self._looking_since: float | None = None
        self._stopping, self._looked = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Returns after the first look, or when that hangs."""
        self._thread.start()
        self._looked.wait(self._hangs_s)

    def stop(self, patience_s: float = STOP_S) -> None:
        """No further look begins."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(patience_s)

    @property
    def problem(self) -> str:
        """Why the room is not known now; "" if it is."""
        since = self._looking_since
        hangs_s = 0.0 if since is None else self._clock() - since
        return f"it has not answered for {hangs_s:.0f} s" if hangs_s >= self._hangs_s else self._error

    def look(self) -> None:
        """One look; an error is kept until the next one."""
        self._looking_since = self._clock()
        try:
            self.free_bytes = self._free()
            self.size_bytes = self._size()
            self._error = ""
        except OSError as error:
            self._error = str(error)
        try:
            missed, self._missed = self._missed, self._missing()
        finally:
            self._looking_since = None
        if missed and self._missed:
            self._stopping.set()
            self._on_missing(self._missed)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.look()
            self._looked.set()
            self._stopping.wait(EVERY_S)


# ------------------------------------------------------------------ checkpoints
# Writes checkpoints, and removes superseded files, beside the thread that applies entries.
#
# Writing one takes a tenth of a second of the interpreter. A thread that never waits gives the interpreter
# lock up only every 5 ms, and a commit needs that lock many times in the replica's other threads: so this
# one sleeps a moment after every half millisecond of work. It must not touch the log or the state.


#: Writing takes twice as long with it. Beside a snapshot of 10,000 topics, a round of five changes of thread
#: then takes 1.4 ms instead of 7 ms in the mean.
REST_S: Final = 0.0005


class CheckpointThread:
    """One job at a time. ``seconds``: how long each took."""

    def __init__(
        self, name: str, end: Callable[[BaseException], None], later: Callable[[Callable[[], None]], None]
    ) -> None:
        """``end(error)``: the replica cannot continue. ``later(done)``: run it in the applying thread."""
        self._name, self._end, self._later = name, end, later
        self._thread: threading.Thread | None = None
        self.seconds = Histogram(LONG_S)

    def start(self, job: Job, done: Callable[[], None]) -> None:
        """Run the job, then ``done()`` in the applying thread."""

        def work() -> None:
            began = time.monotonic()
            try:
                job.run(rest)
            except Exception as error:  # above all a failed fsync
                self._end(error)
                return
            self.seconds.observe(time.monotonic() - began)
            self._later(done)

        self._thread = threading.Thread(target=work, name=self._name, daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Wait for the job under way; returns whether none is left."""
        thread = self._thread
        if thread is None:
            return True
        thread.join(timeout_s)
        return not thread.is_alive()


def rest() -> None:
    """Let the other threads run."""
    time.sleep(REST_S)
