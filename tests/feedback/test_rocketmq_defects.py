"""RocketMQ's known defects that concern checks (SPEC section 3): one test each, named after the defect.

The other defects of that list (a delay that loops, one message per transaction) concern sending, not checks.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from escrowmq.feedback.asking import group_feedback
from escrowmq.feedback.policy import route
from escrowmq.replication.format import ops
from tests.support.clock import run, until
from tests.support.feedback_producers import ORDERS, always, silent, world


def end_offset(group: Any, topic: str = "orders") -> int:
    (partition,) = group.state.topics.topics[topic].partitions.values()
    end: int = partition.index.end
    return end


def test_a_repeated_commit_publishes_twice() -> None:
    async def main() -> None:
        async with world() as w:
            w.producer("p1", always("COMMITTED"))
            w.producer("p2", always("COMMITTED"))
            w.group.prepare("t1")
            await until(lambda: w.group.outcome("t1") == "COMMITTED", 5)
            w.group.submit(ops.commit("shop", ["t1"]))  # the sender's own, late
            for name in ("p1", "p2", "p2"):
                w.feedback.answer(name, [(ORDERS, "t1", "COMMITTED", "", 0)])
            await asyncio.sleep(1)
            assert end_offset(w.group) == 1

    run(main())


def test_a_check_arrives_while_a_slow_local_transaction_still_runs_and_a_late_commit_is_lost() -> None:
    async def main() -> None:
        async with world() as w:
            p = w.producer("p1", always("UNKNOWN"))
            w.group.prepare("t1")
            await until(lambda: p.times_asked("t1") >= 3, 30)
            assert w.group.submit(ops.commit("shop", ["t1"])) == [[0]], "the late commit is taken"
            assert end_offset(w.group) == 1

    run(main())


def test_checks_are_used_up_while_no_producer_is_online() -> None:
    async def main() -> None:
        async with world() as w:
            first = w.producer("p1", always("UNKNOWN"))
            w.group.prepare("t1")
            await until(lambda: w.group.open("t1").checks == 2, 30)
            first.die()
            await asyncio.sleep(600)
            assert w.group.open("t1").checks == 2
            w.producer("p2", always("COMMITTED"))
            assert await until(lambda: w.group.outcome("t1") == "COMMITTED", 5) < 1.5

    run(main())


def test_unresolved_messages_are_rewritten_at_every_check_so_an_outage_fills_the_disk() -> None:
    async def main() -> None:
        async with world() as w:
            w.group.prepare("x" * 400)
            before = sum(map(len, w.group.entries))
            await asyncio.sleep(600)  # an outage of all producers writes nothing
            assert sum(map(len, w.group.entries)) == before
            w.producer("p1", always("UNKNOWN"))
            await until(lambda: w.group.open("x" * 400).due_ms == -1, 600)
            written = sum(map(len, w.group.entries)) - before
            assert written < 15 * 500, "a check costs its id, not its messages"

    run(main())


def test_messages_already_committed_are_checked_again_after_a_restart() -> None:
    async def main() -> None:
        async with world() as w:
            p = w.producer("p1", always("COMMITTED"))
            w.group.prepare("t1")
            await until(lambda: w.group.outcome("t1") == "COMMITTED", 5)
            w.group.fail_over(1)  # rebuilds its due queue from the table, as a restart does
            await w.restart()
            again = w.producer("p2", always("COMMITTED"))
            await asyncio.sleep(120)
            assert p.times_asked("t1") == 1 and again.times_asked("t1") == 0

    run(main())


def test_one_queue_and_one_scanner_for_all_topics() -> None:
    async def main() -> None:
        async with world() as w:
            w.group.topic("stuck")
            w.producer("s1", silent, app="other")
            for i in range(500):
                w.group.prepare(f"s{i}", app="other", topic="stuck")
            w.producer("p1", always("COMMITTED"))
            await asyncio.sleep(1)
            w.group.prepare("t1")
            assert await until(lambda: w.group.outcome("t1") == "COMMITTED", 5) < 0.6

    run(main())


def test_an_exception_in_the_check_loop_stalls_every_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = 0

    def failing(row: Any) -> Any:
        nonlocal failures
        if row.tx_id == "poison" and failures < 3:
            failures += 1
            raise RuntimeError("a bug, injected")
        return route(row)

    monkeypatch.setattr(group_feedback, "route", failing)

    async def main() -> None:
        async with world() as w:
            w.producer("p1", always("COMMITTED"))
            w.group.prepare("poison")
            await asyncio.sleep(1)
            w.group.prepare("t1")
            assert await until(lambda: w.group.outcome("t1") == "COMMITTED", 5) < 3
            await until(lambda: w.group.outcome("poison") == "COMMITTED", 60)
            assert failures == 3

    run(main())


def test_no_way_to_list_or_decide_pending_transactions() -> None:
    async def main() -> None:
        async with world() as w:
            p = w.producer("p1", always("UNKNOWN"))
            w.group.prepare("t1", query_id="42")
            await until(lambda: w.group.open("t1").due_ms == -1, 600)
            _, answer = await w.group.call(0, "transactions", None, "shop", "orders", 10)
            (t1,) = answer.rows()
            assert (t1.app, t1.tx_id, t1.query_id, t1.checks, t1.parked) == ("shop", "t1", "42", 15, True)
            assert w.group.submit(ops.commit("shop", ["t1"], by="operator:ann")) == [[0]]
            assert end_offset(w.group) == 1 and p.times_asked("t1") == 15
            assert [entry[1] for entry in w.group.state.transactions.audit] == ["operator:ann"]

    run(main())


def test_what_exceeded_the_limit_is_lost() -> None:
    async def main() -> None:
        async with world() as w:
            w.producer("p1", always("UNKNOWN"))
            w.group.prepare("t1")
            await until(lambda: w.group.open("t1").due_ms == -1, 600)
            w.group.fail_over(1)
            await asyncio.sleep(600)
            assert w.group.outcome("t1") == "PREPARE", "parked through a fail-over, kept for a person"
            assert w.group.submit(ops.commit("shop", ["t1"])) == [[0]], "or for its producer after all"
            assert end_offset(w.group) == 1

    run(main())
