"""``escrowmq demo``: sends orders in transactions while a producer and a broker are killed.

At the end, what Spark computes from the committed messages must equal what DuckDB computes from the shop's
own database, and every transaction's messages must be there exactly once or not at all. Only then does
``run_demo`` return 0.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from escrowmq.actors.consumer.consumer import Consumer
from escrowmq.cluster.demo import duck, report
from escrowmq.cluster.demo.database import ShopDatabase
from escrowmq.cluster.demo.fleet import Fleet
from escrowmq.cluster.demo.mishaps import MishapPlan, plan_mishaps
from escrowmq.cluster.demo.options import (
    LINEITEMS,
    ORDERS,
    PARTITIONS,
    STALL_DEADLINE_S,
    TRANSACTION_TIMEOUT_S,
    DemoOptions,
)
from escrowmq.cluster.demo.picture import Mark, picture
from escrowmq.cluster.demo.production import VICTIM, produce, wait_until_replicas_agree, wait_until_resolved
from escrowmq.cluster.demo.queries import TABLES, QueryAnswer
from escrowmq.cluster.demo.recording import EVERY_S, Recorder
from escrowmq.cluster.demo.spark_step import SparkStep, prepare_java
from escrowmq.cluster.demo.tally import DemoFailed, Tally
from escrowmq.cluster.demo.tpch import generate, order_keys
from escrowmq.cluster.demo.verify import find_problems
from escrowmq.cluster.demo.worker import WorkerSettings
from escrowmq.cluster.exporter.exporter import Exporter
from escrowmq.cluster.local import Cluster, start_local
from escrowmq.replication.errors import EscrowMQError
from escrowmq.replication.model import ConsumerRecord

_TABLE_OF = {ORDERS: "orders", LINEITEMS: "lineitem"}


def run_demo(options: DemoOptions, console: Console | None = None) -> int:
    """Run the demo; returns the exit code: 0 if no problem was found, else 1."""
    console = console or Console()
    directory = options.directory or Path(tempfile.mkdtemp(prefix="escrowmq-demo-"))
    directory.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    try:
        with _others_to(directory / "demo.log", console):
            problems = _run(options, console, directory)
    except EscrowMQError as error:
        problems = [f"{type(error).__name__}: {error}"]
    except KeyboardInterrupt:
        _remove(options, directory)
        raise
    report.show_problems(console, problems)
    took = time.monotonic() - started
    if problems:
        console.print(
            f"[bold red]The demo failed[/] after {took:.0f} s (seed {options.seed}); see {directory}"
        )
        return 1
    _remove(options, directory)
    console.print(
        "[bold green]Every transaction's messages are there exactly once or not at all"
        + (", and Spark and the database agree row for row" if options.spark else "")
        + f"[/] ({took:.0f} s, seed {options.seed})"
    )
    return 0


def _remove(options: DemoOptions, directory: Path) -> None:
    if not options.keep and options.directory is None:
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def _others_to(path: Path, console: Console) -> Iterator[None]:
    """Send all other output to a file, so that only ``console`` writes to the terminal.

    Ray would print a message for every process that the demo kills.
    """
    console.file = console.file  # fixes the stream: otherwise rich looks up sys.stdout for each line
    with path.open("w") as log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
        yield


def _run(options: DemoOptions, console: Console, directory: Path) -> list[str]:
    if options.spark:
        prepare_java()  # Ray takes Java from the environment it is started in
    with console.status(f"TPC-H orders and line items, scale {options.scale:g}"):
        generate(options.scale, directory)
        keys = order_keys(directory)
    shop = ShopDatabase(directory / "shop.db")
    shop.create()
    with console.status(f"Ray and one broker group of {options.replicas} replicas"):
        cluster = start_local(groups=1, replicas=options.replicas, data_dir=directory / "brokers")
    with cluster, contextlib.closing(shop):
        return _Story(
            options, console, directory, shop, cluster, plan_mishaps(options.seed, keys), keys
        ).run()


@dataclass(frozen=True, slots=True)
class _Story:
    """The run, once the cluster is up."""

    options: DemoOptions
    console: Console
    directory: Path
    shop: ShopDatabase
    cluster: Cluster
    plan: MishapPlan
    keys: list[int]

    def run(self) -> list[str]:
        """Run everything from the first order to the last comparison; returns the problems found."""
        for topic in (ORDERS, LINEITEMS):
            self.cluster.admin.create_topic(
                topic, partitions=PARTITIONS, transaction_timeout_ms=int(TRANSACTION_TIMEOUT_S * 1000)
            )
        tally, fleet, recorder = Tally(), self._fleet(), Recorder()
        with contextlib.ExitStack() as stack, self._progress() as progress:
            watched = stack.enter_context(self._watched(recorder))
            stack.callback(fleet.stop)
            production_s = self._produce(fleet, tally, progress)
            spark = self._start_spark(stack)
            resolve_s = self._resolve(fleet, tally, progress)
            fleet.stop()
            wait_until_replicas_agree(self.cluster.admin)
            watched.close()
            ends = self._ends()
            records = self._read_everything(ends, progress)
            problems = find_problems(records, self._tables(), ends)
            duck_answers = duck.answers(self.shop)
            spark_answers = self._ask_spark(spark, progress)
        orders = len(self.shop.order_keys())
        self.console.print(report.happened(tally, self.plan, orders, len(records), production_s, resolve_s))
        self._draw(recorder, tally)
        return problems + self._compare(spark_answers, duck_answers)

    def _watched(self, recorder: Recorder) -> contextlib.ExitStack:
        """If a picture is wanted, an exporter records the cluster while the returned context is open."""
        stack = contextlib.ExitStack()
        if self.options.picture is not None:
            exporter = Exporter(self.cluster, EVERY_S, seen=recorder.add)
            stack.callback(exporter.close)
            exporter.start()
        return stack

    def _draw(self, recorder: Recorder, tally: Tally) -> None:
        path, killed, took = self.options.picture, tally.leader_killed_s, tally.fail_over_s()
        if path is None:
            return
        marks = (
            [Mark(tally.producer_killed_s, f"producer {VICTIM} killed")] if tally.producer_killed_s else []
        )
        fail_over = None
        if killed is not None and took is not None:
            marks.append(Mark(killed, f"leader killed; next commit after {took:.2f} s"))
            fail_over = killed, killed + took
        title = f"{tally.through:,} orders through escrow, as the exporter saw them"
        path.write_text(picture(recorder.points, marks, fail_over, title))
        self.console.print(f"a picture of this run: [bold]{path}[/]", highlight=False)

    def _produce(self, fleet: Fleet, tally: Tally, progress: Progress) -> float:
        n = self.options.producers
        shares = [self.keys[i::n] for i in range(n)]
        bar = progress.add_task("orders through escrow", total=len(self.keys))
        started = time.monotonic()
        produce(
            fleet,
            self.cluster.admin,
            self.plan,
            shares,
            tally,
            moved=lambda through: progress.update(bar, completed=through),
            note=lambda text: progress.console.print(f"  {text}", highlight=False),
        )
        return time.monotonic() - started

    def _resolve(self, fleet: Fleet, tally: Tally, progress: Progress) -> float:
        bar = progress.add_task("undecided transactions resolved by feedback", total=None)
        most = 0

        def shown(open_ones: int) -> None:
            nonlocal most
            most = max(most, open_ones)
            progress.update(bar, total=most, completed=most - open_ones)

        return wait_until_resolved(fleet, self.cluster.admin, tally, shown)

    def _read_everything(self, ends: dict[tuple[str, int], int], progress: Progress) -> list[ConsumerRecord]:
        total = sum(ends.values())
        bar = progress.add_task("messages read and checked", total=total)
        records: list[ConsumerRecord] = []
        consumer: Consumer
        with self.cluster.consumer(
            group="demo-audit", topics=[ORDERS, LINEITEMS], auto_offset_reset="earliest"
        ) as consumer:
            last = time.monotonic()
            while len(records) < total:
                batch = consumer.poll(max_records=5000, timeout_s=1.0)
                records += batch
                progress.update(bar, completed=len(records))
                now = time.monotonic()
                last = now if batch else last
                if now - last > STALL_DEADLINE_S:
                    raise DemoFailed(f"the consumer got {len(records)} of {total} messages and no more")
            records += consumer.poll(max_records=5000, timeout_s=1.0)  # there must be nothing after the end
        return records

    def _start_spark(self, stack: contextlib.ExitStack) -> SparkStep | None:
        if not self.options.spark:
            return None
        info = self.cluster.info
        spark = SparkStep(self.cluster.address, info.namespace, self.directory)
        stack.callback(spark.stop)
        return spark

    def _ask_spark(self, spark: SparkStep | None, progress: Progress) -> dict[str, QueryAnswer] | None:
        if spark is None:
            return None
        bar = progress.add_task("Spark on Ray", total=2)
        spark.wait_until_ready()
        progress.update(bar, completed=1)
        answers = spark.answers()
        progress.update(bar, completed=2)
        return answers

    def _compare(
        self, spark: dict[str, QueryAnswer] | None, duck_answers: dict[str, QueryAnswer]
    ) -> list[str]:
        problems = []
        for title, answer in duck_answers.items():
            table, equal = report.side_by_side(title, None if spark is None else spark.get(title), answer)
            self.console.print(table)
            if not equal or (spark is not None and title not in spark):
                problems.append(f"{title}: Spark and DuckDB differ")
        return problems

    def _fleet(self) -> Fleet:
        base = WorkerSettings(
            address=self.cluster.address,
            namespace=self.cluster.info.namespace,
            data=str(self.directory),
            database=str(self.directory / "shop.db"),
            keys_file="",
            seed=self.options.seed,
            threads=self.options.threads,
        )
        return Fleet(base, self.directory)

    def _ends(self) -> dict[tuple[str, int], int]:
        return {
            (topic, partition.partition): partition.end
            for topic in (ORDERS, LINEITEMS)
            for partition in self.cluster.admin.describe_topic(topic).partitions
        }

    def _tables(self) -> dict[str, Iterator[tuple[object, ...]]]:
        return {
            topic: zip(*self.shop.table(table, TABLES[table][0]).values(), strict=True)
            for topic, table in _TABLE_OF.items()
        }

    def _progress(self) -> Progress:
        return Progress(
            TextColumn("{task.description:44}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.console,
            redirect_stdout=False,
            redirect_stderr=False,
        )
