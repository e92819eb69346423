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
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from escrowmq.actors.broker.packed_topics import PackedTopics
from escrowmq.replication.format import ops
from escrowmq.replication.format.codec import decode_ops
from escrowmq.replication.replica.replica import Limits
from escrowmq.replication.replica.retention import RetentionRound
from escrowmq.replication.state.capture import Capture, release
from escrowmq.replication.state.index import PartitionIndex
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.state.run_table import RunTable
from escrowmq.replication.state.runs_file import encode_runs, map_tables
from escrowmq.replication.state.snapshot import adopt

T = TypeVar("T")
#: Runs that are sealed together: those in a segment of 64 MiB with batches of a kilobyte.
RUNS_PER_TABLE = 65_536
MS_PER_RUN = 50


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
    """Fill a partition as after checkpoints: with mapped tables, the last one still on the heap."""
    for first in range(0, runs, RUNS_PER_TABLE):
        for n in range(first, min(first + RUNS_PER_TABLE, runs)):
            partition.append(index + 1 + n, 40, 1_000, 1, (index + 1 + n) * MS_PER_RUN)
        if first + RUNS_PER_TABLE < runs and (columns := partition.seal()) is not None:
            data = b"".join(encode_runs({1: columns}))
            partition.adopt(map_tables("runs", memoryview(data))[1])


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
    """A snapshot from its start until the mapped runs are in place; partitions may change between slices."""
    visits = Limits().slice_visits
    begin, slices, swaps, appends = Meter(), Meter(), Meter(), Meter()
    taken = begin.time(lambda: Capture(state, 1, []))
    for slot in list(state.topics.slots)[: len(state.topics.slots) // 2]:
        appends.time(lambda at=slot: state.topics.slots[at].index.append(1 << 40, 40, 100, 1, state.now_ms))  # type: ignore[misc]
    while not slices.time(lambda: taken.step(visits)):
        pass
    tables = list(map_tables("runs", memoryview(b"".join(encode_runs(taken.snapshot.tables)))).items())
    for at in range(0, len(tables), visits):
        swaps.time(lambda part=tables[at : at + visits]: _adopt(state, part))  # type: ignore[misc]
    swaps.time(lambda: release(state, taken.snapshot))
    return {
        "begin": begin.figures(),
        "slices": slices.figures(),
        "mapped runs in place": swaps.figures(),
        "first change of a partition": appends.figures(),
    }


def _adopt(state: StateMachine, tables: list[tuple[int, RunTable]]) -> None:
    for slot, table in tables:
        adopt(state, slot, table)


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
    arguments = parser.parse_args()
    state = state_of(arguments.topics, arguments.partitions, arguments.groups, arguments.runs)
    gc.collect()
    gc.disable()  # collections are rare in a broker
    figures = {name: run(state) for name, run in (("retention", retention), ("snapshot", snapshot))}
    print(json.dumps(figures | {"catalog": catalog(state)}, indent=2))


if __name__ == "__main__":
    main()
