"""Relays over a real database and the real core of a broker, in memory and in virtual time.

As ``relays``, but what the broker knows is its state machine's: claims, numbered transactions, a log that
consumers read. Beside what ``relays`` does to a relay, answers of the broker are lost.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from escrowmq import Message, OutcomeUnknown
from escrowmq.actors.outbox.shipping import BrokerShipping
from escrowmq.feedback.database.outbox import Outbox
from escrowmq.testing import InMemoryCluster
from tests.support.relays import PARTITIONS, World

APP = "shop"


class ClusterBroker:
    """A cluster in memory, with what ``World`` asks of a broker."""

    def __init__(self) -> None:
        self.cluster = InMemoryCluster()
        self.cluster.admin.create_topic("t", partitions=PARTITIONS)
        self._down: ExitStack | None = None
        self.shippings: list[BrokerShipping] = []

    def shipping(self) -> BrokerShipping:
        """That of a new process."""
        made = BrokerShipping(self.cluster, APP)
        self.shippings.append(made)
        return made

    @property
    def away(self) -> bool:
        return self._down is not None

    @away.setter
    def away(self, away: bool) -> None:
        if away and self._down is None:
            self._down = ExitStack()
            self._down.enter_context(self.cluster.outage())
        elif not away and self._down is not None:
            self._down.close()
            self._down = None

    @property
    def log(self) -> list[Message]:
        """What consumers read, in the order of each partition."""
        found = []
        with self.cluster.consumer("checker", ["t"], auto_offset_reset="earliest") as consumer:
            while records := consumer.poll(max_records=1000, timeout_s=0.5):
                found += records
            consumer.seek_to_beginning()
        found.sort(key=lambda record: (record.partition, record.offset))
        return [Message("t", record.value, record.key) for record in found]

    def lose_answer(self, kind: str, carried_out: bool) -> None:
        self.cluster.fail_next(kind, OutcomeUnknown, carried_out=carried_out)

    def close(self) -> None:
        self.away = False
        for shipping in self.shippings:
            shipping.close()
        self.cluster.close()


class ClusterWorld(World):
    """An outbox, and a cluster in memory."""

    broker: ClusterBroker  # type: ignore[assignment]

    def __init__(self, outbox: Outbox, connect: Callable[[], Any], commit: Callable[[Any], None]) -> None:
        super().__init__(outbox, connect, commit)
        self.broker = ClusterBroker()

    def shipping(self) -> BrokerShipping:
        return self.broker.shipping()

    def unlucky(self, rng: random.Random) -> None:
        kind, carried_out = rng.choice(("prepare", "commit")), rng.random() < 0.5
        self.broker.lose_answer(kind, carried_out)
