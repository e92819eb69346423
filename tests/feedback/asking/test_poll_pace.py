"""Many idle producers at one actor that handles few calls a second: virtual time, the real producers'
links."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from escrowmq.feedback.answering.query_pool import QueryPool
from escrowmq.feedback.answering.shard_link import AskedCheck, GroupTopic, Respondent, ShardLink
from escrowmq.feedback.asking.app_producers import PollPace
from escrowmq.feedback.asking.shard import FeedbackShard
from escrowmq.feedback.config import AnswererConfig, FeedbackConfig
from escrowmq.feedback.policy import Trouble
from escrowmq.feedback.states import TransactionState
from tests.support.clock import end, now, run
from tests.support.memory_groups import BrokersDouble
from tests.support.querier import Calls

PRODUCERS = 300
#: Processor time of a call. 300 polls of 4 to 5 s make 67 a second, of 48 to 60 s 6 a second.
CALL_S = 0.025


class BusyPort:
    """The actor behind a processor that handles one call after the other, ``CALL_S`` for each."""

    def __init__(self, feedback: FeedbackShard) -> None:
        self._feedback, self._free_at = feedback, 0.0
        self.ended = Counter[str]()
        self.offered: list[float] = []

    async def _processor(self) -> None:
        self._free_at = max(self._free_at, now()) + CALL_S
        await asyncio.sleep(self._free_at - now())

    async def poll(
        self, instance: str, room: int, working: Sequence[AskedCheck], wait_s: float, fence: bytes
    ) -> Any:
        self.offered.append(wait_s)
        # A caller that no longer waits does not cancel its call: Ray delivers it nevertheless.
        return await asyncio.shield(asyncio.ensure_future(self._poll(instance, room, working, wait_s)))

    async def _poll(self, instance: str, room: int, working: Sequence[AskedCheck], wait_s: float) -> Any:
        await self._processor()
        answer = await self._feedback.poll("shop", instance, room, working, wait_s)
        self.ended[answer[0]] += 1
        return answer

    async def answer(self, instance: str, answers: Sequence[tuple[GroupTopic, str, str, str, int]]) -> Any:
        await self._processor()
        return self._feedback.answer("shop", instance, answers)

    async def leave(self, instance: str, idle: bool = False) -> None:
        self._feedback.leave("shop", instance, idle)


class AtOnce(QueryPool):
    """Without threads: those take real time, during which the virtual clock may advance by any amount."""

    async def ask(
        self, tx_id: str, query_id: str, start_within_s: float, late: Callable[[TransactionState], None]
    ) -> tuple[TransactionState, Trouble]:
        return TransactionState.COMMITTED, Trouble.NONE


class Crowd:
    """The ``ShardLink``s of many producers, at one actor."""

    def __init__(self, producers: int, config: FeedbackConfig, answerer: AnswererConfig) -> None:
        brokers = BrokersDouble()
        self.config, self.group = config, brokers.groups[0]
        self.group.topic("orders")
        self.feedback = FeedbackShard(0, 1, 1, 3, brokers, config, random.Random(1))
        self.feedback.start()
        self.port = BusyPort(self.feedback)
        self.links = [self._link(f"p{n}", answerer) for n in range(producers)]
        self.tasks = [asyncio.create_task(link.run()) for link in self.links]

    def _link(self, instance: str, config: AnswererConfig) -> ShardLink:
        async def connect(number: int) -> BusyPort:
            return self.port

        pool = AtOnce(Calls(lambda tx, query: TransactionState.COMMITTED), config)
        producer = Respondent(instance, connect, pool, lambda tx: False, config, random.Random(instance))
        return ShardLink(0, producer)

    async def parked_share(self, after_s: float) -> float:
        """The average share over a minute."""
        await asyncio.sleep(after_s)
        parked = 0
        for _ in range(60):
            parked += self.feedback.status()["polls_parked"]
            await asyncio.sleep(1.0)
        return parked / 60 / len(self.links)

    async def checked_within(self, checks: int) -> float:
        """Makes ``checks`` transactions due at once: how long until all of them are committed."""
        begin = now()
        for n in range(checks):
            self.group.prepare(f"t{n}", timeout_ms=1)
        while any(self.group.outcome(f"t{n}") != "COMMITTED" for n in range(checks)):
            assert now() - begin < 60.0
            await asyncio.sleep(0.05)
        return now() - begin

    def lost(self) -> int:
        return sum(link.counts["lost"] for link in self.links)


@asynccontextmanager
async def crowd(
    producers: int, config: FeedbackConfig | None = None, answerer: AnswererConfig | None = None
) -> AsyncIterator[Crowd]:
    it = Crowd(producers, config or FeedbackConfig(), answerer or AnswererConfig())
    try:
        yield it
    finally:
        await end(it.tasks)
        await it.feedback.close()


def test_more_producers_than_the_processor_could_serve_every_five_seconds_are_all_parked() -> None:
    async def main() -> None:
        async with crowd(PRODUCERS) as c:
            assert await c.parked_share(after_s=180) > 0.95
            lost = c.lost()
            await asyncio.sleep(120)
            assert c.lost() == lost, "nobody takes the actor for lost any more"

    run(main())


def test_with_polls_of_a_fixed_length_they_would_queue_instead() -> None:
    async def main() -> None:
        answerer = AnswererConfig(poll_wait_max_s=5.0)
        async with crowd(PRODUCERS, FeedbackConfig(poll_wait_max_s=5.0), answerer) as c:
            assert await c.parked_share(after_s=180) < 0.75

    run(main())


def test_few_producers_poll_as_often_as_before() -> None:
    async def main() -> None:
        async with crowd(10) as c:
            await asyncio.sleep(100)
            assert 200 <= c.port.ended["ok"] <= 260, "each ten times in 4 to 5 s"
            assert max(c.port.offered) <= 10.5, "so a lost answer is noticed after 16 s"

    run(main())


def test_a_check_still_comes_at_once() -> None:
    async def main() -> None:
        async with crowd(PRODUCERS) as c:
            await c.parked_share(after_s=180)
            assert await c.checked_within(20) < 3.0

    run(main())


def test_when_half_of_them_were_killed_checks_find_the_others_within_seconds() -> None:
    async def main() -> None:
        async with crowd(PRODUCERS) as c:
            await c.parked_share(after_s=180)
            for task in c.tasks[::2]:
                task.cancel()  # their polls stay parked at the actor, as after SIGKILL
            await asyncio.sleep(1.0)
            assert c.feedback.status()["polls_parked"] > 0.9 * PRODUCERS
            took = await c.checked_within(20)
            assert took < 6 * c.config.confirm_s, "each try fails with one half"

    run(main())


@pytest.mark.parametrize(
    ("producers", "wait_s"), [(1, 5.0), (25, 5.0), (50, 10.0), (150, 30.0), (300, 60.0), (2_000, 60.0)]
)
def test_the_length_follows_from_the_number_of_producers(producers: int, wait_s: float) -> None:
    pace = PollPace(FeedbackConfig())
    for n in range(producers):
        pace.arrive(f"p{n}", 0.0)
    assert pace.wait_s() == wait_s
    assert pace.retry_s() == wait_s / 5.0


def test_producers_that_left_or_are_silent_for_long_do_not_count() -> None:
    pace = PollPace(FeedbackConfig())
    for n in range(100):
        pace.arrive(f"p{n}", float(n) / 100)
    for n in range(50, 100):
        pace.leave(f"p{n}")
    assert pace.wait_s() == 10.0
    pace.arrive("p0", 119.0)
    assert pace.wait_s() == 10.0, "one that comes again counts once"
    pace.arrive("p0", 121.0)
    assert pace.wait_s() == 5.0


def test_what_it_remembers_is_bounded() -> None:
    pace = PollPace(FeedbackConfig())
    for n in range(10_000):
        pace.arrive(f"p{n}", 0.0)
    assert len(pace._seen) == 300


def test_a_longest_poll_below_the_usual_one_changes_nothing() -> None:
    pace = PollPace(FeedbackConfig(poll_wait_s=5.0, poll_wait_max_s=1.0))
    waits: list[float] = []
    note: Callable[[float], None] = waits.append
    for n in range(1_000):
        pace.arrive(f"p{n}", 0.0)
        note(pace.wait_s())
    assert set(waits) == {5.0}
