"""Relays over a real database and a broker that is only a list, paused and killed at every step.

``tests/history/outbox.py`` compares the rows with the log at the end.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from escrowmq import Message
from escrowmq.feedback.database.outbox import Outbox
from escrowmq.feedback.database.outbox_shards import LEASE_MS, OutboxShards
from escrowmq.feedback.database.relaying import BatchOutOfSequence, BatchRefused, Relay, Step
from escrowmq.replication.errors import ProducerFenced, Unavailable
from tests.history.outbox import Row, Seen, anomalies

PARTITIONS = 3


class Killed(Exception):
    """The relay's process dies here."""


class Broker:
    """Claims, numbered transactions, and the log that comes of them."""

    def __init__(self) -> None:
        self.log: list[Message] = []
        self.epochs: dict[int, int] = {}
        self.last: dict[int, tuple[int, bytes]] = {}
        self.refuses: Callable[[Sequence[Message]], str] = lambda messages: ""
        self.away = False
        self.known: set[str] = {"t"}

    def claim(self, shard: int) -> int:
        self.epochs[shard] = self.epochs.get(shard, 0) + 1
        return self.epochs[shard]

    def partition_of(self, shard: int, message: Message, turn: int) -> int | str:
        if message.topic not in self.known:
            return "unknown topic"
        if message.partition is not None:
            return message.partition
        return turn % PARTITIONS if message.key is None else len(message.key) % PARTITIONS

    def ship(self, shard: int, epoch: int, number: int, messages: Sequence[Message], digest: bytes) -> None:
        if self.away:
            raise Unavailable("away", 0.1)
        if epoch < self.epochs[shard]:
            raise ProducerFenced("outbox", epoch)
        last, known = self.last.get(shard, (0, b""))
        if (number, digest) == (last, known):
            return
        if number <= last:
            raise BatchOutOfSequence(f"number {number}, and {last} is in")
        if problem := self.refuses(messages):
            raise BatchRefused(problem)
        self.last[shard] = number, digest
        self.log += messages

    def settle(self, shard: int, epoch: int, number: int, digest: bytes, why: str) -> None:
        if self.away:
            raise Unavailable("away", 0.1)
        if number < self.last.get(shard, (0, b""))[0]:
            raise BatchOutOfSequence(f"number {number} is behind")
        if self.last.get(shard) != (number, digest):
            raise BatchRefused(why)


class Stepping:
    """Stands between a relay and what it calls: something may happen before and after each call."""

    def __init__(self, inner: Any, happens: Callable[[], None]) -> None:
        self._inner, self._happens = inner, happens

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._inner, name)

        def stepped(*given: Any, **named: Any) -> Any:
            self._happens()
            result = call(*given, **named)
            self._happens()
            return result

        return stepped


class World:
    """An outbox, a broker, and a clock that the test moves."""

    def __init__(
        self,
        outbox: Outbox,
        connect: Callable[[], Any],
        commit: Callable[[Any], None],
        broker: Broker | None = None,
        new_shards: Callable[..., OutboxShards] = OutboxShards,
    ) -> None:
        self.outbox, self.broker, self._new_shards = outbox, broker or Broker(), new_shards
        self.connect, self.commit = connect, commit
        self.now_ms = 1_000_000
        self.committed: list[bytes] = []
        self._owners = 0

    def send(self, *messages: Message, commit: bool = True) -> None:
        db = self.connect()
        try:
            self.outbox.send(db, *messages)
            if commit:
                self.commit(db)
                self.committed += [message.value for message in messages]
        finally:
            db.close()

    def relay(self, happens: Callable[[], None] = lambda: None, shard: int = 0) -> Relay:
        """A new process's."""
        self._owners += 1
        shards = self._new_shards(
            self.outbox.database, self.outbox.statements, f"relay-{self._owners}", lambda: self.now_ms
        )
        watched: Any = Stepping(shards, happens)
        return Relay(watched, Stepping(self.shipping(), happens), shard)

    def shipping(self) -> Any:
        """The broker's side of a new process's relay."""
        return self.broker

    def unlucky(self, rng: random.Random) -> None:
        """Something else goes wrong with the broker."""

    def drain(self, steps: int = 60) -> None:
        """Everything that can be sent is sent, by a new relay for each shard. What then is left is lost."""
        self.now_ms += LEASE_MS + 1
        for shard in range(self.outbox.shards):
            relay = self.relay(shard=shard)
            for _ in range(steps):
                self.now_ms += 1000
                if relay.step() in (Step.IDLE, Step.STOPPED):
                    break

    def anomalies(self) -> list[str]:
        log = self.broker.log
        keys = {message.value: message.key for message in log}
        rows = [
            Row(repr(value), keys.get(value), at, at + 0.5) for at, value in enumerate(self.committed)
        ]  # one transaction after the other
        return anomalies(rows, [Seen(repr(message.value), "", at) for at, message in enumerate(log)])


def drawn(world: World, seed: int, sends: int = 12) -> list[str]:
    """Relays that are killed, paused while another takes their shard, and left without a broker."""
    rng = random.Random(seed)
    depth = [0]

    def happens() -> None:
        luck = rng.random()
        if luck < 0.06:
            raise Killed
        if luck < 0.12 and not depth[0]:  # this process is paused here, for as long as another needs
            depth[0] += 1
            try:
                world.now_ms += LEASE_MS + 1
                run(world.relay(happens), rng.randrange(1, 6))
            finally:
                depth[0] -= 1
        elif luck < 0.2:
            world.broker.away = not world.broker.away
        elif luck < 0.23:
            world.unlucky(rng)

    def run(relay: Relay, steps: int) -> None:
        try:
            for _ in range(steps):
                relay.step()
        except Killed:
            pass

    relay, sent = world.relay(happens), 0
    while sent < sends:
        for _ in range(rng.randrange(3)):
            group = [
                Message("t", b"%d" % (sent * 10 + n), key=rng.choice((b"a", b"bb", None)))
                for n in range(rng.randrange(1, 4))
            ]
            world.send(*group, commit=rng.random() < 0.8)
            sent += 1
        if rng.random() < 0.3:
            world.now_ms += LEASE_MS + 1
            relay = world.relay(happens)
        run(relay, rng.randrange(1, 4))
    world.broker.away = False
    world.drain()
    return [f"{line} (seed {seed})" for line in world.anomalies()]
