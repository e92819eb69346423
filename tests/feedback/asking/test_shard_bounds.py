"""Every bound of a feedback process reports when it is reached, and what is beyond it gets its turn."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.support.clock import now, run, until
from tests.support.feedback_processes import processes
from tests.support.feedback_producers import always


def test_pairs_beyond_the_bound_wait_for_others_and_it_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with processes(pairs_max=20, idle_exit_s=2.0) as p:
            ready = now() + 10.0
            p.producer("shop", lambda *_: "COMMITTED" if now() > ready else None, room=500)
            topics = [f"t{n}" for n in range(100)]
            for first in range(0, 100, 10):
                p.leave_open("shop", topics[first : first + 10])
                await asyncio.sleep(0.5)
            assert p.shards[0].counts["pairs_full"] > 0
            assert p.shards[0].status()["pairs_here"] <= 21
            await until(lambda: not p.open_ones("shop"), 120)

    with caplog.at_level(logging.WARNING):
        run(main())
    assert "further ones wait" in caplog.text


def test_pairs_that_have_nothing_to_do_make_room_at_once() -> None:
    async def main() -> None:
        async with processes(pairs_max=20) as p:
            p.producer("shop", always("COMMITTED"))
            for n in range(100):
                p.leave_open("shop", [f"t{n}"])
                await asyncio.sleep(0.3)
            assert await until(lambda: not p.open_ones("shop"), 5) < 1.0
            assert p.shards[0].status()["pairs_here"] <= 20 and p.shards[0].counts["pairs_full"] == 0

    run(main())


def test_apps_beyond_the_bound_make_room_for_others_or_are_sent_away() -> None:
    async def main() -> None:
        async with processes(apps_max=5) as p:
            p.group.topic("orders")
            for n in range(20):
                p.producer(f"job {n}", always("COMMITTED"))
                p.group.prepare("t1", app=f"job {n}", timeout_ms=1)
                await until(lambda n=n: not p.open_ones(f"job {n}"), 5)
                p.leave(f"job {n}")
            assert p.shards[0].status()["apps"] <= 5 and p.shards[0].counts["polls_refused"] == 0
            for n in range(7):
                p.producer(f"stays {n}", always("COMMITTED"))
            await asyncio.sleep(1)
            assert p.shards[0].counts["polls_refused"] > 0

    run(main())


def test_polls_beyond_the_bound_of_the_process_take_turns(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with processes(shard_polls_max=20) as p:
            for n in range(15):
                p.producer("crowd", always("COMMITTED"), f"p{n}")
            for n in range(15):
                p.producer(f"single {n}", always("COMMITTED"))
            p.group.topic("orders")
            await asyncio.sleep(20)
            (shard,) = p.shards
            assert shard.status()["polls_parked"] <= 20 and shard.counts["polls_refused"] > 0
            for n in range(15):
                p.group.prepare("t1", app=f"single {n}", timeout_ms=1)
            await until(lambda: not any(p.open_ones(f"single {n}") for n in range(15)), 30)

    with caplog.at_level(logging.WARNING):
        run(main())
    assert "some are sent away" in caplog.text


def test_the_largest_app_makes_room_first() -> None:
    async def main() -> None:
        async with processes(shard_polls_max=10) as p:
            (shard,) = p.shards
            big = [asyncio.create_task(shard.poll("big", f"b{n}", 1, [], 60.0)) for n in range(10)]
            await asyncio.sleep(0.1)
            small = [asyncio.create_task(shard.poll(f"small {n}", "s", 1, [], 60.0)) for n in range(5)]
            await asyncio.sleep(0.1)
            assert [task.done() for task in big] == [True] * 5 + [False] * 5, "who waited longest goes first"
            assert all(task.result()[0] == "retry" for task in big[:5])
            assert not any(task.done() for task in small)

    run(main())


def test_submits_of_many_topics_are_few_at_a_time() -> None:
    async def main() -> None:
        async with processes(submits_at_once=4) as p:
            p.producer("shop", always("COMMITTED"))
            p.leave_open("shop", [f"t{n}" for n in range(200)])
            await until(lambda: not p.open_ones("shop"), 10)
            assert p.group.most_under_way["submit"] == 4

    run(main())


def test_a_flood_of_topics_of_an_app_without_producers_takes_no_slot_of_others() -> None:
    async def main() -> None:
        async with processes(pairs_max=20) as p:
            p.producer("crowd", always("COMMITTED"), room=0)
            p.leave_open("crowd", [f"t{n}" for n in range(200)])
            await asyncio.sleep(5)
            status = p.shards[0].status()
            assert status["pairs_due"] == 200 and status["pairs_here"] == 0
            p.producer("shop", always("COMMITTED"))
            p.leave_open("shop", ["orders"])
            assert await until(lambda: not p.open_ones("shop"), 5) < 0.5

    run(main())
