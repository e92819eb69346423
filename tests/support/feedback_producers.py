"""Producers as the feedback core sees them: whatever polls and answers. They can die, freeze, or lie."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from escrowmq.feedback.asking.shard import FeedbackShard
from escrowmq.feedback.asking.topic_feedback import TopicFeedback
from escrowmq.feedback.config import FeedbackConfig
from tests.support.clock import now, run
from tests.support.memory_groups import BrokersDouble, GroupDouble

#: What a producer says to (tx_id, query_id): a state, (state, trouble), or None: nothing.
Says = Callable[[str, str], Any]
#: Where the checks of most tests come from: group 0, topic ``orders``.
ORDERS = (0, "orders")


class Producer:
    """Polls like a real one, in virtual time. ``die`` leaves its poll parked, as SIGKILL does."""

    def __init__(self, feedback: AppPort, name: str, says: Says, *, room: int = 64) -> None:
        self.feedback, self.name, self.says, self.room = feedback, name, says, room
        self.asked: list[tuple[float, str]] = []
        self.working: set[tuple[Any, str, int]] = set()
        self.running: set[str] = set()  # transactions whose local part runs here
        self.told: Counter[str] = Counter()  # answers, by trouble or state
        self.dead = False
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            # The actor does not see who died: the poll itself goes on there.
            room = max(self.room - len(self.working), 0)
            wait_s = 5.0 if room > 0 else 0.1
            poll = asyncio.ensure_future(self.feedback.poll(self.name, room, sorted(self.working), wait_s))
            status, value = await asyncio.shield(poll)
            if status != "ok":
                await asyncio.sleep(value)
                continue
            for address, tx_id, query_id, _, answer_s, index, _ in value:
                check = address, tx_id, index
                if tx_id in self.running or answer_s <= 0:
                    self._say(check, "UNKNOWN", "running" if tx_id in self.running else "busy")
                    continue
                self.asked.append((now(), tx_id))
                self.working.add(check)
                asyncio.get_running_loop().call_later(0.002, self._answer, check, query_id)

    def _answer(self, check: tuple[Any, str, int], query_id: str) -> None:
        said = self.says(check[1], query_id)
        if said is not None:
            self._say(check, *(said if isinstance(said, tuple) else (said, "")))

    def _say(self, check: tuple[Any, str, int], state: str, trouble: str) -> None:
        if self.dead:
            return
        address, tx_id, index = check
        self.told[trouble or state] += 1
        self.working.discard(check)
        self.feedback.answer(self.name, [(address, tx_id, state, trouble, index)])

    def die(self) -> None:
        self.dead = True
        self._task.cancel()

    def times_asked(self, tx_id: str) -> int:
        return sum(asked == tx_id for _, asked in self.asked)


class AppPort:
    """A feedback process as the producers of one app know it."""

    def __init__(self, shard: FeedbackShard, app: str) -> None:
        self._shard, self._app = shard, app

    async def poll(self, instance: str, room: int, working: Any, wait_s: float) -> Any:
        return await self._shard.poll(self._app, instance, room, working, wait_s)

    def answer(self, instance: str, answers: Any) -> Any:
        return self._shard.answer(self._app, instance, answers)

    def leave(self, instance: str, idle: bool = False) -> None:
        self._shard.leave(self._app, instance, idle)


class World:
    """Groups, a feedback process, and producers of app ``shop``, which has topic ``orders``."""

    def __init__(self, groups: int, config: FeedbackConfig, seed: int) -> None:
        self.brokers = BrokersDouble(groups)
        self.config, self.seed = config, seed
        for group in self.brokers.groups:
            group.topic("orders", groups)
        self.producers: list[Producer] = []
        self._start()

    @property
    def group(self) -> GroupDouble:
        return self.brokers.groups[0]

    @property
    def pair(self) -> TopicFeedback:
        """The feedback of topic ``orders``, created if there is none."""
        pair = self.shard._pairs.host("shop", "orders")
        assert pair is not None
        return pair

    def _start(self) -> None:
        groups, rng = len(self.brokers.groups), random.Random(self.seed)
        self.shard = FeedbackShard(0, 1, groups, 3, self.brokers, self.config, rng)
        self.feedback = AppPort(self.shard, "shop")
        self.shard.start()

    async def restart(self) -> None:
        """Another process takes the place of this one, and knows nothing."""
        await self.shard.close()
        self._start()

    def producer(self, name: str, says: Says, *, app: str = "shop", room: int = 64) -> Producer:
        producer = Producer(AppPort(self.shard, app), name, says, room=room)
        self.producers.append(producer)
        return producer

    async def end(self) -> None:
        for producer in self.producers:
            producer.die()
        await self.shard.close()


@asynccontextmanager
async def world(*, groups: int = 1, seed: int = 1, **config: float) -> AsyncIterator[World]:
    it = World(groups, FeedbackConfig(**config), seed)  # type: ignore[arg-type]
    try:
        yield it
    finally:
        await it.end()


def play(scene: Callable[[World], Awaitable[None]], **config: float) -> None:
    """Play a scene in a world of its own."""

    async def main() -> None:
        async with world(**config) as it:  # type: ignore[arg-type]
            await scene(it)

    run(main())


def always(state: str, trouble: str = "") -> Says:
    return lambda tx_id, query_id: (state, trouble)


def silent(tx_id: str, query_id: str) -> None:
    return None
