"""Locking and settling through lost leaders, lost replies and refusals."""

from __future__ import annotations

import asyncio

import pytest

from escrowmq.replication.format import ops
from tests.support.clock import run, until
from tests.support.feedback_producers import ORDERS, always, silent, world


@pytest.mark.parametrize("how", ["dead", "frozen"])
def test_checks_go_on_after_the_leader_was_lost(how: str) -> None:
    async def main() -> None:
        async with world() as w:
            w.producer("p1", always("COMMITTED"))
            await asyncio.sleep(3)  # the lock call is parked at replica 0
            w.group.prepare("t1", timeout_ms=1000)
            getattr(w.group, how).add(0)
            w.group.leader = None
            await asyncio.sleep(0.5)
            w.group.fail_over(1)
            assert await until(lambda: w.group.outcome("t1") == "COMMITTED", 5) < 2.0

    run(main())


def test_an_answer_given_during_an_election_is_kept() -> None:
    async def main() -> None:
        async with world() as w:
            p = w.producer("p1", silent)
            w.group.prepare("t1")
            await until(lambda: w.shard.counts["handed"] == 1, 3)
            w.group.dead.add(0)
            w.group.leader = None
            w.feedback.answer("p1", [(ORDERS, "t1", "COMMITTED", "", 0)])
            await asyncio.sleep(20)
            assert w.group.outcome("t1") == "PREPARE"
            w.group.fail_over(2)
            assert await until(lambda: w.group.outcome("t1") == "COMMITTED", 5) < 3
            assert p.times_asked("t1") == 1

    run(main())


def test_a_lost_reply_to_a_decision_is_repeated_and_has_one_effect() -> None:
    async def main() -> None:
        async with world() as w:
            w.group.lose_next_reply = True
            p = w.producer("p1", always("COMMITTED"))
            w.group.prepare("t1")
            await until(lambda: w.pair.status()["checks"] == {"queued": 0, "handed": 0, "settling": 0}, 3)
            await until(lambda: w.group.outcome("t1") == "COMMITTED", 3)
            await asyncio.sleep(30)
            (partition,) = w.group.state.topics.topics["orders"].partitions.values()
            assert partition.index.end == 1 and p.times_asked("t1") == 1

    run(main())


def test_a_lost_reply_to_an_unknown_is_not_counted_twice() -> None:
    async def main() -> None:
        async with world() as w:
            w.group.lose_next_reply = True
            p = w.producer("p1", always("UNKNOWN"))
            w.group.prepare("t1")
            await asyncio.sleep(5)
            assert w.group.checked["t1"] == p.times_asked("t1") == w.group.open("t1").checks

    run(main())


def test_an_overloaded_or_full_broker_gets_the_answer_later() -> None:
    async def main() -> None:
        async with world() as w:
            w.group.refuse = [("overloaded", 0.5), ("disk_full", 1.0)]
            w.producer("p1", always("ROLLBACK"))
            w.group.prepare("t1")
            took = await until(lambda: w.group.outcome("t1") == "ROLLBACK", 5)
            assert took > 1.5

    run(main())


def test_an_answer_that_comes_too_late_is_told_what_is_recorded() -> None:
    async def main() -> None:
        async with world() as w:
            w.producer("p1", silent)
            w.group.prepare("t1")
            await until(lambda: w.shard.counts["handed"] == 1, 3)
            w.group.submit(ops.rollback("shop", ["t1"], by="operator:ann"))
            w.feedback.answer("p1", [(ORDERS, "t1", "COMMITTED", "", 0)])
            await asyncio.sleep(1)
            assert w.group.outcome("t1") == "ROLLBACK"
            counts = w.pair.status()["groups"][0]["counts"]
            assert counts["conflicts"] == 1

    run(main())


def test_answers_wait_in_a_bounded_queue() -> None:
    async def main() -> None:
        async with world(settle_queue_max=50) as w:
            w.group.leader = None
            answers = [(ORDERS, f"t{i}", "COMMITTED", "", 0) for i in range(200)]
            assert w.feedback.answer("p1", answers) == ("ok", list(range(50, 200))), "to be sent again"
            assert w.pair.status()["groups"][0]["answers_waiting"] <= 50

    run(main())
