"""``InMemoryCluster``: a cluster without Ray, disk and threads, for tests of code that uses a cluster."""

from __future__ import annotations

import contextlib
import math
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar, NoReturn

from escrowmq.actors.admin.admin import Admin
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.actors.consumer.config import ConsumerConfig
from escrowmq.actors.consumer.consumer import Consumer
from escrowmq.actors.producer.config import ProducerConfig
from escrowmq.actors.producer.producer import Producer
from escrowmq.actors.share_consumer.config import ShareConsumerConfig
from escrowmq.actors.share_consumer.share_consumer import ShareConsumer
from escrowmq.cluster.config import Config
from escrowmq.cluster.handle import Cluster
from escrowmq.cluster.testing.answering import StagedAnswerer, StagedFeedback
from escrowmq.cluster.testing.calls import MemoryCalls, Network
from escrowmq.cluster.testing.replica import MemoryBroker
from escrowmq.cluster.testing.stage import Stage
from escrowmq.replication.errors import ConfigError, EscrowMQError, NotSupported

ADDRESS = "in-memory"
#: A parked fetch gets news at once and brokers do not die, so a long wait loses nothing. It keeps the number
#: of steps small when the clock moves far ahead.
FETCH_WAIT_S = 30.0


class Clock:
    """The time of a cluster in memory. It stands still until the test moves it."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def advance(self, seconds: float) -> None:
        """Let this many seconds pass. Everything due in that time happens, in order, before this returns."""
        given: object = seconds
        if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given < math.inf:
            raise ConfigError(f"advance needs a number of seconds from 0 on, not {seconds!r}")
        self._stage.advance_to(self._stage.now() + seconds)

    def time(self) -> float:
        """Seconds since the epoch, as ``time.time()``. The timestamps of records come from it."""
        return self._stage.wall_s()

    def now(self) -> datetime:
        """The same as a datetime in UTC."""
        return datetime.fromtimestamp(self._stage.wall_s(), UTC)


class InMemoryCluster(Cluster):
    """A cluster in this process's memory, with the interface of a real one. A context manager.

    It runs the code of a real cluster (clients, broker, state machine, log, feedback). It has one broker
    group with one replica, no Ray, no disk and no threads. A call has had all its effects when it returns: a
    committed message can be polled at once. Time stands still except for ``clock.advance``, and except that a
    call that waits, such as a poll with nothing to read, moves the clock instead of waiting. Checks are made,
    and queriers run, in the thread that moves the clock. In threads other than the one that created the
    cluster, and in event loops, waiting takes real time.

    Calls that need replicas, nodes, Ray or Spark raise NotSupported.
    """

    _GROUPS: ClassVar[int] = 1
    #: Nothing is gained by reading ahead, since a call takes no time: so ``poll`` returns all that there is.
    _PREFETCH_RECORDS: ClassVar[int] = 0

    def __init__(self, *, start: datetime | None = None, config: Config | None = None) -> None:
        """``start``: the clock's first time, by default now. ``config``: the base of clients' settings."""
        if start is not None and start.tzinfo is None:
            raise ConfigError("start must be a datetime with a time zone")
        settings = config or Config()
        info = ClusterInfo(uuid.uuid4().hex, f"{ADDRESS}-{uuid.uuid4().hex[:8]}", self._GROUPS, 1)
        self.stage = stage = Stage(time.time() if start is None else start.timestamp())
        self.network = Network(
            stage, [MemoryBroker(stage, info, gid, settings.broker) for gid in range(info.groups)]
        )
        self._feedback = StagedFeedback(stage, self.network, info)
        #: The test moves it forward.
        self.clock = Clock(stage)
        super().__init__(info, ADDRESS, settings, self._feedback.end)

    # ------------------------------------------------------------ failures

    def fail_next(self, what: str, error: type[EscrowMQError], *, carried_out: bool = False) -> None:
        """Make the next request of a kind fail, and only that one.

        ``what``: "send" (plain messages), "prepare", "commit", "rollback" (of transactions), "cancel" (of
        delayed messages), "ack" (of a share consumer), "nack" (of any consumer with retries), or
        "commit_offsets" (of a consumer).
        ``error``: with Unavailable, Overloaded or DiskFull, the broker does nothing; with OutcomeUnknown, the
        broker carries out the request only if ``carried_out``. Everything in one request fails together. The
        client retries until its own time-out, as with a real cluster, so the clock is that much later
        afterwards (``delivery_timeout_s``, ``call_timeout_s``: 30 s). Raises ConfigError.
        """
        self.network.plan(what, error, carried_out)

    @contextlib.contextmanager
    def outage(self) -> Iterator[None]:
        """In this block no broker answers: calls raise Unavailable or OutcomeUnknown at their time-outs."""
        before, self.network.down = self.network.down, True
        try:
            yield
        finally:
            self.network.down = before  # a block may stand in another one

    # ------------------------------------------------------------ clients

    def _new_admin(self, info: ClusterInfo) -> Admin:
        return Admin(info, calls=self._calls(), feedback=self._feedback, background=self.stage)

    def _new_producer(self, info: ClusterInfo, **arguments: Any) -> Producer:
        config: ProducerConfig = arguments.pop("config")
        return Producer(
            info,
            **arguments,
            # No batch lingers: the clock stands still, so nothing could join it.
            config=replace(config, linger_ms=0.0, transaction_linger_ms=0.0),
            calls=self._calls(),
            background=self.stage,
            answered_by=partial(StagedAnswerer, self._feedback, self.stage),
        )

    def _new_consumer(self, info: ClusterInfo, **arguments: Any) -> Consumer:
        config: ConsumerConfig = arguments.pop("config")
        return Consumer(
            info,
            **arguments,
            config=replace(config, fetch_linger_ms=0.0, fetch_wait_s=FETCH_WAIT_S),
            calls=self._calls(),
            background=self.stage,
        )

    def _new_share_consumer(self, info: ClusterInfo, **arguments: Any) -> ShareConsumer:
        config: ShareConsumerConfig = arguments.pop("config")
        return ShareConsumer(
            info,
            **arguments,
            config=replace(
                config,
                ack_linger_ms=0.0,
                acquire_wait_s=FETCH_WAIT_S,
                prefetch_records=self._PREFETCH_RECORDS,
            ),
            calls=self._calls(),
            background=self.stage,
        )

    def _calls(self) -> MemoryCalls:
        return MemoryCalls(self.network)

    # ------------------------------------------------------------ not supported

    def health(self) -> dict[str, Any]:
        """Raises NotSupported: there are no nodes."""
        return self._has_none("nodes and supervisor")

    def head_waits(self, health: dict[str, Any]) -> dict[str, float]:
        """Raises NotSupported."""
        return self._has_none("Ray head")

    def leftovers(self, remove: bool = False) -> list[dict[str, Any]]:
        """Raises NotSupported."""
        return self._has_none("directories")

    def _has_none(self, what: str) -> NoReturn:
        self._open_info()
        raise NotSupported(f"a cluster in memory has no {what}; start a real one with start_local()")
