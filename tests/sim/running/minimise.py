"""Minimises a failing seed: the fewest faults, the shortest chaos, the fewest client actions.

It uses delta debugging (Zeller's ddmin) on the fault plan, and then halves the rest, as long as the *same
kind* of violation still occurs. Another violation on the way does not count, since it would lead to a small
schedule of another problem. The result is a list that a person can read, and the command that replays it.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.sim.running.schedules import chosen_faults, run_seed, simulate
from tests.support.faults.replaying import listed, options

#: Runs of one minimisation; a schedule takes 0.1 to 0.3 s.
RUNS_MAX = 300
ACTIONS_FIRST = 256


def kind_of(broken: str) -> str:
    """The violation's text without names, numbers and values."""
    head, _, rest = broken.partition(":")
    if re.fullmatch(r"\w+", head):  # the type of an exception
        head = f"{head}: {rest}"
    return re.sub(r"'[^']*'|\"[^\"]*\"|\b(?:g\d+)?r?\d+\b|\bx\d+\b", "#", head)[:70]


@dataclass(frozen=True, slots=True)
class Schedule:
    """The parts of a seed's schedule that are kept."""

    faults: tuple[int, ...]
    chaos_s: float
    actions: int | None = None

    def command(self, base: str) -> str:
        """The command for this schedule. ``base``: the command that runs the whole seed."""
        base = re.sub(r" --(chaos|only-faults|actions) \S+", "", base)
        smaller = {"only_faults": listed(self.faults), "chaos": f"{self.chaos_s:g}", "actions": self.actions}
        return base + options(**smaller)


@dataclass(slots=True)
class Minimised:
    """The result. ``log``: (virtual seconds, fault, victim), and at the end the violation and its time."""

    schedule: Schedule
    broken: str
    broken_at_s: float
    runs: int
    faults_before: int
    log: list[tuple[float, str, str]]

    def text(self, base: str) -> str:
        lines = [f"minimised in {self.runs} runs: {len(self.schedule.faults)} of {self.faults_before} faults"]
        lines += [f"  {at:8.3f} s  {kind:<16} {victim}" for at, kind, victim in self.log]
        lines += [f"  {self.broken_at_s:8.3f} s  {self.broken}", f"  {self.schedule.command(base)}"]
        return "\n".join(lines)


@dataclass(slots=True)
class _Search:
    seed: int
    keywords: dict[str, Any]
    wanted: str
    deadline: float
    runs: int = 0
    tried: dict[Schedule, bool] = field(default_factory=dict)

    def fails(self, schedule: Schedule) -> bool:
        """Whether this smaller schedule still has the same violation; False when the budget is used up."""
        known = self.tried.get(schedule)
        if known is not None:
            return known
        if self.runs >= RUNS_MAX or time.monotonic() > self.deadline:
            return False
        self.runs += 1
        _, broken = run_seed(self.seed, **self.arguments(schedule))
        self.tried[schedule] = broken is not None and kind_of(broken) == self.wanted
        return self.tried[schedule]

    def arguments(self, schedule: Schedule) -> dict[str, Any]:
        return self.keywords | {
            "chaos_s": schedule.chaos_s,
            "only_faults": frozenset(schedule.faults),
            "actions_max": schedule.actions,
        }


def minimise(seed: int, keywords: dict[str, Any], *, limit_s: float = 300.0) -> Minimised | None:
    """The smallest schedule found within ``limit_s`` of real time; None if the seed breaks nothing.

    ``keywords``: of ``run_seed``, as for the whole schedule.
    """
    figures, broken = run_seed(seed, **keywords)
    if broken is None:
        return None
    named = {name: keywords[name] for name in ("plant", "groups", "aim") if name in keywords}
    drawn = chosen_faults(seed, keywords["chaos_s"], keywords.get("only_faults"), **named)
    numbers = tuple(fault.number for fault in drawn)
    search = _Search(seed, keywords, kind_of(broken), time.monotonic() + limit_s)
    schedule = Schedule(numbers, keywords["chaos_s"], keywords.get("actions_max"))
    schedule = _shorter(search, schedule, figures.virtual_s)
    before = None
    while schedule != before:
        before = schedule
        schedule = _fewer_faults(search, schedule)
        schedule = _fewer_actions(search, schedule)
        schedule = _shorter(search, schedule, schedule.chaos_s * 0.75)
    log, figures, broken = simulate(seed, **search.arguments(schedule))
    assert broken is not None, "a schedule that broke a promise broke none when it was run again"
    return Minimised(schedule, broken, figures.virtual_s, search.runs, len(numbers), log)


def _shorter(search: _Search, schedule: Schedule, first_try_s: float) -> Schedule:
    """Shorten the chaos: to the time of the violation, then by quarters."""
    length = min(first_try_s, schedule.chaos_s)
    while length >= 0.1:
        rounded = math.ceil(length * 10) / 10
        shorter = replace(schedule, chaos_s=rounded)
        if rounded >= schedule.chaos_s or not search.fails(shorter):
            break
        schedule, length = shorter, rounded * 0.75
    return schedule


def _fewer_faults(search: _Search, schedule: Schedule) -> Schedule:
    def fails(faults: Sequence[int]) -> bool:
        return search.fails(replace(schedule, faults=tuple(faults)))

    return replace(schedule, faults=tuple(ddmin(schedule.faults, fails)))


def ddmin(items: Sequence[int], fails: Callable[[Sequence[int]], bool]) -> list[int]:
    """A failing subset from which no single part of its last division can be removed. ``items`` must fail."""
    if fails(()):
        return []
    current, parts = list(items), 2
    while len(current) >= 2:
        size = math.ceil(len(current) / parts)
        chunks = [current[at : at + size] for at in range(0, len(current), size)]
        for number, chunk in enumerate(chunks):
            rest = [item for k, other in enumerate(chunks) if k != number for item in other]
            if len(chunks) > 2 and fails(chunk):
                current, parts = chunk, 2
                break
            if fails(rest):
                current, parts = rest, max(parts - 1, 2)
                break
        else:
            if parts >= len(current):
                break
            parts = min(2 * parts, len(current))
    return current


def _fewer_actions(search: _Search, schedule: Schedule) -> Schedule:
    """Reduce the client actions by halving, and then one by one."""
    limit = schedule.actions or ACTIONS_FIRST
    while limit and search.fails(fewer := replace(schedule, actions=limit)):
        schedule, limit = fewer, limit // 2
    top = schedule.actions
    for limit in () if top is None else range(top - 1, max(top // 2, top - 6), -1):
        if not search.fails(fewer := replace(schedule, actions=limit)):
            break
        schedule = fewer
    return schedule
