"""The check answerer of a producer: a background thread through which this process answers checks.

The thread runs an event loop with all links; the querier runs in a pool of further threads and never
leaves this process. It must never disturb sending: no lock, queue or thread is shared with it.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any

from escrowmq.feedback.answering.answering import Answering
from escrowmq.feedback.answering.query_pool import QueryPool
from escrowmq.feedback.answering.shard_link import Respondent
from escrowmq.feedback.config import AnswererConfig, FeedbackConfig
from escrowmq.feedback.edges.ray_calls import RayShards
from escrowmq.feedback.edges.shard_actor import start_shard
from escrowmq.feedback.states import ClusterShape, TxStatusQuerier, names_a_table
from escrowmq.replication.errors import InvalidMessage

log = logging.getLogger(__name__)


def _never(tx_id: str = "") -> bool:
    return False


class CheckAnswerer:
    """Answers checks for ``app`` with ``querier`` from ``start`` to ``close``. Thread-safe.

    ``instance_id`` is unique per producer object. ``still_running(tx_id)``: whether this process is currently
    running the local transaction of ``tx_id``; such a check is put off without asking the querier, whose
    "not there" would only mean "not yet". ``idle()``: whether no local transaction is running here at all; if
    a producer says so when it closes, nobody waits for it.
    """

    def __init__(
        self,
        app: str,
        querier: TxStatusQuerier,
        instance_id: str,
        info: ClusterShape,
        *,
        still_running: Callable[[str], bool] = _never,
        idle: Callable[[], bool] = _never,
        config: AnswererConfig | None = None,
        feedback_config: FeedbackConfig | None = None,
    ) -> None:
        if not isinstance(querier, TxStatusQuerier):
            raise InvalidMessage(
                f"tx_status_querier must be an instance of escrowmq.TxStatusQuerier, not {querier!r}"
            )
        self._app, self._instance, self._info = app, instance_id, info
        self._config = config or AnswererConfig()
        self._feedback_config = feedback_config or FeedbackConfig()
        self._still_running, self._idle = still_running, idle
        self._querier, self._pool = querier, QueryPool(querier, self._config)
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._answering: Answering | None = None
        self._main: asyncio.Task[None] | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"escrowmq-checks-{app}", daemon=True)

    def start(self) -> None:
        """Start answering checks, including those of transactions that earlier producers of this app left
        open."""
        self._thread.start()

    def close(self, timeout_s: float = 3.0) -> None:
        """Stop answering checks; those already taken go to other producers. Safe to call twice."""
        with self._lock:
            self._closed = True
            if self._loop is not None and self._main is not None:
                self._loop.call_soon_threadsafe(self._main.cancel)
        self._pool.close()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def status(self) -> dict[str, Any]:
        """What was asked and answered, and the number of hanging queries."""
        answering = self._answering
        return {} if answering is None else answering.status()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except asyncio.CancelledError:
            return
        except Exception:
            log.exception("checks of app %r are no longer answered by this producer", self._app)

    async def _learn_fence(self) -> None:
        """In a thread that a process can end with: the database may hang."""
        learned: Future[None] = Future()

        def learn() -> None:
            error: BaseException | None = None
            try:
                self._querier.learn_fence()
            except BaseException as found:
                error = found
            with suppress(InvalidStateError):  # nobody waits any more
                if error is None:
                    learned.set_result(None)
                else:
                    learned.set_exception(error)

        threading.Thread(target=learn, name=f"escrowmq-checks-{self._app}-fence", daemon=True).start()
        await asyncio.wrap_future(learned)

    async def _serve(self) -> None:
        def start(number: int, shards: int) -> Any:
            return start_shard(number, shards, self._info, self._feedback_config)

        processes = RayShards(self._app, self._feedback_config.shards, start)
        answering = Answering(
            self._app,
            processes.count,
            Respondent(
                self._instance,
                processes.connect,
                self._pool,
                self._still_running,
                self._config,
                random.Random(),
                self._idle,
                self._learn_fence if names_a_table(self._querier) else None,
            ),
        )
        with self._lock:
            if self._closed:
                return
            self._loop, self._main = asyncio.get_running_loop(), asyncio.current_task()
            self._answering = answering
        try:
            await answering.run()
        finally:
            with self._lock:
                self._loop = None
