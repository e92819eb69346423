"""One drawn schedule of relays, from a seed to the comparison of rows and log.

A seed decides how many broker groups and shards there are, whether the database is ever restored from a
backup, whether topics are deleted, how a person releases a stopped shard, and all that happens. At the end
everything is well again: late requests arrive, stopped relays go on, a new relay sends what is left, and a
person decides what is dead. Then every row must be in the log as ``tests/history/outbox.py`` says.
"""

from __future__ import annotations

import random
import sqlite3
import tempfile
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from escrowmq.actors.client import router
from escrowmq.feedback.database import outbox
from escrowmq.feedback.database.outbox import Outbox
from escrowmq.feedback.database.relaying import Step
from tests.history.outbox import LOST, STOPPED, anomalies
from tests.relays.cluster import RelayBroker
from tests.relays.database import LateRows, SteppedDatabase
from tests.relays.people import CHANGING, STABLE, TWINS, Person, Rows, Service
from tests.relays.relay import APP, LEASE_S, RelayProcess, pausing_between_prepare_and_commit
from tests.relays.turns import Turns

TURNS = 1_500
RELAYS = 3  # processes at a time, each with a relay of every shard
#: Chance, in each turn, of what happens beside the relays' own steps.
CHANCES = {
    "send": 0.07, "commit late": 0.03, "late request": 0.02, "stop": 0.006, "long stop": 0.003, "kill": 0.003,
    "end": 0.002, "cut": 0.004, "outage": 0.002, "backup": 0.004, "restore": 0.001, "fail over": 0.003,
    "topic": 0.003, "clock": 0.003,
}  # fmt: skip
#: What only some worlds have.
RESTORES, CHANGES, HOLDS, THREE = 0.35, 0.4, 0.7, 0.4
#: The same, drawn on their own: rows that are equal to others, and rows that nobody can read.
EQUAL, SPOILS, SPOILED = 0.3, 0.3, 0.02
OUTAGE_TURNS, STOP_TURNS, LAG_TURNS = (20, 200), (5, 120), 60
#: The last relay gives up when it has found the same rows so often, each time after the longest pause of one:
#: that is oftener than a row is tried.
IDLE_MOST, LONG_S = 20, 700.0
#: After so long, what a relay has left open is rolled back by the broker.
TIMEOUT_S = 120.0


@dataclass(slots=True)
class Outcome:
    """The result of one schedule. ``found``: anomalies; ``did``: how often what happened."""

    seed: int
    found: list[str]
    did: Counter[str]
    rows: int
    virtual_s: float


@dataclass(frozen=True, slots=True)
class _Backup:
    """A copy of the database. ``at``: see ``Rows.tick``; ``values``: the rows in it."""

    path: Path
    at: int
    values: frozenset[str] = field(repr=False)


class Schedule:
    """See the module's text. Run it once."""

    def __init__(self, seed: int, folder: Path, turns: int = TURNS) -> None:
        self.seed, self._folder, self._length = seed, folder, turns
        self._rng = rng = random.Random(f"outbox-{seed}")
        self._apart = random.Random(f"outbox-apart-{seed}")  # leaves the other draws as they are
        self._equal, self._spoils = self._apart.random() < EQUAL, self._apart.random() < SPOILS
        self.did: Counter[str] = Counter()
        self.found: list[str] = []
        self._restores, self._changes = rng.random() < RESTORES, rng.random() < CHANGES
        self._groups = 3 if rng.random() < THREE else 1
        self._turns = Turns(rng)
        self._broker = RelayBroker(rng, self._groups, APP)
        self._database = SteppedDatabase(folder / "shop.db", self._turns, rng)
        self._outbox = Outbox(self._database, shards=rng.choice((1, 2)))
        self._outbox.create_table()
        self._rows = Rows()
        self._late = LateRows(self._database, self._outbox)
        self._service = Service(self._rows, self._outbox, self._database, self._late, rng)
        self._person = Person(
            self._rows, self._outbox, self._broker, self._turns, rng, hold=rng.random() < HOLDS,
            count=self._count,
        )  # fmt: skip
        self._relays: dict[str, RelayProcess] = {}
        self._backups: list[_Backup] = []
        self._standby: _Backup | None = None
        self._down_until = self._started = 0

    def run(self) -> Outcome:
        """Everything; raises only what the code under test raises that it must not."""
        try:
            with pausing_between_prepare_and_commit(self._turns):
                self._broker.create(STABLE, 3)
                if self._changes:
                    self._broker.create(CHANGING, 2)
                self._turns.start("person", self._person.work)
                while len(self._relays) < RELAYS:
                    self._hire()
                self._database.calm = False
                for _ in range(self._length):
                    self._turn()
                self._calm()
                self._finish()
            self.found += anomalies(self._rows.known.values(), self._broker.read())
        finally:
            self._turns.end()
            self._broker.close()
        virtual_s = self._broker.cluster.stage.now()
        return Outcome(self.seed, self.found, self.did, len(self._rows.known), virtual_s)

    # ------------------------------------------------------------ what happens

    def _count(self, what: str) -> None:
        self.did[what] += 1

    def _told(self, shard: int, step: Step, problem: str) -> None:
        self.did[f"step: {step.name}"] += 1
        if step is Step.STOPPED and not self._rows.restored:
            self.found.append(f"{STOPPED}: shard {shard}: {problem}")

    def _hire(self) -> None:
        self._started += 1
        name = f"relay-{self._started}"
        made = RelayProcess(name, self._outbox, self._broker.cluster, self._turns, self._rng, self._told)
        self._relays[name] = made
        made.start()

    def _turn(self) -> None:
        for what, chance in CHANCES.items():
            if self._rng.random() < chance and getattr(self, f"_{what.replace(' ', '_')}")():
                self._count(what)
        if self._broker.down and self._turns.taken >= self._down_until:
            self._broker.down = False
        if self._spoils and self._apart.random() < SPOILED and self._service.spoil(self._apart):
            self._count("spoiled")
        self._follow()
        self._turns.take()
        self._broker.step(self._rng.choice((0.0, 0.01, 0.05, 0.2)))

    def _any(self) -> RelayProcess:
        return self._relays[self._rng.choice(sorted(self._relays))]

    def _send(self) -> bool:
        if self._equal and self._apart.random() < TWINS:
            self._service.send_twin()
        else:
            self._service.send(self._changes)
        return True

    def _commit_late(self) -> bool:
        before = len(self._late.open)
        self._service.commit_late()
        return len(self._late.open) < before

    def _late_request(self) -> bool:
        waiting = len(self._broker.late)
        if waiting and not self._broker.down:
            self._broker.deliver(self._rng.randrange(waiting))
            return True
        return False

    def _stop(self) -> bool:
        self._turns.stop(self._any().name, self._rng.randrange(*STOP_TURNS))
        return True

    def _long_stop(self) -> bool:
        """Longer than its lease; the database gives up what it had open."""
        relay = self._any()
        self._turns.stop(relay.name, self._rng.randrange(*STOP_TURNS))
        self._database.cut(relay.name)
        self._broker.step(LEASE_S + 4)
        return True

    def _kill(self) -> bool:
        relay = self._any()
        self._turns.kill(relay.name)
        self._database.cut(relay.name)
        self._relays.pop(relay.name).close()
        self._hire()
        return True

    def _end(self) -> bool:
        """It is closed, and gives its shards up. A killed one may have been told to."""
        relay = self._any()
        relay.ending = True
        del self._relays[relay.name]
        self._hire()
        return True

    def _cut(self) -> bool:
        self._database.cut(self._any().name)
        return True

    def _outage(self) -> bool:
        if self._broker.down:
            return False
        self._broker.down = True
        self._down_until = self._turns.taken + self._rng.randrange(*OUTAGE_TURNS)
        return True

    def _clock(self) -> bool:
        """The clock of a relay's machine is set."""
        self._any().ahead_s = self._rng.uniform(-2 * LEASE_S, 2 * LEASE_S)
        return True

    # ------------------------------------------------------------ backups, topics

    def _values(self) -> frozenset[str]:
        """Of the rows that are in the database."""
        return frozenset(self._rows.name_of(entry) for entry in self._outbox.rows(limit=10_000))

    def _backup(self) -> bool:
        if not self._restores:
            return False
        made = self._copied(self._folder / f"backup-{self._rows.tick()}.db")
        self._backups += [made] if made else []
        return made is not None

    def _restore(self) -> bool:
        """Relays of then may still think that they have their shards."""
        return bool(self._backups) and self._back_to(self._rng.choice(self._backups[-3:]))

    def _fail_over(self) -> bool:
        """To a standby that lacks the last commits."""
        return self._standby is not None and self._back_to(self._standby)

    def _follow(self) -> None:
        """The standby has all that is committed now."""
        if self._restores and self._turns.taken % LAG_TURNS == 0:
            self._standby = self._copied(self._folder / "standby.db") or self._standby

    def _copied(self, path: Path) -> _Backup | None:
        try:
            self._database.backup(path)
        except sqlite3.Error:  # somebody writes
            return None
        return _Backup(path, self._rows.tick(), self._values())

    def _back_to(self, backup: _Backup) -> bool:
        before = self._values()
        self._database.restore(backup.path)
        self._late.open.clear()
        self._backups, self._standby = [one for one in self._backups if one.at <= backup.at], backup
        self._rows.restored = True
        for row in self._rows.known.values():
            if row.value in backup.values:
                row.dropped = row.unsure = False  # whatever was decided since
            elif row.committed > backup.at and (not row.content or row.value in before):
                row.may_miss = True  # of equal rows, one that is gone was sent
        return True

    def _topic(self) -> bool:
        """One topic is deleted, or created again: elsewhere, and with another number of partitions."""
        if not self._changes:
            return False
        if CHANGING not in self._broker.topics():
            self._broker.create(CHANGING, self._rng.randrange(1, 5))
            return True
        self._broker.delete(CHANGING)
        for entry in self._outbox.rows(limit=10_000):
            value = self._rows.name_of(entry)
            if entry.batch is not None and self._rows.topic[value] == CHANGING:
                self._rows.known[value].may_miss = True  # it may go with its earlier topic
        for value in self._rows.delayed:
            if self._rows.topic[value] == CHANGING:
                self._rows.known[value].may_miss = True
        return True

    # ------------------------------------------------------------ the end

    def _calm(self) -> None:
        """Nothing goes wrong any more, and what stood still goes on."""
        self._broker.down, self._broker.calm, self._database.calm = False, True, True
        while self._late.open:
            before = len(self._late.open)
            self._service.commit_late()
            if len(self._late.open) == before:
                self._database.cut()
        while self._broker.late:
            self._broker.deliver(0)
        self._turns.wake()
        for _ in range(self._length // 10):
            self._turns.take()
            self._broker.step(0.1)
        self._turns.end()
        self._broker.step(TIMEOUT_S)
        if self._changes and CHANGING not in self._broker.topics():
            self._broker.create(CHANGING, 2)

    def _finish(self) -> None:
        """A last relay sends what is left, and the person decides what is dead."""
        last = RelayProcess("last", self._outbox, self._broker.cluster, self._turns, self._rng, self._told)
        last.ahead_s = 4 * LEASE_S
        idle: list[frozenset[str]] = []
        while idle.count(idle[-1]) < IDLE_MOST if idle else True:
            steps = {last.step(number) for number in range(self._outbox.shards)}
            self._person.look(tidy=True)
            if steps <= {Step.IDLE}:
                idle.append(self._values())
                if not idle[-1]:
                    break
                self._broker.step(LONG_S)
            else:
                self._broker.step(0.05 if Step.SENT in steps else 1.0)
        else:
            self.found += [f"{LOST}: {value} is never sent" for value in sorted(self._values())]
        last.close()
        self._broker.step(TIMEOUT_S)
        left = [tx.query_id for tx in self._broker.open_transactions()]
        self.found += [f"unresolved: {query_id}" for query_id in left]


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """What the product draws at random is drawn from the seed, so that a failure can be repeated."""
    rng = random.Random(f"product-{seed}")
    with pytest.MonkeyPatch.context() as patch:
        drawn = SimpleNamespace(uuid4=lambda: uuid.UUID(int=rng.getrandbits(128)))
        patch.setattr(outbox, "uuid", drawn)
        patch.setattr(router, "random", SimpleNamespace(Random=lambda: random.Random(rng.getrandbits(64))))
        yield


def run(seed: int, turns: int = TURNS) -> Outcome:
    """One seed, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="emq-relays-") as folder, _seeded(seed):
        return Schedule(seed, Path(folder), turns).run()


def kinds(found: Sequence[str]) -> set[str]:
    """Of anomalies."""
    return {line.partition(":")[0] for line in found}
