"""The producer's side of feedback, without threads of its own and without Ray.

One link per topic: those the producer uses, and those in which the leaders say that its app has open
transactions. So a restarted producer, which remembers nothing, is asked about what its predecessor
left behind.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from escrowmq.feedback.answering.topic_link import FeedbackLost, Respondent, TopicLink
from escrowmq.feedback.brokers import Brokers, GroupLeader
from escrowmq.feedback.endless import endless
from escrowmq.replication.errors import Unavailable

#: Topics of one app that are asked about at a time. Each costs a feedback actor (64 MB).
TOPICS_MAX = 256


class Answering:
    """All links of one producer. One event loop."""

    def __init__(self, app: str, groups: int, replicas: int, brokers: Brokers, producer: Respondent) -> None:
        self.app, self.counts = app, Counter[str]()
        self._producer, self._config = producer, producer.config
        self._leaders = [
            GroupLeader(gid, replicas, brokers, producer.config.leader, producer.rng) for gid in range(groups)
        ]
        self._links: dict[str, tuple[TopicLink, asyncio.Task[None]]] = {}
        self._own: set[str] = set()  # topics the producer itself uses: their links stay
        self._open_at: dict[str, float] = {}  # topic -> when it last had open transactions

    async def run(self) -> None:
        """Discover topics until cancelled; then leave all links."""
        try:
            await endless(self._discover, self.counts, f"topics of app {self.app!r}")
        finally:
            await self._close()

    def add_topic(self, topic: str) -> None:
        """The producer sends transactions to this topic."""
        self._own.add(topic)
        self._link(topic)

    def topics(self) -> list[str]:
        """Topics this producer can be asked about."""
        return sorted(self._links)

    def counts_by_topic(self) -> dict[str, dict[str, int]]:
        """What happened on each link."""
        return {topic: dict(link.counts) for topic, (link, _) in list(self._links.items())}

    async def _discover(self) -> None:
        """Groups without a leader are left out this time: their topics are found 5 s later."""
        now = asyncio.get_running_loop().time()
        asking = [leader.ask("open_topics", self.app, patience_s=2.0) for leader in self._leaders]
        for answer in await asyncio.gather(*asking, return_exceptions=True):
            if isinstance(answer, Unavailable):
                self.counts["unavailable"] += 1
            elif isinstance(answer, BaseException):
                raise answer
            else:
                for topic in answer[1]:
                    self._open_at[topic] = now
                    self._link(topic)
        for topic, seen in list(self._open_at.items()):
            if now - seen > self._config.topic_linger_s:
                del self._open_at[topic]
                if topic not in self._own:
                    await self._unlink(topic)
        await asyncio.sleep(self._config.discover_every_s * self._producer.rng.uniform(0.8, 1.0))

    def _link(self, topic: str) -> None:
        if topic in self._links or len(self._links) >= TOPICS_MAX:
            return
        link = TopicLink(topic, self._producer)
        run = endless(link.run, self.counts, f"checks of app {self.app!r}, topic {topic!r}")
        self._links[topic] = (link, asyncio.create_task(run))

    async def _unlink(self, topic: str, *, closing: bool = False) -> None:
        link, task = self._links.pop(topic)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        try:
            async with asyncio.timeout(1.0):
                await link.leave(closing=closing)
        except (FeedbackLost, TimeoutError):
            return  # it will notice by itself

    async def _close(self) -> None:
        await asyncio.gather(*(self._unlink(topic, closing=True) for topic in list(self._links)))
        for leader in self._leaders:
            leader.close()

    def status(self) -> dict[str, Any]:
        """For diagnosis."""
        return {"topics": self.counts_by_topic(), "stuck_queries": self._producer.pool.stuck, **self.counts}
