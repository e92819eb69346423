"""A relay's process: the product's relay of each shard, and its side of the broker, paused at every call."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from escrowmq.actors.outbox.shipping import BrokerShipping
from escrowmq.actors.producer.producer import Producer
from escrowmq.actors.producer.transactions.numbered import Numbered
from escrowmq.feedback.database.outbox import Outbox
from escrowmq.feedback.database.outbox_shards import LEASE_MS, OutboxShards
from escrowmq.feedback.database.relaying import Relay, Step
from escrowmq.replication.model import Message
from escrowmq.testing import InMemoryCluster
from tests.relays.turns import Turns

APP = "shop"
#: Small limits, so that small messages are too large, and batches of them.
SIZES = {"message_bytes_max": 2_000, "transaction_bytes_max": 6_000}
#: Turns that a relay waits at most after a step: longer if another one has the shard.
IDLE_TURNS = 6
PAUSES = {Step.SENT: 1, Step.REFUSED: 1, Step.NOT_MINE: 40}


class _SteppedAdmin:
    """What settles a refused batch asks this."""

    def __init__(self, cluster: InMemoryCluster, turns: Turns) -> None:
        self._admin, self._turns = cluster.admin, turns

    def topics(self) -> list[Any]:
        self._turns.pause()
        return self._admin.topics()


class SteppedCluster:
    """See ``RelayCluster``."""

    def __init__(self, cluster: InMemoryCluster, turns: Turns) -> None:
        self._cluster, self._turns = cluster, turns
        self.admin = _SteppedAdmin(cluster, turns)

    def producer(self, app: str, **options: Any) -> Producer:
        self._turns.pause()
        return self._cluster.producer(app, **options | SIZES)


class SteppedShipping:
    """See ``Shipping``: pauses before and after each call of the broker."""

    def __init__(self, inner: BrokerShipping, turns: Turns) -> None:
        self._inner, self._turns = inner, turns

    def claim(self, shard: int) -> int:
        self._turns.pause()
        epoch = self._inner.claim(shard)
        self._turns.pause()
        return epoch

    def partition_of(self, shard: int, message: Message, turn: int) -> int | str:
        return self._inner.partition_of(shard, message, turn)

    def ship(self, shard: int, epoch: int, number: int, messages: Sequence[Message], digest: bytes) -> None:
        self._turns.pause()
        self._inner.ship(shard, epoch, number, messages, digest)
        self._turns.pause()

    def settle(self, shard: int, epoch: int, number: int, digest: bytes, why: str) -> None:
        self._turns.pause()
        self._inner.settle(shard, epoch, number, digest, why)
        self._turns.pause()


@contextmanager
def pausing_between_prepare_and_commit(turns: Turns) -> Iterator[None]:
    """A relay may stand still while its batch is prepared and not committed."""
    prepare = Numbered._prepare

    def paused(self: Numbered) -> Any:
        found = prepare(self)
        turns.pause()
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Numbered, "_prepare", paused)
        yield


class RelayProcess:
    """One process. ``told``: called with each step's result."""

    def __init__(
        self,
        name: str,
        outbox: Outbox,
        cluster: InMemoryCluster,
        turns: Turns,
        rng: random.Random,
        told: Callable[[int, Step, str], None],
    ) -> None:
        """Its clock differs from others', and is set now and then."""
        self.name, self._turns, self._rng, self._told = name, turns, rng, told
        self._cluster, self.ahead_s, self.ending = cluster, rng.uniform(-3, 3), False
        self._shipping = BrokerShipping(SteppedCluster(cluster, turns), APP)
        shipping = SteppedShipping(self._shipping, turns)
        shards = OutboxShards(outbox.database, outbox.statements, name, self._clock)
        self.relays = [Relay(shards, shipping, number) for number in range(outbox.shards)]

    def start(self) -> None:
        """A process of its own for each shard, as it has threads."""
        for number in range(len(self.relays)):
            self._turns.start(self.name, lambda number=number: self._work(number))  # type: ignore[misc]

    def step(self, number: int) -> Step | None:
        """None: the database failed."""
        try:
            step = self.relays[number].step()
        except sqlite3.Error:
            return None
        self._told(number, step, self.relays[number].problem)
        return step

    def close(self) -> None:
        """What an operating system does: its connections end."""
        self._shipping.close()

    def _clock(self) -> int:
        return int((self._cluster.clock.time() + self.ahead_s) * 1000)

    def _work(self, number: int) -> None:
        while not self.ending:
            step = self.step(number)
            self._turns.pause(self._rng.randrange(PAUSES.get(step, IDLE_TURNS)))
        try:
            self.relays[number].close()
        except sqlite3.Error:
            return


LEASE_S = LEASE_MS / 1000
