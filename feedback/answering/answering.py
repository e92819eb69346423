"""The producer's side of feedback, without threads of its own and without Ray.

One link to each feedback process, and so one parked poll at each, whatever topics the app has. The leaders
tell the processes in which topics something is due, including what earlier producers of the app left behind.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from escrowmq.feedback.answering.shard_link import FeedbackLost, Respondent, ShardLink
from escrowmq.feedback.policy import endless
from escrowmq.replication.calling.patience import Backoff

log = logging.getLogger(__name__)

#: Pauses before the name of the querier's table is asked for again.
LEARN_AGAIN = Backoff(first_s=1.0, longest_s=30.0)


class Answering:
    """All links of one producer. One event loop. ``shards()``: the number of feedback processes."""

    def __init__(self, app: str, shards: Callable[[], Awaitable[int]], producer: Respondent) -> None:
        self.app, self.counts = app, Counter[str]()
        self._producer, self._shards = producer, shards
        self._links: list[ShardLink] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        """Answer checks until cancelled; then leave all links."""
        what = f"checks of app {self.app!r}"
        learning = None
        if self._producer.learn is not None:
            learning = asyncio.create_task(self._learn(self._producer.learn))
        try:
            await endless(self._connect, self.counts, f"{what}: processes", lambda: not self._links)
            runs = [endless(link.run, self.counts, f"{what}, process {link.shard}") for link in self._links]
            self._tasks = [asyncio.create_task(run) for run in runs]
            await asyncio.gather(*self._tasks)
        finally:
            if learning is not None:
                learning.cancel()
            await self._close()

    async def _learn(self, learn: Callable[[], Awaitable[object]]) -> None:
        """The name of the querier's table, so that this producer is asked about what earlier ones of the same
        table have left open."""
        failures = 0
        while True:
            try:
                await learn()
                break
            except Exception as error:
                log.info("the table of app %r does not tell its name yet: %s", self.app, error)
            await asyncio.sleep(LEARN_AGAIN.pause_s(failures, self._producer.rng))
            failures += 1
        for link in self._links:
            link.announce()

    async def _connect(self) -> None:
        """The first process tells the number of processes, so that all producers agree."""
        try:
            count = await self._shards()
        except FeedbackLost:
            self.counts["lost"] += 1
            await asyncio.sleep(self._producer.config.reconnect_max_s * self._producer.rng.uniform(0.5, 1.0))
            return
        self._links = [ShardLink(number, self._producer) for number in range(count)]

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(self._leave(link) for link in self._links))

    async def _leave(self, link: ShardLink) -> None:
        try:
            async with asyncio.timeout(1.0):
                await link.leave(closing=True)
        except (FeedbackLost, TimeoutError):
            return  # the process will notice by itself

    def happened(self) -> Counter[str]:
        """The event counts of all links together."""
        return sum((link.counts for link in self._links), Counter[str]())

    def status(self) -> dict[str, Any]:
        """For diagnosis."""
        links = [dict(link.counts) for link in self._links]
        return {**self.counts, **self.happened(), "links": links, "stuck_queries": self._producer.pool.stuck}
