"""A producer's link to one feedback process: takes checks of all topics there, sends their answers.

It always has a single poll parked there, however many topics its app has: so the process knows that
the producer is alive, and what it is working on. The process may die at any time; then the link reconnects,
and answers for work in progress go to its successor. Answers that are not accepted must never delay others.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from escrowmq.feedback.answering.query_pool import QueryPool
from escrowmq.feedback.config import AnswererConfig
from escrowmq.feedback.policy import Trouble
from escrowmq.feedback.states import TransactionState
from escrowmq.replication.calling.patience import Backoff
from escrowmq.replication.errors import EscrowMQError

log = logging.getLogger(__name__)

#: A process that has not answered for this long after a poll should have ended is given up, and looked up
#: again.
POLL_GRACE_S = 3.0
#: A long poll gets extra time in proportion to its length: it is one of many.
LONG_POLL_GRACE = 0.6
#: So that producers that all lost one process do not come back together.
RECONNECT_JITTER = 0.3
ANSWERS_PER_CALL = 256
#: Answers that no process accepts at the moment are sent again after this.
REFUSED_S = 0.5
#: Answers waiting for the process; beyond it the oldest are dropped, and their checks are repeated.
ANSWERS_MAX = 4_096
#: How often the log repeats that a check of another table has come.
SAY_EVERY_S = 60.0


class FeedbackLost(EscrowMQError):
    """The feedback process did not answer; it may be restarting."""


#: Broker group and topic of a check: returned unchanged with the answer.
GroupTopic = tuple[int, str]
#: A check under one PREPARE: group and topic, transaction, log index of the PREPARE.
AskedCheck = tuple[GroupTopic, str, int]


class FeedbackPort(Protocol):
    """A feedback process, as one app's producer sees it (``FeedbackShard``). Failures are FeedbackLost."""

    async def poll(
        self, instance: str, room: int, working: Sequence[AskedCheck], wait_s: float, fence: bytes
    ) -> tuple[str, Any]: ...
    async def answer(
        self, instance: str, answers: Sequence[tuple[GroupTopic, str, str, str, int]]
    ) -> tuple[str, Any]: ...
    async def leave(self, instance: str, idle: bool = False) -> None: ...


@dataclass(frozen=True, slots=True)
class Respondent:
    """The producer that answers: what all of its links share."""

    instance: str
    #: Number of a feedback process -> the process.
    connect: Callable[[int], Awaitable[FeedbackPort]]
    pool: QueryPool
    #: Whether the local transaction of an id is running here.
    still_running: Callable[[str], bool]
    config: AnswererConfig
    rng: random.Random
    #: Whether none is running here at all.
    idle: Callable[[], bool] = lambda: False
    #: Finds out the name of the querier's table (``pool.fence``); None: it answers from none.
    learn: Callable[[], Awaitable[object]] | None = None


class ShardLink:
    """One event loop. ``run`` until cancelled, then ``leave``."""

    def __init__(self, shard: int, producer: Respondent) -> None:
        self.shard, self.counts = shard, Counter[str]()
        self._producer, self._pool, self._config = producer, producer.pool, producer.config
        self._port: FeedbackPort | None = None
        self._working: dict[
            AskedCheck, asyncio.Task[None]
        ] = {}  # the local transactions of these are not running
        self._answers: dict[AskedCheck, tuple[TransactionState, Trouble]] = {}
        self._to_send = asyncio.Event()
        self._room_again = asyncio.Event()
        self._polls: set[asyncio.Task[None]] = set()
        self._wait_s = self._config.poll_wait_s  # what the next idle poll offers
        self._named, self._say_elsewhere_at = asyncio.Event(), float("-inf")

    async def run(self) -> None:
        """Poll and answer for ever."""
        try:
            async with asyncio.TaskGroup() as loops:
                loops.create_task(self._poll_loop())
                loops.create_task(self._send_loop())
        finally:
            for task in [*self._working.values(), *self._polls]:
                task.cancel()
            self._working.clear()

    async def leave(self, *, closing: bool) -> None:
        """Tell the process that this producer leaves, so that others get its checks at once. If it closes for
        good and runs none of them, they also get the checks of its own transactions."""
        if self._port is not None:
            await self._port.leave(self._producer.instance, closing and self._producer.idle())

    # ---------------------------------------------------------------- polling

    async def _poll_loop(self) -> None:
        reconnect = Backoff(
            self._config.reconnect_min_s, self._config.reconnect_max_s, jitter=RECONNECT_JITTER
        )
        failures = 0
        while True:
            try:
                if self._port is None:
                    self._port = await self._producer.connect(self.shard)
                await self._poll_once(self._port)
                failures = 0
            except FeedbackLost as error:
                self._port = None
                self.counts["lost"] += 1
                log.info("feedback process %d: %s; connecting again", self.shard, error)
                await asyncio.sleep(reconnect.pause_s(failures, self._producer.rng))
                failures += 1

    async def _poll_once(self, port: FeedbackPort) -> None:
        """One poll; given up early when checks were answered meanwhile and there is room again, or when the
        name of the querier's table is learned (the next poll ends it at the actor)."""
        room, much = self._pool.room, self._pool.full_room // 2
        busy = self._working or room < much
        wait_s = self._config.working_wait_s if busy else self._wait_s
        self._room_again.clear()
        poll = asyncio.create_task(self._take_from(port, room, wait_s))
        self._polls.add(poll)
        poll.add_done_callback(self._polls.discard)
        poll.add_done_callback(_look_at)  # nothing else retrieves its exception if this is cancelled
        waiting: set[asyncio.Task[Any]] = {poll}
        if room < much:
            waiting.add(asyncio.create_task(self._room_again.wait()))
        if self._producer.learn is not None and not self._pool.fence and not self._named.is_set():
            waiting.add(asyncio.create_task(self._named.wait()))
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting - {poll}:
                task.cancel()
        if poll.done():
            poll.result()

    async def _take_from(self, port: FeedbackPort, room: int, wait_s: float) -> None:
        begin = _now()
        try:
            async with asyncio.timeout(wait_s + max(POLL_GRACE_S, LONG_POLL_GRACE * wait_s)):
                asked = self._producer.instance, room, list(self._working), wait_s, self._pool.fence
                status, value = await port.poll(*asked)
        except TimeoutError:
            self._offer(wait_s, _now() - begin)
            raise FeedbackLost("no answer to a poll") from None
        if status == "ok" and not value:
            self._offer(wait_s, _now() - begin)
        if status != "ok":
            self.counts["sent_away"] += 1
            await asyncio.sleep(float(value))
            return
        for (gid, topic), tx_id, query_id, _, answer_s, index, fence in value:
            self._take(((gid, topic), tx_id, index), query_id, answer_s, fence)

    def _take(self, check: AskedCheck, query_id: str, answer_s: float, fence: bytes) -> None:
        """If its local transaction is running, say so at once, without the querier's threads. Saying nothing
        means that it is not running, so only such checks are worked on."""
        if self._producer.still_running(check[1]):
            self._say(check, TransactionState.UNKNOWN, Trouble.RUNNING)
        elif answer_s <= 0:
            self._say(check, TransactionState.UNKNOWN, Trouble.BUSY)
        elif fence and fence != self._pool.fence:
            here = self._pool.fence.hex() or "none that has a name"
            self._log_elsewhere(check[1], fence, f"this producer answers from {here}")
            self._say(check, TransactionState.UNKNOWN, Trouble.ELSEWHERE)
        elif check not in self._working:
            self.counts["taken"] += 1
            self._working[check] = asyncio.create_task(self._work(check, query_id, answer_s, fence))

    def _log_elsewhere(self, tx_id: str, fence: bytes, why: str) -> None:
        """The name here has changed since the poll that the check came with, or the querier has come upon
        another table."""
        if (now := _now()) < self._say_elsewhere_at:
            return
        self._say_elsewhere_at = now + SAY_EVERY_S
        log.warning(
            "transaction %r belongs to the table %s, and is not looked up here: %s",
            *(tx_id, fence.hex() or "of which it has no name", why),
        )

    def announce(self) -> None:
        """The name of the querier's table is known now: poll with it at once."""
        self._named.set()

    def _offer(self, wait_s: float, took_s: float) -> None:
        """How long the next idle poll may be parked, after one that ended without checks. The process of a
        large crowd uses the whole offer. So does an overloaded one, which short polls would only make
        worse."""
        config = self._config
        if wait_s >= config.poll_wait_s:
            self._wait_s = max(config.poll_wait_s, min(2 * took_s, config.poll_wait_max_s))

    # ---------------------------------------------------------------- answering

    async def _work(self, check: AskedCheck, query_id: str, answer_s: float, fence: bytes) -> None:
        start_within_s = max(answer_s - 2 * self._config.query_timeout_s, answer_s / 4)

        def late(state: TransactionState) -> None:
            if state in (TransactionState.COMMITTED, TransactionState.ROLLBACK):
                self._say(check, state, Trouble.NONE)

        state, trouble = await self._pool.ask(check[1], query_id, start_within_s, late)
        if trouble is Trouble.ELSEWHERE:
            self._log_elsewhere(check[1], fence, self._pool.led_elsewhere)
            if not fence:  # the transaction names no table: a failure like any other, which is counted
                trouble = Trouble.RAISED
        self._say(check, state, trouble)

    def _say(self, check: AskedCheck, state: TransactionState, trouble: Trouble) -> None:
        self.counts[trouble.value or state.value] += 1
        while len(self._answers) >= ANSWERS_MAX:
            if self.counts["answers_dropped"] % ANSWERS_MAX == 0:
                log.warning("feedback process %d takes no answers: the oldest are dropped", self.shard)
            self.counts["answers_dropped"] += 1
            self._done(next(iter(self._answers)))
        self._answers[check] = (state, trouble)
        self._to_send.set()

    def _done(self, check: AskedCheck) -> None:
        self._answers.pop(check, None)
        self._working.pop(check, None)
        if self._pool.room >= self._pool.full_room // 2:
            self._room_again.set()

    async def _send_loop(self) -> None:
        while True:
            if not self._answers:
                self._to_send.clear()
                await self._to_send.wait()
            port = self._port
            if port is None:
                await asyncio.sleep(self._config.reconnect_min_s)
                continue
            batch = list(self._answers.items())[:ANSWERS_PER_CALL]
            flat = [(at, tx, state.value, trouble.value, n) for (at, tx, n), (state, trouble) in batch]
            try:
                async with asyncio.timeout(POLL_GRACE_S):
                    status, value = await port.answer(self._producer.instance, flat)
            except (FeedbackLost, TimeoutError):
                await asyncio.sleep(self._config.reconnect_min_s)  # the poll loop connects again
                continue
            if status != "ok":
                await asyncio.sleep(float(value))
                continue
            refused = set(value)
            for number, (check, said) in enumerate(batch):
                if self._answers.get(check) != said:
                    continue  # replaced by a late answer, which goes next
                if number in refused:
                    self._answers[check] = self._answers.pop(check)  # move it behind those of other topics
                else:
                    self._done(check)
            if len(refused) == len(batch):
                await asyncio.sleep(REFUSED_S)


def _look_at(poll: asyncio.Task[None]) -> None:
    """For a poll that was given up: its checks are still taken, and the next poll will see its failure."""
    if not poll.cancelled():
        poll.exception()


def _now() -> float:
    return asyncio.get_running_loop().time()
