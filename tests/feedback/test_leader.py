"""Following a group's leader: by asking its peers, never by waiting for Ray."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from escrowmq.feedback.brokers import GroupLeader
from escrowmq.feedback.config import LeaderTiming
from escrowmq.replication.errors import Unavailable
from tests.support.clock import hold_loop, now, run
from tests.support.memory_groups import BrokersDouble, GroupDouble


def leader_of(brokers: BrokersDouble) -> GroupLeader:
    return GroupLeader(0, 3, brokers, LeaderTiming(), random.Random(1))


async def timed(leader: GroupLeader, patience_s: float = 5.0, *, repeatable: bool = True) -> float:
    start = now()
    asked = ["shop"], 0, 1
    status, _ = await leader.ask("open_pairs", *asked, patience_s=patience_s, repeatable=repeatable)
    assert status == "ok"
    return now() - start


def test_the_leader_is_found_wherever_it_is() -> None:
    async def main() -> None:
        for rid in range(3):
            brokers = BrokersDouble()
            brokers.groups[0].leader = rid
            assert await timed(leader_of(brokers)) < 0.2

    run(main())


@pytest.mark.parametrize("how", ["dead", "frozen"])
def test_a_leader_lost_between_calls_is_left_for_its_successor_within_a_second(how: str) -> None:
    async def main() -> None:
        brokers = BrokersDouble()
        group = brokers.groups[0]
        leader = leader_of(brokers)
        await timed(leader)
        getattr(group, how).add(0)
        group.fail_over(2)
        assert await timed(leader) < 1.0, "Ray says so after 1.5 s, or never"
        assert await timed(leader) < 0.01

    run(main())


@pytest.mark.parametrize("how", ["dead", "frozen"])
def test_a_leader_lost_during_a_long_poll_is_left_too(how: str) -> None:
    async def main() -> None:
        brokers = BrokersDouble()
        group = brokers.groups[0]
        leader = leader_of(brokers)
        poll = asyncio.create_task(leader.ask("due_pairs", 0, 0, 0, 1, 5.0, patience_s=12.0))
        await asyncio.sleep(1)
        getattr(group, how).add(0)
        await asyncio.sleep(0.5)
        group.fail_over(1)
        await asyncio.sleep(1.0)
        assert leader.leader == 1 and not poll.done()
        assert (await poll)[0] == "ok"

    run(main())


def test_a_deposed_leader_sends_us_on() -> None:
    async def main() -> None:
        brokers = BrokersDouble()
        leader = leader_of(brokers)
        await timed(leader)
        brokers.groups[0].fail_over(1)
        assert await timed(leader) < 0.2

    run(main())


def test_a_hint_with_a_term_in_which_nobody_leads_does_not_make_deaf_to_the_real_leader() -> None:
    async def main() -> None:
        brokers = BrokersDouble()
        group = brokers.groups[0]
        leader = leader_of(brokers)
        await timed(leader)
        group.fail_over(1)
        group.dead.add(2)
        group.hints[0] = "not_leader", 2, 10**9
        assert await timed(leader) < 2.5, "the dead replica that was hinted at, then the real leader"
        assert (leader.leader, leader.term) == (1, 2)

    run(main())


def test_without_a_leader_the_caller_gets_an_error_in_time() -> None:
    async def main() -> None:
        brokers = BrokersDouble()
        group = brokers.groups[0]
        group.leader = None
        leader = leader_of(brokers)
        start = now()
        with pytest.raises(Unavailable) as refused:
            await leader.ask("open_pairs", ["shop"], 0, 1, patience_s=2.0)
        assert 1.9 < now() - start < 2.3 and refused.value.retry_after_s > 0
        assert group.calls["whoami"] < 100
        group.fail_over(2)
        assert await timed(leader) < 0.5

    run(main())


def test_what_must_not_be_repeated_is_not() -> None:
    async def main() -> None:
        brokers = BrokersDouble()
        group = brokers.groups[0]
        leader = leader_of(brokers)
        await timed(leader)
        group.frozen.add(0)
        group.fail_over(1)
        with pytest.raises(Unavailable):
            await timed(leader, repeatable=False)
        assert group.calls["open_pairs"] == 2

    run(main())


def test_a_frozen_replica_collects_few_calls() -> None:
    async def main() -> None:
        brokers = BrokersDouble()
        group = brokers.groups[0]
        group.frozen.add(2)
        leader = leader_of(brokers)
        to_frozen = 0
        original = GroupDouble.call

        async def counting(self: GroupDouble, rid: int, method: str, *args: object) -> object:
            nonlocal to_frozen
            to_frozen += rid == 2
            return await original(self, rid, method, *args)

        group.call = counting.__get__(group)  # type: ignore[method-assign]
        for _ in range(120):
            await leader.ask("due_pairs", 0, 0, 0, 1, 5.0, patience_s=7.0)
        assert to_frozen < 30, "ten minutes"

    run(main())


class HoldsTheLoop(BrokersDouble):
    """The answer to the first question holds the event loop for longer than a round of questions."""

    held_s = 0.5

    async def call(self, gid: int, rid: int, method: str, *args: Any) -> Any:
        answer = await super().call(gid, rid, method, *args)
        if method == "whoami" and rid == 0:
            hold_loop(self.held_s)
            self.held_s = 0.0
            await asyncio.sleep(0)
        return answer


def test_a_leader_that_is_found_as_a_round_of_questions_ends_is_taken() -> None:
    """The answer and the end of the round are due in the same turn of an event loop that was held up."""

    async def main() -> None:
        assert await timed(leader_of(HoldsTheLoop())) < 1.0

    run(main())
