"""Idle producers of many apps in one process: their links to the feedback processes.

The links are the product's own, with its offers, time-outs and reconnects, so an overloaded actor sees the
same as in production. The rest of each producer is left out: no machine could run 10,000 processes.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import ray

from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.feedback.answering.query_pool import QueryPool
from escrowmq.feedback.answering.shard_link import AskedCheck, Respondent, ShardLink
from escrowmq.feedback.config import AnswererConfig, FeedbackConfig
from escrowmq.feedback.edges.ray_calls import RayFeedbackPort
from escrowmq.feedback.edges.shard_actor import start_shard
from escrowmq.feedback.states import TransactionState, TxStatusQuerier


@dataclass(frozen=True)
class Crowd:
    """The settings of the pollers' process."""

    address: str
    topic: str
    info: ClusterInfo
    apps: tuple[str, ...]
    each: int
    config: FeedbackConfig
    answerer: AnswererConfig
    spread_s: float  # the first polls are spread over this time


class CountedPort(RayFeedbackPort):
    """A port that counts the polls that end."""

    def __init__(self, handle: Any, app: str, polls: Counter[str]) -> None:
        super().__init__(handle, app)
        self._polls = polls

    async def poll(
        self, instance: str, room: int, working: Sequence[AskedCheck], wait_s: float, fence: bytes
    ) -> tuple[str, Any]:
        answer = await super().poll(instance, room, working, wait_s, fence)
        self._polls["refused" if answer[0] == "retry" else "polls"] += 1
        return answer


class Arrivals(TxStatusQuerier):
    """A querier that answers COMMITTED and records when it was first asked about each transaction."""

    def __init__(self) -> None:
        self.at: dict[str, float] = {}

    def query_status(self, tx_id: str, query_id: str) -> TransactionState:
        self.at.setdefault(tx_id, time.time())
        return TransactionState.COMMITTED


class Pollers:
    """The links of all producers of all apps, on one event loop in this process."""

    def __init__(self, crowd: Crowd) -> None:
        self._crowd = crowd
        self._ended = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), daemon=True)
        self.counts = Counter[str]()
        self.arrivals = Arrivals()
        self._thread.start()

    async def _main(self) -> None:
        crowd = self._crowd
        links = []
        for shard in range(crowd.config.shards):
            handle = await asyncio.to_thread(
                start_shard, shard, crowd.config.shards, crowd.info, crowd.config
            )
            for app in crowd.apps:
                links += [self._link(shard, app, f"{app}-{n}", handle) for n in range(crowd.each)]
        random.shuffle(links)
        tasks = [
            asyncio.create_task(self._run(link, crowd.spread_s * n / len(links)))
            for n, link in enumerate(links)
        ]
        while not self._ended.is_set():
            await asyncio.sleep(0.5)
            self.counts["lost"] = sum(link.counts["lost"] for link in links)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _link(self, shard: int, app: str, instance: str, handle: Any) -> ShardLink:
        port, config = CountedPort(handle, app, self.counts), self._crowd.answerer

        async def connect(number: int) -> CountedPort:
            return port

        pool = QueryPool(self.arrivals, config)
        return ShardLink(shard, Respondent(instance, connect, pool, _never, config, random.Random(instance)))

    async def _run(self, link: ShardLink, after_s: float) -> None:
        await asyncio.sleep(after_s)
        await link.run()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(30.0)


def _never(tx_id: str) -> bool:
    return False


def run_pollers(crowd: Crowd, pipe: Connection) -> None:
    """The process: answers every request with what the pollers have seen, until the request "end"."""
    ray.init(address=crowd.address, namespace=crowd.info.namespace, log_to_driver=False)
    pollers = Pollers(crowd)
    while pipe.recv() != "end":
        pipe.send((dict(pollers.counts), dict(pollers.arrivals.at)))
    pollers.stop()
    ray.shutdown()


class PollerProcess:
    """The parent's handle of that process.

    ``forkserver`` makes it a child of a process that has no threads and is not connected to Ray.
    """

    def __init__(self, crowd: Crowd) -> None:
        context = multiprocessing.get_context("forkserver")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=run_pollers, args=(crowd, theirs), daemon=True)
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def look(self) -> tuple[Counter[str], dict[str, float]]:
        """The numbers of polls that ended, were refused or lost so far, and when transactions arrived."""
        self._pipe.send("look")
        if not self._pipe.poll(60.0):
            raise TimeoutError("the pollers did not answer")
        counts, arrived = self._pipe.recv()
        return Counter(counts), arrived

    def stop(self) -> None:
        self._pipe.send("end")
        self._process.join(60.0)
        if self._process.is_alive():
            self._process.kill()
