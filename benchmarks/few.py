"""``python -m benchmarks.few``: what a service with few calls under way sees, and what its waits are made of.

One call at a time, 64 asyncio tasks, 64 threads; each with its processor time and voluntary context switches
(a thread that begins to wait) by process. The ratio is to the ceiling of one call in the same run: a Ray call
whose log is synced on a majority.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import psutil
import typer
from rich.console import Console
from rich.table import Table

import escrowmq
from benchmarks import workload
from benchmarks.ceiling import Ceiling
from benchmarks.group import GroupUnderTest, side_by_side
from benchmarks.measure import Latencies, machine
from escrowmq import Message, ProducerConfig, TransactionState
from escrowmq.actors.producer.producer import Producer

IN_FLIGHT = 64
CALL_BYTES = 256


@dataclass(frozen=True)
class Few:
    """One row. ``switches``, ``cpu_us``: of one item, by process."""

    name: str
    per_s: float
    latency: dict[str, float]
    switches: dict[str, float]
    cpu_us: dict[str, float]


def _switches(pids: dict[str, int]) -> dict[str, int]:
    """Voluntary context switches of each process so far; those of ended threads are not in it."""
    return {
        name: sum(
            int(line.split()[1])
            for status in Path(f"/proc/{pid}/task").glob("*/status")
            for line in _lines(status)
            if line.startswith("voluntary")
        )
        for name, pid in pids.items()
    }


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:  # the thread has ended
        return []


def _row(group: GroupUnderTest, name: str, work: Callable[[Latencies], int]) -> Few:
    pids, latency, counted = group.pids(), Latencies(), [0]
    before = _switches(pids)

    def timed() -> tuple[int, float]:
        begin = time.perf_counter()
        counted[0] = work(latency)
        return counted[0], time.perf_counter() - begin

    traffic = group.measure(timed)
    after = _switches(pids)
    switches = {name: (after[name] - before[name]) / max(counted[0], 1) for name in pids}
    return Few(name, traffic.per_s, latency.summary(), switches, traffic.cpu.us_per_item())


def _one_by_one(call: Callable[[], object], seconds: float, latency: Latencies) -> int:
    count, begin = 0, time.perf_counter()
    while (sent := time.perf_counter()) - begin < seconds:
        call()
        latency.add(time.perf_counter() - sent)
        count += 1
    return count


def _in_threads(call: Callable[[], object], seconds: float, latency: Latencies) -> int:
    return side_by_side(IN_FLIGHT, lambda number: _one_by_one(call, seconds, latency))


def _in_tasks(producer: Producer, topic: str, seconds: float, latency: Latencies) -> int:
    source = workload.messages(topic, workload.TX_BYTES)

    async def one(end: float) -> int:
        count = 0
        while (sent := time.perf_counter()) < end:
            await producer.aio.send_message_in_transaction(next(source), _commit)
            latency.add(time.perf_counter() - sent)
            count += 1
        return count

    async def every() -> int:
        end = time.perf_counter() + seconds
        return sum(await asyncio.gather(*(one(end) for _ in range(IN_FLIGHT))))

    return asyncio.run(every())


def _commit() -> TransactionState:
    return TransactionState.COMMITTED


def _message(topic: str) -> Message:
    return Message(topic, os.urandom(workload.TX_BYTES), key=os.urandom(8))


def _rows(group: GroupUnderTest, topic: str, seconds: float) -> dict[str, Callable[[], Few]]:
    awaited = group.producer()
    one_way = group.producer(replace(ProducerConfig(), one_way_commit=True), app="bench-one-way")

    def transaction(producer: Producer) -> object:
        return producer.send_message_in_transaction(_message(topic), _commit)

    def send() -> object:
        return awaited.send(_message(topic)).result(30.0)

    lone, together = partial(_one_by_one, seconds=seconds), partial(_in_threads, seconds=seconds)
    works: dict[str, Callable[[Latencies], int]] = {
        "lone transaction": lambda latency: lone(partial(transaction, awaited), latency=latency),
        "lone transaction, one-way": lambda latency: lone(partial(transaction, one_way), latency=latency),
        "lone send": lambda latency: lone(send, latency=latency),
        "64 tasks": partial(_in_tasks, awaited, topic, seconds),
        "64 tasks, one-way": partial(_in_tasks, one_way, topic, seconds),
        "64 threads": lambda latency: together(partial(transaction, awaited), latency=latency),
        "64 threads, one-way": lambda latency: together(partial(transaction, one_way), latency=latency),
    }
    transaction(awaited), transaction(one_way), send()
    return {name: partial(_row, group, name, work) for name, work in works.items()}


def main(
    seconds: Annotated[float, typer.Option(help="length of one measurement")] = 3.0,
    only: Annotated[list[str] | None, typer.Option(help="rows whose name contains this")] = None,
    directory: Annotated[Path | None, typer.Option("--dir", help="folder on the disk to measure")] = None,
    output: Annotated[Path, typer.Option(help="JSON file to write")] = Path("artifacts/few.json"),
) -> None:
    """Measure calls with one and 64 under way: rates, latencies, context switches, processor time."""
    console = Console(width=140)
    folder = Path(tempfile.mkdtemp(prefix="escrowmq-few-", dir=directory))
    try:
        facts = machine(folder)
        with escrowmq.start_local(groups=1, replicas=3, data_dir=folder / "cluster") as cluster:
            cluster.admin.create_topic("few", partitions=workload.PARTITIONS)
            ceiling = Ceiling(folder / "ceiling")
            try:
                limit = ceiling.measure(CALL_BYTES, 1, seconds)
            finally:
                ceiling.close()
            rows = []
            for name, measure in _rows(GroupUnderTest(cluster), "few", seconds).items():
                if not only or any(part in name for part in only):
                    rows.append(measure())
                    console.print(f"{name}: {rows[-1].per_s:,.0f}/s")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    console.print(_table(rows, limit.latency["p50_ms"]))
    output.parent.mkdir(parents=True, exist_ok=True)
    found = {"machine": facts, "ceiling": asdict(limit), "rows": [asdict(row) for row in rows]}
    output.write_text(json.dumps(found, indent=2))


def _table(rows: list[Few], call_ms: float) -> Table:
    table = Table(title=f"Few calls under way; one call at the ceiling takes {call_ms:.2f} ms")
    for column in (
        "",
        "per s",
        "p50 ms",
        "p99 ms",
        "p50 in calls",
        "switches",
        "by process",
        "CPU us",
        "by process",
    ):
        table.add_column(column, justify="left" if column in ("", "by process") else "right")
    for row in rows:
        ours = {name: value for name, value in row.switches.items() if name not in ("raylet", "gcs_server")}
        cpu = {name: row.cpu_us[name] for name in ours}
        table.add_row(
            row.name,
            f"{row.per_s:,.0f}",
            *(f"{row.latency[key]:.2f}" for key in ("p50_ms", "p99_ms")),
            f"{row.latency['p50_ms'] / call_ms:.2f}",
            f"{sum(ours.values()):.1f}",
            " ".join(f"{name}:{value:.1f}" for name, value in ours.items()),
            f"{sum(cpu.values()):,.0f}",
            " ".join(f"{name}:{value:,.0f}" for name, value in cpu.items()),
        )
    return table


if __name__ == "__main__":
    psutil.cpu_count()
    typer.run(main)
