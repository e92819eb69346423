"""Checks in a cluster in memory: the real feedback process and the real answering side, on one staged loop.

The querier runs in the thread that moves the clock or calls the cluster, when the stage is at rest, so it may
use the cluster itself. The stage's clock stands still while the querier runs, so a querier is never slow.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.cluster.testing.calls import Network
from escrowmq.cluster.testing.event_loop import StagedLoop
from escrowmq.cluster.testing.stage import Stage
from escrowmq.feedback.answering.answering import Answering
from escrowmq.feedback.answering.query_pool import QueryPool
from escrowmq.feedback.answering.shard_link import AskedCheck, GroupTopic, Respondent
from escrowmq.feedback.asking.shard import FeedbackShard
from escrowmq.feedback.asking.shard_report import ShardReport
from escrowmq.feedback.brokers import BrokerUnreachable
from escrowmq.feedback.config import AnswererConfig, FeedbackConfig
from escrowmq.feedback.states import TxStatusQuerier, names_a_table
from escrowmq.replication.errors import InvalidMessage

#: Interval between two checks of the deadlines. Long, so that moving the clock far ahead takes few steps.
TICK_S = 1.0


class StagedBrokers:
    """``Brokers`` of a feedback process."""

    def __init__(self, network: Network, loop: StagedLoop) -> None:
        self._network, self._loop = network, loop

    async def call(self, gid: int, rid: int, method: str, *args: Any) -> Any:
        """See ``Brokers``."""
        future: asyncio.Future[Any] = self._loop.create_future()

        def done(answer: Any, error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(answer)
            else:
                future.set_exception(BrokerUnreachable(f"group {gid} failed in {method}: {error}"))

        self._network.call(gid, rid, method, args, done, future.done)
        return await future


class StagedFeedback:
    """The feedback process of a cluster in memory. The first producer with a querier starts it."""

    def __init__(self, stage: Stage, network: Network, info: ClusterInfo) -> None:
        self._stage, self._network, self._info = stage, network, info
        self.loop = StagedLoop(stage)  # type: ignore[abstract]  # nothing here calls the missing methods
        self._shard: FeedbackShard | None = None

    def shard(self, config: FeedbackConfig) -> FeedbackShard:
        """The feedback shard, started on the first call. Call it in the loop."""
        if self._shard is None:
            self._shard = FeedbackShard(
                0,
                1,
                self._info.groups,
                self._info.replicas,
                StagedBrokers(self._network, self.loop),
                replace(config, shards=1, tick_s=max(config.tick_s, TICK_S)),
                random.Random(0),
            )
            self._shard.start()
        return self._shard

    def ask(self, wait_s: float) -> Future[list[ShardReport | None]]:
        """See ``FeedbackProcesses``."""
        answer: Future[list[ShardReport | None]] = Future()
        with self._stage.lock:
            answer.set_result([] if self._shard is None else [self._shard.report()])
        return answer

    def close(self) -> None:
        """See ``FeedbackProcesses``: a client that only asks has nothing to close."""

    def end(self) -> None:
        """Stop the feedback process when the cluster is closed."""
        self.loop.close()


class StagedPort:
    """``FeedbackPort`` of one app. If the caller abandons a call, the call goes on, as in another process."""

    def __init__(self, shard: FeedbackShard, app: str) -> None:
        self._shard, self._app = shard, app

    async def poll(
        self, instance: str, room: int, working: Sequence[AskedCheck], wait_s: float, fence: bytes = b""
    ) -> tuple[str, Any]:
        """See ``FeedbackShard.poll``."""
        asked = self._app, instance, room, list(working), wait_s, fence
        parked = asyncio.ensure_future(self._shard.poll(*asked))
        return await asyncio.shield(parked)

    async def answer(
        self, instance: str, answers: Sequence[tuple[GroupTopic, str, str, str, int]]
    ) -> tuple[str, Any]:
        """See ``FeedbackShard.answer``."""
        return self._shard.answer(self._app, instance, answers)

    async def leave(self, instance: str, idle: bool = False) -> None:
        """See ``FeedbackShard.leave``."""
        self._shard.leave(self._app, instance, idle)


class StagedPool(QueryPool):
    """Runs the querier without threads."""

    def __init__(self, querier: TxStatusQuerier, config: AnswererConfig, stage: Stage) -> None:
        super().__init__(querier, config)
        self._stage = stage

    def _start(self, number: int) -> None:
        self._stage.later(self._serve_all)

    def _serve_all(self) -> None:
        while not self._jobs.empty():
            self._serve()
        self._ended()


class StagedAnswerer:
    """Replaces a producer's ``CheckAnswerer``, and takes the same arguments."""

    def __init__(
        self,
        feedback: StagedFeedback,
        stage: Stage,
        app: str,
        querier: TxStatusQuerier,
        instance_id: str,
        info: ClusterInfo,
        *,
        still_running: Callable[[str], bool],
        idle: Callable[[], bool],
        config: AnswererConfig | None = None,
        feedback_config: FeedbackConfig | None = None,
    ) -> None:
        if not isinstance(querier, TxStatusQuerier):
            raise InvalidMessage(
                f"tx_status_querier must be an instance of escrowmq.TxStatusQuerier, not {querier!r}"
            )
        self._feedback, self._stage, self._app, self._querier = feedback, stage, app, querier
        settings = config or AnswererConfig()
        self._pool = StagedPool(querier, settings, stage)
        process = feedback_config or FeedbackConfig()

        async def count() -> int:
            return 1

        async def connect(number: int) -> StagedPort:
            return StagedPort(feedback.shard(process), app)

        self._answering = Answering(
            app,
            count,
            Respondent(
                *(instance_id, connect, self._pool, still_running, settings, random.Random(0), idle),
                learn=self._learn_fence if names_a_table(querier) else None,
            ),
        )
        self._main: asyncio.Task[None] | None = None

    def start(self) -> None:
        """See ``CheckAnswerer``."""
        held = self._stage.held
        held.depth += (
            1  # application code must not run before the lock is free: the name may be learned at once
        )
        try:
            with self._stage.lock:
                self._main = self._feedback.loop.create_task(self._answering.run())
        finally:
            held.depth -= 1
        self._stage.run()

    async def _learn_fence(self) -> None:
        """In the thread that moves the clock, when the stage is at rest."""
        learned: asyncio.Future[None] = self._feedback.loop.create_future()

        def tell(error: BaseException | None) -> None:
            if learned.done():
                return
            if error is None:
                learned.set_result(None)
            else:
                learned.set_exception(error)

        def learn() -> None:
            error: BaseException | None = None
            try:
                self._querier.learn_fence()
            except Exception as found:
                error = found
            self._feedback.loop.call_soon_threadsafe(tell, error)

        self._stage.later(learn)
        await learned

    def close(self) -> None:
        """See ``CheckAnswerer``."""
        if self._main is not None:
            with self._stage.lock:
                self._main.cancel()
            self._main = None
        self._pool.close()
        self._stage.run()
