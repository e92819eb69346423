"""Ray Data over topics, beside Ray Data over files: ``python -m benchmarks.ray_data``.

The same rows are written to a topic (three replicas, ``fdatasync``) and to Parquet files on the same disk,
and read from both, in turns. The ceiling of ``make bench`` is measured in the same run. Writing and reading
include Ray Data's own work: starting tasks, and blocks in Ray's shared memory. Reads have as many tasks as
there are blocks: by default Ray Data makes a task of each megabyte, and then starting tasks is most of it.
Tasks that start for the first time in a process are slow, so the first round is not counted.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import ray.data

import escrowmq
from benchmarks.ceiling import Ceiling
from escrowmq import Cluster, ray_data
from escrowmq.actors.producer.config import ProducerConfig

PARTITIONS = 4
#: Rows with the same random values; nothing here compresses.
DIFFERENT = 1_024


def tables(rows: int, size: int, blocks: int) -> list[pa.Table]:
    """``rows`` rows of ``size`` random bytes with a key, in ``blocks`` tables."""
    values = [os.urandom(size) for _ in range(DIFFERENT)]
    each = rows // blocks
    return [
        pa.table(
            {
                "key": [b"%08d" % (n % DIFFERENT) for n in range(each)],
                "value": [values[n % DIFFERENT] for n in range(each)],
            }
        )
        for _ in range(blocks)
    ]


def seconds(work: Callable[[], object]) -> float:
    """How long it takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def measure(cluster: Cluster, folder: Path, made: Sequence[pa.Table], rounds: int) -> dict[str, list[float]]:
    """Seconds of each way, for each round but the first."""
    dataset = ray.data.from_arrow(list(made)).materialize()
    columns = ["key", "value"]
    found: dict[str, list[float]] = {}
    for number in range(rounds + 1):
        topic, files = f"ray-data-{number}", str(folder / f"files-{number}")
        cluster.admin.create_topic(topic, partitions=PARTITIONS)

        def write_topic(topic: str = topic) -> None:
            ray_data.write(dataset, topic, key="key", cluster=cluster)

        def write_files(files: str = files) -> None:
            dataset.write_parquet(files, compression="none", use_dictionary=False)

        def read_topic(topic: str = topic) -> None:
            ray_data.read(topic, cluster=cluster, columns=columns, parallelism=len(made)).materialize()

        def read_files(files: str = files) -> None:
            ray.data.read_parquet(files, override_num_blocks=len(made)).materialize()

        ways = {
            "write a topic": write_topic,
            "write files": write_files,
            "read a topic": read_topic,
            "read files": read_files,
        }
        for name, work in ways.items():
            took = seconds(work)
            if number:
                found.setdefault(name, []).append(took)
        shutil.rmtree(files)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--size", type=int, default=1_024, help="bytes of a value")
    parser.add_argument("--blocks", type=int, default=4, help="of the dataset, and read tasks")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    made = tables(options.rows, options.size, options.blocks)
    rows = sum(map(len, made))
    size = rows * (options.size + 8)
    folder = Path(tempfile.mkdtemp(prefix="escrowmq-bench-"))
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    try:
        with escrowmq.start_local(groups=1, replicas=3, data_dir=folder / "cluster") as cluster:
            ceiling, config = Ceiling(folder / "ceiling"), ProducerConfig()
            call = config.request_bytes, config.channel.calls_in_flight
            before = ceiling.measure(*call, 3.0).bytes_per_s
            found = measure(cluster, folder, made, options.rounds)
            best = statistics.mean([before, ceiling.measure(*call, 3.0).bytes_per_s])
            ceiling.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{rows:,} rows of {options.size:,} B, ceiling {best / 1e6:.0f} MB/s")
    print("| | rows/s | MB/s | of ceiling | of files | runs, s |\n|---|---:|---:|---:|---:|---|")
    for name, runs in found.items():
        took = statistics.median(runs)
        files = statistics.median(found[f"{name.split()[0]} files"])
        listed = ", ".join(f"{run:.2f}" for run in runs)
        print(
            f"| {name} | {rows / took:,.0f} | {size / took / 1e6:.0f} | {size / took / best:.2f} | "
            f"{files / took:.2f} | {listed} |"
        )


if __name__ == "__main__":
    main()
