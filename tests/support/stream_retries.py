"""Drawn lives of a group with ``retry``: members come and go, handlers fail, requests fail; and what must
hold of what they have seen.

Anomalies: ``order-broken`` (ordered: a message was handled while one before it in its partition was neither
handled nor dead), ``over-attempts`` (a message failed more often than its group allows), ``dead-early``,
``lost`` (in the end a message is neither handled nor dead).
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter

from escrowmq import (
    Consumer,
    EscrowMQError,
    InvalidMessage,
    Message,
    OutcomeUnknown,
    RetryPolicy,
    StreamRecord,
    Unavailable,
)
from escrowmq.testing import InMemoryCluster

TOPIC, GROUP, PARTITIONS = "orders", "billing", 2
ATTEMPTS, STEPS, DRAIN = 3, 40, 300

Where = tuple[int, int]


class Life:
    """One group's. ``anomalies`` is empty if everything held."""

    def __init__(self, seed: int, order: str) -> None:
        self._rng = random.Random(f"{seed} {order}")
        self._order = order
        self._members: list[Consumer] = []
        self._ends = [0] * PARTITIONS
        #: How often handlers fail for a message.
        self._stubborn: dict[Where, int] = {}
        self._handled: set[Where] = set()
        self._given_up: set[Where] = set()
        #: Calls of the handler that failed, and nacks that were confirmed.
        self._failures, self._nacks = Counter[Where](), Counter[Where]()
        self.anomalies: list[str] = []

    def run(self) -> list[str]:
        with InMemoryCluster() as cluster:
            cluster.admin.create_topic(TOPIC, partitions=PARTITIONS)
            cluster.admin.set_group(GROUP, max_attempts=ATTEMPTS, delays_s=[1, 2])
            self._cluster = cluster
            acts = self._send, self._come, self._go, self._work, self._work, self._work, self._trouble
            self._send()
            for _ in range(STEPS):
                self._rng.choice(acts)()
            self._drain()
        return self.anomalies

    # ------------------------------------------------------------ what happens

    def _send(self) -> None:
        with self._cluster.producer("shop") as producer:
            for _ in range(self._rng.randint(1, 4)):
                partition = self._rng.randrange(PARTITIONS)
                with contextlib.suppress(EscrowMQError):
                    producer.send(Message(TOPIC, b"x", partition=partition)).result(0)
                    where = partition, self._ends[partition]
                    self._ends[partition] += 1
                    self._stubborn[where] = self._rng.choice((0, 0, 0, 1, 2, 9))

    def _come(self) -> None:
        if len(self._members) < 3:
            policy = RetryPolicy(order=self._order)
            with contextlib.suppress(EscrowMQError):
                self._members.append(
                    self._cluster.consumer(GROUP, [TOPIC], auto_offset_reset="earliest", retry=policy)
                )

    def _go(self) -> None:
        """A member dies, or closes without having committed."""
        if self._members:
            self._members.pop(self._rng.randrange(len(self._members))).core.close()

    def _trouble(self) -> None:
        what = self._rng.choice(("nack", "commit_offsets"))
        if self._rng.random() < 0.5:
            self._cluster.fail_next(what, Unavailable)
        else:
            self._cluster.fail_next(what, OutcomeUnknown, carried_out=self._rng.random() < 0.5)

    def _work(self) -> None:
        while not self._members:
            self._come()
        self._poll(self._rng.choice(self._members), self._rng.randint(1, 4))

    def _poll(self, member: Consumer, records: int) -> None:
        try:
            found = member.poll(records, timeout_s=self._rng.choice((0.1, 1.0, 3.0)))
        except EscrowMQError:
            return
        for record in found:
            if member.core.positions.get((record.topic, record.partition)) is None:
                continue
            if self._order == "ordered" and member.position(record.topic, record.partition) <= record.offset:
                continue  # behind one that was nacked
            self._handle(member, record)  # type: ignore[arg-type]
        if self._rng.random() < 0.7:
            with contextlib.suppress(EscrowMQError):
                member.commit()

    def _handle(self, member: Consumer, record: StreamRecord) -> None:
        where = record.origin.partition, record.origin.offset
        if record.attempt > ATTEMPTS:
            self.anomalies.append("over-attempts")
        if self._failures[where] >= self._stubborn[where]:
            if self._order == "ordered" and record.topic == TOPIC:
                before = {(where[0], offset) for offset in range(where[1])}
                if before - self._handled - self._dead():
                    self.anomalies.append("order-broken")
            self._handled.add(where)
            return
        self._failures[where] += 1
        try:
            member.nack(record, reason="no")
            if self._order == "ordered":  # it counts together with what lies before it
                member.commit({(record.topic, record.partition): record.offset})
        except InvalidMessage:
            raise
        except EscrowMQError:
            return
        self._nacks[where] += 1
        if self._order == "ordered" and self._nacks[where] > ATTEMPTS:
            self.anomalies.append("over-attempts")

    # ------------------------------------------------------------ the end

    def _dead(self) -> set[Where]:
        letters = self._cluster.admin.dead_letters(GROUP) if self._members else []
        for letter in letters:
            assert letter.origin is not None
            where = letter.origin.partition, letter.origin.offset
            if self._failures[where] < ATTEMPTS and where not in self._given_up:
                self.anomalies.append("dead-early")
            self._given_up.add(where)
        return self._given_up

    def _drain(self) -> None:
        """What one new member finds, when nothing fails any more but handlers."""
        while self._members:
            self._go()
        while not self._members:
            self._come()
        for _ in range(DRAIN):
            self._poll(self._members[0], 10)
            if not set(self._stubborn) - self._handled - self._dead():
                return
        self.anomalies.append("lost")
