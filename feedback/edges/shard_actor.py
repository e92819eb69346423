"""A feedback process: a thin async Ray shell over ``FeedbackShard``. The first producer that needs it starts
it.

A few of them host the feedback of all apps and topics. Async, since thousands of polls may be parked.
Restarted by Ray for ever; the checks that one held come back when their leases end. The number of processes
is the one that process 0 was started with, so that all producers agree: the owner of a transaction must poll
where its checks are.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import ray

from escrowmq.feedback.asking.shard import FeedbackShard
from escrowmq.feedback.asking.shard_report import ShardReport
from escrowmq.feedback.asking.topic_feedback import GroupTopic
from escrowmq.feedback.config import FeedbackConfig
from escrowmq.feedback.edges.ray_calls import RayBrokers
from escrowmq.feedback.states import ClusterShape, shard_name
from escrowmq.replication.carried_settings import from_names, names_of, passed_over
from escrowmq.replication.log_lines import LogFormat, log_to_stderr

log = logging.getLogger(__name__)

#: Sent with the settings, but set by the cluster: how its processes write their logs.
LOG_FORMAT = "log_format"
#: Calls in addition to the parked polls: those that wake the polls must always find a free slot.
CALLS_BESIDE_POLLS = 500


class FeedbackShardActor:
    """Remote methods are those of ``FeedbackShard``; loops start with the first call."""

    def __init__(
        self,
        index: int,
        shards: int,
        namespace: str,
        groups: int,
        replicas: int,
        settings: Mapping[str, Any],
    ) -> None:
        self._index, self._shards, self._namespace = index, shards, namespace
        self._groups, self._replicas = groups, replicas
        if settings.get(LOG_FORMAT) == LogFormat.json:
            log_to_stderr(LogFormat.json, lambda: {"process": f"feedback-{index}"})
        self._config = from_names(FeedbackConfig, settings)
        for name in {*passed_over(FeedbackConfig, settings)} - {LOG_FORMAT}:
            log.warning("a producer of a newer version started this process: its setting %r is ignored", name)
        self._core: FeedbackShard | None = None

    def _shard(self) -> FeedbackShard:
        if self._core is None:
            brokers = RayBrokers(self._namespace)
            self._core = FeedbackShard(
                self._index,
                self._shards,
                self._groups,
                self._replicas,
                brokers,
                self._config,
                random.Random(),
                members=brokers.members,
            )
            self._core.start()
        return self._core

    async def layout(self) -> tuple[int, int]:
        """The number of this process, and how many there are."""
        return self._index, self._shards

    async def poll(
        self,
        app: str,
        instance: str,
        room: int,
        working: Sequence[tuple[GroupTopic, str, int]],
        wait_s: float,
        fence: bytes,
    ) -> tuple[str, Any]:
        """See ``FeedbackShard.poll``."""
        return await self._shard().poll(app, instance, room, working, wait_s, fence)

    async def answer(
        self, app: str, instance: str, answers: Sequence[tuple[GroupTopic, str, str, str, int]]
    ) -> tuple[str, Any]:
        """See ``FeedbackShard.answer``."""
        return self._shard().answer(app, instance, answers)

    async def leave(self, app: str, instance: str, idle: bool = False) -> None:
        """See ``FeedbackShard.leave``."""
        self._shard().leave(app, instance, idle)

    async def report(self) -> ShardReport:
        """See ``FeedbackShard.report``; with this process's id."""
        return msgspec.structs.replace(self._shard().report(), pid=os.getpid())

    async def status(self, app: str | None = None, topic: str | None = None) -> dict[str, Any]:
        """See ``FeedbackShard.status``; with this process's id."""
        return self._shard().status(app, topic) | {"pid": os.getpid()}


def start_shard(index: int, shards: int, info: ClusterShape, config: FeedbackConfig | None = None) -> Any:
    """Handle of feedback process ``index`` of ``shards``; started if there is none. Blocks for up to a
    second.

    Any number of producers may call it at once: only one gets the name, and the settings of the first count.
    """
    config = config or FeedbackConfig()
    remote = ray.remote(FeedbackShardActor).options(
        name=shard_name(index),
        namespace=info.namespace,
        lifetime="detached",
        get_if_exists=True,
        max_restarts=-1,
        max_task_retries=0,
        max_concurrency=config.shard_polls_max * 2 + CALLS_BESIDE_POLLS,
        num_cpus=0,
    )
    settings = names_of(config) | {LOG_FORMAT: info.log_format}
    return remote.remote(index, shards, info.namespace, info.groups, info.replicas, settings)
