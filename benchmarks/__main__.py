"""``make bench``: one broker group of three replicas, compared with the ceiling of the same machine.

It prints figures and ratios and writes them to a JSON file. Nothing passes or fails.
"""

from __future__ import annotations

import shutil
import tempfile
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Annotated

import typer
from rich.console import Console

import escrowmq
from benchmarks import workload
from benchmarks.across_groups import measure_across
from benchmarks.ceiling import Ceiling, CeilingFigure
from benchmarks.delays import measure_delays
from benchmarks.group import GroupUnderTest
from benchmarks.measure import machine
from benchmarks.open_transactions import measure_open
from benchmarks.page import write_page
from benchmarks.recovery import measure_recovery
from benchmarks.report import Report
from benchmarks.share_groups import measure_shares
from benchmarks.stable_cuts import measure_cuts
from escrowmq.actors.producer.config import ProducerConfig

PARTS = ("transactions", "plain", "shares", "delays", "open", "across", "cuts", "recovery")
#: Bytes of each of the two calls of a lone transaction: PREPARE with its message, then COMMIT.
LONE_CALL_BYTES = 256
RECOVERY_LOG_MB = (128, 256)
TITLES = {
    "transaction": "Transactions: prepare + commit, one message of 256 B each",
    "message": "Plain messages",
}


def main(
    seconds: Annotated[float, typer.Option(help="length of one measurement")] = 4.0,
    repeat: Annotated[int, typer.Option(help="runs of each; the median is reported")] = 3,
    open_transactions: Annotated[int, typer.Option("--open", help="transactions to leave open")] = 1_000_000,
    only: Annotated[list[str] | None, typer.Option(help="one of " + ", ".join(PARTS))] = None,
    directory: Annotated[Path | None, typer.Option("--dir", help="folder on the disk to measure")] = None,
    output: Annotated[Path, typer.Option(help="JSON file to write")] = Path("artifacts/bench.json"),
    page: Annotated[Path | None, typer.Option(help="Markdown file to update with the figures")] = None,
) -> None:
    """Measure one broker group of three replicas and compare it with the ceiling of this machine."""
    parts = only or list(PARTS)
    for part in parts:
        if part not in PARTS:
            raise typer.BadParameter(f"{part!r} is not one of {', '.join(PARTS)}")
    console = Console(width=130)
    report = Report(console)
    folder = Path(tempfile.mkdtemp(prefix="escrowmq-bench-", dir=directory))
    try:
        report.machine(machine(folder))
        if "recovery" in parts:
            report.recovery([measure_recovery(folder / "recovery", size) for size in RECOVERY_LOG_MB])
        if "across" in parts:
            report.across_groups(measure_across(folder / "across", seconds, repeat))
        if "cuts" in parts:
            report.stable_cuts(measure_cuts(folder / "cuts", 3 * seconds))
        if set(parts) - {"recovery", "across", "cuts"}:
            with escrowmq.start_local(groups=1, replicas=3, data_dir=folder / "cluster") as cluster:
                _against_the_cluster(GroupUnderTest(cluster), parts, folder, report, seconds, repeat)
                if "shares" in parts:
                    report.shares(measure_shares(GroupUnderTest(cluster), seconds, repeat))
                if "delays" in parts:
                    report.delays(measure_delays(GroupUnderTest(cluster), seconds, repeat))
                if "open" in parts:
                    _with_open_ones(GroupUnderTest(cluster), report, open_transactions, seconds, repeat)
        report.save(output)
        if page is not None:
            write_page(report.figures, page)
    except BaseException:
        report.save(output)  # what was measured before
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _against_the_cluster(
    group: GroupUnderTest, parts: list[str], folder: Path, report: Report, seconds: float, repeat: int
) -> None:
    if not {"transactions", "plain"} & set(parts):
        return
    ceiling = Ceiling(folder / "ceiling")
    try:
        # Before, between and after: a machine that is shared with others changes during the measurement.
        figures = [ceiling.measure(LONE_CALL_BYTES, 1, seconds), _full(ceiling, seconds)]
        rows: dict[str, dict[str, workload.Timed]] = {}
        read = None
        if "transactions" in parts:
            rows["transaction"] = _transactions(group, seconds, repeat)
            figures.append(_full(ceiling, seconds))
        if "plain" in parts:
            rows["message"] = _plain(group, seconds, repeat)
            figures.append(_full(ceiling, seconds))
            read = workload.reading(group, "plain-256", 3 * seconds)
    finally:
        ceiling.close()
    report.ceiling(figures)
    best = mean(figure.bytes_per_s for figure in figures[1:])
    for what, measured in rows.items():
        report.traffic(TITLES[what], what, measured, best)
    if read is not None:
        report.reading(read, 256)


def _full(ceiling: Ceiling, seconds: float) -> CeilingFigure:
    """The ceiling for a busy producer's calls: its request size, and its number of calls in flight."""
    config = ProducerConfig()
    return ceiling.measure(config.request_bytes, config.channel.calls_in_flight, seconds)


def _transactions(group: GroupUnderTest, seconds: float, repeat: int) -> dict[str, workload.Timed]:
    topic = "transactions"
    group.cluster.admin.create_topic(topic, partitions=workload.PARTITIONS)
    with group.producer() as producer:
        workload.lone_transactions(group, producer, topic, 0.5)  # warm-up
        rows = {"1 in flight": workload.lone_transactions(group, producer, topic, seconds)}
        for count in (64, 1024):
            rows[f"{count:,} asyncio tasks"] = workload.repeated(
                repeat, partial(workload.tasks, group, producer, topic, count, seconds)
            )
        half = rows["1,024 asyncio tasks"].traffic.per_s / 2
        rows[f"asyncio, {half:,.0f}/s arriving"] = workload.paced_tasks(group, producer, topic, half, seconds)
        for count in (64, 1024, 16_384):
            bulk = {"in bulk": workload.bulk_transactions, "in bulk, tables": workload.table_transactions}
            found = workload.in_turns(
                repeat,
                {
                    f"{count:,} {how}": partial(work, group, producer, topic, count, seconds)
                    for how, work in bulk.items()
                },
            )
            rows |= found
    return rows


def _plain(group: GroupUnderTest, seconds: float, repeat: int) -> dict[str, workload.Timed]:
    rows: dict[str, workload.Timed] = {}
    with group.producer() as producer:
        for size in (256, 1024):
            topic = f"plain-{size}"
            group.cluster.admin.create_topic(topic, partitions=workload.PARTITIONS)
            how = {f"{size:,} B": workload.plain_messages, f"{size:,} B, tables": workload.plain_table}
            rows |= workload.in_turns(
                repeat,
                {name: partial(work, group, producer, topic, size, seconds) for name, work in how.items()},
            )
    return rows


def _with_open_ones(group: GroupUnderTest, report: Report, opened: int, seconds: float, repeat: int) -> None:
    topic = "open"
    group.cluster.admin.create_topic(topic, partitions=workload.PARTITIONS)
    with group.producer(app="bench-open") as producer:
        report.open_transactions(measure_open(group, producer, topic, opened, seconds, repeat))


if __name__ == "__main__":
    typer.run(main)
