"""A run: lives of a cluster one after the other, each killed at a moment that the seed has drawn.

Everything of a life is killed: Ray, its replicas, their supervisor, and the producer and the reader. They
share an environment variable by which all of them, and no others, are found (tests/chaos/cleanup.py).
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos import cleanup
from tests.timers_million.audit import Plan, Sent, judge
from tests.timers_million.life import LifeSettings

#: While a share of the messages is sent; while all wait; while a share of them has been read.
KILLS = ("sending", "waiting", "reading")
#: A life that prints nothing for so long is stuck: in the longest pause nothing is due yet.
SILENT_S = 180.0
Told = Callable[[str, int], None]


@dataclass(frozen=True)
class RunPlan:
    """``messages``: a multiple of ``batch``. ``kills``: the phases in which everything is killed."""

    seed: int
    messages: int
    batch: int = 5_000
    span_ms: int = 60_000
    kills: tuple[str, ...] = KILLS

    def share(self, number: int) -> float:
        """At which part of its phase this kill strikes."""
        return random.Random(f"{self.seed}/{number}").uniform(0.1, 0.7)


@dataclass
class Outcome:
    """``struck``: each kill with the processes it ended and what had happened. ``late_ms``: of the last
    message, when it was read. ``starts_s``: of each life."""

    problems: list[str] = field(default_factory=list)
    struck: list[str] = field(default_factory=list)
    starts_s: list[float] = field(default_factory=list)
    acknowledged: int = 0
    unknown: int = 0
    read: int = 0
    late_ms: float = 0.0
    seconds: float = 0.0


class _Run:
    def __init__(self, plan: RunPlan, directory: Path, told: Told) -> None:
        self.plan, self.directory, self.told = plan, directory, told
        self.sent = Sent(plan.batch)
        self.times: Plan | None = None
        self.out = Outcome()

    def run(self) -> Outcome:
        began = time.monotonic()
        kills: Sequence[str | None] = (*self.plan.kills, None)
        for number, phase in enumerate(kills):
            self._life(number, phase)
            if self.out.problems:
                break
        else:
            self._judge()
        self.out.acknowledged = len(self.sent.acknowledged) * self.plan.batch
        self.out.unknown = len(self.sent.unknown) * self.plan.batch
        self.out.seconds = time.monotonic() - began
        return self.out

    def _judge(self) -> None:
        found = json.loads((self.directory / "read.json").read_text())
        self.out.read = len(found)
        assert self.times is not None
        self.out.problems += judge(self.sent, self.times, found)

    def _life(self, number: int, phase: str | None) -> None:
        settings = LifeSettings(
            directory=str(self.directory),
            total=self.plan.messages,
            batch=self.plan.batch,
            first=len(self.sent.begun) * self.plan.batch,
            span_ms=self.plan.span_ms,
            kills_before=number,
            plan=None if self.times is None else [self.times.begin_ms, self.times.span_ms],
            last=phase is None,
        )
        mark = f"timers-million-{os.getpid()}-{number}"
        with _started(settings, mark, self.directory / f"life-{number}.log") as lines:
            for line in lines:
                event = json.loads(line)
                self._note(event)
                if phase is not None and self._is_time(number, phase, event):
                    break
                if event["event"] == "finished":
                    if phase is not None:
                        self.out.problems.append(f"everything was read before the kill while {phase}")
                    return
            else:
                self.out.problems.append(
                    f"life {number} ended, or said nothing for {SILENT_S:g} s: see its log"
                )
                return
            ended = cleanup.end_all(mark)
            self.out.struck.append(
                f"while {phase}: {ended} processes, {len(self.sent.acknowledged) * self.plan.batch:,} "
                f"acknowledged, {self.out.read:,} read"
            )

    def _note(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "started":
            self.times = Plan(*event["plan"])
            self.out.starts_s.append(event["took_s"])
        elif kind == "sending":
            self.sent.begun.append(event["first"])
        elif kind == "acknowledged":
            self.sent.acknowledged.add(event["first"])
        elif kind == "read":
            self.out.read, self.out.late_ms = event["count"], event["late_ms"]
            if event["early"]:
                self.out.problems.append(f"read before their time: {event['early']}")
        share = len(self.sent.acknowledged) * self.plan.batch
        self.told(kind, share + self.out.read)

    def _is_time(self, number: int, phase: str, event: dict[str, Any]) -> bool:
        share, total = self.plan.share(number), self.plan.messages
        if phase == "sending":
            return len(self.sent.acknowledged) * self.plan.batch >= share * total
        if phase == "waiting":
            return bool(event["event"] == "sent")
        return bool(event["event"] == "read" and event["count"] >= share * total)


@contextmanager
def _started(settings: LifeSettings, mark: str, log: Path) -> Iterator[Iterator[str]]:
    """A life, and its lines; none of its processes is left at the end."""
    environment = {**os.environ, cleanup.MARK: mark}
    command = [sys.executable, "-m", "tests.timers_million.life", settings.encode()]
    with log.open("w") as errors:
        life = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
    assert life.stdout is not None
    heard = [time.monotonic()]

    def watch() -> None:
        while life.poll() is None:
            if time.monotonic() - heard[0] > SILENT_S:
                cleanup.end_all(mark)
            time.sleep(1.0)

    def lines() -> Iterator[str]:
        assert life.stdout is not None
        for line in life.stdout:
            heard[0] = time.monotonic()
            if line.startswith("{"):
                yield line

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield lines()
    finally:
        if settings.last and life.poll() is None:
            life.wait(60)  # it stops its cluster
        cleanup.end_all(mark)
        life.stdout.close()
        life.wait()


def run(plan: RunPlan, told: Told = lambda kind, count: None, keep: bool = False) -> Outcome:
    """Run it in a temporary directory, which is kept if ``keep`` or if there are problems."""
    assert plan.messages % plan.batch == 0
    directory = Path(tempfile.mkdtemp(prefix="emq-tm-"))
    out = _Run(plan, directory, told).run()
    if out.problems or keep:
        out.problems = [*out.problems, f"everything is in {directory}"] if out.problems else []
    else:
        shutil.rmtree(directory, ignore_errors=True)
    return out
