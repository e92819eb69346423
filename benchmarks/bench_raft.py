"""Raft alone: three replicas in three processes, fdatasync on, entries of random bytes.

``python benchmarks/bench_raft.py --size 65536 --outstanding 16`` prints commits/s, MB/s and
latency as the leader's proposer sees them, and CPU time per entry. ``--matrix`` runs the sizes
that docs/evidence/benchmarks.md reports. The data go to a temporary directory (``--dir`` chooses the disk).
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import random
import resource
import shutil
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from escrowmq.replication.host.driver import Driver
from escrowmq.replication.log.disk import RealDisk
from escrowmq.replication.log.journal import SegmentJournal
from escrowmq.replication.net.handshake import PeerIdentity
from escrowmq.replication.raft.node import RaftNode

NAMES = ("r0", "r1", "r2")
MATRIX = (
    (1 << 10, 1),
    (1 << 10, 64),
    (16 << 10, 16),
    (64 << 10, 4),
    (64 << 10, 16),
    (256 << 10, 4),
    (1 << 20, 1),
)


@dataclass(frozen=True, slots=True)
class Figures:
    """One run, as seen by the leader."""

    size: int
    outstanding: int
    commits: int
    seconds: float
    latencies_ms: list[float]
    cpu_s: list[float]  # leader first

    @property
    def rate(self) -> float:
        return self.commits / self.seconds

    def row(self) -> list[str]:
        ranked = sorted(self.latencies_ms)
        p50, p99 = ranked[len(ranked) // 2], ranked[len(ranked) * 99 // 100]
        cpu = [1000 * 1000 * c / self.commits for c in self.cpu_s]
        return [
            f"{self.size:,}",
            str(self.outstanding),
            f"{self.rate:,.0f}",
            f"{self.rate * self.size / 1e6:,.0f}",
            f"{p50:.2f}",
            f"{p99:.2f}",
            f"{cpu[0]:.0f}",
            f"{max(cpu[1:]):.0f}",
        ]


def replica(name: str, folder: str, pipe: multiprocessing.connection.Connection) -> None:
    """One process: a node, its driver, and a proposer that keeps ``outstanding`` entries in flight."""
    addresses: dict[str, tuple[str, int]] = {}
    journal = SegmentJournal(RealDisk(Path(folder) / name))

    def build(link: Any, clock: Any) -> RaftNode:
        peers = [n for n in NAMES if n != name]
        return RaftNode(name, peers, journal, link, lambda *_: None, clock=clock, rng=random.Random(name))

    driver = Driver(
        build,
        journal,
        identity=PeerIdentity("bench", 0, name),
        peers=frozenset(NAMES) - {name},
        listen_host="127.0.0.1",
        listen_port=0,
        secret=b"bench",
        resolve=addresses.get,
        fatal=lambda error: os._exit(1),
    )
    driver.start()
    pipe.send(driver.address)
    while True:
        order, *rest = pipe.recv()
        if order == "addresses":
            addresses.update(rest[0])
        elif order == "ready":
            pipe.send(driver.node.ready)
        elif order == "cpu":
            usage = resource.getrusage(resource.RUSAGE_SELF)
            pipe.send(usage.ru_utime + usage.ru_stime)
        elif order == "load":
            pipe.send(propose(driver, *rest))
        else:
            driver.stop()
            journal.close()
            return


def propose(driver: Driver, size: int, outstanding: int, seconds: float) -> tuple[int, float, list[float]]:
    """Closed loop: every commit starts the next proposal. Returns commits, seconds, latencies in ms."""
    body = b"\0" + random.Random(0).randbytes(size - 1)
    latencies: list[float] = []
    finished = threading.Event()
    clock, node = time.perf_counter, driver.node
    begin = clock()
    under_way = 0

    def start() -> None:
        nonlocal under_way
        under_way += 1
        at = clock()

        def done(result: Any, applied: bool | None) -> None:
            nonlocal under_way
            under_way -= 1
            assert applied, (result, applied)
            now = clock()
            latencies.append(1000 * (now - at))
            if now - begin < seconds:
                start()
            elif not under_way:
                finished.set()

        node.propose(body, done)

    def start_all() -> None:
        for _ in range(outstanding):
            start()

    driver.submit(start_all)
    assert finished.wait(seconds + 30)
    return len(latencies), clock() - begin, latencies


def measure(folder: str, runs: list[tuple[int, int]], seconds: float) -> list[Figures]:
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for name in NAMES:
        ours, theirs = context.Pipe()
        process = context.Process(target=replica, args=(name, folder, theirs), daemon=True)
        process.start()
        pipes.append(ours)
        processes.append(process)
    addresses = {name: pipe.recv() for name, pipe in zip(NAMES, pipes, strict=True)}
    for pipe in pipes:
        pipe.send(("addresses", addresses))
    leader = find_leader(pipes)
    order = [leader, *(p for p in pipes if p is not leader)]
    figures = []
    for size, outstanding in runs:
        before = [ask(p, "cpu") for p in order]
        leader.send(("load", size, outstanding, seconds))
        commits, took, latencies = leader.recv()
        cpu = [ask(p, "cpu") - b for p, b in zip(order, before, strict=True)]
        figures.append(Figures(size, outstanding, commits, took, latencies, cpu))
    for pipe in pipes:
        pipe.send(("stop",))
    for process in processes:
        process.join(10)
    return figures


def ask(pipe: multiprocessing.connection.Connection, order: str) -> Any:
    pipe.send((order,))
    return pipe.recv()


def find_leader(
    pipes: list[multiprocessing.connection.Connection],
) -> multiprocessing.connection.Connection:
    for _ in range(500):
        for pipe in pipes:
            if ask(pipe, "ready"):
                return pipe
        time.sleep(0.02)
    raise SystemExit("no leader was elected within ten seconds")


def main(
    size: Annotated[int, typer.Option(help="Bytes per entry.")] = 64 << 10,
    outstanding: Annotated[int, typer.Option(help="Entries in flight at a time.")] = 16,
    seconds: Annotated[float, typer.Option(help="Seconds per row.")] = 3.0,
    matrix: Annotated[bool, typer.Option("--matrix", help="All rows of a table.")] = False,
    folder: Annotated[Path | None, typer.Option("--dir", help="Folder for the logs.")] = None,
) -> None:
    table = Table(title="Raft alone, three replicas on this machine, fdatasync on")
    for column in (
        "bytes",
        "outstanding",
        "commits/s",
        "MB/s",
        "p50 ms",
        "p99 ms",
        "µs CPU leader",
        "follower",
    ):
        table.add_column(column, justify="right")
    path = tempfile.mkdtemp(prefix="bench-raft-", dir=folder)
    try:
        for figures in measure(path, list(MATRIX) if matrix else [(size, outstanding)], seconds):
            table.add_row(*figures.row())
    finally:
        shutil.rmtree(path, ignore_errors=True)
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
