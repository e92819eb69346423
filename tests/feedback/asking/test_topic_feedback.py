"""The feedback core against real replicated state, under virtual time: SPEC sections 1 to 3 and 9."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace

from tests.support.clock import now, run, until
from tests.support.feedback_producers import ORDERS, Producer, World, always, silent, world


def test_an_unresolved_transaction_is_asked_back_and_committed() -> None:
    async def main() -> None:
        async with world() as w:
            w.producer("p1", always("COMMITTED"))
            w.group.prepare("t1", query_id="42", timeout_ms=6000)
            took = await until(lambda: w.group.outcome("t1") == "COMMITTED", 8)
            assert 5.9 < took < 6.6, "first check at the transaction's own time-out"

    run(main())


def test_the_querier_is_asked_with_the_application_s_own_key() -> None:
    async def main() -> None:
        async with world() as w:
            seen: list[tuple[str, str]] = []

            def says(tx_id: str, query_id: str) -> str:
                seen.append((tx_id, query_id))
                return "ROLLBACK"

            w.producer("p1", says)
            w.group.prepare("t1", query_id="order 42")
            await until(lambda: w.group.outcome("t1") == "ROLLBACK", 3)
            assert seen == [("t1", "order 42")]

    run(main())


def test_any_producer_of_the_app_can_answer_when_the_sender_is_gone() -> None:
    async def main() -> None:
        async with world() as w:
            sender = w.producer("sender", silent)
            await asyncio.sleep(0.1)
            w.group.prepare("t1", timeout_ms=1000)
            sender.die()
            w.producer("other", always("COMMITTED"))
            await until(lambda: w.group.outcome("t1") == "COMMITTED", 6)

    run(main())


def test_a_producer_killed_with_its_poll_parked_loses_its_checks_to_another() -> None:
    async def main() -> None:
        async with world() as w:
            dead = w.producer("a-dead", always("COMMITTED"))
            await asyncio.sleep(0.1)
            dead.die()  # its poll stays parked for seconds
            w.group.prepare("t1")
            await until(lambda: w.shard.counts["handed"] == 1, 3)
            live = w.producer("live", always("COMMITTED"))
            took = await until(lambda: w.group.outcome("t1") == "COMMITTED", 3)
            assert took < w.config.confirm_s + 0.5
            assert live.times_asked("t1") == 1 and w.group.checked == {}

    run(main())


def test_a_producer_that_dies_while_it_works_returns_its_checks() -> None:
    async def main() -> None:
        async with world() as w:
            working = w.producer("a", silent)
            w.group.prepare("t1")
            await until(lambda: working.times_asked("t1") == 1, 3)
            await asyncio.sleep(0.1)  # it has confirmed
            working.die()
            w.producer("b", always("COMMITTED"))
            took = await until(lambda: w.group.outcome("t1") == "COMMITTED", 10)
            assert took < 5 + w.config.silent_s + 0.5
            assert w.group.checked == {}, "nobody answered, so nothing is counted"

    run(main())


def test_a_producer_that_closes_hands_its_checks_over_at_once() -> None:
    async def main() -> None:
        async with world() as w:
            first = w.producer("a", silent)
            w.group.prepare("t1")
            await until(lambda: first.times_asked("t1") == 1, 3)
            w.producer("b", always("COMMITTED"))
            first.die()
            w.feedback.leave("a")
            assert await until(lambda: w.group.outcome("t1") == "COMMITTED", 3) < 0.1

    run(main())


def test_a_check_goes_to_exactly_one_producer() -> None:
    async def main() -> None:
        async with world() as w:
            crowd = [w.producer(f"p{i}", always("COMMITTED")) for i in range(20)]
            await asyncio.sleep(0.1)
            for i in range(100):
                w.group.prepare(f"t{i}")
            await until(lambda: all(w.group.outcome(f"t{i}") == "COMMITTED" for i in range(100)), 5)
            assert sum(len(p.asked) for p in crowd) == 100
            assert sum(bool(p.asked) for p in crowd) > 10, "spread over the producers"

    run(main())


def test_unknown_is_asked_again_with_back_off() -> None:
    async def main() -> None:
        async with world() as w:
            p = w.producer("p1", lambda *_: "UNKNOWN" if len(p.asked) < 5 else "COMMITTED")
            w.group.prepare("t1")
            await until(lambda: w.group.outcome("t1") == "COMMITTED", 60)
            times = [at for at, _ in p.asked]
            gaps = [b - a for a, b in itertools.pairwise(times)]
            for gap, expected in zip(gaps, (1, 2, 4, 8), strict=True):
                assert expected <= gap < expected + 0.6
            assert w.group.checked == {"t1": 4}

    run(main())


def test_a_querier_that_raises_is_replaced_by_another_producer_of_the_app() -> None:
    async def main() -> None:
        async with world() as w:
            bad = w.producer("bad", always("UNKNOWN", "raised"))
            await asyncio.sleep(0.01)
            w.producer("good", lambda *_: "COMMITTED", room=1)
            for i in range(10):
                w.group.prepare(f"t{i}")
            await until(lambda: all(w.group.outcome(f"t{i}") == "COMMITTED" for i in range(10)), 5)
            assert bad.asked and w.group.checked == {}, "a broken process costs the transaction no check"

    run(main())


def test_a_querier_that_raises_everywhere_counts_as_unknown() -> None:
    async def main() -> None:
        async with world() as w:
            a = w.producer("a", always("UNKNOWN", "raised"))
            b = w.producer("b", always("UNKNOWN", "timed out"))
            w.group.prepare("t1")
            await until(lambda: w.group.open("t1").checks == 1, 5)
            assert (a.times_asked("t1"), b.times_asked("t1")) == (1, 1)

    run(main())


def test_a_producer_that_hangs_is_passed_over_after_the_deadline() -> None:
    async def main() -> None:
        async with world() as w:
            hanging = w.producer("hanging", silent)
            w.group.prepare("t1")
            await until(lambda: hanging.times_asked("t1") == 1, 5)
            w.producer("other", always("ROLLBACK"))
            took = await until(lambda: w.group.outcome("t1") == "ROLLBACK", 20)
            assert took < w.config.answer_s + 1
            assert w.group.checked == {}

    run(main())


def test_a_late_answer_of_a_producer_that_was_given_up_still_counts() -> None:
    async def main() -> None:
        async with world() as w:
            slow = w.producer("slow", silent)
            w.group.prepare("t1")
            await until(lambda: slow.times_asked("t1") == 1, 5)
            slow.die()
            await asyncio.sleep(20)
            assert w.group.outcome("t1") == "PREPARE"
            w.feedback.answer("slow", [(ORDERS, "t1", "COMMITTED", "", 0)])
            await until(lambda: w.group.outcome("t1") == "COMMITTED", 1)

    run(main())


def test_duplicate_and_contradicting_answers_change_nothing() -> None:
    async def main() -> None:
        async with world() as w:
            w.producer("p1", always("COMMITTED"))
            w.group.prepare("t1")
            await until(lambda: w.group.outcome("t1") == "COMMITTED", 5)
            entries = len(w.group.entries)
            w.feedback.answer("p1", [(ORDERS, "t1", "COMMITTED", "", 0), (ORDERS, "t1", "UNKNOWN", "", 0)])
            w.feedback.answer("p2", [(ORDERS, "t1", "ROLLBACK", "", 0)])
            await asyncio.sleep(1)
            assert w.group.outcome("t1") == "COMMITTED"
            (partition,) = w.group.state.topics.topics["orders"].partitions.values()
            assert partition.index.end == 1, "published once"
            assert len(w.group.entries) - entries <= 2

    run(main())


def test_a_local_transaction_that_still_runs_uses_up_no_check() -> None:
    async def main() -> None:
        async with world() as w:
            w.group.topic("strict", check_max=2, on_check_exhausted="rollback")
            p = w.producer("p1", always("UNKNOWN", "running"))
            w.group.prepare("t1", topic="strict")
            await asyncio.sleep(120)
            assert w.group.outcome("t1") == "PREPARE" and w.group.open("t1").checks == 0
            assert 8 <= p.times_asked("t1") <= 15, "asked again after half of its age, not in a hurry"

    run(main())


# -------------------------------------------------------------------- nobody online, limits, policies


def test_checks_are_not_used_up_while_no_producer_is_online() -> None:
    async def main() -> None:
        async with world() as w:
            w.group.prepare("t1")
            await asyncio.sleep(600)
            assert w.group.open("t1").checks == 0 and w.group.calls["lock_pairs"] == 0
            w.producer("p1", always("COMMITTED"))
            assert await until(lambda: w.group.outcome("t1") == "COMMITTED", 5) < 1

    run(main())


def test_checks_in_the_queue_are_given_back_when_the_last_producer_goes() -> None:
    async def main() -> None:
        async with world() as w:
            gone = w.producer("gone", silent, room=1)
            for i in range(5):
                w.group.prepare(f"t{i}")
            await until(lambda: gone.asked, 5)
            gone.die()
            await asyncio.sleep(30)
            assert w.pair.status()["checks"] == {"queued": 0, "handed": 0, "settling": 0}
            assert all(w.group.open(f"t{i}").checks == 0 for i in range(5))

    run(main())


def test_what_exceeds_check_max_is_parked_and_kept() -> None:
    async def main() -> None:
        async with world() as w:
            p = w.producer("p1", always("UNKNOWN"))
            w.group.prepare("t1")
            await until(lambda: w.group.open("t1").due_ms == -1, 600)
            assert w.group.open("t1").checks == 15 == p.times_asked("t1")
            await asyncio.sleep(600)
            assert p.times_asked("t1") == 15 and w.group.outcome("t1") == "PREPARE"

    run(main())


def test_a_parked_transaction_is_asked_once_more_when_an_operator_says_so() -> None:
    async def main() -> None:
        async with world() as w:
            w.group.topic("strict", check_max=2)
            knows = ["UNKNOWN"]
            p = w.producer("p1", lambda tx_id, query_id: knows[0])
            w.group.prepare("t1", topic="strict")
            due = w.group.state.due
            await until(lambda: w.group.open("t1").due_ms == -1, 30)
            assert due.check_again("shop", "t1", w.group.now_ms())
            await until(lambda: w.group.open("t1").checks == 3, 10)
            await asyncio.sleep(60)
            assert p.times_asked("t1") == 3 and w.group.open("t1").due_ms == -1, "once, and parked as before"
            p.die()
            assert due.check_again("shop", "t1", w.group.now_ms())
            await asyncio.sleep(60)
            knows[0] = "COMMITTED"
            w.producer("p2", lambda tx_id, query_id: knows[0])
            await until(lambda: w.group.outcome("t1") == "COMMITTED", 20)

    run(main())


def test_who_asks_for_a_check_has_the_application_asked_before_a_policy_counts() -> None:
    async def main() -> None:
        async with world() as w:
            w.group.topic("strict", check_max=2)
            knows = ["UNKNOWN"]
            w.producer("p1", lambda tx_id, query_id: knows[0])
            w.group.prepare("t1", topic="strict")
            await until(lambda: w.group.open("t1").due_ms == -1, 30)
            topics = w.group.state.topics.topics
            topics["strict"].info = replace(topics["strict"].info, on_check_exhausted="rollback")
            knows[0] = "COMMITTED"
            assert w.group.state.due.check_again("shop", "t1", w.group.now_ms())
            await until(lambda: w.group.outcome("t1") == "COMMITTED", 10)

    run(main())


def test_policy_rollback_is_carried_out_and_named_in_the_audit() -> None:
    async def main() -> None:
        async with world() as w:
            w.group.topic("strict", check_max=3, on_check_exhausted="rollback")
            p = w.producer("p1", always("UNKNOWN"))
            w.group.prepare("t1", topic="strict")
            await until(lambda: w.group.outcome("t1") == "ROLLBACK", 60)
            assert p.times_asked("t1") == 3
            audit = w.group.state.transactions.audit
            assert [(by, tx) for _, by, _, tx, _ in audit] == [("policy:check_max", "t1")]

    run(main())


def test_a_silent_app_is_never_decided_for() -> None:
    async def main() -> None:
        async with world() as w:
            w.producer("p1", always("PREPARE"))  # not an answer either
            w.group.prepare("t1")
            await asyncio.sleep(2000)
            assert w.group.outcome("t1") == "PREPARE" and w.group.open("t1").due_ms == -1

    run(main())


# -------------------------------------------------------------------- bounds


def test_polls_beyond_the_bound_are_sent_away_with_a_hint() -> None:
    async def main() -> None:
        async with world(polls_parked_max=5) as w:
            parked = [asyncio.create_task(w.feedback.poll(f"p{i}", 1, [], 5.0)) for i in range(5)]
            await asyncio.sleep(0.01)
            status, hint = await w.feedback.poll("one too many", 1, [], 5.0)
            assert status == "retry" and 0 < hint < 2
            assert all(status == "ok" for status, _ in await asyncio.gather(*parked))

    run(main())


def test_parked_polls_end_at_random_times_before_their_wait() -> None:
    async def main() -> None:
        async with world() as w:
            start, ends = now(), []

            async def poll(name: str) -> None:
                await w.feedback.poll(name, 1, [], 5.0)
                ends.append(now() - start)

            await asyncio.gather(*(poll(f"p{i}") for i in range(50)))
            assert min(ends) >= 4.0 and max(ends) <= 5.0 and max(ends) - min(ends) > 0.5

    run(main())


def test_no_more_is_locked_than_producers_take() -> None:
    async def main() -> None:
        async with world() as w:
            p = w.producer("p1", silent, room=3)
            for i in range(50):
                w.group.prepare(f"t{i}")
            await asyncio.sleep(2)
            assert len(p.asked) == 3
            assert sum(w.pair.status()["checks"].values()) <= 4

    run(main())


def test_checks_on_hand_are_bounded_per_group() -> None:
    async def main() -> None:
        async with world(checks_per_group_max=20) as w:
            w.producer("p1", silent, room=500)
            for i in range(100):
                w.group.prepare(f"t{i}")
            await asyncio.sleep(3)
            assert sum(w.pair.status()["checks"].values()) == 20

    run(main())


def test_a_leader_without_room_for_another_poll_is_not_hammered() -> None:
    async def main() -> None:
        async with world() as w:
            w.group.poll_places = 0
            w.producer("p1", always("COMMITTED"))
            await asyncio.sleep(60)
            assert 50 < w.group.calls["due_pairs"] < 75, "about once a second"
            w.group.prepare("t1")
            await until(lambda: w.group.outcome("t1") == "COMMITTED", 5)

    run(main())


def test_a_thousand_transactions_left_behind_are_resolved_within_seconds() -> None:
    async def main() -> None:
        async with world() as w:
            for i in range(1000):
                w.group.prepare(f"t{i}")
            await asyncio.sleep(10)
            producers: list[Producer] = [w.producer(f"p{i}", always("COMMITTED")) for i in range(2)]
            await until(lambda: not w.group.state.transactions.app("shop").open, 10)
            assert sum(len(p.asked) for p in producers) == 1000

    run(main())


def test_the_world_of_tests_is_the_same_every_time() -> None:
    async def main() -> list[tuple[float, str]]:
        async with world(seed=7) as w:
            return await _history(w)

    assert run(main()) == run(main())


async def _history(w: World) -> list[tuple[float, str]]:
    p = w.producer("p", always("UNKNOWN"))
    for i in range(3):
        w.group.prepare(f"t{i}", timeout_ms=100 * i + 1)
    await asyncio.sleep(60)
    return p.asked
