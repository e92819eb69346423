"""``python -m benchmarks.around_database``: transactions with messages around one real PostgreSQL, in turns.

Starts PostgreSQL with its defaults (it syncs at each commit) as an unprivileged user on a free port of
loopback, and one broker group of three replicas. Each round measures each way, every second round in reverse
order. Ratios are medians of ratios within a round. Nothing passes or fails, except that every message must be
read once.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import sqlalchemy as sa

import escrowmq
from benchmarks.around_database import measuring
from benchmarks.around_database.ways import PARTITIONS, POOL, Alone, ByHand, Fenced, Outboxed, Place, Way
from benchmarks.measure import machine
from tests.support.database_servers import running

#: Threads of the two rates.
THREADS = (1, 16)
#: Transactions that come at random times, for the delays: name -> how many a second, from how many threads.
ARRIVING = {"20/s": (20.0, 1), "200/s": (200.0, 8)}
WARM_S = 1.0

Figures = dict[str, dict[str, list[float]]]


class Run:
    """The ways in one database and one cluster, and the figures of the rounds so far."""

    def __init__(
        self,
        engine: sa.Engine,
        cluster: Any,
        say: Callable[[str], None] = print,
        partitions: int = PARTITIONS,
    ) -> None:
        self._engine, self._say = engine, say
        for topic in ("fenced", "outbox", "looking", "by-hand"):
            cluster.admin.create_topic(topic, partitions=partitions)
        place = Place(engine, cluster)
        self.ways: list[Way] = [Alone(place), Fenced(place), Outboxed(place), ByHand(place)]
        #: Only its delays differ from the other outbox's.
        self._looking = Outboxed(place, woken=False)
        self._readers = {
            way.name: measuring.Reader(cluster, way.topic) for way in (*self.ways, self._looking) if way.topic
        }
        self._counted = {way.name: measuring.Counted() for way in (*self.ways, self._looking)}
        self.figures: Figures = {way.name: {} for way in (*self.ways, self._looking)}

    def warm(self, seconds: float = WARM_S) -> None:
        """Everything once, without figures; and what each way asks of the database."""
        for way in self.ways:
            for threads in THREADS:
                self._rate(way, threads, seconds)
            asked, commits = measuring.statements(self._engine, way, self._counted[way.name])
            self._note(way, "statements", asked)
            self._note(way, "commits", commits)

    def round(self, number: int, seconds: float, rows: int) -> None:
        """One round of everything."""
        ways = self.ways if number % 2 == 0 else self.ways[::-1]
        for threads in THREADS:
            for way in ways:
                found = self._rate(way, threads, seconds)
                self._note(way, f"per_s_{threads}", found.per_s)
                self._note(way, f"behind_{threads}", found.behind)
        for way in ways:
            if isinstance(way, Outboxed | ByHand):
                reader, counted = self._readers[way.name], self._counted[way.name]
                self._note(way, "rows_per_s", measuring.relay_rate(way, reader, counted, rows))
        for name, (per_s, threads) in ARRIVING.items():
            for way in (*ways, self._looking):
                if not way.topic:
                    continue
                reader, counted = self._readers[way.name], self._counted[way.name]
                found_ms = measuring.delays(way, reader, counted, per_s, threads, seconds, number)
                for q in (0.5, 0.99):
                    self._note(way, f"p{100 * q:.0f}_ms at {name}", found_ms.quantile_ms(q))
                self._note(way, f"came at {name}", found_ms.summary()["samples"] / seconds)
        self._say(f"round {number + 1} done, load average {os.getloadavg()[0]:.1f}")

    def _rate(self, way: Way, threads: int, seconds: float) -> measuring.Rate:
        return measuring.rate(way, self._readers.get(way.name), self._counted[way.name], threads, seconds)

    def _note(self, way: Way, what: str, value: float) -> None:
        self.figures[way.name].setdefault(what, []).append(value)

    def close(self) -> None:
        """Consumers and producers."""
        for reader in self._readers.values():
            reader.close()
        for way in self.ways:
            way.close()


@contextmanager
def opened(
    engine: sa.Engine, cluster: Any, say: Callable[[str], None] = print, partitions: int = PARTITIONS
) -> Iterator[Run]:
    """A run that is closed at the end, also of one that fails."""
    run = Run(engine, cluster, say, partitions)
    try:
        yield run
    finally:
        run.close()


def tables(run: Run) -> str:
    """The figures as Markdown."""
    figures = run.figures
    alone = figures[run.ways[0].name]
    lines = [
        "| | statements | "
        + " | ".join(f"{n} thread{'s' * (n > 1)}: per second | of the order alone" for n in THREADS)
        + " | rows a second of the relay |",
        "|---|---:|" + "---:|---:|" * len(THREADS) + "---:|",
    ]
    for way in run.ways:
        found = figures[way.name]
        cells = [f"{median(found['statements']):g}"]
        for threads in THREADS:
            rates, above = found[f"per_s_{threads}"], alone[f"per_s_{threads}"]
            ratio = median(one / other for one, other in zip(rates, above, strict=True))
            late = median(found[f"behind_{threads}"])
            cells += [f"{median(rates):,.0f}{f' ({late:.0%} waited at the end)' * (late >= 0.005)}"]
            cells += [f"{ratio:.2f}"]
        cells += [f"{median(found['rows_per_s']):,.0f}" if "rows_per_s" in found else ""]
        lines.append(f"| {way.name} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "| from the database's commit to a readable message | "
        + " | ".join(f"{name}: p50 | p99" for name in ARRIVING)
        + " |",
        "|---|" + "---:|---:|" * len(ARRIVING),
    ]
    for name, found in figures.items():
        shown = [
            f"{median(found[f'{p}_ms at {at}']):.1f} ms"
            for at in ARRIVING
            for p in ("p50", "p99")
            if f"p50_ms at {at}" in found
        ]
        if shown:
            lines.append(f"| {name} | " + " | ".join(shown) + " |")
    lines += ["", *(f"- {way.name}: {way.gives}" for way in run.ways)]
    return "\n".join(lines)


def commit_measured() -> str:
    """The commit that is measured, marked if files were changed since."""
    said = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True)
    return said.stdout.strip()


def main() -> None:
    """Measure, print the tables, and write the figures of each round to a file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--rows", type=int, default=10_000, help="that wait for the relay")
    parser.add_argument("--output", type=Path, default=Path("artifacts/around_database.json"))
    chosen = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="escrowmq-bench-")))
        facts = machine(folder)
        server = stack.enter_context(running("postgresql", durable=True))
        engine = sa.create_engine(server.url(), pool_size=POOL)
        stack.callback(engine.dispose)
        cluster = stack.enter_context(escrowmq.start_local(groups=1, replicas=3, data_dir=folder / "data"))
        with opened(engine, cluster) as run:
            run.warm()
            for number in range(chosen.rounds):
                run.round(number, chosen.seconds, chosen.rows)
            print(tables(run))
        with engine.connect() as db:
            version = db.execute(sa.text("show server_version")).scalar_one()
    facts |= {"load_after": os.getloadavg()[0], "postgresql": version, "commit": commit_measured()}
    print(f"\n{facts}")
    chosen.output.parent.mkdir(parents=True, exist_ok=True)
    chosen.output.write_text(json.dumps({"machine": facts, "figures": run.figures}, indent=1))


if __name__ == "__main__":
    main()
