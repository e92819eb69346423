"""Feedback of a single app and topic, as producers of earlier versions know it: an actor of its own.

They start one for each pair and poll it with keys that name no topic. Here a process that hosts only this
pair answers them. Leases keep it from interfering with the process that hosts the pair for newer producers.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

from escrowmq.feedback.asking.shard import ANSWER_AGAIN_S, FeedbackShard
from escrowmq.feedback.asking.topic_feedback import TopicFeedback
from escrowmq.feedback.brokers import Brokers
from escrowmq.feedback.config import FeedbackConfig
from escrowmq.replication.errors import InvalidMessage


class OnePair:
    """One event loop. ``start`` before the first poll; ``close`` ends it."""

    def __init__(
        self,
        app: str,
        topic: str,
        groups: int,
        replicas: int,
        brokers: Brokers,
        config: FeedbackConfig,
        rng: random.Random,
        *,
        owned: bool = True,
    ) -> None:
        """``owned``: also ask about transactions that have an owner, which must then poll here."""
        self.app, self.topic = app, topic
        self._shard = FeedbackShard(
            0, 1, groups, replicas, brokers, config, rng, only=(app, topic), owned=owned
        )
        self._begun_at, self._silent_s = 0.0, config.silent_s

    def start(self) -> None:
        """Start the loops."""
        self._begun_at = self._shard.now()
        self._shard.start()

    async def close(self) -> None:
        """End the loops and send parked producers away."""
        await self._shard.close()

    async def poll(
        self, instance: str, room: int, working: Sequence[tuple[int, str, int]], wait_s: float
    ) -> tuple[str, Any]:
        """As ``FeedbackShard.poll``, with only the group where that has a place."""
        placed = self._placed("working", working)
        status, value = await self._shard.poll(self.app, instance, room, placed, wait_s)
        return (status, value) if status != "ok" else (status, [(place[0], *rest) for place, *rest in value])

    def answer(self, instance: str, answers: Sequence[tuple[int, str, str, str, int]]) -> tuple[str, Any]:
        """Answers (group, transaction, state, trouble, index); ``("ok", None)``, or ``("retry",
        seconds)``: some were not taken, and repeating all of them is harmless."""
        _, refused = self._shard.answer(self.app, instance, self._placed("answers", answers))
        return ("retry", ANSWER_AGAIN_S) if refused else ("ok", None)

    def leave(self, instance: str, idle: bool = False) -> None:
        """The producer closes."""
        self._shard.leave(self.app, instance, idle)

    def _placed(self, name: str, rows: Any) -> Any:
        """The same rows with the topic added to the group."""
        if type(rows) not in (list, tuple) or not all(type(row) in (list, tuple) and row for row in rows):
            raise InvalidMessage(f"{name} must be a list of tuples")
        return [((row[0], self.topic), *row[1:]) for row in rows]

    @property
    def pair(self) -> TopicFeedback:
        """The feedback itself; a new one after a bug in it."""
        pair = self._shard.pair(self.app, self.topic)
        assert pair is not None
        return pair

    @property
    def counts(self) -> Counter[str]:
        """The event counts."""
        return Counter({**self._shard.counts, **self.pair.counts})

    @property
    def last_poll_at(self) -> float:
        """When a producer last polled."""
        producers = self._shard.producers(self.app)
        return self._begun_at if producers is None else max(self._begun_at, producers.last_poll_at)

    def anyone_online(self) -> bool:
        """Whether a producer of the app can be asked."""
        producers = self._shard.producers(self.app)
        return producers is not None and bool(producers.online(self._silent_s))

    def idle_s(self) -> float:
        """For how long no producer has polled."""
        producers = self._shard.producers(self.app)
        parked = producers is not None and producers.parked > 0
        return 0.0 if parked else self._shard.now() - self.last_poll_at

    def status(self) -> dict[str, Any]:
        """For operators."""
        whole = self._shard.status()
        shown = self.pair.status() | {name: whole[name] for name in ("polls_parked", "poll_wait_s")}
        producers = self._shard.producers(self.app)
        if producers is not None:
            shown["producers"] = sorted(p.instance for p in producers.online(self._silent_s))
        return shown
