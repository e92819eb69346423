"""``escrowmq demo``: sends orders in transactions while a producer and a broker are killed.

At the end, what Spark computes from the committed messages must equal what DuckDB computes from the shop's
own database, and every transaction's messages must be there exactly once or not at all. Only then does
``run_demo`` return 0.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from escrowmq.actors.admin.admin import Admin
from escrowmq.actors.consumer.consumer import Consumer
from escrowmq.cluster.demo import queries
from escrowmq.cluster.demo.database import ShopDatabase
from escrowmq.cluster.demo.events import (
    COMMITTED,
    LEFT_OPEN,
    ROLLED_BACK,
    DemoFailed,
    Event,
    Failed,
    Finished,
    OrderEnded,
    Tally,
    read_events,
)
from escrowmq.cluster.demo.options import (
    AGREE_DEADLINE_S,
    APP,
    LINEITEMS,
    ORDERS,
    PARTITIONS,
    RESOLVE_DEADLINE_S,
    STALL_DEADLINE_S,
    TRANSACTION_TIMEOUT_S,
    DemoOptions,
    Mishap,
    MishapPlan,
    plan_mishaps,
)
from escrowmq.cluster.demo.picture import EVERY_S, Mark, Recorder, picture
from escrowmq.cluster.demo.queries import QUESTIONS, TABLES, QueryAnswer
from escrowmq.cluster.demo.spark_step import SparkStep, prepare_java
from escrowmq.cluster.demo.tpch import LINEITEM_COLUMNS, ORDER_COLUMNS, decode, generate, order_keys
from escrowmq.cluster.demo.worker import WorkerSettings
from escrowmq.cluster.exporter.exporter import Exporter
from escrowmq.cluster.local import Cluster, start_local
from escrowmq.feedback.states import TransactionState
from escrowmq.replication.errors import EscrowMQError
from escrowmq.replication.model import ConsumerRecord

# ------------------------------------------------------------------------------------------------------------
# The demo's final output: a table of what happened, and both engines' answers side by side.


def happened(
    tally: Tally, plan: MishapPlan, orders: int, messages: int, production_s: float, resolve_s: float
) -> Table:
    """The table of what happened."""
    table = Table(title="What happened", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(justify="right")
    committed, rolled_back = TransactionState.COMMITTED, TransactionState.ROLLBACK
    fail_over = tally.fail_over_s()
    planned = {kind: sum(mishap is kind for mishap in plan.orders.values()) for kind in Mishap}
    rows = [
        ("orders placed", f"{tally.through:,}"),
        ("  in", f"{production_s:.1f} s, {tally.through / production_s:,.0f}/s"),
        ("mishaps planned", f"{len(plan.orders):,}"),
        *((f"  {kind.value}", f"{count:,}") for kind, count in planned.items()),
        ("committed by their producer", f"{tally.outcomes[COMMITTED]:,}"),
        ("rolled back by their producer", f"{tally.outcomes[ROLLED_BACK]:,}"),
        ("left undecided by their producer", f"{tally.outcomes[LEFT_OPEN]:,}"),
        ("done by the killed producer, never reported", f"{tally.taken_over:,}"),
        ("resolved by feedback", f"{len(tally.resolved):,}"),
        ("  as committed", f"{tally.resolved_as(committed):,}"),
        ("  as rolled back", f"{tally.resolved_as(rolled_back):,}"),
        ("  checks answered UNKNOWN and asked again", f"{tally.answers[TransactionState.UNKNOWN.value]:,}"),
        ("  the last one, after the last order", f"{resolve_s:.1f} s"),
        ("fail-over: leader killed to next commit", "-" if fail_over is None else f"{fail_over:.2f} s"),
        ("orders in the database", f"{orders:,}"),
        ("messages that consumers can read", f"{messages:,}"),
    ]
    for row in rows:
        table.add_row(*row)
    return table


def side_by_side(title: str, spark: QueryAnswer | None, duck: QueryAnswer) -> tuple[Table, bool]:
    """One question's answers as a table, and whether they are equal row for row."""
    columns, duck_rows = duck
    names = QUESTIONS[title][0]
    table = Table(title=title, title_justify="left")
    table.add_column("", style="bold", no_wrap=True)
    table.add_column("")
    table.add_column("Spark: messages", justify="right", no_wrap=True)
    table.add_column("DuckDB: database", justify="right", no_wrap=True)
    table.add_column("")
    spark_rows = duck_rows if spark is None else spark[1]
    equal = spark is None or (spark[0] == columns and spark_rows == duck_rows)
    nothing = ["-"] * len(columns)
    for i in range(max(len(spark_rows), len(duck_rows))):
        ours = spark_rows[i] if i < len(spark_rows) else nothing
        theirs = duck_rows[i] if i < len(duck_rows) else nothing
        for j in range(names, len(columns)):
            head = " ".join((ours if theirs is nothing else theirs)[:names]) if j == names else ""
            same = ours[j] == theirs[j] and ours[:names] == theirs[:names]
            mark = "" if spark is None else "[green]=[/]" if same else "[red]differs[/]"
            left = "not asked" if spark is None else _shown(ours[j])
            table.add_row(head, columns[j], left, _shown(theirs[j]), mark, end_section=j == len(columns) - 1)
    return table, equal


def _shown(text: str) -> str:
    """A value for display: thousands separated, six decimals at most. (Comparison uses the exact text.)"""
    try:
        number = Decimal(text)
    except InvalidOperation:
        return text
    exponent = number.as_tuple().exponent
    long = isinstance(exponent, int) and exponent < -6
    return f"{number:,.6f}" if long else f"{number:,}"


def show_problems(console: Console, problems: list[str]) -> None:
    """Print the violations that were found, one per line."""
    for problem in problems:
        console.print("problem:", style="bold red")
        console.print(problem, highlight=False, markup=False)


# ------------------------------------------------------------------------------------------------------------
# Checks message by message: exactly once if its order is in the database, otherwise not at all.
#
# Pure: takes the records that a consumer read and the rows of the database, and returns violations as texts.

#: Enough to see what is wrong; a run that fails could have thousands.
PROBLEMS_MAX = 20

_COLUMNS = {ORDERS: ORDER_COLUMNS, LINEITEMS: LINEITEM_COLUMNS}
#: Columns that identify a row: order key; order key and line number.
_KEYS = {ORDERS: (0,), LINEITEMS: (0, 3)}


def find_problems(
    records: Iterable[ConsumerRecord],
    tables: Mapping[str, Iterable[tuple[Any, ...]]],
    ends: Mapping[tuple[str, int], int],
) -> list[str]:
    """The violations, at most PROBLEMS_MAX of them.

    ``tables`` maps each topic to the rows that the database holds for it; ``ends`` maps (topic, partition)
    to its end offset.
    """
    problems: list[str] = []
    expected = {
        topic: {tuple(row[i] for i in _KEYS[topic]): row for row in rows} for topic, rows in tables.items()
    }
    seen: dict[str, set[tuple[Any, ...]]] = {topic: set() for topic in expected}
    next_offset: dict[tuple[str, int], int] = defaultdict(int)
    tx_of_order: dict[int, str | None] = {}
    for record in records:
        address = f"{record.topic}/{record.partition}@{record.offset}"
        which = (record.topic, record.partition)
        if record.offset != next_offset[which]:
            problems.append(f"{address}: offset {next_offset[which]} was expected next")
        next_offset[which] = record.offset + 1
        row = decode(_COLUMNS[record.topic], record.value)
        key = tuple(row[i] for i in _KEYS[record.topic])
        if key in seen[record.topic]:
            problems.append(f"{address}: {key} is a duplicate")
        seen[record.topic].add(key)
        wanted = expected[record.topic].get(key)
        if wanted is None:
            problems.append(f"{address}: {key} is readable but not in the database")
        elif wanted != row:
            problems.append(f"{address}: {key} differs from the database")
        if tx_of_order.setdefault(row[0], record.tx_id) != record.tx_id or record.tx_id is None:
            problems.append(f"{address}: order {row[0]} is spread over several transactions")
        if len(problems) >= PROBLEMS_MAX:
            return problems
    for topic, rows in expected.items():
        problems += [
            f"{topic}: {key} is in the database but not readable" for key in rows.keys() - seen[topic]
        ]
    problems += [
        f"{topic}/{partition}: read up to {next_offset[topic, partition]} of {end}"
        for (topic, partition), end in ends.items()
        if next_offset[topic, partition] != end
    ]
    return problems[:PROBLEMS_MAX]


# ------------------------------------------------------------------------------------------------------------
# The demo's producer processes: starts, reads, kills and replaces them.
#
# For each process, a thread here turns its output into events in one bounded queue. Signals are sent only to
# processes started here, by pid.

#: Events waiting to be counted: more than the orders of a second.
QUEUE_MAX = 10_000
#: Time from closing a process's standard input to its end; its producer flushes and closes meanwhile.
END_TIMEOUT_S = 15.0


@dataclass(slots=True)
class _Process:
    number: int
    popen: subprocess.Popen[str]
    keys: list[int]
    done: set[int] = field(default_factory=set)
    killed: bool = False
    listener: threading.Thread | None = None


class ProducerProcesses:
    """Producer processes by number. ``base``: the settings that all of them share."""

    def __init__(self, base: WorkerSettings, directory: Path) -> None:
        self._base, self._directory = base, directory
        self._processes: dict[int, _Process] = {}
        self._starts = 0
        self.events: queue.Queue[tuple[int, Event]] = queue.Queue(QUEUE_MAX)

    def start(self, number: int, keys: Sequence[int]) -> int:
        """Start process ``number`` with its share of the orders; returns its pid."""
        self._starts += 1
        run = f"{number}.{self._starts}"
        keys_file = self._directory / f"keys-{run}.json"
        keys_file.write_text(json.dumps(list(keys)))
        settings = replace(self._base, keys_file=str(keys_file))
        with (self._directory / f"producer-{run}.log").open("w") as log:
            popen = subprocess.Popen(
                [sys.executable, "-m", "escrowmq.cluster.demo.worker", settings.encode()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        process = self._processes[number] = _Process(number, popen, list(keys))
        process.listener = threading.Thread(target=self._listen, args=(process,), daemon=True)
        process.listener.start()
        return popen.pid

    def kill(self, number: int) -> list[int]:
        """Kill a process with SIGKILL; returns the orders that it had not reported as done."""
        process = self._processes[number]
        process.killed = True
        process.popen.send_signal(signal.SIGKILL)
        process.popen.wait()
        assert process.listener is not None
        process.listener.join(END_TIMEOUT_S)  # what it reported before its end still counts
        return [key for key in process.keys if key not in process.done]

    def stop(self) -> None:
        """Let all processes end; kill those that do not end in time."""
        for process in self._processes.values():
            if process.popen.stdin is not None:
                process.popen.stdin.close()
        for process in self._processes.values():
            try:
                process.popen.wait(END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.popen.kill()
                process.popen.wait()

    def _listen(self, process: _Process) -> None:
        assert process.popen.stdout is not None
        for event in read_events(process.popen.stdout):
            if isinstance(event, OrderEnded):
                process.done.add(event.key)
            self.events.put((process.number, event))
        code = process.popen.wait()
        if code != 0 and not process.killed:
            self.events.put((process.number, Failed(f"producer process {process.number} ended with {code}")))


# ------------------------------------------------------------------------------------------------------------
# The main phase of the demo: producers place orders; one of them is killed, and then the leader.

#: Interval for listing open transactions while they are being resolved.
POLL_S = 0.25
#: Open transactions are listed up to this number: the progress bar needs no more.
OPEN_SHOWN_MAX = 100_000
#: Number of the process to kill; any would do.
VICTIM = 1

Note = Callable[[str], None]


def produce(
    fleet: ProducerProcesses,
    admin: Admin,
    plan: MishapPlan,
    shares: Sequence[Sequence[int]],
    tally: Tally,
    moved: Callable[[int], None],
    note: Note,
) -> None:
    """Place all orders and perform the two kills. ``moved(orders done)`` is for a progress bar.

    Raises DemoFailed when a producer fails or nothing happens for STALL_DEADLINE_S.
    """
    total = sum(map(len, shares))
    for number, share in enumerate(shares):
        fleet.start(number, share)
    busy = set(range(len(shares)))
    victim_killed = False
    while busy:
        try:
            number, event = fleet.events.get(timeout=STALL_DEADLINE_S)
        except queue.Empty:
            raise DemoFailed(f"no order was finished for {STALL_DEADLINE_S:g} s") from None
        tally.add(event)
        if isinstance(event, Finished):
            busy.discard(number)
        moved(tally.through)
        if not victim_killed and tally.through >= plan.producer_killed_at * total:
            victim_killed = True
            left = fleet.kill(VICTIM)
            tally.producer_killed_s = time.monotonic()
            busy.add(VICTIM)
            fleet.start(VICTIM, left)
            note(
                f"producer {VICTIM} killed with SIGKILL; another process takes over its {len(left):,} orders"
            )
        if tally.leader_killed_s is None and tally.through >= plan.leader_killed_at * total:
            replica = kill_leader(admin)
            tally.leader_killed_s = time.monotonic()
            note(f"leader broker (replica {replica}) killed with SIGKILL")


def kill_leader(admin: Admin) -> int:
    """Kill the leader of group 0 with SIGKILL; returns its replica number."""
    deadline = time.monotonic() + STALL_DEADLINE_S
    while time.monotonic() < deadline:
        group = admin.status().groups[0]
        leading = [r for r in group.replicas if r.reachable and r.replica == group.leader]
        if leading:
            os.kill(int(leading[0].details["pid"]), signal.SIGKILL)
            return leading[0].replica
        time.sleep(POLL_S)
    raise DemoFailed("the broker group has no leader to kill")


def wait_until_resolved(
    fleet: ProducerProcesses, admin: Admin, tally: Tally, shown: Callable[[int], None]
) -> float:
    """Wait until no transaction is open; returns the seconds it took. ``shown(open ones)`` is for a bar."""
    started = time.monotonic()
    while True:
        while not fleet.events.empty():
            tally.add(fleet.events.get()[1])
        open_ones = len(admin.list_transactions(app=APP, limit=OPEN_SHOWN_MAX))
        shown(open_ones)
        took = time.monotonic() - started
        if open_ones == 0:
            return took
        if took > RESOLVE_DEADLINE_S:
            raise DemoFailed(
                f"{open_ones} transactions are still open after {RESOLVE_DEADLINE_S:g} s of checks"
            )
        time.sleep(POLL_S)


def wait_until_replicas_agree(admin: Admin) -> None:
    """Wait until all replicas, including the killed one, have applied the same entries. Raises DemoFailed."""
    deadline = time.monotonic() + AGREE_DEADLINE_S
    while True:
        replicas = [replica for group in admin.status().groups for replica in group.replicas]
        if all(r.reachable for r in replicas) and len({r.applied_index for r in replicas}) == 1:
            return
        if time.monotonic() > deadline:
            seen = ", ".join(f"{r.replica}: {r.applied_index if r.reachable else 'gone'}" for r in replicas)
            raise DemoFailed(f"the replicas do not agree after {AGREE_DEADLINE_S:g} s (applied: {seen})")
        time.sleep(POLL_S)


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
    show_problems(console, problems)
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
            duck_answers = queries.answers(self.shop)
            spark_answers = self._ask_spark(spark, progress)
        orders = len(self.shop.order_keys())
        self.console.print(happened(tally, self.plan, orders, len(records), production_s, resolve_s))
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

    def _produce(self, fleet: ProducerProcesses, tally: Tally, progress: Progress) -> float:
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

    def _resolve(self, fleet: ProducerProcesses, tally: Tally, progress: Progress) -> float:
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
            table, equal = side_by_side(title, None if spark is None else spark.get(title), answer)
            self.console.print(table)
            if not equal or (spark is not None and title not in spark):
                problems.append(f"{title}: Spark and DuckDB differ")
        return problems

    def _fleet(self) -> ProducerProcesses:
        base = WorkerSettings(
            address=self.cluster.address,
            namespace=self.cluster.info.namespace,
            data=str(self.directory),
            database=str(self.directory / "shop.db"),
            keys_file="",
            seed=self.options.seed,
            threads=self.options.threads,
        )
        return ProducerProcesses(base, self.directory)

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
