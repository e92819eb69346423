"""A hundred million delayed messages wait: starting, memory, commits and cancellations on a real cluster.

Sending them takes a quarter of an hour; the files that they leave are written in a minute. All records refer
to a few rows of a small log, which nothing but a release or carrying would read, and the three replicas share
one copy of the files, which never change. The same is measured on the same log with none of them.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from signal import SIGKILL
from typing import TYPE_CHECKING, Any

import numpy as np

import escrowmq
from benchmarks.group import GroupUnderTest
from benchmarks.live.generated import MS_PER_ENTRY, LogWriter, Say, install, topic_name
from benchmarks.live.waiting import until
from benchmarks.load.replicas import Replicas, pid_of, send_signal
from benchmarks.load.series import own_megabytes
from benchmarks.measure import Latencies
from benchmarks.workload import bulk_transactions
from escrowmq.actors.admin.topic_creation import topic_settings
from escrowmq.actors.client.cancelling import ScheduleId
from escrowmq.replication.format import ops, timer_ops
from escrowmq.replication.format.codec import encode_row
from escrowmq.replication.log.disk import StoredFiles
from escrowmq.replication.replica.checkpoints import timers_name
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.state.timers import BLOCK_ENTRIES
from escrowmq.replication.timers.record import FIRST_KEY, RECORD, RECORD_BYTES, TIME_MAX, Timer, split
from escrowmq.replication.timers.sealed_file import SUFFIX, SealedFile, encode

if TYPE_CHECKING:
    from escrowmq import Cluster

PARTITIONS = 4
#: Messages are due from a day after the start on, within 30 days.
DAY_MS = 86_400_000
SPAN_MS = 30 * DAY_MS
OWNER = timer_ops.owner_of("generated")
#: Records of the files that eight merges of eight leave.
SIZES = (64_000_000, 8_000_000, 1_000_000)
CHUNK = 26_000  # records made at once, about a block of a file
KILLS, TURNS, IN_FLIGHT, CANCELLERS = 3, 3, 1_024, 64
_RECORD = np.dtype(
    {
        "names": ["ms", "slot", "owner", "ordinal", "index", "position", "size"],
        "formats": [">u8", ">u4", ">u8", ">u4", ">u8", ">u4", ">u4"],
    }
)
assert _RECORD.itemsize == RECORD_BYTES


class Generated:
    """A log with a message in each partition, and ``count`` records of the same messages."""

    def __init__(self, log: Path, count: int, now_ms: int, say: Say) -> None:
        self.count, self.first_ms = count, now_ms + DAY_MS
        writer = LogWriter(log, 64 << 20)
        entries = [(1, [ops.create_topic(topic_name(0), topic_settings(PARTITIONS), 0)])]
        begin_ms = now_ms - MS_PER_ENTRY * (len(entries) + PARTITIONS)
        writer.run(entries, begin_ms, say)
        topic_id = writer.state.topics.topics[topic_name(0)].info.topic_id
        row = encode_row(b"", b"x" * 80, None, None)
        for number in range(PARTITIONS):
            # They are due behind all others.
            times = [self.first_ms + SPAN_MS + DAY_MS + number]
            meta = (times, [row], timer_ops.owner_of("first"), number, -1, topic_id)
            frame = timer_ops.scheduled(topic_name(0), number, "first", 0, -1, *meta)
            writer.run([(1, [frame])], writer.state.now_ms, say)
        self._fill(writer, say)
        writer.end(say)

    def _fill(self, writer: LogWriter, say: Say) -> None:
        state: StateMachine = writer.state
        known, _ = state.timers.store.listed(FIRST_KEY, TIME_MAX >> 10, PARTITIONS)
        rows = sorted((Timer(*RECORD.unpack(record)) for record in known), key=lambda timer: timer.slot)
        assert len(rows) == PARTITIONS, "each partition has one"
        self.slots = [timer.slot for timer in rows]
        files, begin = list[SealedFile](), 0
        stored = StoredFiles(writer.disk)
        for number, size in enumerate(self._sizes()):
            name = timers_name(number + 2)
            writer.disk.write_atomic(name, encode(self._records(rows, begin, size)))
            files.append(SealedFile(name, stored.file(name)))
            begin += size
            say(f"{begin:,} records")
        for timer in rows if begin else ():
            each = self.count // PARTITIONS
            state.timers.counts.add(timer.slot, timer.log_index // BLOCK_ENTRIES, each, each * timer.size)
        state.timers.store.restore(files)

    def _sizes(self) -> Iterator[int]:
        left = self.count
        for size in SIZES:
            while left >= size:
                left -= size
                yield size
        assert not left, f"not a sum of {SIZES}"

    def _records(self, rows: list[Timer], begin: int, size: int) -> Iterator[list[bytes]]:
        """In order: each has a time of its own."""
        template = np.zeros(PARTITIONS, _RECORD)
        for number, timer in enumerate(rows):
            template[number] = (0, timer.slot, OWNER, 0, *timer[4:])
        for first in range(begin, begin + size, CHUNK):
            ordinals = np.arange(first, min(first + CHUNK, begin + size), dtype=np.int64)
            records = template[ordinals % PARTITIONS]
            records["ordinal"], records["ms"] = ordinals, self.time_ms(ordinals - begin, size)
            yield split(records.tobytes())

    def time_ms(self, row: Any, size: int) -> Any:
        """Of a row of a file of that size."""
        return self.first_ms + row * (SPAN_MS // size)

    def ids(self, cluster_id: str) -> Iterator[str]:
        """Ids of drawn messages, each once."""
        drawn = random.Random(1)
        sizes = list(self._sizes())
        begins = [sum(sizes[:n]) for n in range(len(sizes))]
        seen = set[int]()
        while True:
            ordinal = drawn.randrange(self.count)
            if ordinal in seen:
                continue
            seen.add(ordinal)
            begin, size = next((b, s) for b, s in zip(begins, sizes, strict=True) if ordinal < b + s)
            time_ms = self.time_ms(ordinal - begin, size)
            number = ordinal % PARTITIONS
            yield ScheduleId(topic_name(0), number, time_ms, OWNER, ordinal).text(cluster_id)


def measure(folder: Path, count: int, seconds: float, say: Say) -> dict[str, Any]:
    """Run the experiment; returns its figures, with none and with ``count``."""
    found: dict[str, Any] = {}
    for name, waiting in (("none", 0), ("many", count)):
        where = folder / name
        where.mkdir(parents=True)
        data_dir = where / "data"
        escrowmq.start_local(1, 3, data_dir).close()
        made = Generated(where / "log", waiting, int(1000 * time.time()), say)
        install(where / "log", data_dir, 3, linked=SUFFIX)
        begin = time.monotonic()
        with escrowmq.start_local(1, 3, data_dir) as cluster:
            until(lambda cluster=cluster: cluster.status().healthy, "all replicas to be healthy")  # type: ignore[misc]
            opened = time.monotonic() - begin
            say(f"{name}: opened in {opened:.2f} s")
            found[name] = {"opened_s": opened, **_measured(cluster, made, seconds, say)}
    files = (folder / "many" / "log").glob(f"*{SUFFIX}")
    found["bytes_of_files"] = sum(path.stat().st_size for path in files)
    return found


def _measured(cluster: Cluster, made: Generated, seconds: float, say: Say) -> dict[str, Any]:
    group = cluster.status().groups[0]
    assert group.timers is not None and group.timers.waiting == made.count + PARTITIONS, group.timers
    found: dict[str, Any] = {"memory_mb": {"opened": _memory_mb(cluster)}}
    found["follower_back_s"] = statistics.median(_follower_back_s(cluster) for _ in range(KILLS))
    say(f"a killed follower is back after {found['follower_back_s']:.2f} s (median of {KILLS})")
    under_test = GroupUnderTest(cluster)
    cluster.admin.create_topic("commits", partitions=PARTITIONS)
    with under_test.producer(app="bench-pending") as producer:
        rates = [
            bulk_transactions(under_test, producer, "commits", IN_FLIGHT, seconds / 2).traffic.per_s
            for _ in range(TURNS + 1)
        ]
        found["commits_per_s"] = statistics.median(rates[1:])
        if made.count:
            ids = made.ids(cluster.info.cluster_id)
            for name in ("first", "later"):
                found[f"cancels_{name}"] = asyncio.run(_cancels(producer, ids, seconds))
                say(f"cancels, {name}: {found[f'cancels_{name}']}")
    found["memory_mb"]["used"] = _memory_mb(cluster)
    say(f"{found}")
    return found


async def _cancels(producer: Any, ids: Iterator[str], seconds: float) -> dict[str, float]:
    """By tasks that cancel one message after the other."""
    latency, end = Latencies(), time.perf_counter() + seconds
    ready = list(islice(ids, int(30_000 * seconds)))  # made beforehand: that is not measured
    count, begin = 0, time.perf_counter()
    end = begin + seconds

    async def one() -> None:
        nonlocal count
        while (sent := time.perf_counter()) < end:
            if not await producer.aio.cancel(ready.pop()):
                raise RuntimeError("a message that waits could not be cancelled")
            latency.add(time.perf_counter() - sent)
            count += 1

    await asyncio.gather(*(one() for _ in range(CANCELLERS)))
    return {"per_s": count / (time.perf_counter() - begin), **latency.summary()}


def _memory_mb(cluster: Cluster) -> dict[str, float]:
    """The replicas' own memory, without mapped files."""
    return {
        f"{replica.role} {replica.replica}": own_megabytes(pid_of(replica)) or 0.0
        for replica in Replicas(cluster).all()
    }


def _follower_back_s(cluster: Cluster) -> float:
    """From SIGKILL until a new process has caught up."""
    replicas = Replicas(cluster)
    victim = replicas.followers()[0]
    begin = time.monotonic()
    send_signal(pid_of(victim), SIGKILL)
    replicas.restarted(victim)
    replicas.caught_up(victim.replica)
    took = time.monotonic() - begin
    until(lambda: cluster.status().healthy, "all replicas to be healthy")
    return took
