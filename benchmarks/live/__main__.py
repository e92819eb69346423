"""``make live``: measures a cluster of real processes with much data, and prints the figures."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.live import lost_node, many_delayed, many_topics
from benchmarks.live.generated import Content
from benchmarks.measure import machine

#: Of each measurement beside delayed messages.
DELAYED_S = 8.0
PARTS = ("topics", "node", "delayed")


def main(
    topics: Annotated[int, typer.Option(help="topics of four partitions")] = 10_000,
    runs: Annotated[int, typer.Option(help="runs in all partitions, half in one topic")] = 10_000_000,
    kills: Annotated[int, typer.Option(help="how often to kill the leader")] = 20,
    catalogs: Annotated[int, typer.Option(help="simultaneous requests for all topics")] = 200,
    log_mb: Annotated[int, typer.Option(help="log size of the replica whose node is lost")] = 1_024,
    delayed: Annotated[int, typer.Option(help="delayed messages that wait")] = 100_000_000,
    only: Annotated[list[str] | None, typer.Option(help="one of " + ", ".join(PARTS))] = None,
    directory: Annotated[Path | None, typer.Option("--dir", help="folder on the disk to use")] = None,
    stored: Annotated[Path | None, typer.Option(help="the topics' log, to keep for other runs")] = None,
    output: Annotated[Path, typer.Option(help="JSON file to write")] = Path("artifacts/live.json"),
) -> None:
    """Measure ten thousand topics with ten million runs under load, and losing a node with a gigabyte, and
    a hundred million delayed messages."""
    wanted = only or list(PARTS)
    for name in wanted:
        if name not in PARTS:
            raise typer.BadParameter(f"{name!r} is not one of {', '.join(PARTS)}")
    folder = Path(tempfile.mkdtemp(prefix="emq-live-", dir=directory))
    begin = time.monotonic()

    def say(text: str) -> None:
        typer.echo(f"{time.monotonic() - begin:7.1f} s  {text}")

    try:
        figures: dict[str, Any] = {"machine": machine(folder)}
        say(f"load average before: {figures['machine']['load_before']:.2f}")
        if "topics" in wanted:
            half = runs // 2
            content = Content(topics, 4, half, half)
            figures["topics"] = many_topics.measure(folder / "topics", content, kills, catalogs, say, stored)
        if "node" in wanted:
            figures["node"] = lost_node.measure(folder / "node", log_mb, say)
        if "delayed" in wanted:
            figures["delayed"] = many_delayed.measure(folder / "delayed", delayed, DELAYED_S, say)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(figures, indent=1, default=str) + "\n")
    typer.echo(json.dumps(figures, indent=1, default=str))


if __name__ == "__main__":
    typer.run(main)
