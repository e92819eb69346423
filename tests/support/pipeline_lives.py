"""Drawn lives of a group that makes outputs of inputs in transactions with ``send_offsets``: members come and
go, die with a transaction open, nack before and in their blocks, abort, and lose answers.

The kind of the group: ``ordered`` (its nacks are part of the transaction), or ``plain`` (without ``retry``:
a transaction is refused while nacked records wait). In the end each input has one output or is one dead
letter. Anomalies: ``skipped`` (it has neither), ``doubled`` (two outputs), ``both`` (an output and a dead
letter; where no nack is left without an answer, since one that was carried out may then be made again),
``dead-early`` (it died before it had failed often enough).
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from typing import Any, NamedTuple

from escrowmq import (
    Consumer,
    EscrowMQError,
    InvalidMessage,
    Message,
    OutcomeUnknown,
    Producer,
    RetryPolicy,
    Transaction,
    Unavailable,
)
from escrowmq.testing import InMemoryCluster

INPUT, OUTPUT, GROUP, PARTITIONS = "orders", "invoices", "billing", 2
ATTEMPTS, STEPS, DRAIN, IDLE, TIMEOUT_S = 3, 40, 300, 12, 5.0

TROUBLES = ("nack", "commit_offsets", "prepare", "commit")

Where = tuple[int, int]


class _Aborted(Exception): ...


class _Member(NamedTuple):
    consumer: Consumer
    producer: Producer


class PipelineLife:
    """One group's. ``anomalies`` is empty if everything held; ``done`` counts what has happened."""

    def __init__(self, seed: int, kind: str) -> None:
        self._rng = random.Random(f"pipeline {seed} {kind}")
        self._kind = kind
        self._members: list[_Member] = []
        self._left_open: list[Transaction] = []
        self._ends = [0] * PARTITIONS
        #: How often the handler fails for an input.
        self._stubborn: dict[Where, int] = {}
        self._failures = Counter[Where]()
        self._calm = False
        self._nacks_surely = self._rng.random() < 0.5
        self.done: Counter[str] = Counter()

    def run(self) -> set[str]:
        with InMemoryCluster() as cluster:
            self._cluster = cluster
            cluster.admin.create_topic(INPUT, partitions=PARTITIONS)
            cluster.admin.create_topic(OUTPUT)
            cluster.admin.set_group(GROUP, max_attempts=ATTEMPTS, delays_s=[1, 2])
            acts = self._send, self._come, self._go, self._work, self._work, self._work, self._trouble
            self._send()
            for _ in range(STEPS):
                self._rng.choice(acts)()
            return self._drained()

    # ------------------------------------------------------------ what happens

    def _send(self) -> None:
        with self._cluster.producer("shop") as producer:
            for _ in range(self._rng.randint(1, 4)):
                partition = self._rng.randrange(PARTITIONS)
                value = f"{partition} {self._ends[partition]}".encode()
                producer.send(Message(INPUT, value, partition=partition)).result(0)
                self._stubborn[partition, self._ends[partition]] = self._rng.choice((0, 0, 0, 1, 2, 3, 9))
                self._ends[partition] += 1

    def _come(self) -> None:
        if len(self._members) < 3:
            options: dict[str, Any] = {"auto_offset_reset": "earliest"}
            if self._kind == "ordered":
                options["retry"] = RetryPolicy(order="ordered")
            with contextlib.suppress(EscrowMQError):
                consumer = self._cluster.consumer(GROUP, [INPUT], **options)
                self._members.append(_Member(consumer, self._cluster.producer("billing")))

    def _go(self) -> None:
        """A member dies, with whatever it had in hand."""
        if self._members:
            self._dies(self._rng.choice(self._members))

    def _dies(self, member: _Member) -> None:
        self._members.remove(member)
        member.consumer.core.close()
        self.done["died"] += 1

    def _trouble(self) -> None:
        what = self._rng.choice(("prepare", "commit") if self._nacks_surely else TROUBLES)
        if self._rng.random() < 0.5:
            self._cluster.fail_next(what, Unavailable)
        else:
            self._cluster.fail_next(what, OutcomeUnknown, carried_out=self._rng.random() < 0.5)

    def _work(self) -> bool:
        """Whether there was something to do."""
        while not self._members:
            self._come()
        member, found = self._rng.choice(self._members), []
        with contextlib.suppress(EscrowMQError):
            for _ in range(1 if self._calm else self._rng.randint(1, 2)):
                found += member.consumer.poll(self._rng.randint(1, 6), self._rng.choice((0.1, 1.0, 3.0)))
        if not found and (self._calm or self._rng.random() < 0.5):
            return False
        ready = None if self._rng.random() < 0.5 else self._transformed(member, found)
        try:
            with member.producer.transaction(local=False, transaction_timeout_s=TIMEOUT_S) as tx:
                tx.send_offsets(member.consumer)
                tx.send(*(self._transformed(member, found) if ready is None else ready))
                self._may_end(member, tx, found)
        except _Aborted:
            self.done["aborted"] += 1
        except EscrowMQError as error:
            self.done[type(error).__name__] += 1
        else:
            self.done["committed"] += 1
        return True

    def _may_end(self, member: _Member, tx: Transaction, found: list[Any]) -> None:
        """The block is left, or its process dies, before PREPARE or behind it."""
        chance = 1.0 if self._calm else self._rng.random()
        if chance < 0.5:
            tx.prepare()
        if chance < 0.2 and found:
            self.done["nacked late"] += 1
            with contextlib.suppress(EscrowMQError):
                member.consumer.nack(self._rng.choice(found), delay_s=0)
        if 0.2 < chance < 0.35 or 0.85 < chance < 1.0:
            raise _Aborted
        if 0.35 < chance < 0.41:
            self._left_open.append(tx)
            self._dies(member)
            tx.unknown()

    def _transformed(self, member: _Member, found: list[Any]) -> list[Message]:
        """The outputs of what the handler does not fail for. It nacks the others, and leaves out what comes
        again with them."""
        made, consumer = [], member.consumer
        for record in found:
            tp, where = (record.topic, record.partition), (record.partition, record.offset)
            if record.topic != INPUT:
                where = record.origin.partition, record.origin.offset
            state = consumer.core.positions.get(tp)
            if self._kind == "ordered" and (state is None or (state.position or 0) <= record.offset):
                continue  # it comes again
            if self._failures[where] < self._stubborn[where]:
                self._failures[where] += 1
                try:
                    consumer.nack(record, None if self._kind == "ordered" else 0.5)
                except EscrowMQError as error:
                    if self._kind != "ordered" or not isinstance(error, InvalidMessage):
                        self.done[f"nack: {type(error).__name__}"] += 1
                self.done["nacked"] += 1
                continue
            made.append(Message(OUTPUT, f"{where[0]} {where[1]}".encode()))
        return made

    # ------------------------------------------------------------ the end

    def _drained(self) -> set[str]:
        """What holds when one new member has found all that is left, and nothing fails but handlers."""
        self._calm = True
        while self._members:
            self._go()
        self._come()
        idle = 0
        for _ in range(DRAIN):
            idle = 0 if self._work() else idle + 1
            if idle == IDLE:
                break
        outputs, dead = self._outputs(), self._dead()
        found = set[str]()
        for where in self._stubborn:
            if not outputs[where] and not dead[where]:
                found.add("skipped")
            if outputs[where] > 1:
                found.add("doubled")
            if outputs[where] and dead[where] and self._nacks_surely:
                found.add("both")
            if dead[where] and self._failures[where] < ATTEMPTS:
                found.add("dead-early")
        return found

    def _outputs(self) -> Counter[Where]:
        with self._cluster.consumer() as reader:
            reader.assign([(OUTPUT, 0)])
            reader.seek(OUTPUT, 0, 0)
            found = Counter[Where]()
            for record in reader.poll(10_000, timeout_s=0.1):
                partition, offset = record.value.split()
                found[int(partition), int(offset)] += 1
            return found

    def _dead(self) -> Counter[Where]:
        if self._kind != "ordered":
            return Counter()
        letters = self._cluster.admin.dead_letters(GROUP)
        return Counter((letter.origin.partition, letter.origin.offset) for letter in letters if letter.origin)
