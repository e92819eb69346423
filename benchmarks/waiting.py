"""What many waiting messages cost a replica: ``python -m benchmarks.waiting --records 10000000``.

It uses a state alone, without log and network. Its messages are due at random times of the next 30 days. They
come in entries of a thousand, a checkpoint is taken after each million, and files are merged as they would
be. ``--sealed`` writes at once the files that would be there in the end (for a hundred million). Another
process then recovers the state, looks keys up and reads in order, as a leader does.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from escrowmq.replication.log.disk import RealDisk, StoredFiles
from escrowmq.replication.replica.checkpoints import CheckpointJob, Checkpoints, MergeJob, timers_name
from escrowmq.replication.replica.replica import Limits
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.state.timers import BLOCK_ENTRIES
from escrowmq.replication.timers.record import FIRST_KEY, KEY_BYTES, RECORD, TIME_MAX
from escrowmq.replication.timers.sealed_file import SealedFile, encode
from escrowmq.replication.timers.store import YOUNG_MAX

T = TypeVar("T")
NOW_MS = 1_700_000_000_000
SPAN_MS = 30 * 86_400_000
PER_ENTRY, SIZE = 1_000, 100
LOOKED_UP, READ = 20_000, 500_000
KEYS = "keys"
WORK = ("adding", "checkpoints", "merging")


class Longest:
    """The longest call of the applying thread, in ms of its CPU time."""

    ms = 0.0

    def __call__(self, call: Callable[[], T]) -> T:
        begin = time.thread_time_ns()
        result = call()
        self.ms = max(self.ms, (time.thread_time_ns() - begin) / 1e6)
        return result


def empty() -> StateMachine:
    return StateMachine(0, 1)


def new_state() -> StateMachine:
    state = empty()
    state.topics.create("t", {"partitions": 1})
    state.applied_index, state.now_ms = 1, NOW_MS
    return state


def keep(state: StateMachine, records: list[bytes]) -> None:
    state.applied_index += 1
    counts = 0, state.applied_index // BLOCK_ENTRIES, len(records), SIZE * len(records)
    state.timers.keep(records, counts, NOW_MS)


def record(drawn: random.Random, index: int, ordinal: int) -> bytes:
    due_ms = NOW_MS + 1 + int(drawn.random() * SPAN_MS)
    return RECORD.pack(due_ms, 0, drawn.getrandbits(64), ordinal, index, 30 + SIZE * ordinal, SIZE)


@dataclass
class Filling:
    """A replica that takes messages, and what that costs."""

    disk: RealDisk
    longest: Longest = field(default_factory=Longest)
    spent_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(WORK, 0.0))
    written: int = 0
    most_files: int = 0

    def fill(self, count: int) -> tuple[dict[str, Any], list[bytes]]:
        """Everything as in a replica; figures and some of the keys."""
        checkpoints, drawn, keys = Checkpoints(self.disk), random.Random(1), list[bytes]()
        state, _ = checkpoints.recover(new_state)
        for left in range(count, 0, -PER_ENTRY):
            records = [record(drawn, state.applied_index + 1, n) for n in range(PER_ENTRY)]
            keys += [r[:KEY_BYTES] for r in drawn.sample(records, max(LOOKED_UP * PER_ENTRY // count, 1))]
            begin = time.thread_time()
            self.longest(lambda records=records: keep(state, records))  # type: ignore[misc]
            self.spent_s["adding"] += time.thread_time() - begin
            if checkpoints.due(state.applied_index) or left <= PER_ENTRY:
                self._take(state, checkpoints)
        figures = {
            "us_per_record": {name: round(1e6 * s / count, 2) for name, s in self.spent_s.items()},
            "longest_ms_of_the_applying_thread": round(self.longest.ms, 2),
            "most_files": self.most_files,
            "written_times": round(self.written / count, 2),
        }
        return figures, keys

    def _take(self, state: StateMachine, checkpoints: Checkpoints) -> None:
        self.longest(lambda: checkpoints.begin(state, 1))
        while checkpoints.busy:
            self.most_files = max(self.most_files, len(state.timers.store.files))
            job = self.longest(lambda: checkpoints.step(state, Limits().slice_visits))
            if job is None:
                continue
            begin = time.monotonic()
            job.run()
            what = "merging" if isinstance(job, MergeJob) else "checkpoints"
            self.spent_s[what] += time.monotonic() - begin
            self.longest(lambda job=job: checkpoints.done(state, job))  # type: ignore[misc]
            if isinstance(job, CheckpointJob):
                self.written += len(job.timers_file or ())
            elif isinstance(job, MergeJob):
                self.written += len(job.file or ())


def sealed(disk: RealDisk, count: int) -> tuple[dict[str, Any], list[bytes]]:
    """Only the files that there would be in the end."""
    state, keys, files, left = new_state(), list[bytes](), list[SealedFile](), count
    stored = StoredFiles(disk)
    for size in (64 * YOUNG_MAX, 8 * YOUNG_MAX, YOUNG_MAX):
        while left >= size:
            left -= size
            name = timers_name(len(files) + 2)
            disk.write_atomic(name, encode(_in_order(len(files), size, keys, max(count // LOOKED_UP, 1))))
            files.append(SealedFile(name, stored.file(name)))
    for _ in range(0, count - left, PER_ENTRY):
        state.applied_index += 1
        state.timers.counts.add(0, state.applied_index // BLOCK_ENTRIES, PER_ENTRY, PER_ENTRY * SIZE)
    state.timers.store.restore(files)
    checkpoints = Checkpoints(disk)
    checkpoints.begin(state, 1)
    job = checkpoints.step(state, 10)
    assert isinstance(job, CheckpointJob)
    job.run()
    return {}, keys


def _in_order(owner: int, count: int, keys: list[bytes], each: int) -> Iterator[list[bytes]]:
    pack = RECORD.pack
    for begin in range(0, count, PER_ENTRY):
        records = [
            pack(NOW_MS + 1 + row * SPAN_MS // count, 0, owner, row, begin + 1, 30, SIZE)
            for row in range(begin, begin + PER_ENTRY)
        ]
        if not begin % each:
            keys.append(records[begin // each % PER_ENTRY][:KEY_BYTES])
        yield records


def measured(disk: RealDisk, keys: list[bytes]) -> dict[str, Any]:
    """What a replica with these files sees."""
    figures = _used(disk, keys)
    begin = time.monotonic()
    Checkpoints(disk).recover(empty, doubtful=True)
    figures["recovery_after_damage_s"] = round(time.monotonic() - begin, 2)
    return figures


def _used(disk: RealDisk, keys: list[bytes]) -> dict[str, Any]:
    """Most blocks have not been checked when the first keys are looked up."""
    begin, before = time.monotonic(), _heap_mb()
    state, _ = Checkpoints(disk).recover(empty)
    recovered_s = time.monotonic() - begin
    store = state.timers.store
    sizes = [file.size for file in store.files]
    random.Random(2).shuffle(keys)
    first, later = keys[: LOOKED_UP // 4], keys[LOOKED_UP // 4 : LOOKED_UP]
    figures: dict[str, Any] = {
        "waiting": state.timers.counts.total,
        "files": len(sizes),
        "bytes": sum(sizes),
        "recovery_s": round(recovered_s, 3),
        "look_ups_per_s": {},
    }
    for name, some in (("first", first), ("later", later), ("again", later)):
        begin = time.monotonic()
        assert all(len(store.find(key).living) == 1 for key in some)
        figures["look_ups_per_s"][name] = round(len(some) / (time.monotonic() - begin))
    longest, after, found = Longest(), FIRST_KEY, 0
    begin = time.monotonic()
    while found < READ:
        some, after = longest(lambda after=after: store.due(after, TIME_MAX >> 10, 1_024))  # type: ignore[misc]
        if not some:
            break
        found += len(some)
    figures["read_in_order_per_s"] = round(found / (time.monotonic() - begin))
    figures["longest_ms_of_a_read"] = round(longest.ms, 1)
    figures["heap_mb"] = round(_heap_mb() - before)
    return figures


def _heap_mb() -> float:
    """Memory of this process without mapped files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=10_000_000, help="messages that wait")
    parser.add_argument("--sealed", action="store_true", help="write only the files of the end")
    parser.add_argument("--dir", type=Path, help="where to write; default: a temporary directory")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        data = (arguments.dir / KEYS).read_bytes()
        keys = [data[at : at + KEY_BYTES] for at in range(0, len(data), KEY_BYTES)]
        print(json.dumps(measured(RealDisk(arguments.dir / "log"), keys)))
        return
    with tempfile.TemporaryDirectory(dir=arguments.dir) as path:
        disk = RealDisk(Path(path) / "log")
        figures, keys = (
            sealed(disk, arguments.records) if arguments.sealed else Filling(disk).fill(arguments.records)
        )
        (Path(path) / KEYS).write_bytes(b"".join(keys))
        command = [sys.executable, "-m", "benchmarks.waiting", "--measure", "--dir", path]
        found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        print(json.dumps(figures | json.loads(found), indent=1))


if __name__ == "__main__":
    main()
