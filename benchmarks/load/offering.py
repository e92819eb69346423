"""Offers work at a given rate, whether or not it succeeds, as cheaply as possible: most will be refused."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine, Generator
from dataclasses import dataclass
from functools import partial
from typing import Any

import escrowmq
from benchmarks.load.ledger import value_of
from benchmarks.load.tally import START, Tally

STEP_S = 0.005


@dataclass(frozen=True)
class ClientPlan:
    """The settings of one client process."""

    address: str
    namespace: str
    topic: str
    first_client: int
    producers: int
    transactional: bool
    message_bytes: int
    buffer_bytes: int
    buffer_wait_s: float


class _Pace:
    """The number of items due now, at a variable rate. After a long pause, missed items are dropped."""

    def __init__(self) -> None:
        self._last, self._owed = time.perf_counter(), 0.0

    def due(self, rate: float) -> int:
        now = time.perf_counter()
        self._owed = min(self._owed + (now - self._last) * rate, rate * 0.25 + 1)
        self._last = now
        count = int(self._owed)
        self._owed -= count
        return count


def offer_messages(
    plan: ClientPlan, producers: list[Any], tally: Tally, rate: list[float], ended: threading.Event
) -> None:
    pace, turn = _Pace(), 0
    while not ended.wait(STEP_S):
        due = pace.due(rate[0])
        for _ in range(due):
            turn = (turn + 1) % len(producers)
            number = tally.next_number(turn)
            message = escrowmq.Message(
                plan.topic, value_of(plan.first_client + turn, number, plan.message_bytes)
            )
            _send(producers[turn], message, tally, turn, number)
        tally.offered(due)


def _send(producer: Any, message: Any, tally: Tally, turn: int, number: int) -> None:
    sent = time.perf_counter()
    try:
        future = producer.send(message)
    except escrowmq.EscrowMQError as error:
        tally.failed(turn, number, error)
        return

    def done(future: Any) -> None:
        error = future.exception()
        if error is None:
            tally.accepted(turn, number, time.perf_counter() - sent)
        else:
            tally.failed(turn, number, error)

    future.add_done_callback(done)


def _begun(work: Coroutine[Any, None, None]) -> asyncio.Task[None] | None:
    """Run a coroutine until it first waits, and continue it in a task, which is returned.

    A call that is refused at once costs no task; None is returned then.
    """
    try:
        waits_for = work.send(None)
    except StopIteration:
        return None
    return asyncio.get_running_loop().create_task(_rest(work, waits_for))


async def _rest(work: Coroutine[Any, None, None], waits_for: Any) -> None:
    await _Resumed(work, waits_for)


class _Resumed:
    """Awaits the rest of a coroutine that has already started."""

    def __init__(self, work: Coroutine[Any, None, None], waits_for: Any) -> None:
        self._work, self._waits_for = work, waits_for

    def __await__(self) -> Generator[Any, Any, None]:
        waits_for = self._waits_for
        while True:
            try:
                sent = yield waits_for
            except BaseException as error:
                step = partial(self._work.throw, error)
            else:
                step = partial(self._work.send, sent)
            try:
                waits_for = step()
            except StopIteration:
                return


def offer_transactions(
    plan: ClientPlan, producers: list[Any], tally: Tally, rate: list[float], ended: threading.Event
) -> None:
    async def one(turn: int, number: int, sent: float) -> None:
        tally.took(START, time.perf_counter() - sent)
        value = value_of(plan.first_client + turn, number, plan.message_bytes)
        try:
            await producers[turn].aio.send_message_in_transaction(
                escrowmq.Message(plan.topic, value), lambda tx: escrowmq.TransactionState.COMMITTED
            )
        except escrowmq.EscrowMQError as error:
            tally.failed(turn, number, error)
        else:
            tally.accepted(turn, number, time.perf_counter() - sent)

    async def offer() -> None:
        pace, turn = _Pace(), 0
        running: set[asyncio.Task[None]] = set()
        while not ended.is_set():
            due, now = pace.due(rate[0]), time.perf_counter()
            for _ in range(due):
                turn = (turn + 1) % len(producers)
                task = _begun(one(turn, tally.next_number(turn), now))
                if task is not None:
                    running.add(task)
                    task.add_done_callback(running.discard)
            tally.offered(due)
            await asyncio.sleep(STEP_S)
        await asyncio.gather(*running)

    asyncio.run(offer())
