"""Running kill trials: clusters, files, the driver process again and again, and the count at the end."""

from __future__ import annotations

import os
import pickle
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import escrowmq
from escrowmq import Cluster, Message
from escrowmq.spark_integration import resolve_sink
from tests.spark_trials.driver import KEYS, Work
from tests.spark_trials.plan import Trial, Victim
from tests.spark_trials.target import Target, problems_of
from tests.support.faults.tables import Cells

PARTITIONS = 3
#: By number of groups. One replica comes back by itself too, and nine brokers would leave Spark little CPU.
REPLICAS = {1: 3, 2: 1}
#: Nothing waits longer than this for one start of the driver.
DRIVER_S = 600.0
ZOMBIE_S = 120.0


@dataclass(slots=True)
class Outcome:
    """What became of a run."""

    trials: int = 0
    rows: int = 0
    epochs: int = 0
    starts: int = 0
    strikes: Cells = field(default_factory=Cells)  # (step, victim)
    missed: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0


def epochs_of(trial: Trial) -> dict[str, list[str]]:
    """What each epoch must have written, computed without Spark."""
    files = {f"f{i:03}": [f"f{i:03}/{j}" for j in range(count)] for i, count in enumerate(trial.rows)}
    if not trial.totals:
        return files
    totals: Counter[int] = Counter()
    found = {}
    for name, lines in files.items():
        keys = [int(line.split("/")[1]) % KEYS for line in lines]
        totals.update(keys)
        found[name] = [f"{key}={totals[key]}" for key in sorted(set(keys))]
    return found


def write_files(work: Work) -> None:
    """The files, oldest first: Spark takes them by their time."""
    for directory in (work.files, work.markers):
        directory.mkdir(parents=True)
    now = time.time() - len(work.trial.rows) - 10
    for i, count in enumerate(work.trial.rows):
        path = work.files / f"f{i:03}"
        path.write_text("".join(f"f{i:03}/{j}\n" for j in range(count)))
        os.utime(path, (now + i, now + i))


def fill(cluster: Cluster, work: Work) -> None:
    """The same lines as messages, in one partition: so many of them are an epoch."""
    cluster.admin.create_topic(work.source, partitions=1)
    with cluster.producer(app="source") as producer:
        for i, count in enumerate(work.trial.rows):
            for j in range(count):
                producer.send(Message(work.source, f"f{i:03}/{j}".encode()))


class Run:
    """Trials on clusters of one and of two broker groups, on the Ray that this process is connected to."""

    def __init__(self, trials: Sequence[Trial], say: Callable[[str], None] = print) -> None:
        # Those that cost a start of Spark come last: a run that is interrupted has had many trials.
        self._trials, self._say = sorted(trials, key=_starts), say
        self.outcome = Outcome()
        self._judged: list[Work] = []

    def run(self) -> Outcome:
        """Everything; problems are in the outcome."""
        began = time.monotonic()
        with ExitStack() as stack:
            root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="emq-trials-")))
            clusters = {
                groups: stack.enter_context(
                    escrowmq.start_local(
                        groups=groups, replicas=REPLICAS[groups], namespace=f"trials-{groups}"
                    )
                )
                for groups in sorted({trial.groups for trial in self._trials})
            }
            works = []
            for trial in self._trials:
                cluster = clusters[trial.groups]
                topic = f"trial-{trial.number % 10_000}-{trial.seed}"
                cluster.admin.create_topic(topic, partitions=PARTITIONS)
                work = Work(trial, cluster.info.namespace, topic, root / f"t{trial.number}")
                write_files(work)
                if trial.totals:
                    fill(cluster, work)
                works.append(work)
            self._drive(root, works, clusters)
            for work in works:
                if work not in self._judged:
                    self._await_zombies(work)
                    self._judge(work, clusters[work.trial.groups])
        self.outcome.seconds = time.monotonic() - began
        return self.outcome

    # ------------------------------------------------------------ the driver

    def _drive(self, root: Path, works: list[Work], clusters: dict[int, Cluster]) -> None:
        address = next(iter(clusters.values())).address
        plan = root / "plan.pickle"
        plan.write_bytes(pickle.dumps((address, works)))
        command = [sys.executable, "-m", "tests.spark_trials.driver", str(plan)]
        allowed = 2 + sum(len(work.trial.strikes) for work in works)
        while self.outcome.starts < allowed:
            self.outcome.starts += 1
            with (root / "driver.log").open("ab") as log:
                process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
            code = self._watch(process, works, clusters)
            if code == 0:
                return
            if code != -signal.SIGKILL:
                break
        text = (root / "driver.log").read_text(errors="replace")
        self.outcome.problems.append(f"the driver does not come through: {text[-3_000:]}")

    def _watch(
        self, process: subprocess.Popen[bytes], works: list[Work], clusters: dict[int, Cluster]
    ) -> int:
        """Wait for the driver; meanwhile kill the leaders that strikes ask for."""
        deadline = time.monotonic() + DRIVER_S
        while process.poll() is None and time.monotonic() < deadline:
            for work in works:
                if work.done.exists():
                    continue
                for strike in work.trial.strikes:
                    marker = work.markers / f"{strike.number}"
                    killed = marker.with_suffix(".killed")
                    if strike.victim is Victim.LEADER and marker.exists() and not killed.exists():
                        self._kill_leader(clusters[work.trial.groups], random.Random(work.trial.seed))
                        killed.touch()
                break
            ready = next(
                (w for w in works if w.done.exists() and w not in self._judged and not _zombie(w)), None
            )
            if ready is not None:  # as it goes, so that a run that is interrupted has told what it knows
                self._judge(ready, clusters[ready.trial.groups])
            time.sleep(0.01)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            self.outcome.problems.append(f"the driver hung for {DRIVER_S:g} s")
            return 1
        return process.wait()

    def _kill_leader(self, cluster: Cluster, rng: random.Random) -> None:
        group = rng.choice(cluster.status().groups)
        leader = next((replica for replica in group.replicas if replica.role == "leader"), None)
        if leader is not None:  # else it is between two leaders anyway
            os.kill(leader.details["pid"], signal.SIGKILL)

    # ------------------------------------------------------------ the judgement

    def _judge(self, work: Work, cluster: Cluster) -> None:
        trial, outcome = work.trial, self.outcome
        epochs = epochs_of(trial)
        name = f"trial {trial.number} (seed {trial.seed}, {trial.groups} groups): " + ", ".join(
            f"{s.victim.value} at {s.step.value!r} in epoch {s.epoch}" for s in trial.strikes
        )
        self._judged.append(work)
        target = Target(cluster.info, work.topic, PARTITIONS)
        try:
            rows = target.rows()
            found = problems_of(rows, epochs)
            if trial.totals:
                found += _out_of_order([row.value for row in rows])
            done = resolve_sink(
                str(work.checkpoint), address=cluster.address, namespace=work.namespace, stopped=True
            )
            if done.committed or done.stuck:
                found.append(f"epochs {done.committed} were not committed, {done.stuck} are stuck")
            if target.rows() != rows:
                found.append("rows changed after the query's end")
            if target.open_transactions():
                found.append("transactions stay open")
        finally:
            target.close()
        for strike in trial.strikes:
            happened = (work.markers / f"{strike.number}").exists()
            if happened:
                outcome.strikes[strike.step.value, strike.victim.value] += 1
            else:
                outcome.missed.append(f"trial {trial.number}: {strike.victim.value} at {strike.step.value}")
        outcome.trials += 1
        outcome.rows += len(rows)
        outcome.epochs += len(epochs)
        outcome.problems += [f"{name}: {problem}" for problem in found]
        self._say(f"{name}: {len(rows)} rows, {'; '.join(found) or 'each once'}")

    def _await_zombies(self, work: Work) -> None:
        deadline = time.monotonic() + ZOMBIE_S
        while _zombie(work):
            if time.monotonic() > deadline:
                self.outcome.problems.append(f"trial {work.trial.number}: the zombie does not end")
                return
            time.sleep(0.1)


def _starts(trial: Trial) -> int:
    return sum(strike.victim in (Victim.DRIVER, Victim.ZOMBIE) for strike in trial.strikes)


def _zombie(work: Work) -> bool:
    """Whether a part of a dead driver may still be at work on this trial's query."""
    for strike in work.trial.strikes:
        marker = work.markers / f"{strike.number}"
        if strike.victim is Victim.ZOMBIE and marker.exists() and not marker.with_suffix(".ended").exists():
            return True
    return False


def _out_of_order(values: list[str]) -> list[str]:
    """Running totals of a key stand in one partition, in order."""
    last: dict[str, int] = {}
    for value in values:
        key, total = value.split("=")
        if int(total) <= last.get(key, 0):
            return [f"key {key}: {total} after {last[key]}"]
        last[key] = int(total)
    return []
