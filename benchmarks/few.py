"""``python -m benchmarks.few``: what a service with few calls under way sees, and what its waits are made of.

One call at a time, 64 asyncio tasks, 64 threads; each with its processor time and voluntary context switches
(a thread that begins to wait) by process. The ratio is to the ceiling of one call in the same run: a Ray call
whose log is synced on a majority.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
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
from escrowmq import Message, ProducerConfig
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
    pids = group.pids()
    before = _switches(pids)
    found = workload.timed(group, work)
    after, traffic = _switches(pids), found.traffic
    switches = {name: (after[name] - before[name]) / max(traffic.items, 1) for name in pids}
    return Few(name, traffic.per_s, found.latency, switches, traffic.cpu.us_per_item())


def _in_threads(call: Callable[[], object], seconds: float, latency: Latencies) -> int:
    return side_by_side(IN_FLIGHT, lambda number: workload.one_by_one(call, seconds, latency))


def _message(topic: str) -> Message:
    return Message(topic, os.urandom(workload.TX_BYTES), key=os.urandom(8))


def _rows(group: GroupUnderTest, topic: str, seconds: float) -> dict[str, Callable[[], Few]]:
    awaited = group.producer()
    one_way = group.producer(replace(ProducerConfig(), one_way_commit=True), app="bench-one-way")

    def transaction(producer: Producer) -> object:
        return producer.send_message_in_transaction(_message(topic), workload.commit)

    def send() -> object:
        return awaited.send(_message(topic)).result(30.0)

    lone, together = partial(workload.one_by_one, seconds=seconds), partial(_in_threads, seconds=seconds)
    works: dict[str, Callable[[Latencies], int]] = {
        "lone transaction": lambda latency: lone(partial(transaction, awaited), latency=latency),
        "lone transaction, one-way": lambda latency: lone(partial(transaction, one_way), latency=latency),
        "lone send": lambda latency: lone(send, latency=latency),
        "64 tasks": partial(workload.in_tasks, awaited, topic, IN_FLIGHT, seconds),
        "64 tasks, one-way": partial(workload.in_tasks, one_way, topic, IN_FLIGHT, seconds),
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
