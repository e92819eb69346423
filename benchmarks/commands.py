"""What a command that only reads costs: joining Ray by itself, and asking an exporter of the same user.

``python -m benchmarks.commands`` starts Ray and a cluster, and runs each command in processes of their own,
in turns with an exporter's socket and without one. It prints medians of wall time and of processor time (user
and system, of the command's process alone). ``--against PATH`` runs the command of another checkout too, in
the same turns.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import escrowmq
from escrowmq.cluster.reading_server import ReadingServer

COMMANDS = ("status", "topic list", "topic describe orders", "group list", "txn list")
RUN = "from escrowmq.cluster.cli import main; main()"
TOPICS = 20

Cost = tuple[float, float]


def cost(command: str, environment: dict[str, str]) -> Cost:
    """Wall and processor seconds of one run."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", RUN, *command.split()], env=environment, capture_output=True, text=True
    )
    wall_s = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        raise RuntimeError(f"escrowmq {command}: {done.stdout}{done.stderr}")
    return wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def ways(address: str, runtime: Path, against: Path | None) -> dict[str, dict[str, str]]:
    """Way -> the environment of a command that goes it."""
    nowhere = runtime / "nobody"
    nowhere.mkdir(mode=0o700)
    common = {**os.environ, "RAY_ADDRESS": address}
    here = str(Path(__file__).resolve().parents[1])
    found = {
        "asks an exporter": {**common, "PYTHONPATH": here, "XDG_RUNTIME_DIR": str(runtime)},
        "joins Ray": {**common, "PYTHONPATH": here, "XDG_RUNTIME_DIR": str(nowhere)},
    }
    if against is not None:
        found[f"joins Ray, {against.name}"] = {**common, "PYTHONPATH": str(against)}
    return found


def main() -> None:
    """Run all, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--against", type=Path, help="another checkout, whose command is run too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, escrowmq.start_local() as cluster:
        for n in range(TOPICS):
            cluster.admin.create_topic(f"orders-{n}", 4)
        cluster.admin.create_topic("orders", 4)
        runtime = Path(folder)
        server = ReadingServer(cluster, "exporter", runtime / "escrowmq")
        server.start()
        costs: dict[tuple[str, str], list[Cost]] = {}
        environments = ways(cluster.address, runtime, options.against)
        for _ in range(options.rounds):
            for command in COMMANDS:
                for way, environment in environments.items():
                    costs.setdefault((command, way), []).append(cost(command, environment))
        server.close()
    print("| command | way | wall s | processor s |\n|---|---|---|---|")
    for (command, way), found in costs.items():
        wall, processor = (statistics.median(each[i] for each in found) for i in (0, 1))
        print(f"| `{command}` | {way} | {wall:.2f} | {processor:.2f} |")


if __name__ == "__main__":
    main()
