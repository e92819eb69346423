"""The catalog has one question under way at a time, and no caller gets an answer older than its question."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any, cast

import pytest

from escrowmq.actors.client.catalog import FRESH_S, NAMES_MAX, QUESTIONS_BY_NAME, QUESTIONS_S, TopicCatalog
from escrowmq.actors.client.router import Router
from escrowmq.actors.client.topic_placement import TopicPlacement
from escrowmq.replication.errors import Closed, Unavailable, UnknownTopic
from escrowmq.replication.model import TopicInfo


class Leader:
    """Stands for the router: questions stay open until the test answers them."""

    def __init__(self) -> None:
        self.placement = TopicPlacement(2)
        self.open: list[Future[Any]] = []
        self.asked: list[bool | list[str]] = []
        self.closed = False

    def leader_call(self, gid: int, method: str, *args: Any, timeout_s: float) -> Future[Any]:
        if self.closed:
            raise Closed("closed")
        assert (gid, method) == (0, "topics")
        self.asked += args
        self.open.append(Future())
        return self.open[-1]


def catalog_of(leader: Leader) -> TopicCatalog:
    return TopicCatalog(cast(Router, leader))


def named(*names: str, partitions: int = 1) -> list[TopicInfo]:
    return [TopicInfo(name, partitions, "hold", 15, 6_000, -1, -1) for name in names]


def test_a_thousand_who_ask_at_once_cost_two_questions_for_the_topics_that_they_use() -> None:
    leader = Leader()
    catalog = catalog_of(leader)
    futures = [catalog.ask([f"t{n % 3}"]) for n in range(1_000)]
    assert leader.asked == [["t0"]]
    leader.open[0].set_result(named("t0"))
    assert futures[0].done() and not futures[3].done(), "it may be older than their topic"
    assert leader.asked == [["t0"], ["t0", "t1", "t2"]]
    leader.open[1].set_result(named("t0", "t2", partitions=7))
    assert all(future.done() for future in futures)
    assert (catalog.partitions("t0"), catalog.partitions("t2")) == (7, 7)
    assert leader.placement.unheard(["t0", "t1", "t2"]) == {"t1"}
    assert catalog.unknown(["t0", "t1", "t2"]) == {"t1"} and len(leader.asked) == 2


def test_what_is_gone_is_not_known_any_more_and_the_rest_stays() -> None:
    leader = Leader()
    catalog = catalog_of(leader)
    catalog.ask(["a", "b"])
    leader.open[0].set_result(named("a", "b"))
    catalog.ask(["b"])
    leader.open[1].set_result([])
    assert catalog.known("a") is not None and catalog.known("b") is None
    catalog.ask([]).result(0)
    assert len(leader.asked) == 2, "nothing to ask"


def test_a_topic_that_does_not_exist_is_asked_for_again() -> None:
    leader = Leader()

    class Absent(Leader):
        def leader_call(self, gid: int, method: str, *args: Any, timeout_s: float) -> Future[Any]:
            future = super().leader_call(gid, method, *args, timeout_s=timeout_s)
            future.set_result([])
            return future

    leader = Absent()
    catalog = catalog_of(leader)
    for _ in range(2):
        with pytest.raises(UnknownTopic):
            catalog.partitions("t")
    assert leader.asked == [["t"], ["t"]]


def test_who_asks_for_many_topics_at_once_asks_for_all() -> None:
    """Who asks for them one after the other does so at last, as a test below shows."""
    for count, asked in ((NAMES_MAX, sorted(f"t{n}" for n in range(NAMES_MAX))), (NAMES_MAX + 1, True)):
        leader = Leader()
        catalog_of(leader).ask([f"t{n}" for n in range(count)])
        assert [one if one is True else sorted(one) for one in leader.asked] == [asked]


def test_a_failure_is_told_to_those_who_asked_and_the_others_get_their_own_answer() -> None:
    leader = Leader()
    catalog = catalog_of(leader)
    first, second = catalog.ask(["a"]), catalog.ask(["b"])
    leader.open[0].set_exception(Unavailable("no leader", 0.1))
    assert isinstance(first.exception(0), Unavailable) and not second.done()
    leader.open[1].set_result(named("b"))
    second.result(0)
    assert catalog.partitions("b") == 1


def test_one_that_does_not_wait_any_more_takes_nobody_with_it() -> None:
    async def main() -> None:
        leader = Leader()
        catalog = catalog_of(leader)
        catalog.ask(["a"])
        gone, stays = asyncio.wrap_future(catalog.ask(["a"])), asyncio.wrap_future(catalog.ask(["b"]))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        leader.open[0].set_result([])
        leader.open[1].set_result(named("b"))
        await stays
        assert catalog.known("b") is not None
        with pytest.raises(asyncio.CancelledError):
            await gone

    asyncio.run(main())


def test_a_closed_client_says_so_to_everybody_and_to_the_next() -> None:
    leader = Leader()
    catalog = catalog_of(leader)
    first, second = catalog.ask(["a"]), catalog.ask(["a"])
    leader.closed = True
    leader.open[0].set_result([])
    first.result(0)
    assert isinstance(second.exception(0), Closed)
    assert isinstance(catalog.ask(["a"]).exception(0), Closed)


def test_who_goes_by_a_setting_has_it_asked_for_again_once_a_minute() -> None:
    leader = Leader()
    catalog = catalog_of(leader)
    old, new = (TopicInfo("t", 1, "hold", 15, timeout_ms, -1, -1) for timeout_ms in (6000, 70))
    catalog.ask(["t"])
    leader.open[0].set_result([old])
    assert catalog.fresh("t", 5.0) is old and catalog.fresh("t", 5.0 + FRESH_S / 2) is old
    assert len(leader.asked) == 1
    assert catalog.fresh("t", 5.0 + FRESH_S) is old and catalog.fresh("t", 6.0 + FRESH_S) is old
    assert leader.asked == [["t"], ["t"]], "nobody waits for it"
    leader.open[1].set_exception(Unavailable("no leader", 0.1))
    assert catalog.fresh("t", 5.0 + 2 * FRESH_S) is old and len(leader.asked) == 3
    leader.open[2].set_result([new])
    assert catalog.fresh("t", 5.0 + 2 * FRESH_S) is new and catalog.fresh("gone", 0.0) is None


# ------------------------------------------------------------------ answers that make no sense


def asked_after(answer: Any) -> tuple[BaseException | None, list[bool | list[str]]]:
    """What the callers that get ``answer`` are told, and what was asked, including a question after it."""
    leader = Leader()
    catalog = catalog_of(leader)
    first = catalog.ask(["a"])
    if answer is None:
        leader.open[0].cancel()
    else:
        leader.open[0].set_result(answer)
    second = catalog.ask(["a"])
    if len(leader.open) > 1:
        leader.open[1].set_result(named("a"))
        second.result(0)
        assert catalog.partitions("a") == 1
    return first.exception(0) if first.done() else None, leader.asked


@pytest.mark.parametrize("answer", [("unsupported", 3), 7, None])
def test_an_answer_that_makes_no_sense_is_told_to_those_who_wait_and_the_next_one_asks_again(
    answer: Any,
) -> None:
    error, asked = asked_after(answer)
    assert isinstance(error, Unavailable) and asked == [["a"], ["a"]]


def test_a_question_that_cannot_be_asked_is_told_to_those_who_wait() -> None:
    class Broken(Leader):
        def leader_call(self, gid: int, method: str, *args: Any, timeout_s: float) -> Future[Any]:
            if self.closed:
                raise RuntimeError("no memory")
            return super().leader_call(gid, method, *args, timeout_s=timeout_s)

    leader = Broken()
    catalog = catalog_of(leader)
    first, second = catalog.ask(["a"]), catalog.ask(["b"])
    leader.closed = True
    leader.open[0].set_result(named("a"))
    first.result(0)
    assert isinstance(second.exception(0), RuntimeError)
    leader.closed = False
    third = catalog.ask(["b"])
    leader.open[1].set_result(named("b"))
    third.result(0)


# ------------------------------------------------------------------ for a client's whole life


def test_settings_are_asked_for_by_name_for_ever_and_only_of_topics_that_are_used() -> None:
    """A producer of three topics among 5,000 that once used all of them."""
    leader, now = Leader(), 0.0
    catalog = TopicCatalog(cast(Router, leader), clock=lambda: now)
    catalog.ask([f"t{n}" for n in range(5_000)])
    leader.open[0].set_result(named(*(f"t{n}" for n in range(5_000))))
    for minute in range(1, 3 * QUESTIONS_BY_NAME):
        now = minute * FRESH_S
        for topic in ("t7", "t8", "t9"):
            catalog.fresh(topic, now)
        for question in leader.open:
            if not question.done():
                question.set_result(named("t7", "t8", "t9"))
    assert leader.asked[0] is True and len(leader.asked) > QUESTIONS_BY_NAME
    assert all(asked == ["t7", "t8", "t9"] for asked in leader.asked[1:]), leader.asked[1:]


def test_who_asked_for_many_topics_at_one_time_asks_by_name_again_later() -> None:
    leader, now = Leader(), 0.0
    catalog = TopicCatalog(cast(Router, leader), clock=lambda: now)
    for n in range(QUESTIONS_BY_NAME + 1):
        catalog.ask([f"t{n}"])
        leader.open[n].set_result(named(f"t{n}"))
    assert leader.asked[-2:] == [[f"t{QUESTIONS_BY_NAME - 1}"], True]
    now = QUESTIONS_S
    catalog.ask(["late"])
    assert leader.asked[-1] == ["late"]
