"""What ``python -m tests.sim --seeds N --seed FIRST`` does: run schedules, stop at the first broken promise.

A failing seed is printed with the one command that replays it, message by message if ``--trace`` is
added. ``--drop GUARD`` takes one guard away, and ``--plant NAME`` puts a fault of tests/controls into the
code: then a broken seed is what should happen.
"""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from tests.controls.guards import check_names
from tests.controls.planting import by_name, planted
from tests.sim.across.scene import KEPT, REACHES
from tests.sim.across.workload import AcrossWorkload
from tests.sim.broker_workload import BrokerWorkload
from tests.sim.minimise import minimise as smaller
from tests.sim.schedules import carry_out, chosen_faults, made
from tests.sim.totals import Told, Totals, commit_hash
from tests.sim.trace import replay
from tests.sim.workload import RawWorkload, Workload
from tests.support.faults.progress import bar
from tests.support.faults.replaying import command, listed

CHAOS_S = 10.0
#: What runs on the log: random bytes, which look closest at Raft, or the broker's transactions.
WORKLOADS: dict[str, Callable[[], Workload]] = {"raw": RawWorkload, "broker": BrokerWorkload}


@dataclass(slots=True)
class Options:
    """What every schedule of a run has in common."""

    size: int | None = None
    kind: str | None = None
    chaos_s: float = CHAOS_S
    dropped: list[str] = field(default_factory=list)
    only_faults: frozenset[int] | None = None
    actions: int | None = None
    plant: str | None = None
    reach: frozenset[str] = KEPT

    def keywords(self, workload: str, groups: int = 1) -> dict[str, Any]:
        settings = {"size": self.size, "kind": self.kind, "chaos_s": self.chaos_s, "drop": self.dropped}
        settings |= {"only_faults": self.only_faults, "actions_max": self.actions, "plant": self.plant}
        return settings | {"workload": WORKLOADS[workload], "groups": groups, "reach": self.reach}

    def command(self, seed: int, workload: str, groups: int = 1) -> str:
        """How to run one seed again."""
        return command(
            "tests.sim",
            seed=seed,
            seeds=1,
            workload=workload,
            groups=groups if groups > 1 else None,
            reach=sorted(self.reach - KEPT),
            nodes=self.size,
            net=self.kind,
            chaos=f"{self.chaos_s:g}" if self.chaos_s != CHAOS_S or self.plant is not None else None,
            drop=self.dropped,
            plant=self.plant,
            only_faults=None if self.only_faults is None else listed(sorted(self.only_faults)),
            actions=self.actions,
        )


def _one(job: tuple[int, str, int, Options]) -> Told:
    """One schedule in a process of the pool. The collector rests meanwhile: it takes 7 % of a schedule, and
    what a schedule leaves behind is collected at once."""
    gc.disable()
    logging.disable()  # what clients say in a schedule is not this run's
    try:
        return _told(*job)
    finally:
        gc.collect()
        if gc.get_freeze_count() == 0:
            gc.freeze()  # what is imported by now stays, and need not be looked at again


def _told(seed: int, name: str, groups: int, options: Options) -> Told:
    settings = options.keywords(name, groups)
    drop, plant, only = settings.pop("drop"), settings.pop("plant"), settings.pop("only_faults")
    faults = chosen_faults(seed, options.chaos_s, only, plant, groups)
    with planted(plant):
        simulation = made(seed, faults=faults, **settings)
    broken = carry_out(simulation, drop=drop, plant=plant)
    struck = Counter(kind for _, kind, victim in simulation.fault_log if victim)
    told = Told(seed, name, groups, simulation.figures(), broken, struck)
    workload = simulation.workload
    if isinstance(workload, BrokerWorkload | AcrossWorkload):
        told.cells = workload.coverage(simulation.fault_log)
        told.history = workload.report.counts if workload.report is not None else Counter()
    return told


def schedules(seeds: Iterable[int], workload: str | None, groups: str) -> list[tuple[int, str, int]]:
    """(seed, workload, number of groups). ``mixed``: each seed with both workloads in one group, and with two
    or three groups in turn."""
    if groups == "mixed":
        every = [[(n, "raw", 1), (n, "broker", 1), (n, "broker", 2 + n % 2)] for n in seeds]
        return [job for jobs in every for job in jobs if workload in (None, job[1])]
    if groups != "1":
        return [(n, "broker", int(groups)) for n in seeds]
    names = list(WORKLOADS) if workload is None else [workload]
    return [(n, name, 1) for n in seeds for name in names]


def main(
    seeds: Annotated[int, typer.Option(help="How many schedules.")] = 1000,
    seed: Annotated[int, typer.Option(help="The first one's seed.")] = 0,
    nodes: Annotated[int | None, typer.Option(help="Replicas; default: 3 or 5, by the seed.")] = None,
    net: Annotated[str | None, typer.Option(help="fifo or wild; default: by the seed.")] = None,
    chaos: Annotated[float | None, typer.Option(help="Virtual seconds of faults.", show_default="10")] = None,
    workload: Annotated[str | None, typer.Option(help="raw or broker; default: both for every seed.")] = None,
    groups: Annotated[
        str | None, typer.Option(help="Broker groups: 1, 2, 3 or mixed; default: mixed, 1 with --workload.")
    ] = None,
    reach: Annotated[
        list[str] | None, typer.Option(help="What several groups are not sound in yet; may be repeated.")
    ] = None,
    drop: Annotated[list[str] | None, typer.Option(help="A guard to take away; may be repeated.")] = None,
    plant: Annotated[str | None, typer.Option(help="A fault of tests/controls, with its settings.")] = None,
    keep_going: Annotated[bool, typer.Option(help="Do not stop at the first broken seed.")] = False,
    trace: Annotated[bool, typer.Option(help="Print every message and event of the (one) seed.")] = False,
    only_faults: Annotated[
        str | None, typer.Option(help="Numbers of the faults to keep, with commas; or none.")
    ] = None,
    actions: Annotated[int | None, typer.Option(help="How often clients act at most.")] = None,
    minimise: Annotated[bool, typer.Option(help="Make the first broken schedule small.")] = True,
    jobs: Annotated[int, typer.Option(help="Processes; 0: one per core.")] = 0,
    coverage_json: Annotated[
        Path | None, typer.Option(help="Write totals and coverage to this file.")
    ] = None,
) -> None:
    dropped = drop or []
    try:
        check_names(dropped)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if net not in (None, "fifo", "wild"):
        raise typer.BadParameter("--net is fifo or wild")
    if workload is not None and workload not in WORKLOADS:
        raise typer.BadParameter(f"--workload is one of {', '.join(WORKLOADS)}")
    if groups not in (None, "1", "2", "3", "mixed") or (workload == "raw" and groups not in (None, "1")):
        raise typer.BadParameter("--groups is 1, 2, 3 or mixed; more than one only with the broker workload")
    if unknown := set(reach or ()) - set(REACHES):
        raise typer.BadParameter(f"no reach {', '.join(unknown)}; there are {', '.join(REACHES)}")
    reached = KEPT | frozenset(reach or ())
    if plant is not None:
        try:
            fault = by_name(plant)
        except KeyError as error:
            raise typer.BadParameter(error.args[0]) from None
        nodes, net, workload = nodes or fault.size, net or fault.kind, workload or fault.workload
        chaos = fault.chaos_s if chaos is None else chaos
        groups, reached = groups or str(fault.groups), reached | fault.reach
    groups = groups or ("mixed" if workload is None else "1")
    options = Options(nodes, net, chaos or CHAOS_S, dropped, _numbers(only_faults), actions, plant, reached)
    if trace:
        number = 1 if groups in ("1", "mixed") else int(groups)
        raise typer.Exit(
            replay(seed, options.keywords(workload or ("raw" if number == 1 else "broker"), number))
        )
    work = schedules(range(seed, seed + seeds), workload, groups)
    totals = Totals(commits=[commit_hash()])
    count = jobs or os.cpu_count() or 1
    # A long run may be ended from outside, in the background too, and still tells what it has done.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _interrupted)
    try:
        run(work, options, keep_going, count, totals, small=minimise)
    finally:  # also what an interrupted run has done
        totals.show(Console())
        if coverage_json is not None:
            totals.dump(coverage_json)
    raise typer.Exit(min(totals.broken, 100))


def _interrupted(number: int, frame: object) -> None:
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, signal.SIG_IGN)  # a second one must not interrupt the telling
    raise KeyboardInterrupt


def _numbers(text: str | None) -> frozenset[int] | None:
    if text is None:
        return None
    try:
        return frozenset(int(part) for part in text.split(",") if part not in ("", "none"))
    except ValueError:
        raise typer.BadParameter("--only-faults is a list like 3,7,12, or none") from None


def run(
    schedules: list[tuple[int, str, int]],
    options: Options,
    keep_going: bool,
    jobs: int,
    totals: Totals,
    *,
    small: bool = False,
) -> None:
    """All schedules, on ``jobs`` processes, summed up in ``totals``. ``small``: minimise the first broken."""
    console, started = Console(), time.monotonic()
    with (
        multiprocessing.get_context("spawn").Pool(min(jobs, len(schedules))) as pool,
        bar(console) as progress,
    ):
        task = progress.add_task("simulating", total=len(schedules))
        work = [(*schedule, options) for schedule in schedules]
        for told in pool.imap(_one, work, chunksize=1):
            totals.add(told)
            totals.wall_s = time.monotonic() - started
            progress.update(task, advance=1, description=f"{totals.figures['acknowledged']:,} acknowledged")
            if told.broken is None:
                continue
            again = options.command(told.seed, told.workload, told.groups)
            after = f"after {told.figures.virtual_s:.2f} virtual s"
            console.print(f"[bold red]seed {told.seed}: {told.broken}[/] ({after})")
            console.print(f"  again: {again}   (--trace prints it message by message)")
            if (
                small
                and totals.broken == 1
                and (found := smaller(told.seed, options.keywords(told.workload, told.groups)))
            ):
                console.print(found.text(again), highlight=False)
            if not keep_going:
                break
