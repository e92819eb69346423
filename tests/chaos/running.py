"""A whole run: its rounds one after the other, each in a separate process with a separate cluster.

A round that fails keeps its directory and prints the command that repeats it. Nothing of a round outlives it,
so the next one starts clean.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from tests.chaos import cleanup, clocks
from tests.chaos.drawn import absent, planned, possible
from tests.chaos.kinds import Kind
from tests.chaos.machines import ENVIRONMENT, remove_leftovers
from tests.chaos.measure import Results
from tests.chaos.plan import GROUPS, Round, only, plan_round, rounds
from tests.chaos.round import RoundSettings
from tests.support.faults.replaying import command, listed

#: A round hangs if it is not done after ROUND_S plus TRIAL_S for each trial.
ROUND_S, TRIAL_S = 500.0, 40.0
#: Tries to start a round: on a busy machine Ray may not start in time, which says nothing about brokers.
STARTS = 3


class NotStarted(Exception):
    """The round's cluster did not start: no fault was inflicted, and nothing can be judged."""


class NothingPossible(Exception):
    """This machine can inflict none of the kinds that were asked for."""


class Watcher(Protocol):
    """Gets the events of a run and shows them."""

    def round_begins(self, plan: Round) -> None: ...
    def told(self, plan: Round, event: dict[str, Any]) -> None: ...
    def left_out(self, reasons: dict[str, str]) -> None: ...
    def failed(self, plan: Round, directory: Path, problems: list[str], replay: str) -> None: ...


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of a run. ``only``: the only round to run; ``only_trial``: the only trial of it.
    ``groups``: number of broker groups of every round; None: one, two and three in turn."""

    seed: int
    trials: int
    per_round: int
    kinds: tuple[Kind, ...]
    only: int | None = None
    only_trial: int | None = None
    groups: int | None = None
    keep_going: bool = False
    keep: bool = False
    overrides: dict[str, Any] = field(default_factory=dict)

    def plans(self) -> list[Round]:
        """The rounds to run."""
        if self.only is not None:
            plan = plan_round(self.seed, self.only, self.per_round, self.kinds, self.groups)
            return [only(plan, self.only_trial)]
        return rounds(self.seed, self.trials, self.per_round, self.kinds, self.groups)

    def size(self, plan: Round) -> int:
        """Number of trials of the whole round, even if ``plan`` has only one of them."""
        return len(plan.faults) if self.only_trial is None else self.per_round

    def replay(self, number: int, size: int, trial: int | None = None) -> str:
        """The command that repeats a round, or one trial of it on a fresh cluster."""
        some = None if set(self.kinds) == set(Kind) else listed(kind.value for kind in self.kinds)
        return command(
            "tests.chaos",
            seed=self.seed,
            only_round=number,
            per_round=size,
            only_trial=self.only_trial if trial is None else trial,
            groups=self.groups,
            kinds=some,
        )


class Run:
    """See the module's docstring."""

    def __init__(
        self,
        options: RunOptions,
        watcher: Watcher,
        machines_missing: str | None,
        saving: Callable[[Results], None] = lambda results: None,
    ) -> None:
        """``saving``: called after each trial and round, so that a run that is broken off has results."""
        # If no machines can be simulated, the rounds that would have them draw from the other kinds.
        self.options = replace(options, kinds=possible(options.kinds, machines_missing))
        self.asked, self.watcher, self.machines_missing = options.kinds, watcher, machines_missing
        self.results = Results(options.seed)
        self._saving, self._began = saving, time.monotonic()
        self.mark = f"{os.getpid()}-{uuid.uuid4().hex}"

    def run(self) -> bool:
        """Run all rounds, or until one fails; returns whether none did. In any case no process is left."""
        self._began = time.monotonic()
        if not self.options.kinds:
            self._leave_out(set(), set(), 0)
            raise NothingPossible(self.machines_missing)
        plans = self.options.plans()
        self._leave_out(*planned(plans), sum(len(plan.faults) for plan in plans))
        self.watcher.left_out(self.results.left_out)
        groups: set[int] = set()
        try:
            for plan in plans:
                groups.add(plan.groups)
                good = self._round(plan)
                self._save()
                if not good and not self.options.keep_going:
                    break
        finally:
            cleanup.end_all(self.mark)
            self.results.took_s = time.monotonic() - self._began
            trials = self.results.trials
            seen = {trial[which] for trial in trials for which in ("kind", "meanwhile") if trial[which]}
            self._leave_out(seen, groups, len(trials))
        return not self.results.violations

    def _save(self) -> None:
        self.results.took_s = time.monotonic() - self._began
        self._saving(self.results)

    def _leave_out(self, seen: set[str], groups: set[int], trials: int) -> None:
        alone = self.options.groups is not None or self.options.only is not None
        missing = set() if alone else set(GROUPS) - groups
        self.results.left_out = absent(seen, missing, self.asked, self.machines_missing, trials)

    def _round(self, plan: Round) -> bool:
        for _ in range(STARTS - 1):
            try:
                return self._attempt(plan)
            except NotStarted as error:
                self.watcher.told(plan, {"event": "start is repeated", "text": str(error)})
        try:
            return self._attempt(plan)
        except NotStarted as error:
            self.results.violations.append({"round": plan.number, "text": f"no start: {error}"})
            return False

    def _attempt(self, plan: Round) -> bool:
        self.watcher.round_begins(plan)
        directory = Path(tempfile.mkdtemp(prefix=f"emq-c{plan.number}-", dir="/tmp"))
        keep = True
        try:
            problems = self._watched(plan, directory)
            keep = bool(problems) or self.options.keep
        except BaseException:
            keep = self.options.keep  # interrupted: no one will look into it
            raise
        finally:
            cleanup.end_all(self.mark)
            if plan.machines:
                remove_leftovers()
            if not keep:
                shutil.rmtree(directory, ignore_errors=True)
        if problems:
            self.results.violations += [{"round": plan.number, "text": text} for text in problems]
            replay = self.options.replay(plan.number, self.options.size(plan))
            self.watcher.failed(plan, directory, problems, replay)
        return not problems

    def _watched(self, plan: Round, directory: Path) -> list[str]:
        """Run a round's process to its end; returns the problems."""
        settings = RoundSettings(
            seed=plan.seed,
            number=plan.number,
            size=self.options.size(plan),
            groups=self.options.groups,
            only_trial=self.options.only_trial,
            kinds=[kind.value for kind in self.options.kinds],
            directory=str(directory),
            **self.options.overrides,
        )
        problems: list[str] = []
        seen: set[str] = set()
        doing, replay, alone = "before the first trial", "", ""
        with self._process(settings, directory) as (popen, late):
            assert popen.stdout is not None
            for line in popen.stdout:
                event: dict[str, Any] = json.loads(line)
                event["round"] = plan.number
                seen.add(event["event"])
                if event["event"] == "trial begins":
                    doing = f"in trial {event['number']} ({event['kind']})"
                    replay = self.options.replay(plan.number, self.options.size(plan), event["number"])
                    alone = f"; that trial alone: {replay}"
                elif event["event"] == "trial":
                    event["replay"] = replay
                    self.results.trials.append(event)
                    self._save()
                    doing, alone = f"after trial {event['number']} ({event['kind']})", ""
                elif event["event"] == "judged":
                    self.results.judged.append(event)
                    problems += event["violations"]
                elif event["event"] in ("violation", "broken"):
                    problems.append(f"{doing}: {event['text']}{alone}")
                self.watcher.told(plan, event)
            code = popen.wait()
        if late.is_set():
            problems.append(f"the round did not end in time; it was {doing}")
        elif "judged" not in seen and not problems:
            problems.append(f"the round's process ended with {code}")
        if "started" not in seen:
            raise NotStarted("; ".join(problems))
        return problems

    @contextlib.contextmanager
    def _process(
        self, settings: RoundSettings, directory: Path
    ) -> Iterator[tuple[subprocess.Popen[str], threading.Event]]:
        late = threading.Event()

        def give_up() -> None:
            late.set()
            cleanup.end_all(self.mark)

        with (directory / "round.log").open("w") as log:
            # In a separate session, so that Ctrl-C goes only to this process, which then ends the others.
            popen = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.round", settings.encode()],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={
                    **os.environ,
                    **(ENVIRONMENT if settings.plan().machines else {}),
                    **clocks.environment(directory),
                    cleanup.MARK: self.mark,
                },
                start_new_session=True,
            )
        timer = threading.Timer(ROUND_S + TRIAL_S * settings.size, give_up)
        timer.daemon = True
        timer.start()
        try:
            yield popen, late
        finally:
            timer.cancel()
            if popen.poll() is None:
                cleanup.end_all(self.mark)
            popen.wait()
