"""The catalogue asks one question at a time, and nobody gets an answer older than the own question."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any, cast

import pytest

from escrowmq.actors.client.catalog import FRESH_S, TopicCatalog
from escrowmq.actors.client.router import Router
from escrowmq.replication.errors import Closed, Unavailable
from escrowmq.replication.model import TopicInfo


class Leader:
    """Stands for the router: questions stay open until the test answers them."""

    def __init__(self) -> None:
        self.open: list[Future[Any]] = []
        self.asked = 0
        self.closed = False

    def leader_call(self, gid: int, method: str, *args: Any, timeout_s: float) -> Future[Any]:
        if self.closed:
            raise Closed("closed")
        assert (gid, method, args) == (0, "topics", (True,))
        self.asked += 1
        self.open.append(Future())
        return self.open[-1]


def catalog_of(leader: Leader) -> TopicCatalog:
    return TopicCatalog(cast(Router, leader))


def test_a_thousand_who_ask_at_once_cost_two_questions() -> None:
    leader = Leader()
    catalog = catalog_of(leader)
    futures = [catalog.ask() for _ in range(1_000)]
    assert leader.asked == 1
    leader.open[0].set_result(["old"])
    assert leader.asked == 2
    assert futures[0].result(0) == ["old"] and not futures[1].done(), "it may be older than their topic"
    leader.open[1].set_result(["new"])
    assert {future.result(0)[0] for future in futures[1:]} == {"new"}
    assert leader.asked == 2 and not catalog.ask().done() and leader.asked == 3


def test_a_failure_is_told_to_those_who_asked_and_the_others_get_their_own_answer() -> None:
    leader = Leader()
    catalog = catalog_of(leader)
    first, second = catalog.ask(), catalog.ask()
    leader.open[0].set_exception(Unavailable("no leader", 0.1))
    assert isinstance(first.exception(0), Unavailable) and not second.done()
    leader.open[1].set_result([])
    assert second.result(0) == []


def test_one_that_does_not_wait_any_more_takes_nobody_with_it() -> None:
    async def main() -> None:
        leader = Leader()
        catalog = catalog_of(leader)
        catalog.ask()
        gone, stays = asyncio.wrap_future(catalog.ask()), asyncio.wrap_future(catalog.ask())
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        leader.open[0].set_result([])
        leader.open[1].set_result(["there"])
        assert await stays == ["there"]
        with pytest.raises(asyncio.CancelledError):
            await gone

    asyncio.run(main())


def test_a_closed_client_says_so_to_everybody_and_to_the_next() -> None:
    leader = Leader()
    catalog = catalog_of(leader)
    first, second = catalog.ask(), catalog.ask()
    leader.closed = True
    leader.open[0].set_result([])
    assert first.result(0) == []
    assert isinstance(second.exception(0), Closed)
    assert isinstance(catalog.ask().exception(0), Closed)


def test_who_goes_by_a_setting_has_it_asked_for_again_once_a_minute() -> None:
    leader = Leader()
    catalog = catalog_of(leader)
    old, new = (TopicInfo("t", 1, "hold", 15, timeout_ms, -1, -1) for timeout_ms in (6000, 70))
    catalog.learn([old])
    assert catalog.fresh("t", 5.0) is old and catalog.fresh("t", 5.0 + FRESH_S / 2) is old
    assert not leader.asked
    assert catalog.fresh("t", 5.0 + FRESH_S) is old and catalog.fresh("t", 6.0 + FRESH_S) is old
    assert leader.asked == 1, "nobody waits for it"
    leader.open[0].set_exception(Unavailable("no leader", 0.1))
    assert catalog.fresh("t", 5.0 + 2 * FRESH_S) is old and leader.asked == 2
    leader.open[1].set_result([new])
    assert catalog.fresh("t", 5.0 + 2 * FRESH_S) is new and catalog.fresh("gone", 0.0) is None
