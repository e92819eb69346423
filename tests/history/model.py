"""Generates correct histories of any length from a model broker made of a few lists, to test the checker.

Transactions, sends, checks, operators, retries, conflicts and lost answers are random. ``logs`` is the
broker's final content; a test reads it as it is, or corrupts it first.
"""

from __future__ import annotations

import random

from tests.history.events import Event, Recorder, Sent

PARTITIONS = 3
TOPIC = "t"
RECENT = 12  # each decision is for one of the last this many transactions
COMMITTED, ROLLBACK = "COMMITTED", "ROLLBACK"


class Model:
    """A broker without faults, and its clients, one event at a time."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self._now = self._number = self._cut = 0
        self.recorder = Recorder("model", clock=self._tick)
        self.logs: list[list[str]] = [[] for _ in range(PARTITIONS)]
        self.owner: dict[str, str] = {}  # message -> its transaction, or its producer
        self.settled: dict[str, str] = {}  # transaction -> outcome
        self.told: dict[str, str] = {}  # the same, of transactions whose outcome a client got
        self._recent: list[str] = []  # open or settled transactions that may be decided, perhaps again
        self._open: dict[str, list[Sent]] = {}
        self._of: dict[str, list[Sent]] = {}
        self._position = [0] * PARTITIONS
        self.acknowledged: set[str] = set()  # messages whose commit or send was acknowledged

    def _tick(self) -> int:
        self._now += 1
        return self._now

    @property
    def events(self) -> list[Event]:
        return self.recorder.events

    def run(self, steps: int) -> Model:
        acts = (self._prepare, self._decide, self._decide, self._send, self._poll, self._read_cut)
        for _ in range(steps):
            self.rng.choice(acts)()
        while self._open:
            self._decide(sure=True)
        return self

    def read_finally(self, name: str = "final") -> None:
        for number, log in enumerate(self.logs):
            records = list(enumerate(log))
            self.recorder.read(name, TOPIC, number, records, start=0, end=len(log), cut=name)

    def _messages(self, count: int, owner: str, number: int | None = None) -> list[Sent]:
        made = []
        for _ in range(count):
            self._number += 1
            where = self.rng.randrange(PARTITIONS) if number is None else number
            made.append(Sent(f"m{self._number}", TOPIC, where))
            self.owner[made[-1].id] = owner
        return made

    def _prepare(self) -> None:
        self._number += 1
        tx = f"x{self._number}"
        messages = self._messages(self.rng.randint(1, 4), tx)
        op = self.recorder.invoke("prepare", app="a", tx=tx, messages=messages)
        chance = self.rng.random()
        if chance < 0.05:
            self.recorder.fail(op, "refused")
            return
        self._open[tx] = self._of[tx] = messages
        self._recent = [*self._recent[-RECENT:], tx]
        if chance < 0.9:
            self.recorder.ok(op)

    def _decide(self, sure: bool = False) -> None:
        """Decide an open transaction, or a settled one again, whose request or answer may be lost.

        ``sure``: an open one, and nothing is lost.
        """
        if not self._recent or sure:
            if not self._open:
                return
            self._recent = list(self._open)[:RECENT]
        tx = self.rng.choice(self._recent)
        outcome = self.rng.choice((COMMITTED, COMMITTED, ROLLBACK))
        by = self.rng.choice(("producer", "operator", "check"))
        op = self.recorder.invoke("decide", app="a", tx=tx, outcome=outcome, by=by)
        chance = 1.0 if sure else self.rng.random()
        if chance < 0.1:  # it never arrived
            self.recorder.unknown(op, "timed out")
            return
        if tx in self._open:
            messages = self._open.pop(tx)
            self.settled[tx] = outcome
            if outcome == COMMITTED:
                for message in messages:
                    self.logs[message.partition].append(message.id)
        if chance > 0.2:
            self.recorder.ok(op, outcome=self.settled[tx])
            self.told[tx] = self.settled[tx]
            if self.settled[tx] == COMMITTED:
                self.acknowledged.update(message.id for message in self._of[tx])

    def _send(self) -> None:
        producer, number = f"p{self.rng.randrange(3)}", self.rng.randrange(PARTITIONS)
        messages = self._messages(self.rng.randint(1, 3), producer, number)
        op = self.recorder.invoke("send", producer=producer, messages=messages)
        if self.rng.random() < 0.1:
            self.recorder.unknown(op, "it never arrived")
            return
        base = len(self.logs[number])
        self.logs[number] += [message.id for message in messages]
        if self.rng.random() < 0.9:
            self.recorder.ok(op, places=[[TOPIC, number, base + n] for n in range(len(messages))])
            self.acknowledged.update(message.id for message in messages)

    def _poll(self) -> None:
        number = self.rng.randrange(PARTITIONS)
        at = self._position[number]
        records = list(enumerate(self.logs[number][at : at + self.rng.randint(1, 5)], start=at))
        self.recorder.read("reader", TOPIC, number, records)
        self._position[number] += len(records)

    def _read_cut(self) -> None:
        """Read only the end of each partition, so that the time does not grow quadratically with the
        history."""
        self._cut += 1
        for number, log in enumerate(self.logs):
            start = max(0, len(log) - 4)
            records = [(at, log[at]) for at in range(start, len(log))]
            self.recorder.read(
                "cuts", TOPIC, number, records, start=start, end=len(log), cut=f"cut {self._cut}"
            )
