"""Lets one peer and EscrowMQ take turns, row by row, so that a change of the machine meets both.

Both are up all the time, and the processes of the one that waits are stopped (SIGSTOP): a JVM at rest takes a
tenth of a core. Every second round runs in reverse order.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.peers.neighbours import OTHERS_MAX, Neighbours
from benchmarks.peers.packages import NotAvailable
from benchmarks.peers.processes import ServerEnded
from benchmarks.peers.rows import LONE_PLAIN, LONE_TX, PLAIN_1K, Figure, pairing
from benchmarks.peers.system import Peer, System

Say = Callable[[str], None]

#: A JVM's compiler needs a minute of load. EscrowMQ has none: this fills topics and opens connections.
OURS_WARM_S = 10.0
#: Of one row while a system is warmed: each comes several times.
WARM_ROW_S = 5.0
#: A busy machine warms more slowly; but not for ever.
WARM_LONGEST = 3.0
#: A peer with less processor time before its first round was cold: its figures are kept, but not published.
WARM_CPU_S = 55.0
#: A system that was stopped is asked for so long, again and again: its members may have missed each other.
SETTLE_ROW_S, SETTLE_TRIES = 0.3, 40
#: Stands for a figure that may not be published.
BUSY = Figure(error="other work took the machine")
#: These take the same paths as the rows beside them, so the minute is for those.
NOT_WARMED = {LONE_PLAIN, LONE_TX, PLAIN_1K}


@dataclass(frozen=True, slots=True)
class Plan:
    """How long, and how often."""

    rounds: int
    seconds: float
    warm_s: float


@dataclass(slots=True)
class Run:
    """What one peer and EscrowMQ did in turns: system -> row -> figure, for each round."""

    peer: str
    rounds: list[dict[str, dict[str, Figure]]] = field(default_factory=list)
    #: How long the peer was warmed, and the processor time that it had.
    warmed_s: float = 0.0
    warm_cpu_s: float = 0.0
    #: Why there are fewer rounds than planned.
    ended: str | None = None


def steps(peer: System, ours: System, number: int) -> list[tuple[System, str]]:
    """Who does what in round ``number``: the rows that are compared stand side by side."""
    found = []
    for theirs, of_ours in pairing(peer.rows):
        found += [(ours, row) for row in of_ours] + [(peer, theirs)]
    return found if number % 2 == 0 else found[::-1]


def warm(system: System, rows: tuple[str, ...], seconds: float, say: Say) -> None:
    """Rows with many messages again and again, for this long: in processor time, too, on a busy machine."""
    begin, meter = time.monotonic(), Neighbours()
    rows = tuple(row for row in rows if row not in NOT_WARMED)

    def enough() -> bool:
        took = time.monotonic() - begin
        return took >= seconds and (meter.own_s() >= seconds or took >= WARM_LONGEST * seconds)

    while not enough():
        for row in rows:
            figure = system.measure(row, max(0.1, min(WARM_ROW_S, seconds / len(rows))))
            say(f"warming {system.name}: {row} {_told(figure)}")
            if enough():
                break


def settle(system: System, row: str, say: Say) -> None:
    """Let it run after it was stopped, until it does the row. Raises TimeoutError if it never does."""
    system.go_on()
    for _ in range(SETTLE_TRIES):
        figure = system.measure(row, SETTLE_ROW_S)
        if figure.error is None and figure.items:
            return
        say(f"{system.name} comes back: {_told(figure)}")
    raise TimeoutError(f"{system.name} did not come back after it was stopped")


def take_turns(
    peer: Peer,
    ours: System,
    plan: Plan,
    folder: Path,
    say: Say,
    step: Callable[[], None],
    save: Callable[[Run], None],
) -> Run:
    """Start and warm both, and run the rounds; ``save`` gets the run after each row. Raises NotAvailable."""
    run = Run(peer.name)
    try:
        say(f"starting {peer.name}")
        peer.start(folder / peer.name)
        peer.pause()
        say("starting EscrowMQ")
        ours.start(folder / "escrowmq")
        warm(
            ours,
            tuple(row for _, rows in pairing(peer.rows) for row in rows),
            min(OURS_WARM_S, plan.warm_s),
            say,
        )
        ours.pause()
        peer.go_on()
        warming, meter = time.monotonic(), Neighbours()
        warm(peer, peer.rows, plan.warm_s, say)
        run.warmed_s, run.warm_cpu_s = time.monotonic() - warming, meter.own_s()
        running: System = peer
        for number in range(plan.rounds):
            found: dict[str, dict[str, Figure]] = {ours.name: {}, peer.name: {}}
            run.rounds.append(found)
            for system, row in steps(peer, ours, number):
                if system is not running:
                    running.pause()
                    settle(system, row, say)
                    running = system
                os.sync()  # nobody pays for pages that another left unwritten
                meter = Neighbours()
                figure = replace(system.measure(row, plan.seconds), others=round(meter.share(), 3))
                found[system.name][row] = figure
                say(f"round {number + 1}, {system.name}: {row} {_told(figure)}")
                step()
                save(run)
    except (ServerEnded, TimeoutError) as error:
        if not any(found.get(peer.name) for found in run.rounds):
            raise NotAvailable(f"it did not run: {error}") from error
        run.ended = str(error)
        save(run)
    finally:
        ours.stop()
        peer.stop()
    return run


def _told(figure: Figure) -> str:
    if figure.error is not None:
        return f"failed: {figure.error}"
    rate = figure.value("per_s") or 0.0
    p50 = "" if figure.p50_ms is None else f", p50 {figure.p50_ms:.2f} ms"
    visible = "" if figure.visible is None else f", {figure.visible / max(1, figure.items):.0%} visible"
    return f"{rate:,.0f}/s{p50}{visible}"


def plain(run: Run) -> dict[str, Any]:
    """A run as JSON takes it."""
    rounds = [
        {system: {row: figure.plain() for row, figure in rows.items()} for system, rows in one.items()}
        for one in run.rounds
    ]
    return {
        "peer": run.peer,
        "rounds": rounds,
        "warmed_s": run.warmed_s,
        "warm_cpu_s": run.warm_cpu_s,
    } | ({} if run.ended is None else {"ended": run.ended})


def rounds_of(run: dict[str, Any], quiet: bool = False) -> Iterator[dict[str, dict[str, Figure]]]:
    """The rounds of a run as it was saved. ``quiet``: only what may be published."""
    if quiet and run["warm_cpu_s"] < WARM_CPU_S:
        return
    for one in run["rounds"]:
        every = {system: {row: Figure.of(f) for row, f in rows.items()} for system, rows in one.items()}
        yield {
            system: {row: f if not quiet or f.others <= OTHERS_MAX else BUSY for row, f in rows.items()}
            for system, rows in every.items()
        }
