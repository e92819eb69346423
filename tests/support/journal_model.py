"""A journal on a simulated disk beside a dumb list that says what it must hold.

Each operation takes plain numbers, so that Hypothesis can shrink a run and a seed can replay it.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from escrowmq.replication.log.journal import SegmentJournal
from escrowmq.replication.log.syncjob import SyncJob
from tests.sim.environment.disk import PowerCut, SimDisk

SEGMENT_BYTES = 2000
SIZES = (0, 1, 7, 100, 400, 600, 1500, 2500)  # around a sector of 512 and a segment of 2,000
FREE = (0, 20, 300, 3000)
Vote = tuple[int, str | None]


class JournalModel:
    """``entries`` is the dumb list: every entry of the log line, dropped ones included."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.disk = SimDisk(random.Random(seed + 1))
        self.open_segments = 1 + seed % 3
        self.rolled: list[int] = []
        self.entries: dict[int, tuple[bytes, int, int]] = {}
        self.first, self.last, self.term = 1, 0, 1
        self.vote: Vote = (0, None)
        self.job: SyncJob | None = None
        self.journal = self.reopened()

    def reopened(self) -> SegmentJournal:
        return SegmentJournal(
            self.disk,
            segment_bytes=SEGMENT_BYTES,
            cache_bytes=1000,
            open_segments=self.open_segments,
            on_roll=self.rolled.append,
        )

    def run(self, name: str, a: int, b: int) -> None:
        """One operation, then everything that must always hold."""
        getattr(self, name)(a, b)
        self.check()

    # ------------------------------------------------------------ what a replica does

    def add(self, count: int, size: int) -> None:
        for k in range(1 + count % 8):
            self.last += 1
            length = SIZES[(size + k * size) % len(SIZES)]
            # Zeros are the hardest body: they look like a lost sector.
            command = bytes(length) if self.rng.random() < 0.2 else self.rng.randbytes(length)
            self.entries[self.last] = (command, self.last, self.term)
            self.journal.add(command, self.last, self.term)

    def new_term(self, a: int, b: int) -> None:
        self.term += 1
        self.vote = (self.term, (None, "r1", "r2")[a % 3])
        if not self.journal.durable_index:
            self.job = None  # a first vote waits for it
        self.journal.setCurrentTerm(*self.vote)

    def sync(self, a: int, b: int) -> None:
        self.journal.sync()
        self.job = None
        if not self.journal.disk_full:
            assert self.journal.durable_index == self.last
            assert self.journal.queued_bytes == 0
            assert self.journal.begin_sync() is None

    def begin_sync(self, a: int, b: int) -> None:
        if self.job is None:
            self.job = self.journal.begin_sync()
        assert self.journal.begin_sync() is None, "one job at a time"

    def end_sync(self, a: int, b: int) -> None:
        if self.job is not None:
            for _ in range(1 + a % 2):  # running it twice runs it once
                self.job.run()
            self.journal.end_sync(self.job)
            self.job = None

    def cut(self, a: int, b: int) -> None:
        keep = self._any_cut(a)
        self.journal.deleteEntriesFrom(keep + 1 - self.first)
        assert self.journal.durable_index <= keep
        self._forget_after(keep)
        self.job = None

    def drop(self, a: int, b: int) -> None:
        index = self.first + a % (self.last - self.first + 2)
        first = self.journal.drop_before(index)
        assert self.first <= first <= max(self.first, min(index, self.last - 1))
        self.first = first

    # ------------------------------------------------------------ what happens to it

    def disk_fills_up(self, a: int, b: int) -> None:
        self.disk.capacity = self.disk.used_bytes() + FREE[a % len(FREE)]

    def room_again(self, a: int, b: int) -> None:
        self.disk.capacity = None

    def damage_sidecar(self, a: int, b: int) -> None:
        """Sidecars are derived: any of them may rot."""
        sizes = {n: self.disk.open(n).size() for n in self.disk.names() if n.endswith(".pos")}
        names = [name for name, size in sizes.items() if size]
        if names:
            name = names[a % len(names)]
            self.disk.flip(name, b % sizes[name])

    def crash(self, a: int, b: int) -> None:
        durable = self.journal.durable_index
        self._stop(a)
        self._recover(durable)

    def crash_during_sync(self, a: int, b: int) -> None:
        durable = self.journal.durable_index
        if self._stopped_after(b % 16, self.journal.sync):
            durable = self.journal.durable_index
        self._stop(a)
        self._recover(durable)

    def crash_during_cut(self, a: int, b: int) -> None:
        keep = self._any_cut(a)
        durable = min(keep, self.journal.durable_index)
        if self._stopped_after(b % 12, lambda: self.journal.deleteEntriesFrom(keep + 1 - self.first)):
            self._forget_after(keep)
        self._stop(a)
        self._recover(durable)

    def crash_during_vote(self, a: int, b: int) -> None:
        old, new = self.vote, (self.vote[0] + 1, "r0")
        durable = self.journal.durable_index
        if self._stopped_after(b % 5, lambda: self.journal.setCurrentTerm(*new)):
            old = new
        self._stop(a)
        self._recover(durable, votes=(old, new))

    def crash_during_recovery(self, a: int, b: int) -> None:
        durable = self.journal.durable_index
        self._stop(a)
        self._stopped_after(b % 8, self.reopened)
        self._stop(a + b)
        self._recover(durable)

    # ------------------------------------------------------------ helpers and checks

    def _any_cut(self, a: int) -> int:
        return self.first - 1 + a % (self.last - self.first + 2)

    def _stopped_after(self, operations: int, action: Callable[[], object]) -> bool:
        """Run ``action`` and stop it at that disk operation; True if it finished before."""
        self.disk.stop_after(operations)
        try:
            action()
        except PowerCut:
            return False
        return True

    def _stop(self, a: int) -> None:
        if a % 3:
            self.disk.power_cut()
        else:
            self.disk.kill()

    def _forget_after(self, keep: int) -> None:
        for index in range(keep + 1, self.last + 1):
            del self.entries[index]
        self.last = keep

    def _recover(self, durable: int, votes: tuple[Vote, ...] | None = None) -> None:
        self.job = None
        self.journal = journal = self.reopened()
        assert journal.last_index >= durable or (not len(journal) and durable < self.first)
        assert journal.last_index <= self.last
        assert journal.first_index <= max(self.first, 1)
        for index in range(journal.first_index, journal.last_index + 1):
            assert journal[index - journal.first_index] == self.entries[index]
        vote = (journal.getCurrentTerm(), journal.getVotedForNodeId())
        assert vote in (votes or (self.vote,))
        self.vote, self.term = vote, max(self.term, vote[0])
        self._forget_after(journal.last_index)
        self.first = journal.first_index
        assert journal.durable_index == journal.last_index

    def check(self) -> None:
        """The journal reads like the list."""
        journal = self.journal
        assert (journal.first_index, journal.last_index) == (self.first, self.last)
        assert len(journal) == self.last - self.first + 1
        assert journal.getRaftCommitIndex() == 1
        if self.last < self.first:
            return
        assert journal.last_term == self.entries[self.last][2]
        index = self.rng.randint(self.first, self.last)
        command, _, term = self.entries[index]
        assert journal.read(index) == command
        assert journal.term_at(index) == term
        start = journal.first_of_term(index)
        assert all(self.entries[i][2] == term for i in range(start, index))
        assert start == self.first or self.entries[start - 1][2] != term
        low = self.rng.randint(0, len(command))
        high = self.rng.randint(low, len(command))
        assert journal.read_range(index, low, high - low) == command[low:high]
        limit = self.rng.choice((1, 500, 5000))
        batch = journal.batch(index, limit)
        assert batch == [self.entries[i] for i in range(index, index + len(batch))]
        assert len(batch) == 1 or (batch and sum(len(row[0]) for row in batch) <= limit)
        assert journal.segment_start(index) <= index
        infos = journal.segments()
        assert [i.first for i in infos[1:]] == [i.last + 1 for i in infos[:-1]]
        assert infos[-1].last == self.last
        assert not infos[-1].sealed


#: Operation and how often the seeded run takes it.
OPERATIONS = {
    "add": 30,
    "new_term": 3,
    "sync": 10,
    "begin_sync": 8,
    "end_sync": 8,
    "cut": 3,
    "drop": 4,
    "disk_fills_up": 3,
    "room_again": 4,
    "damage_sidecar": 2,
    "crash": 2,
    "crash_during_sync": 4,
    "crash_during_cut": 3,
    "crash_during_vote": 1,
    "crash_during_recovery": 2,
}
