"""What a command that only reads costs: joining Ray by itself, and asking the supervisor.

``python -m benchmarks.commands`` starts Ray and a cluster, and runs each command in processes of their own,
in turns asking the supervisor over its socket and joining Ray. It prints medians of wall time and of
processor time (user and system, of the command's process alone). ``--against PATH`` runs the command of
another checkout too, in the same turns.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import escrowmq
from benchmarks.open_transactions import open_many

COMMANDS = (
    "status",
    "topic list",
    "topic describe orders",
    "group list",
    "txn list",
    "txn list --limit 100000",
)
ASKING = "from escrowmq.cluster.cli import main; main()"
JOINING = "from escrowmq.cluster import reading_client; reading_client.folders = list; " + ASKING
APP = "bench"

Cost = tuple[float, float]


def cost(run: str, command: str, environment: dict[str, str]) -> Cost:
    """Wall and processor seconds of one run."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", run, *command.split()], env=environment, capture_output=True, text=True
    )
    wall_s = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        raise RuntimeError(f"escrowmq {command}: {done.stdout}{done.stderr}")
    return wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def ways(address: str, against: Path | None) -> dict[str, tuple[str, dict[str, str]]]:
    """Way -> program and environment of a command that goes it."""
    common = {**os.environ, "RAY_ADDRESS": address}
    here = {**common, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    found = {"asks the supervisor": (ASKING, here), "joins Ray": (JOINING, here)}
    if against is not None:
        found[f"joins Ray, {against.name}"] = ASKING, {**common, "PYTHONPATH": str(against)}
    return found


def main() -> None:
    """Run all, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--topics", type=int, default=20, help="topics of four partitions, beside 'orders'")
    parser.add_argument("--open", type=int, default=0, help="open transactions")
    parser.add_argument("--against", type=Path, help="another checkout, whose command is run too")
    options = parser.parse_args()
    with escrowmq.start_local() as cluster:
        with ThreadPoolExecutor(16) as threads:
            names = ("orders", *(f"orders-{n}" for n in range(options.topics)))
            list(threads.map(lambda name: cluster.admin.create_topic(name, 4), names))
        open_many(cluster.info, APP, "orders", options.open)
        costs: dict[tuple[str, str], list[Cost]] = {}
        environments = ways(cluster.address, options.against)
        for _ in range(options.rounds):
            for command in COMMANDS:
                for way, (run, environment) in environments.items():
                    costs.setdefault((command, way), []).append(cost(run, command, environment))
    print("| command | way | wall s | processor s |\n|---|---|---|---|")
    for (command, way), found in costs.items():
        wall, processor = (statistics.median(each[i] for each in found) for i in (0, 1))
        print(f"| `{command}` | {way} | {wall:.2f} | {processor:.2f} |")


if __name__ == "__main__":
    main()
