"""How long stored data block the thread that sends heartbeats: ``python -m benchmarks.stored``.

It uses a state alone, without log or network: 10,000 topics of 4 partitions, ten million runs, and consumer
groups. Each piece of work that a replica's thread does without a break is measured in CPU time of that
thread, which other processes hardly influence. The longest piece is the longest delay of a heartbeat.
"""

from __future__ import annotations

import argparse
import gc
import json
import pickle
import tempfile
import time
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from escrowmq.actors.broker.broker_calls import PackedTopics
from escrowmq.replication.format import ops
from escrowmq.replication.format.codec import decode_ops
from escrowmq.replication.log.disk import RealDisk, StoredFiles
from escrowmq.replication.replica.checkpoints import Checkpoints, snapshot_name
from escrowmq.replication.replica.compaction import RetentionRound
from escrowmq.replication.replica.replica import Limits
from escrowmq.replication.replica.run_merging import FAN_IN
from escrowmq.replication.state.index import PartitionIndex
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.state.snapshot import Capture, adopt, capture, encode, release
from escrowmq.replication.state.stored_runs import (
    RUN_BYTES,
    Columns,
    KeptBlocks,
    RunFile,
    StoredTable,
    encode_runs,
    open_runs,
)

T = TypeVar("T")
#: Runs that are sealed together: those in a segment of 64 MiB with batches of a kilobyte.
RUNS_PER_TABLE = 65_536
MS_PER_RUN = 50
_folder = tempfile.TemporaryDirectory(prefix="stored-")
_files, _kept, _numbers = StoredFiles(RealDisk(Path(_folder.name))), KeptBlocks(), count()


@dataclass
class Meter:
    """CPU time of the calls of one kind, in ms."""

    longest: float = 0.0
    total: float = 0.0
    calls: int = 0

    def time(self, call: Callable[[], T]) -> T:
        begin = time.thread_time_ns()
        result = call()
        spent = (time.thread_time_ns() - begin) / 1e6
        self.longest, self.total = max(self.longest, spent), self.total + spent
        self.calls += 1
        return result

    def figures(self) -> dict[str, float]:
        return {"longest_ms": round(self.longest, 2), "total_ms": round(self.total, 1), "calls": self.calls}


def state_of(topics: int, partitions: int, groups: int, runs: int) -> StateMachine:
    """A state in which all partitions have some runs and the first one has nearly all, as in a busy topic."""
    state = StateMachine(0, 1)
    for n in range(topics):
        state.topics.create(f"topic-{n}", {"partitions": partitions, "retention_ms": 1 << 50})
    index = 1
    for partition in state.topics.slots.values():
        index += 1
        partition.index.append(index, 40, 100, 1, index * MS_PER_RUN)
    _fill(state.topics.slots[1].index, runs, index)
    state.applied_index = index + runs
    state.now_ms = state.applied_index * MS_PER_RUN
    for n in range(groups):
        state.group_offsets.commit(f"group-{n}", "topic-0", [k for p in range(100) for k in (p, n)])
    return state


def _fill(partition: PartitionIndex, runs: int, index: int) -> None:
    """Fill a partition as after checkpoints: with stored tables, the last one still on the heap."""
    for first in range(0, runs, RUNS_PER_TABLE):
        for n in range(first, min(first + RUNS_PER_TABLE, runs)):
            partition.append(index + 1 + n, 40, 1_000, 1, (index + 1 + n) * MS_PER_RUN)
        if first + RUNS_PER_TABLE < runs and (columns := partition.seal()) is not None:
            partition.adopt(_stored({1: columns}).table(0))


def _stored(tables: Mapping[int, Columns]) -> RunFile:
    """Write a run file, and open it."""
    name = f"{next(_numbers)}.runs"
    _files.disk.write_atomic(name, encode_runs(tables))
    return open_runs(_files.file(name), _kept)


def retention(state: StateMachine) -> dict[str, Any]:
    """A leader's round of retention, and the cost of applying what it proposes on every replica."""
    visits = Limits().slice_visits
    slices, applied, readers = Meter(), Meter(), Meter()
    look = slices.time(lambda: RetentionRound(state, state.now_ms, state.applied_index - 1))
    while not look.done:
        slices.time(lambda: look.step(visits))
    index = state.applied_index + 1
    for frame in (ops.retain(look.first_needed_index), ops.trim("topic-0", {0: 1})):
        operations = decode_ops(frame)
        applied.time(lambda at=index, what=operations: state.apply_ops(at, state.now_ms, what))  # type: ignore[misc]
        index += 1
    for partition in state.topics.slots.values():
        readers.time(lambda index=partition.index: index.start)  # type: ignore[misc]
    return {
        "leader's slices": slices.figures(),
        "RETAIN and TRIM": applied.figures(),
        "a reader's first look": readers.figures(),
    }


def snapshot(state: StateMachine) -> dict[str, Any]:
    """A snapshot from its start until the stored runs are in place; partitions may change between slices."""
    visits = Limits().slice_visits
    begin, slices, swaps, appends = Meter(), Meter(), Meter(), Meter()
    taken = begin.time(lambda: Capture(state, 1, []))
    for slot in list(state.topics.slots)[: len(state.topics.slots) // 2]:
        appends.time(lambda at=slot: state.topics.slots[at].index.append(1 << 40, 40, 100, 1, state.now_ms))  # type: ignore[misc]
    while not slices.time(lambda: taken.step(visits)):
        pass
    tables = list(_stored(taken.snapshot.tables).tables())
    for at in range(0, len(tables), visits):
        swaps.time(lambda part=tables[at : at + visits]: _adopt(state, part))  # type: ignore[misc]
    swaps.time(lambda: release(state, taken.snapshot))
    return {
        "begin": begin.figures(),
        "slices": slices.figures(),
        "stored runs in place": swaps.figures(),
        "first change of a partition": appends.figures(),
    }


def _adopt(state: StateMachine, tables: list[tuple[int, StoredTable]]) -> None:
    for slot, table in tables:
        adopt(state, slot, table)


def a_large_log(gib: int, partitions: int, segment_mib: int = 64) -> dict[str, Any]:
    """The run files of a log of so many GiB with runs in all partitions in each interval: what they keep of
    descriptors and heap, after the merges that come with the checkpoints."""
    state = StateMachine(0, 1)
    state.topics.create("t", {"partitions": partitions})
    with tempfile.TemporaryDirectory(prefix="stored-") as folder:
        checkpoints = Checkpoints(RealDisk(Path(folder)))
        steps, most, intervals = Meter(), 0, (gib << 10) // segment_mib
        before = heap_bytes()
        for number in range(1, intervals + 1):
            state.applied_index = number
            for partition in state.topics.slots.values():
                partition.index.append(number, 40, 1_000, 1, number * MS_PER_RUN)
            checkpoints.begin(state, 1)
            while checkpoints.busy:
                job = steps.time(lambda: checkpoints.step(state, Limits().slice_visits))
                if job is not None:
                    job.run()
                    steps.time(lambda job=job: checkpoints.done(state, job))  # type: ignore[misc]
            most = max(most, len(checkpoints.run_files))
        gc.collect()
        grown = heap_bytes() - before
        return {
            "checkpoints": intervals,
            "run files": len(checkpoints.run_files),
            "most run files": most,
            "descriptors": checkpoints.files.descriptors,
            "heap_bytes": grown,
            "heap_share_of_log": round(grown / (gib << 30), 5),
            "applying thread": steps.figures(),
        }


def start_of_a_large_log(gib: int, partitions: int, segment_mib: int = 64) -> dict[str, Any]:
    """Of a log of so many GiB, with a run in each partition in each interval, the run files that merges leave
    (see ``a_large_log``, whose number of files this has): what a start keeps of descriptors and heap."""
    state, intervals = StateMachine(0, 1), (gib << 10) // segment_mib - 1  # one more would merge them
    state.topics.create("t", {"partitions": partitions})
    with tempfile.TemporaryDirectory(prefix="stored-") as folder:
        disk, names, end, run_bytes = RealDisk(Path(folder)), list[str](), 0, 0
        level = 0
        while FAN_IN ** (level + 1) <= intervals:
            level += 1
        for of in range(level, -1, -1):
            for _ in range(intervals // FAN_IN**of % FAN_IN):
                rows = range(end + 1, end + 1 + FAN_IN**of)
                end += len(rows)
                kilobytes = array("Q", [1_000]) * len(rows)
                columns = (
                    array("Q", range(rows.start - 1, rows.stop - 1)),
                    array("Q", rows),
                    array("Q", [40]) * len(rows),
                    kilobytes,
                    array("Q", [1]) * len(rows),
                    array("Q", (MS_PER_RUN * row for row in rows)),
                )
                names.append(f"{end:016x}-{of}-1.runs" if of else f"{end:016x}.runs")
                disk.write_atomic(names[-1], encode_runs(dict.fromkeys(state.topics.slots, columns)))
                run_bytes += RUN_BYTES * len(rows) * partitions
        for partition in state.topics.slots.values():
            partition.index.end, partition.index.last_time_ms = end, MS_PER_RUN * end
        state.applied_index = end
        disk.write_atomic(snapshot_name(end), encode(capture(state, 1, names)))
        del state
        gc.collect()
        before, begun, cpu = heap_bytes(), time.monotonic(), time.process_time()
        checkpoints = Checkpoints(disk)
        found, _ = checkpoints.recover(lambda: StateMachine(0, 1))
        took, cpu = time.monotonic() - begun, time.process_time() - cpu
        gc.collect()
        grown = heap_bytes() - before
        index = found.topics.slots[next(iter(found.topics.slots))].index
        assert found.applied_index == end and index.runs_from(end - 1)[0].log_index == end
        return {
            "checkpoints": intervals,
            "run files": len(checkpoints.run_files),
            "run file bytes": run_bytes,
            "descriptors": checkpoints.files.descriptors,
            "heap_bytes": grown,
            "heap_share_of_log": round(grown / (gib << 30), 5),
            "start_s": round(took, 1),
            "start_cpu_s": round(cpu, 1),
        }


def heap_bytes() -> int:
    """Anonymous memory of this process."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Anonymous:"))


def within_budget(figures: dict[str, Any]) -> bool:
    """Descriptors at most 200, and heap at most 1 % of the log."""
    return bool(figures["descriptors"] <= 200 and figures["heap_share_of_log"] <= 0.01)


def catalog(state: StateMachine) -> dict[str, Any]:
    """The catalog of topics, which is made in the threads of requests and not in the driver's thread."""
    first, later = Meter(), Meter()
    topics = first.time(lambda: PackedTopics([topic.info for topic in state.topics.topics.values()]))
    size = len(first.time(lambda: pickle.dumps(topics, protocol=5)))
    for _ in range(200):
        later.time(lambda: pickle.dumps(topics, protocol=5))
    return {"first": first.figures(), "200 later ones": later.figures(), "bytes": size}


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--partitions", type=int, default=4, help="partitions of each topic")
    parser.add_argument("--groups", type=int, default=20_000, help="consumer groups of 100 partitions")
    parser.add_argument("--runs", type=int, default=10_000_000)
    parser.add_argument("--large", type=int, metavar="GIB", help="only the run files of a log of this size")
    parser.add_argument("--large-partitions", type=int, default=10_000)
    parser.add_argument("--start-only", action="store_true", help="begin with the files that merges leave")
    arguments = parser.parse_args()
    if arguments.large:
        large = start_of_a_large_log if arguments.start_only else a_large_log
        found = large(arguments.large, arguments.large_partitions)
        print(json.dumps(found | {"within budget": within_budget(found)}, indent=2))
        return
    state = state_of(arguments.topics, arguments.partitions, arguments.groups, arguments.runs)
    gc.collect()
    gc.disable()  # collections are rare in a broker
    figures = {name: run(state) for name, run in (("retention", retention), ("snapshot", snapshot))}
    print(json.dumps(figures | {"catalog": catalog(state)}, indent=2))


if __name__ == "__main__":
    main()
