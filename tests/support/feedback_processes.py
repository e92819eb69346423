"""Feedback processes over broker groups in memory, with producers of any app, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from escrowmq.feedback.asking.shard import FeedbackShard
from escrowmq.feedback.config import FeedbackConfig
from tests.support.feedback_producers import AppPort, Producer, Says
from tests.support.memory_groups import BrokersDouble, GroupDouble


class Processes:
    """Feedback processes over broker groups in memory, and producers of any app."""

    def __init__(self, shards: int, groups: int, config: FeedbackConfig) -> None:
        self.brokers, self.config = BrokersDouble(groups), config
        self.shards = [
            FeedbackShard(number, shards, groups, 3, self.brokers, config, random.Random(number))
            for number in range(shards)
        ]
        for shard in self.shards:
            shard.start()
        self._all = list(self.shards)
        self._ended: list[asyncio.Task[None]] = []
        self.producers: list[Producer] = []

    @property
    def group(self) -> GroupDouble:
        return self.brokers.groups[0]

    def producer(self, app: str, says: Says, name: str = "p", *, room: int = 64) -> list[Producer]:
        """One producer, with its poll at each process."""
        made = [Producer(AppPort(shard, app), f"{app}/{name}", says, room=room) for shard in self.shards]
        self.producers += made
        return made

    def leave(self, app: str, name: str = "p") -> None:
        """It closes."""
        for producer in self.producers:
            if producer.name == f"{app}/{name}":
                producer.die()
        for shard in self.shards:
            shard.leave(app, f"{app}/{name}", True)

    def kill(self, number: int) -> FeedbackShard:
        """This process dies with all it knows; another one takes its place. Its producers' polls are lost."""
        rng, count = random.Random(100 + number), len(self.shards)
        successor = FeedbackShard(number, count, len(self.brokers.groups), 3, self.brokers, self.config, rng)
        gone, self.shards[number] = self.shards[number], successor
        self._ended.append(asyncio.create_task(gone.close()))
        self._all.append(successor)
        successor.start()
        return successor

    def leave_open(self, app: str, topics: Sequence[str], each: int = 1, timeout_ms: int = 100) -> None:
        for topic in topics:
            if topic not in self.group.state.topics.topics:
                self.group.topic(topic)
            for n in range(each):
                self.group.prepare(f"{topic}-{n}", app=app, topic=topic, timeout_ms=timeout_ms)

    def open_ones(self, app: str) -> int:
        return len(self.group.state.transactions.app(app).open)

    async def end(self) -> None:
        for producer in self.producers:
            producer.die()
        for shard in self._all:
            await shard.close()


@asynccontextmanager
async def processes(shards: int = 1, groups: int = 1, **config: Any) -> AsyncIterator[Processes]:
    it = Processes(shards, groups, FeedbackConfig(**config))
    try:
        yield it
    finally:
        await it.end()
