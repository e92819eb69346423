"""Searching one replica's messages by key, transaction id, business key or header.

For a header all rows are read. For the others a block of 65,536 offsets is read once, when a question first
needs it, and what was found is kept as a ``.find`` file (below). Clients ask followers, so the leader
has no work with it; nothing is done while messages are written. One block is read at a time, in a
thread of its own that exists once somebody has searched; below is how much of a core it may use.

An answer says up to which offset it holds, and it never names a message that was not compared itself.
"""

from __future__ import annotations

import contextlib
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from escrowmq.replication.calling.finding_answers import FoundRows
from escrowmq.replication.calling.metrics_report import FindMetrics
from escrowmq.replication.errors import (
    CorruptLog,
    DiskFailed,
    DiskFull,
    EscrowMQError,
    InvalidMessage,
    Overloaded,
    Unavailable,
    UnknownVersion,
)
from escrowmq.replication.format import find_table
from escrowmq.replication.format.find_rows import IN_HEADER, entries_of, is_sought, split_rows
from escrowmq.replication.format.find_table import (
    BLOCK_OFFSETS,
    BUSINESS_KEY,
    KEY,
    ORIGIN,
    TX_ID,
    Head,
    entry_of,
    indexes,
)
from escrowmq.replication.log.disk import Disk, File
from escrowmq.replication.metrics import LONG_S, Histogram
from escrowmq.replication.model import NO_ID, ResultCode
from escrowmq.replication.replica.fetching import FetchRequest, FetchResult
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.state.topics import Partition

# ------------------------------------------------------------------------------------------------------------
# The ``.find`` files of one replica: one for each block of 65,536 offsets that somebody has searched.
#
# They are a cache. Whatever is wrong with one of them (damaged, half-written, of another version,
# unreadable), it is removed, and made anew when it is needed; a failure here never ends the replica. So
# nothing is synced, and the files are read with plain reads: a bad sector under a memory map would kill the
# process.
#
# Of each file only the head is kept in memory, 3 KB for 1 MiB; a look-up reads one page of 4 KiB.

SUFFIX = ".find"
_TEMPORARY = ".tmp"
#: Upper bound of their number, whatever their size: a file without entries has 40 bytes, but takes a name.
FILES_MAX = 20_000
_UNUSABLE = (CorruptLog, UnknownVersion, DiskFailed, DiskFull, FileNotFoundError)

#: A slot and the number of a block.
BlockKey = tuple[int, int]


class Directory(Protocol):
    """What is needed of a disk."""

    def names(self) -> list[str]: ...

    def open(self, name: str, create: bool = False) -> File: ...

    def remove(self, name: str) -> None: ...

    def rename(self, old: str, new: str) -> None: ...


class _NoDisk:
    """Holds nothing, and takes nothing."""

    def names(self) -> list[str]:
        return []

    def open(self, name: str, create: bool = False) -> File:
        raise FileNotFoundError(name)

    def remove(self, name: str) -> None: ...

    def rename(self, old: str, new: str) -> None:
        raise FileNotFoundError(old)


class _Known(NamedTuple):
    size: int
    head: Head | None


class FindFiles:
    """Thread-safe. ``dropped`` counts files that were removed because something was wrong with them."""

    def __init__(self, disk: Directory, bytes_max: int) -> None:
        """``bytes_max``: beyond it, the files that were not used for longest go."""
        self._disk, self._bytes_max = disk, bytes_max
        self._lock = threading.Lock()
        self._known: dict[BlockKey, _Known] = {}  # the least recently used first
        self._bytes = 0
        self.dropped = 0
        for name in disk.names():
            key = _key_of_name(name)
            if key is None:
                self._remove(name)
                continue
            with contextlib.suppress(*_UNUSABLE):
                self._known[key] = _Known(disk.open(name).size(), None)
                self._bytes += self._known[key].size
        self._make_room(0)

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, key: BlockKey) -> bool:
        return key in self._known

    @property
    def bytes(self) -> int:
        """Bytes in all files."""
        return self._bytes

    def candidates(self, key: BlockKey, low: int, since: int) -> list[int] | None:
        """The indexes within the block of the messages that have the hash whose lowest entry is ``low``, in
        order. None: there is no usable file for this block, or one that begins behind the offset ``since``.
        (A replica that has lost its memory has to repeat retention, and until then it has messages that it
        had not when it wrote the file.)"""
        with self._lock:
            known = self._known.pop(key, None)
            if known is None:
                return None
            self._known[key] = known  # now it is the most recently used
            try:
                found = self._candidates(key, known, low, since)
            except _UNUSABLE:
                self._drop(key)
                self.dropped += 1
                return None
            if found is None:
                self._drop(key)
            return found

    def _candidates(self, key: BlockKey, known: _Known, low: int, since: int) -> list[int] | None:
        file = self._disk.open(_name(key))
        try:
            head = known.head
            if head is None:
                entries = find_table.entries_announced(file.read(0, find_table.HEAD.size))
                head = find_table.decode_head(
                    file.read(0, min(find_table.head_bytes(entries), known.size)), known.size
                )
                self._known[key] = _Known(known.size, head)
            if head.first > since:
                return None
            found: list[int] = []
            for number in head.pages_with(low):
                page = find_table.decode_page(file.read(*head.page(number)), head.sums[number])
                found += find_table.indexes(page, low)
            return found
        finally:
            file.close()

    def put(self, key: BlockKey, first: int, end: int, entries: Sequence[int]) -> bool:
        """Store a block. False: it could not be written."""
        parts = find_table.encode(first, end, entries)
        size = sum(map(len, parts))
        if size > self._bytes_max:
            return False
        name = _name(key)
        try:
            self._disk.remove(name + _TEMPORARY)
            file = self._disk.open(name + _TEMPORARY, create=True)
            try:
                file.append(parts)
            finally:
                file.close()
            with self._lock:
                self._drop(key)
                self._make_room(size)
                self._disk.rename(name + _TEMPORARY, name)
                self._known[key], self._bytes = _Known(size, None), self._bytes + size
        except _UNUSABLE:
            self._remove(name + _TEMPORARY)
            return False
        return True

    def keep(self, is_alive: Callable[[BlockKey], bool]) -> None:
        """Remove the files of blocks that are gone."""
        with self._lock:
            for key in [key for key in self._known if not is_alive(key)]:
                self._drop(key)

    def _make_room(self, size: int) -> None:
        while self._known and (self._bytes + size > self._bytes_max or len(self._known) >= FILES_MAX):
            self._drop(next(iter(self._known)))

    def _drop(self, key: BlockKey) -> None:
        known = self._known.pop(key, None)
        if known is not None:
            self._bytes -= known.size
            self._remove(_name(key))

    def _remove(self, name: str) -> None:
        with contextlib.suppress(*_UNUSABLE):
            self._disk.remove(name)


def opened(disk_of: Callable[[], Disk], bytes_max: int) -> FindFiles:
    """The files of a directory, which may have to be created. If it cannot be used, none: then nothing is
    kept, but searching works."""
    try:
        return FindFiles(disk_of(), bytes_max)
    except (*_UNUSABLE, OSError):
        return FindFiles(_NoDisk(), 0)


def _name(key: BlockKey) -> str:
    return f"{key[0]}-{key[1]}{SUFFIX}"


def _key_of_name(name: str) -> BlockKey | None:
    slot, _, block = name.removesuffix(SUFFIX).partition("-")
    if not (slot.isdecimal() and block.isdecimal()) or _name((int(slot), int(block))) != name:
        return None
    return int(slot), int(block)


# ------------------------------------------------------------------ searching
# One search in one partition: reads the rows of candidates, or all rows, and compares them.


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


# ------------------------------------------------------------------ shares of the work
# How much processor time searching may take from a replica.
#
# On average a twentieth of a core. What was not used is saved up, to ten minutes' worth: so the first
# question after a while is answered at full speed (half a minute of work reads some fifteen million
# messages), and somebody who asks all day cannot slow the replica down.


#: Seconds of work that may be saved up: 5 % of ten minutes.
SAVED_S = 30.0


class WorkBudget:
    """Thread-safe. ``share``: of one core, above 0."""

    def __init__(self, share: float, clock: Callable[[], float]) -> None:
        self._share, self._clock = share, clock
        self._lock = threading.Lock()
        self._left_s, self._at = SAVED_S, clock()

    def spend(self, seconds: float) -> None:
        """So much processor time was used."""
        with self._lock:
            now = self._clock()
            self._left_s = min(self._left_s + (now - self._at) * self._share, SAVED_S) - seconds
            self._at = now

    def pause_s(self) -> float:
        """How long to wait before more work; 0: none is needed."""
        with self._lock:
            earned = (self._clock() - self._at) * self._share
            return max(-(self._left_s + earned) / self._share, 0.0)


# ------------------------------------------------------------------ finding


#: Searches that may be under way here: each holds a thread of the broker while it waits for a block.
SEARCHES_MAX = 4
#: Longest wait of one search; its caller then asks again.
WAIT_S_MAX = 1.0
#: Messages of one answer.
ROWS_MAX = 1_000
#: Entries of blocks that are not in files, because the partition's end lies in them or the disk has no room:
#: 64 MiB.
YOUNG_ENTRIES_MAX = 8 << 20
#: Blocks that wait for the thread.
WANTED_MAX = 64
#: Files of blocks that are gone are removed this often.
SWEEP_S = 60.0


class _Young(NamedTuple):
    """A block that is in memory: ``[first, end)``."""

    first: int
    end: int
    entries: array[int]


class Finder:
    """See the module's text. Thread-safe; ``stop`` ends its thread."""

    def __init__(
        self,
        state: StateMachine,
        fetch: Fetch,
        open_files: Callable[[], FindFiles],
        *,
        share: float,
        name: str,
        scarce: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
        own_thread: bool = True,
        block_offsets: int = BLOCK_OFFSETS,
    ) -> None:
        """``open_files``: called once, by the first question. ``own_thread=False``: blocks are read by
        whoever asks, for clusters without threads. ``block_offsets``: up to ``BLOCK_OFFSETS``."""
        self._state, self._fetch, self._open_files = state, fetch, open_files
        self._scarce, self._clock, self._own_thread = scarce, clock, own_thread
        self._block_offsets = block_offsets
        self.budget = WorkBudget(share, clock)
        self._files: FindFiles | None = None
        self._young: dict[BlockKey, _Young] = {}  # the least recently used first
        self._wanted: dict[BlockKey, Partition] = {}
        self._failed: dict[BlockKey, EscrowMQError] = {}
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)
        self._working = threading.Lock()  # one block or scan at a time
        self._free = threading.Semaphore(SEARCHES_MAX)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        #: How long it took to read each block since the start, with the pauses that the budget demands.
        self.build_s = Histogram(LONG_S)
        self._hits = self._misses = 0

    @property
    def built(self) -> int:
        """Blocks that were read since the start; one that has grown counts again."""
        return sum(self.build_s.counts)

    def report(self) -> FindMetrics:
        """The counters, for the exporter."""
        files, entries = self._files, sum(len(one.entries) for one in list(self._young.values()))
        return FindMetrics(
            bytes=0 if files is None else files.bytes,
            files=0 if files is None else len(files),
            memory_bytes=entries * array("Q").itemsize,
            hits=self._hits,
            misses=self._misses,
            damaged=0 if files is None else files.dropped,
        )

    # -------------------------------------------------------------- asking

    def find(self, sought: Sought, start: int, until: int, limit: int, wait_s: float) -> FoundRows:
        """Up to ``limit`` messages of ``[start, until)``; see ``FoundRows``.

        Raises Overloaded, Unavailable while what it needs is damaged here, InvalidMessage for a kind that
        this version does not know.
        """
        if sought.kind not in (KEY, TX_ID, BUSINESS_KEY, ORIGIN, IN_HEADER):
            raise InvalidMessage(f"this replica cannot search for kind {sought.kind}; upgrade it")
        found = self._state.topics.find(sought.topic, sought.partition)
        if not isinstance(found, Partition):
            return FoundRows(code=int(found))
        if sought.topic_id not in (NO_ID, found.topic_id):
            return FoundRows(code=int(ResultCode.OTHER_TOPIC), end=found.topic_id)
        if not self._free.acquire(blocking=False):
            raise Overloaded(f"{SEARCHES_MAX} searches are under way at this replica", 0.25)
        try:
            with self._state.cut:
                end = found.index.end
            search = Search(self._state, self._fetch, found, sought, max(1, min(limit, ROWS_MAX)))
            reached = max(start, found.index.start)
            deadline = self._clock() + max(0.0, min(wait_s, WAIT_S_MAX))
            reached = self._search(search, reached, min(until, end), deadline)
            return FoundRows(0, end, reached, search.offsets, search.times_ms, search.rows)
        finally:
            self._free.release()

    def _search(self, search: Search, at: int, end: int, deadline: float) -> int:
        low = 0 if search.sought.kind == IN_HEADER else entry_of(search.sought.kind, search.sought.needle, 0)
        while at < end and not search.is_full():
            if search.sought.kind == IN_HEADER:
                reached = self._scan(search, at, end, deadline)
                if reached == at:
                    break
                at = reached
                continue
            block = at // self._block_offsets
            upto = min(end, (block + 1) * self._block_offsets)
            candidates = self._candidates(search.partition, block, upto, low, deadline)
            if candidates is None:
                break
            for index in candidates:
                offset = block * self._block_offsets + index
                if at <= offset < upto:
                    search.look_at(offset)
                    if search.is_full() or self._clock() > deadline:
                        return offset + 1
            at = upto
        return at

    def _candidates(
        self, partition: Partition, block: int, upto: int, low: int, deadline: float
    ) -> list[int] | None:
        """The indexes within a block of messages that may have it, once the block is read up to ``upto``;
        None: it is not in time."""
        key, first = (partition.slot, block), True
        while True:
            since = max(block * self._block_offsets, partition.index.start)
            found = self._opened().candidates(key, low, since)
            with self._lock:
                young = self._young.pop(key, None) if found is None else None
                if young is not None:
                    self._young[key] = young  # now it is the most recently used
                    if young.end >= upto:
                        found = indexes(young.entries, low)
                if first:
                    self._hits += found is not None
                    self._misses += found is None
                    first = False
                if found is not None:
                    return found
                failed = self._failed.pop(key, None)
                if failed is not None:
                    raise failed
            if not self._own_thread:
                self._read_block(partition, block)
                continue
            if not self._wait_for(partition, block, deadline):
                return None

    def _wait_for(self, partition: Partition, block: int, deadline: float) -> bool:
        """Have the thread read a block, and some that follow. False: no time is left."""
        last = (partition.index.end - 1) // self._block_offsets
        with self._lock:
            if self._stopping.is_set():
                raise Unavailable("the replica is stopping", 0.2)
            for number in range(block, min(last, block + 3) + 1):
                key = partition.slot, number
                if len(self._wanted) < WANTED_MAX and (number == block or key not in self._opened()):
                    self._wanted.setdefault(key, partition)
            self._begin()
            left_s = deadline - self._clock()
            return left_s > 0 and self._news.wait(left_s)

    def begin(self) -> None:
        """There may be files of earlier questions: remove those of messages that are gone, from now on."""
        self._opened()
        with self._lock:
            self._begin()

    def _begin(self) -> None:
        if self._thread.ident is None:
            self._thread.start()
        self._news.notify_all()

    def _opened(self) -> FindFiles:
        if self._files is None:
            with self._working:
                if self._files is None:
                    self._files = self._open_files()
        return self._files

    def _scan(self, search: Search, at: int, end: int, deadline: float) -> int:
        """Look for a header in all rows from ``at`` on; returns the offset up to which it has looked."""
        if not self._working.acquire(timeout=max(0.0, deadline - self._clock())):
            return at
        try:
            pause_s = self.budget.pause_s()
            if pause_s and self._stopping.wait(min(pause_s, max(0.0, deadline - self._clock()))):
                raise Unavailable("the replica is stopping", 0.2)
            while not self.budget.pause_s():
                began = time.thread_time()
                at = search.scan(at, end)
                self.budget.spend(time.thread_time() - began)
                if at >= end or search.is_full() or self._clock() >= deadline:
                    break
                time.sleep(0)  # lets the replica's own thread run
            return at
        finally:
            self._working.release()

    # -------------------------------------------------------------- reading blocks

    def _read_block(self, partition: Partition, block: int) -> None:
        """Read what is missing of a block, as far as the partition goes."""
        key, begin = (partition.slot, block), block * self._block_offsets
        began_s = self._clock()
        upto = min(begin + self._block_offsets, partition.index.end)
        with self._working:
            with self._lock:
                young = self._young.get(key)
            at = max(begin, partition.index.start) if young is None else young.end
            first, fresh = (at, list[int]()) if young is None else (young.first, young.entries.tolist())
            while at < upto:
                pause_s = self.budget.pause_s()
                if self._stopping.wait(pause_s) if pause_s else self._stopping.is_set():
                    return
                began = time.thread_time()
                at = self._read_rows(partition, at, upto, fresh, begin)
                self.budget.spend(time.thread_time() - began)
                time.sleep(0)  # lets the replica's own thread run
            fresh.sort()
            self._keep(key, _Young(first, at, array("Q", fresh)), whole=at >= begin + self._block_offsets)
            self.build_s.observe(self._clock() - began_s)

    def _read_rows(self, partition: Partition, at: int, upto: int, entries: list[int], begin: int) -> int:
        """Add the entries of some rows from ``at`` on; returns the offset behind them."""
        runs, blob = fetched(self._fetch, partition, at, upto)
        if self._state.topics.slots.get(partition.slot) is not partition:
            return upto  # deleted: nobody will ask for this block again
        if not runs:
            return min(max(at, partition.index.start), upto)  # retention overtook this, or see ``fetched``
        base, count = runs[0][0], sum(run[1] for run in runs)
        try:
            found = entries_of(blob, count, base - begin, self._block_offsets)
        except CorruptLog:  # some run's rows are none, whoever wrote them: the others can be read
            found, pos = [], 0
            for run_base, messages, _, size in runs:
                found += self._entries_if_rows(blob[pos : pos + size], messages, run_base - begin)
                pos += size
        if base < at:  # a run that begins before what is missing
            found = [entry for entry in found if entry & 0xFFFF >= at - begin]
        entries += found
        return base + count

    def _entries_if_rows(self, rows: bytes, count: int, index: int) -> list[int]:
        try:
            return entries_of(rows, count, index, self._block_offsets)
        except CorruptLog:
            return []

    def _keep(self, key: BlockKey, young: _Young, whole: bool) -> None:
        files = self._files
        if whole and files is not None:
            if self._scarce():
                files.keep(lambda key: False)  # room on the disk is for messages
            elif files.put(key, young.first, young.end, young.entries):
                with self._lock:
                    self._young.pop(key, None)
                return
        with self._lock:
            self._young.pop(key, None)
            self._young[key] = young
            total = sum(len(one.entries) for one in self._young.values())
            while total > YOUNG_ENTRIES_MAX and len(self._young) > 1:
                oldest = next(iter(self._young))
                total -= len(self._young.pop(oldest).entries)

    # -------------------------------------------------------------- the thread

    def _run(self) -> None:
        sweep_at = self._clock() + SWEEP_S
        while not self._stopping.is_set():
            with self._lock:
                if not self._wanted:
                    self._news.wait(max(0.0, sweep_at - self._clock()))
                key, partition = next(iter(self._wanted.items()), (None, None))
            if key is not None and partition is not None:
                self._work_on(key, partition)
            if self._clock() >= sweep_at:
                self.sweep()
                sweep_at = self._clock() + SWEEP_S

    def _work_on(self, key: BlockKey, partition: Partition) -> None:
        failed: EscrowMQError | None = None
        try:
            self._read_block(partition, key[1])
        except EscrowMQError as error:  # the next question is told, and may ask another replica
            failed = error
        except Exception as error:  # so is that of a defect: without this thread nobody would get an answer
            failed = Unavailable(f"block {key} cannot be read: {error!r}", 1.0)
        with self._lock:
            self._wanted.pop(key, None)
            self._failed.pop(key, None)
            if failed is not None and len(self._failed) < WANTED_MAX:
                self._failed[key] = failed
            self._news.notify_all()

    def sweep(self) -> None:
        """Remove what is kept about messages that are gone."""

        def is_alive(key: BlockKey) -> bool:
            partition = self._state.topics.slots.get(key[0])
            return partition is not None and (key[1] + 1) * self._block_offsets > partition.index.start

        if self._files is not None:
            self._files.keep(is_alive)
        with self._lock:
            for key in [key for key in self._young if not is_alive(key)]:
                del self._young[key]

    def stop(self, timeout_s: float = 10.0) -> bool:
        """Returns whether the thread has ended, or never ran."""
        with self._lock:
            self._stopping.set()
            self._news.notify_all()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()
