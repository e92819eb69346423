"""``make bench-peers``: Kafka, NATS and RocketMQ take turns with EscrowMQ; ratios go into the documents.

Every peer runs alone with EscrowMQ. What cannot be had here is named with the reason, and the others go on.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markdown import Markdown
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from benchmarks.measure import machine
from benchmarks.peers.kafka import Kafka, KafkaFsync
from benchmarks.peers.nats import Nats
from benchmarks.peers.ours import Ours
from benchmarks.peers.packages import NotAvailable, versions
from benchmarks.peers.page import figures, parts_of_pages, write_pages
from benchmarks.peers.results import Results
from benchmarks.peers.rocketmq import RocketMq
from benchmarks.peers.system import ROOT, Peer
from benchmarks.peers.turns import Plan, Run, Say, plain, steps, take_turns

PEERS: tuple[type[Peer], ...] = (Kafka, KafkaFsync, RocketMq, Nats)
NAMES = ", ".join(peer.name for peer in PEERS)


def main(
    rounds: Annotated[int, typer.Option(help="rounds with each; 0: only write the pages again")] = 5,
    seconds: Annotated[float, typer.Option(help="length of one row")] = 2.0,
    warm: Annotated[float, typer.Option(help="seconds of load before the first round")] = 60.0,
    only: Annotated[list[str] | None, typer.Option(help=f"one of {NAMES}")] = None,
    directory: Annotated[Path | None, typer.Option("--dir", help="folder on the disk to measure")] = None,
    packages: Annotated[Path, typer.Option(help="folder for the peers' packages")] = Path("artifacts/peers"),
    output: Annotated[Path, typer.Option(help="JSON file to which runs are added")] = Path(
        "artifacts/peers.json"
    ),
    docs: Annotated[Path | None, typer.Option(help="folder of the documents to write into")] = None,
) -> None:
    """Compare EscrowMQ with other brokers on this machine, in turns, and write ratios with quartiles."""
    for name in only or ():
        if name not in {peer.name for peer in PEERS}:
            raise typer.BadParameter(f"{name!r} is not one of {NAMES}")
    if docs is not None:
        try:  # now, and not after an hour of measuring
            parts_of_pages(docs)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--docs") from None
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers are stopped, too
    console = Console(width=140)
    results = Results(output)
    for kind in PEERS if rounds else ():
        if only and kind.name not in only:
            continue
        folder = Path(tempfile.mkdtemp(prefix="escrowmq-peers-", dir=directory))
        try:
            _one(kind(packages), Plan(rounds, seconds, warm), folder, results, console)
        except NotAvailable as why:
            console.print(f"[red]{kind.title}: not available: {why}", highlight=False)
            results.refuse(kind.name, str(why))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    console.print(Markdown(figures(results, PEERS)))
    if docs is not None:
        write_pages(results, PEERS, docs)


def _one(peer: Peer, plan: Plan, folder: Path, results: Results, console: Console) -> None:
    """One peer in turns with EscrowMQ; saved after every round."""
    ours = Ours()
    facts = {
        "began": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        "revision": _revision(),
        "versions": versions()[peer.product],
        "machine": machine(folder),
        "load_before": os.getloadavg()[0],
        "seconds": plan.seconds,
        "warm_s": plan.warm_s,
    }

    def save(run: Run) -> None:
        results.put(facts | plain(run))

    total = plan.rounds * len(steps(peer, ours, 0))
    with _progress(console, peer.title, total) as (say, step):
        take_turns(peer, ours, plan, folder, say, step, save)


def _revision() -> str:
    """The commit of EscrowMQ that is measured."""
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return found.stdout.strip() or "an unknown commit"


@contextmanager
def _progress(console: Console, title: str, total: int) -> Iterator[tuple[Say, Callable[[], None]]]:
    """A progress bar over all rows of all rounds; figures are printed above it."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield (
            lambda text: console.print(f"[dim]{title}:[/dim] {text}", highlight=False),
            lambda: bar.advance(task),
        )


if __name__ == "__main__":
    typer.run(main)
