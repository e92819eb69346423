"""Many apps and topics in one process: few calls, no silent bound, and one pair's trouble never affects
another."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from escrowmq.feedback.asking.checks import CheckTable
from escrowmq.feedback.brokers import BrokerUnreachable
from escrowmq.replication.calling.answers import LockedRow, OverdueReport, part_of
from escrowmq.replication.format import ops
from escrowmq.replication.state.due_queue import DueNews, overdue
from tests.support.clock import now, run, until
from tests.support.feedback_processes import processes
from tests.support.feedback_producers import always, silent

# -------------------------------------------------------------------- many


def test_three_hundred_topics_of_one_app_are_settled_at_their_time_out_with_few_calls() -> None:
    async def main() -> None:
        async with processes(shards=2) as p:
            p.producer("shop", always("COMMITTED"))
            p.leave_open("shop", [f"t{n}" for n in range(300)], timeout_ms=6_000)
            took = await until(lambda: not p.open_ones("shop"), 21)
            assert took < 6.0 + 1.0
            calls = p.group.calls
            assert p.group.parked_calls == 2, "one for each process"
            assert calls["due_pairs"] < 30 and calls["lock_pairs"] < 30

    run(main())


def test_thousands_of_apps_that_are_used_once_are_asked_and_forgotten() -> None:
    async def main() -> None:
        async with processes(shards=2, idle_exit_s=30.0) as p:
            apps = [f"job {n}" for n in range(2_000)]
            p.group.topic("orders")
            for app in apps:
                p.group.prepare("t1", app=app, timeout_ms=1_000)
                p.producer(app, always("COMMITTED"))
            await until(lambda: not any(p.open_ones(app) for app in apps), 10)
            assert p.group.calls["open_pairs"] < 200, "many apps are looked up in one call"
            for app in apps:
                p.leave(app)
            await asyncio.sleep(60)
            for shard in p.shards:
                status = shard.status()
                assert (status["apps"], status["pairs_here"], status["polls_parked"]) == (0, 0, 0)

    run(main())


def test_a_pair_belongs_to_one_process_and_is_asked_about_there() -> None:
    async def main() -> None:
        async with processes(shards=3) as p:
            producers, topics = p.producer("shop", always("COMMITTED")), [f"t{n}" for n in range(30)]
            p.leave_open("shop", topics)
            await until(lambda: not p.open_ones("shop"), 5)
            for number, producer in enumerate(producers):
                own = {f"{topic}-0" for topic in topics if part_of("shop", topic, 3) == number}
                assert {tx for _, tx in producer.asked} == own and own

    run(main())


def test_idle_pairs_cost_no_time() -> None:
    async def main() -> None:
        async with processes() as p:
            p.producer("shop", always("COMMITTED"))
            p.leave_open("shop", [f"t{n}" for n in range(500)])
            await until(lambda: not p.open_ones("shop"), 5)
            await asyncio.sleep(1)
            (shard,) = p.shards
            assert shard.status()["pairs_here"] == 500 and shard.status()["pairs_working"] == 0
            calls = p.group.calls.total()
            await asyncio.sleep(60)
            assert p.group.calls.total() - calls < 60 * 3 + 20, "a parked call, and who leads"

    run(main())


# -------------------------------------------------------------------- nothing is missed


def test_what_came_due_while_nobody_was_there_is_found_when_somebody_comes() -> None:
    async def main() -> None:
        async with processes(idle_exit_s=20.0) as p:
            p.leave_open("shop", ["orders", "bills"])
            await asyncio.sleep(60)  # it was named while no producer was online
            assert p.group.calls["lock_pairs"] == 0
            p.producer("shop", always("COMMITTED"))
            assert await until(lambda: not p.open_ones("shop"), 5) < 0.5

    run(main())


def test_an_app_that_was_forgotten_is_known_again() -> None:
    async def main() -> None:
        async with processes(idle_exit_s=20.0) as p:
            p.producer("shop", silent)
            p.leave_open("shop", ["orders"], each=200)
            await asyncio.sleep(5)
            p.leave("shop")
            await asyncio.sleep(60)
            assert p.shards[0].status()["apps"] == 0 and p.open_ones("shop") == 200
            p.producer("shop", always("COMMITTED"), "again")
            assert await until(lambda: not p.open_ones("shop"), 20) < 10

    run(main())


async def _checked_after_its_process_was_lost(seen: list[OverdueReport] | None = None) -> bool:
    """Whether a transaction is checked, if others of its topic came due and were settled by their producer
    while their process had died and did not know the app yet. ``seen`` gets what operators are told of checks
    that are overdue, each second."""
    async with processes() as p:
        p.producer("shop", always("COMMITTED"))
        p.group.topic("orders")
        await asyncio.sleep(3)
        p.kill(0)
        for producer in p.producers:
            producer.die()
        p.group.prepare("t1")
        await asyncio.sleep(1)  # it comes due, and is named to the new process
        p.group.submit(ops.commit("shop", ["t1"]))
        p.producer("shop", always("COMMITTED"))  # it connects again
        await asyncio.sleep(1)
        p.group.prepare("t2")
        for _ in range(120):
            await asyncio.sleep(1)
            if seen is not None:
                seen.append(overdue(p.group.state.transactions, p.group.now_ms()))
        return not p.open_ones("shop")


def test_what_a_new_process_was_told_before_it_knew_the_app_hides_no_later_check() -> None:
    assert run(_checked_after_its_process_was_lost())


def test_operators_are_told_of_a_check_that_nobody_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[OverdueReport] = []
    assert run(_checked_after_its_process_was_lost(seen)) and not any(one.count for one in seen)
    seen.clear()
    monkeypatch.setattr(DueNews, "topics", lambda self, app: [])  # as above: it is never named
    assert not run(_checked_after_its_process_was_lost(seen))
    told = seen[-1]
    assert (told.count, told.app, told.topic, told.tx_id) == (1, "shop", "orders", "t2")
    assert 100_000 < told.oldest_ms < 120_000 and seen[50].count == 0


@pytest.mark.parametrize("how", ["dead", "frozen"])
def test_a_new_leader_names_all_that_is_due(how: str) -> None:
    async def main() -> None:
        async with processes(shards=2) as p:
            p.producer("shop", always("COMMITTED"))
            await asyncio.sleep(3)
            p.leave_open("shop", [f"t{n}" for n in range(20)], timeout_ms=1_000)
            getattr(p.group, how).add(0)
            p.group.leader = None
            await asyncio.sleep(0.5)
            p.group.fail_over(1)
            assert await until(lambda: not p.open_ones("shop"), 8) < 3.0

    run(main())


def test_a_process_that_dies_loses_no_check() -> None:
    async def main() -> None:
        async with processes(shards=2) as p:
            p.producer("shop", silent)
            p.leave_open("shop", [f"t{n}" for n in range(40)])
            await asyncio.sleep(2)
            assert p.open_ones("shop") == 40
            for number in (0, 1):
                p.kill(number)
            p.producer("shop", always("COMMITTED"), "other")
            took = await until(lambda: not p.open_ones("shop"), 20)
            assert took < p.config.lock_lease_s + 1.0, "their leases end"

    run(main())


def test_what_comes_due_while_a_lock_call_is_under_way_is_locked_by_the_next() -> None:
    async def main() -> None:
        async with processes() as p:
            p.producer("shop", always("COMMITTED"))
            p.group.topic("orders")
            for n in range(200):  # each comes due at another moment of the calls before
                p.group.prepare(f"x{n}", app="shop", timeout_ms=1_000 + 13 * n)
            await until(lambda: not p.open_ones("shop"), 6)

    run(main())


def test_news_that_comes_during_a_lock_call_is_not_taken_for_old() -> None:
    """The lock call has found less than it asked for; before its answer is read, more came due."""

    async def main() -> None:
        async with processes() as p:
            p.producer("shop", always("COMMITTED"))
            p.leave_open("shop", ["orders"], each=3)

            async def more_comes_due(method: str, answer: Any) -> Any:
                if method == "lock_pairs" and p.group.calls[method] == 2:  # the first one was for the look-up
                    p.group.prepare("late", app="shop", timeout_ms=1)
                    await asyncio.sleep(1.0)
                return answer

            p.group.on_the_way = more_comes_due
            await until(lambda: p.group.calls["lock_pairs"] >= 2, 5)
            await asyncio.sleep(2)
            assert p.open_ones("shop") == 0

    run(main())


def test_a_lost_answer_to_a_lock_call_delays_by_a_lease() -> None:
    async def main() -> None:
        async with processes() as p:
            lost = 0

            async def loses(method: str, answer: Any) -> Any:
                nonlocal lost
                if method == "lock_pairs" and lost == 0 and answer[1][0].tx_ids:
                    lost += 1
                    raise BrokerUnreachable("lost")
                return answer

            p.group.on_the_way = loses
            p.producer("shop", always("COMMITTED"))
            p.leave_open("shop", ["orders"], each=5)
            took = await until(lambda: not p.open_ones("shop"), 20)
            assert lost == 1 and took < p.config.lock_lease_s + 1.0

    run(main())


def test_a_pair_that_raises_is_made_anew_and_touches_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    usual, raised = CheckTable.locked, 0

    def locked(self: CheckTable, gid: int, rows: Sequence[LockedRow], now: float) -> None:
        nonlocal raised
        if rows[0].tx_id.startswith("bad") and raised < 3:
            raised += 1
            raise RuntimeError("a bug, injected")
        usual(self, gid, rows, now)

    monkeypatch.setattr(CheckTable, "locked", locked)

    async def main() -> None:
        async with processes() as p:
            p.producer("shop", always("COMMITTED"))
            p.leave_open("shop", ["bad"], each=300)
            p.leave_open("shop", ["good"], each=50)
            table = p.group.state.transactions.app("shop")
            took = await until(lambda: table.open_by_topic["good"] == 0, 5)
            assert took < 0.6
            await until(lambda: not p.open_ones("shop"), 30)
            assert raised == 3 and p.shards[0].counts["errors"] == 3

    with caplog.at_level(logging.ERROR):
        run(main())
    assert "topic 'bad' failed and is created again" in caplog.text


def test_a_flood_in_one_topic_delays_no_other() -> None:
    async def main() -> None:
        async with processes() as p:
            p.group.topic("orders")
            p.producer("shop", lambda tx, q: "UNKNOWN" if tx.startswith("flood") else "COMMITTED")
            p.leave_open("shop", ["flood"], each=5_000)
            await asyncio.sleep(3)
            p.leave_open("shop", ["quiet"])
            table = p.group.state.transactions.app("shop")
            assert await until(lambda: table.open_by_topic["quiet"] == 0, 5) < 1.5

    run(main())


def test_answers_of_a_topic_that_wait_hold_up_no_other_topic() -> None:
    async def main() -> None:
        async with processes(groups=2, settle_queue_max=5) as p:
            p.brokers.groups[0].leader = None
            (shard,) = p.shards
            stuck = [((0, "stuck"), f"s{n}", "COMMITTED", "", 0) for n in range(20)]
            fine = [((1, "fine"), "f1", "COMMITTED", "", 0)]
            status, refused = shard.answer("shop", "x", [*stuck, *fine])
            assert status == "ok" and set(refused) < set(range(20)) and len(refused) >= 14
            assert shard.status()["counts"]["answers_refused"] == len(refused)

    run(main())


# -------------------------------------------------------------------- owners


def test_an_app_that_was_forgotten_takes_no_owner_for_gone() -> None:
    """Its topics are forgotten with it: what they knew of owners would be outdated by then."""

    async def main() -> None:
        async with processes(apps_max=1) as p:
            p.producer("shop", always("COMMITTED"), "owner")
            p.leave_open("shop", ["orders"])
            await until(lambda: not p.open_ones("shop"), 5)
            p.producers[0].die()
            await asyncio.sleep(7)  # its last poll ended
            p.producer("in between", always("COMMITTED"))
            await asyncio.sleep(2 * p.config.owner_gone_s)
            p.leave("in between")
            (owner,) = p.producer("shop", always("COMMITTED"), "owner")
            (other,) = p.producer("shop", always("ROLLBACK"), "other")
            await asyncio.sleep(1)
            owner.die()  # a pause: its local transactions continue
            p.group.prepare("slow", app="shop", timeout_ms=8_000, instance="shop/owner")
            await asyncio.sleep(12)
            assert p.open_ones("shop") == 1 and not other.asked

    run(main())


def test_an_owner_that_polls_is_not_gone_for_a_topic_that_slept() -> None:
    """Topics hear of polls only while they have work; what is known of owners belongs to the app."""

    async def main() -> None:
        async with processes() as p:
            (shard,) = p.shards
            p.producer("shop", always("COMMITTED"), "owner")
            p.leave_open("shop", ["orders"])
            await until(lambda: not p.open_ones("shop"), 5)
            await asyncio.sleep(2 * p.config.owner_gone_s)
            assert shard.apps["shop"].owners.gone_in_s("shop/owner", now()) > p.config.owner_gone_s / 2

    run(main())


def test_status_names_each_app_and_topic() -> None:
    async def main() -> None:
        async with processes() as p:
            p.producer("shop", always("COMMITTED"))
            p.leave_open("shop", ["orders", "bills"])
            await until(lambda: not p.open_ones("shop"), 5)
            (shard,) = p.shards
            assert {pair["name"] for pair in shard.status()["pairs"]} == {
                "feedback-shop-orders",
                "feedback-shop-bills",
            }
            (orders,) = shard.status("shop", "orders")["pairs"]
            assert orders["counts"]["handed"] == 1 and orders["producers"] == ["shop/p"]

    run(main())
