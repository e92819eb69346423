"""``make bench-spark``: runs all measurements; prints a table and writes a JSON file and a Markdown page."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markdown import Markdown

import escrowmq
from benchmarks.group import GroupUnderTest
from benchmarks.load.__main__ import brokers, progress
from benchmarks.measure import machine
from benchmarks.spark import contests
from benchmarks.spark.ahead import body_prefetcher
from benchmarks.spark.page import render, write_page
from escrowmq.spark_integration import provide_java, spark_session, stop_session

SIZES = (1024, 200)


def main(
    megabytes: Annotated[int, typer.Option("--mb", help="MB of values, for each record size")] = 200,
    rounds: Annotated[int, typer.Option(help="measured rounds, after one warm-up")] = 5,
    mode: Annotated[str, typer.Option(help="kind of session: local, raydp, standalone")] = "local",
    cores: Annotated[int, typer.Option(help="cores for Spark's tasks")] = 2,
    trickle: Annotated[int, typer.Option(help="messages of the light load; 0: leave it out")] = 60,
    directory: Annotated[Path | None, typer.Option("--dir", help="folder on the disk to use")] = None,
    output: Annotated[Path, typer.Option(help="folder for the figures")] = Path("artifacts/spark"),
    page: Annotated[Path | None, typer.Option(help="page to update, between its marks")] = None,
) -> None:
    """Compare source and sink with Parquet and the rate source; latency under a light load; brokers' CPU."""
    console = Console(width=140)
    output.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="escrowmq-bench-spark-", dir=directory))
    figures: dict[str, Any] = {
        "machine": machine(folder),
        "mode": mode,
        "cores": cores,
        "megabytes": megabytes,
    }
    provide_java()  # before Ray starts: its workers inherit the environment of that time
    try:
        with escrowmq.start_local(groups=1, replicas=3, data_dir=folder / "data") as cluster:
            spark = spark_session("bench", mode=mode, cores=cores, memory="2g")
            try:
                with progress(console, "spark") as say:
                    pids = brokers(GroupUnderTest(cluster))
                    bench = contests.Bench(cluster, spark, folder, pids, rounds, say)
                    for size in SIZES:
                        figures[str(size)] = _of_size(bench, size, (megabytes << 20) // size)
                        (output / "spark.json").write_text(json.dumps(figures, indent=1) + "\n")
                    if trickle:
                        figures["trickle"] = contests.trickle(bench, "trickle", trickle, 0.5)
            finally:
                stop_session(spark)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    (output / "spark.json").write_text(json.dumps(figures, indent=1) + "\n")
    text = render(figures)
    (output / "spark.md").write_text(text)
    console.print(Markdown(text))
    if page is not None:
        write_page(text, page)


def _of_size(bench: contests.Bench, size: int, rows: int) -> dict[str, Any]:
    topic = f"rows-{size}"
    parquet = contests.fill(bench, topic, rows, size)
    found = {"rows": rows, "reading": contests.reading(bench, topic, rows, size, parquet)}
    found["ahead"] = body_prefetcher(bench, topic, rows, size)
    found["streaming"] = contests.streaming(bench, topic, rows, size)
    found["writing"] = contests.writing(bench, topic, rows, size, parquet)
    return found


if __name__ == "__main__":
    typer.run(main)
