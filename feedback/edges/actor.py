"""The feedback actor of one app and topic, which producers of earlier versions start on demand by its name.

This version hosts feedback in a few processes (``shard_actor``). The class stays under this name, with these
arguments and methods, so that those producers are answered; their settings are ignored, since Ray passes
them by position. It ends by itself when no producer has polled for long.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Sequence
from typing import Any

import ray

from escrowmq.feedback.asking.earlier import EarlierProducers
from escrowmq.feedback.asking.one_pair import OnePair
from escrowmq.feedback.config import FeedbackConfig
from escrowmq.feedback.edges.ray_calls import RayBrokers

log = logging.getLogger(__name__)


class FeedbackActor:
    """Remote methods are those of ``EarlierProducers``; loops start with the first call."""

    def __init__(
        self, app: str, topic: str, namespace: str, groups: int, replicas: int, config: object
    ) -> None:
        self._app, self._topic, self._namespace = app, topic, namespace
        self._groups, self._replicas, self._config = groups, replicas, FeedbackConfig()
        self._pair: OnePair | None = None
        self._producers: EarlierProducers | None = None
        self._idle_watch: asyncio.Task[None] | None = None

    def _feedback(self) -> tuple[OnePair, EarlierProducers]:
        if self._pair is None or self._producers is None:
            log.warning(
                "a producer of app %r has an earlier version: its topic %r gets a process of its own",
                self._app,
                self._topic,
            )
            brokers = RayBrokers(self._namespace)
            self._pair = OnePair(
                self._app,
                self._topic,
                self._groups,
                self._replicas,
                brokers,
                self._config,
                random.Random(),
                owned=False,  # owners are producers of this version, and poll elsewhere
            )
            self._pair.start()
            self._producers = EarlierProducers(self._pair)
            self._idle_watch = asyncio.create_task(self._end_when_idle(self._pair))
        return self._pair, self._producers

    async def poll(
        self, instance: str, room: int, working: Sequence[tuple[int, str]], wait_s: float
    ) -> tuple[str, Any]:
        """See ``EarlierProducers.poll``."""
        return await self._feedback()[1].poll(instance, room, working, wait_s)

    async def answer(self, instance: str, answers: Sequence[tuple[int, str, str, str]]) -> tuple[str, Any]:
        """See ``EarlierProducers.answer``."""
        return self._feedback()[1].answer(instance, answers)

    async def leave(self, instance: str) -> None:
        """See ``OnePair.leave``."""
        self._feedback()[0].leave(instance)

    async def status(self) -> dict[str, Any]:
        """See ``OnePair.status``; with this process's id."""
        return {"pid": os.getpid(), **self._feedback()[0].status()}

    async def _end_when_idle(self, pair: OnePair) -> None:
        idle_s, longest_s = 0.0, self._config.idle_exit_s
        while idle_s < longest_s:
            await asyncio.sleep(longest_s - idle_s + 0.1)
            idle_s = pair.idle_s()
        log.info("no producer of app %r polls for topic %r: this actor ends", self._app, self._topic)
        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)
