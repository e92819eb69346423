"""``python -m tests.sim --seeds N --seed FIRST``: runs schedules and stops at the first violation.

A failing seed is printed with the command that replays it, message by message if ``--trace`` is added.
``--drop GUARD`` removes a guard, and ``--plant NAME`` plants a fault of tests/controls in the code; then a
violation is the expected result.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console

from tests.controls.guards import check_names
from tests.controls.planting import RELAYS, by_name, planted
from tests.sim.across.scene import KEPT, REACHES
from tests.sim.across.workload import AcrossWorkload
from tests.sim.clients.broker_workload import BrokerWorkload
from tests.sim.clients.fenced import FencedWorkload
from tests.sim.clients.workload import RawWorkload, Workload
from tests.sim.faults.plan import AIMABLE
from tests.sim.running.collector import collected_after
from tests.sim.running.minimise import minimise as smaller
from tests.sim.running.schedules import carry_out, chosen_faults, made
from tests.sim.running.totals import Told, Totals, commit_hash
from tests.sim.running.trace import replay
from tests.sim.running.workers import Ending, Workers
from tests.support.faults.progress import bar
from tests.support.faults.replaying import command, listed

CHAOS_S = 10.0
ENDED = 130  # exit code of a run that was ended by a signal, as shells use for Ctrl-C
FENCED_EVERY = 4  # every how many seeds: this workload adds least for the broker
GROUPS = ("1", "2", "3", "several", "mixed")
OF_REACH = f"An optional part of worlds of several groups: {', '.join(sorted(set(REACHES) - KEPT))}"
OF_GROUPS = "1, 2, 3, several (2 or 3, by the seed), or mixed"
#: The workloads: random bytes, which test Raft most closely; the broker's transactions; the same with the
#: fence in the application's database.
WORKLOADS: dict[str, Callable[[], Workload]] = {
    "raw": RawWorkload,
    "broker": BrokerWorkload,
    "fenced": FencedWorkload,
}


class Schedule(NamedTuple):
    """What a schedule is made from, besides the settings that all of a run have in common."""

    seed: int
    workload: str
    groups: int
    aim: str = ""  # kind of fault of which it has additional ones, in short phases of transactions


@dataclass(slots=True)
class Options:
    """The settings that all schedules of a run have in common."""

    size: int | None = None
    kind: str | None = None
    chaos_s: float = CHAOS_S
    dropped: list[str] = field(default_factory=list)
    only_faults: frozenset[int] | None = None
    actions: int | None = None
    plant: str | None = None
    reach: frozenset[str] = KEPT

    def keywords(self, workload: str, groups: int = 1, aim: str = "") -> dict[str, Any]:
        settings = {"size": self.size, "kind": self.kind, "chaos_s": self.chaos_s, "drop": self.dropped}
        settings |= {"only_faults": self.only_faults, "actions_max": self.actions, "plant": self.plant}
        settings |= {"workload": WORKLOADS[workload], "groups": groups, "reach": self.reach}
        return settings | {"aim": aim}

    def command(self, seed: int, workload: str, groups: int = 1, aim: str = "") -> str:
        """The command that runs one seed again."""
        return command(
            "tests.sim",
            seed=seed,
            seeds=1,
            workload=workload,
            groups=groups if groups > 1 else None,
            aim=aim or None,
            reach=sorted(self.reach - KEPT),
            nodes=self.size,
            net=self.kind,
            chaos=f"{self.chaos_s:g}" if self.chaos_s != CHAOS_S or self.plant is not None else None,
            drop=self.dropped,
            plant=self.plant,
            only_faults=None if self.only_faults is None else listed(sorted(self.only_faults)),
            actions=self.actions,
        )


def _one(schedule: Schedule, options: Options) -> Told:
    """Run one schedule in a separate process."""
    logging.disable()  # log messages of clients in a schedule do not belong in this run's output
    with collected_after():
        return _told(*schedule, options)


def _told(seed: int, name: str, groups: int, aim: str, options: Options) -> Told:
    settings = options.keywords(name, groups, aim)
    drop, plant, only = settings.pop("drop"), settings.pop("plant"), settings.pop("only_faults")
    faults = chosen_faults(seed, options.chaos_s, only, plant, groups, aim)
    with planted(plant):
        simulation = made(seed, faults=faults, **settings)
    broken = carry_out(simulation, drop=drop, plant=plant)
    struck = Counter(kind for _, kind, victim in simulation.fault_log if victim)
    told = Told(seed, name, groups, simulation.figures(), broken, struck, aim)
    workload = simulation.workload
    if isinstance(workload, BrokerWorkload | AcrossWorkload):
        told.cells = workload.coverage(simulation.fault_log)
        told.history = workload.report.counts if workload.report is not None else Counter()
    return told


def schedules(seeds: Iterable[int], workload: str | None, groups: str) -> Iterator[Schedule]:
    """The schedules of a run.

    ``mixed``: each seed with two workloads (each fourth with all) in one group, and in two or three groups in
    turn. ``several``: only the latter.
    """
    for n in seeds:
        names = ("raw", "broker", *(("fenced",) if n % FENCED_EVERY == 0 else ()))
        several = Schedule(n, "broker", 2 + n % 2)
        if groups == "mixed":
            every = [*(Schedule(n, name, 1) for name in names), several]
            yield from (job for job in every if workload in (None, job.workload))
        elif groups == "several":
            yield several
        elif groups != "1":
            yield Schedule(n, "broker", int(groups))
        else:
            yield from (Schedule(n, name, 1) for name in (names if workload is None else (workload,)))


def reached(reach: Iterable[str] | None) -> frozenset[str]:
    """Those parts of the world, and those that are always there. Raises BadParameter."""
    wanted = frozenset(reach or ())
    if unknown := wanted - set(REACHES):
        raise typer.BadParameter(f"no reach {', '.join(unknown)}; there are {', '.join(REACHES)}")
    return KEPT | wanted


def main(
    seeds: Annotated[int, typer.Option(help="How many schedules.")] = 1000,
    seed: Annotated[int, typer.Option(help="The first one's seed.")] = 0,
    nodes: Annotated[int | None, typer.Option(help="Replicas; default: 3 or 5, by the seed.")] = None,
    net: Annotated[str | None, typer.Option(help="fifo or wild; default: by the seed.")] = None,
    chaos: Annotated[float | None, typer.Option(help="Virtual seconds of faults.", show_default="10")] = None,
    workload: Annotated[
        str | None,
        typer.Option(help="raw, broker or fenced; default: the first two, and each fourth seed fenced."),
    ] = None,
    groups: Annotated[
        str | None, typer.Option(help=f"Broker groups: {OF_GROUPS}; default: mixed, 1 with --workload.")
    ] = None,
    reach: Annotated[list[str] | None, typer.Option(help=f"{OF_REACH}; may be repeated.")] = None,
    aim: Annotated[
        str, typer.Option(help="A kind of fault, to be drawn more often, in short phases of transactions.")
    ] = "",
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
    if groups not in (None, *GROUPS) or (workload == "raw" and groups not in (None, "1")):
        raise typer.BadParameter(
            f"--groups is one of {', '.join(GROUPS)}; more than one only with the broker workload"
        )
    if aim and aim not in AIMABLE:
        raise typer.BadParameter(f"--aim is one of {', '.join(AIMABLE)}")
    parts = reached(reach)
    if plant is not None:
        try:
            fault = by_name(plant)
        except KeyError as error:
            raise typer.BadParameter(error.args[0]) from None
        if fault.workload == RELAYS:
            raise typer.BadParameter(f"python -m tests.relays --plant {plant} runs this one")
        nodes, net, workload = nodes or fault.size, net or fault.kind, workload or fault.workload
        chaos = fault.chaos_s if chaos is None else chaos
        groups, parts = groups or str(fault.groups), parts | fault.reach
    groups = groups or ("mixed" if workload is None else "1")
    options = Options(nodes, net, chaos or CHAOS_S, dropped, _numbers(only_faults), actions, plant, parts)
    if trace:
        number = 1 if groups in ("1", "mixed") else 2 + seed % 2 if groups == "several" else int(groups)
        raise typer.Exit(
            replay(seed, options.keywords(workload or ("raw" if number == 1 else "broker"), number, aim))
        )
    work = [each._replace(aim=aim) for each in schedules(range(seed, seed + seeds), workload, groups)]
    totals, console = Totals(), Console()
    # A long run may be ended from outside, even in the background, and still prints its results.
    with Ending() as ending:
        try:
            with (
                bar(console) as progress,
                Workers(min(jobs or os.cpu_count() or 1, len(work)), ending) as workers,
            ):
                task = progress.add_task("simulating", total=len(work))

                def shown() -> None:
                    text = f"{totals.figures['acknowledged']:,} acknowledged"
                    progress.update(task, advance=1, description=text)

                run(
                    work, options, workers, totals, console, keep_going=keep_going, small=minimise, told=shown
                )
        finally:
            totals.show(console)
            if coverage_json is not None:
                totals.dump(coverage_json)
    raise typer.Exit(min(totals.broken, 100) or (ENDED if ending.asked else 0))


def _numbers(text: str | None) -> frozenset[int] | None:
    if text is None:
        return None
    try:
        return frozenset(int(part) for part in text.split(",") if part not in ("", "none"))
    except ValueError:
        raise typer.BadParameter("--only-faults is a list like 3,7,12, or none") from None


def run(
    work: Iterable[Schedule],
    options: Options,
    workers: Workers,
    totals: Totals,
    console: Console,
    *,
    keep_going: bool = False,
    small: bool = False,
    told: Callable[[], None] = lambda: None,
) -> None:
    """Run all schedules and add them to ``totals``; ``told`` is called after each.

    ``small``: minimise the first violation. Ends early when the run is asked to end.
    """
    started, before, minimised, commit = time.monotonic(), totals.wall_s, False, commit_hash()
    totals.commits = sorted({*totals.commits, commit})
    for each in workers.results(partial(_one, schedule, options) for schedule in work):
        totals.add(each)
        totals.wall_s = before + time.monotonic() - started
        told()
        if each.broken is None:
            continue
        again = options.command(each.seed, each.workload, each.groups, each.aim)
        totals.violations.append([commit, again, each.broken])
        after = f"after {each.figures.virtual_s:.2f} virtual s"
        console.print(f"[bold red]seed {each.seed}: {each.broken}[/] ({after})")
        console.print(f"  again: {again}   (--trace prints it message by message)")
        if small and not minimised:
            minimised = True
            keywords = options.keywords(each.workload, each.groups, each.aim)
            found = workers.one(partial(smaller, each.seed, keywords))
            if found is not None:
                console.print(found.text(again), highlight=False)
        if not keep_going:
            break
