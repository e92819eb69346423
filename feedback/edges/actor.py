"""The feedback actor: a thin async Ray shell over ``TopicFeedback``, started on demand by producers.

One per app and topic, so one app's load, or a bug it provokes, touches no other. Async, since thousands
of polls may be parked. Restarted by Ray for ever; what it held comes back when its leases end. It
ends by itself when no producer has polled for long.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Sequence
from typing import Any

import ray

from escrowmq.feedback.asking.topic_feedback import TopicFeedback
from escrowmq.feedback.config import FeedbackConfig
from escrowmq.feedback.edges.ray_calls import RayBrokers
from escrowmq.feedback.names import ClusterShape, feedback_name

log = logging.getLogger(__name__)

#: Calls beside the parked polls: those that wake them must always find a place.
CALLS_BESIDE_POLLS = 500


class FeedbackActor:
    """Remote methods are those of ``TopicFeedback``; loops start with the first call."""

    def __init__(
        self, app: str, topic: str, namespace: str, groups: int, replicas: int, config: FeedbackConfig
    ) -> None:
        self._app, self._topic, self._namespace = app, topic, namespace
        self._groups, self._replicas, self._config = groups, replicas, config
        self._core: TopicFeedback | None = None
        self._idle_watch: asyncio.Task[None] | None = None

    def _feedback(self) -> TopicFeedback:
        if self._core is None:
            brokers = RayBrokers(self._namespace)
            self._core = TopicFeedback(
                self._app, self._topic, self._groups, self._replicas, brokers, self._config, random.Random()
            )
            self._core.start()
            self._idle_watch = asyncio.create_task(self._end_when_idle())
        return self._core

    async def poll(
        self, instance: str, room: int, working: Sequence[tuple[int, str, int]], wait_s: float
    ) -> tuple[str, Any]:
        """See ``TopicFeedback.poll``."""
        return await self._feedback().poll(instance, room, working, wait_s)

    async def answer(
        self, instance: str, answers: Sequence[tuple[int, str, str, str, int]]
    ) -> tuple[str, Any]:
        """See ``TopicFeedback.answer``."""
        return self._feedback().answer(instance, answers)

    async def leave(self, instance: str, idle: bool = False) -> None:
        """See ``TopicFeedback.leave``."""
        self._feedback().leave(instance, idle)

    async def status(self) -> dict[str, Any]:
        """See ``TopicFeedback.status``; with this process's id."""
        return {"pid": os.getpid(), **self._feedback().status()}

    async def _end_when_idle(self) -> None:
        idle_s, longest_s = 0.0, self._config.idle_exit_s
        while idle_s < longest_s:
            await asyncio.sleep(longest_s - idle_s + 0.1)
            idle_s = self._feedback().idle_s()
        log.info("no producer of app %r polls for topic %r: this actor ends", self._app, self._topic)
        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)


def start_feedback(app: str, topic: str, info: ClusterShape, config: FeedbackConfig | None = None) -> Any:
    """Handle of the feedback actor of ``app`` and ``topic``; started if there is none. Blocks up to 1 s.

    Any number of producers may call it at once: the name is taken once.
    """
    config = config or FeedbackConfig()
    remote = ray.remote(FeedbackActor).options(
        name=feedback_name(app, topic),
        namespace=info.namespace,
        lifetime="detached",
        get_if_exists=True,
        max_restarts=-1,
        max_task_retries=0,
        max_concurrency=config.polls_parked_max * 2 + CALLS_BESIDE_POLLS,
        num_cpus=0,
    )
    return remote.remote(app, topic, info.namespace, info.groups, info.replicas, config)
