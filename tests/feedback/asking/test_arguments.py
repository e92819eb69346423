"""A producer that sends nonsense hurts only itself: the actor is shared by all producers of its app."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from escrowmq.feedback.asking import checks
from escrowmq.replication.errors import InvalidMessage
from tests.support.clock import run, until
from tests.support.feedback_producers import ORDERS, World, always, world

POLLS: list[tuple[Any, ...]] = [
    ("x", "a", [], 1), ("x", None, [], 1), ("x", [], [], 1), ("x", -1, [], 1), ("x", 1 << 70, [], 1),
    ("x", 1.5, [], 1), ("x", math.nan, [], 1), ("x", True, [], 1),
    (None, 1, [], 1), ("", 1, [], 1), ("x" * 513, 1, [], 1), (b"x", 1, [], 1), ([], 1, [], 1),
    ("\ud800", 1, [], 1),
    ("x", 1, None, 1), ("x", 1, 5, 1), ("x", 1, "ab", 1), ("x", 1, ["ab"], 1), ("x", 1, [(ORDERS,)], 1),
    ("x", 1, [(ORDERS, "t", "u")], 1), ("x", 1, [(ORDERS, [], 1)], 1),
    ("x", 1, [(("0", "orders"), "t", 1)], 1), ("x", 1, [(0, "t", 1)], 1),
    ("x", 1, [((-1, "orders"), "t", 1)], 1), ("x", 1, [(ORDERS, "t")], 1), ("x", 1, [(ORDERS, "t", -1)], 1),
    ("x", 1, [(ORDERS, "t", True)], 1),
    ("x", 1, [(ORDERS, "", 1)], 1), ("x", 1, [(ORDERS, "t" * 513, 1)], 1), ("x", 1, {0: "t"}, 1),
    ("x", 1, [None], 1),
    ("x", 1, [], None), ("x", 1, [], "1"), ("x", 1, [], -1), ("x", 1, [], math.nan), ("x", 1, [], True),
]  # fmt: skip
ANSWERS: list[tuple[Any, ...]] = [
    ("x", None), ("x", 5), ("x", "abcd"), ("x", ["abcd"]), ("x", [(ORDERS, "t1", "COMMITTED")]),
    ("x", [None]), ("x", [(0, "t1", "COMMITTED", "", 0)]),
    ("x", [(ORDERS, "t1", "DONE", "", 0)]),
    ("x", [(ORDERS, "t1", "COMMITTED", "why", 0)]), ("x", [(ORDERS, "t1", None, "", 0)]),
    ("x", [(ORDERS, "t1", [], "", 0)]), ("x", [(ORDERS, "t1", "COMMITTED", {}, 0)]),
    ("x", [(ORDERS, ["t1"], "COMMITTED", "", 0)]), ("x", [(ORDERS, "t1", "COMMITTED", "")]),
    ("x", [(ORDERS, "t1", "COMMITTED", "", None)]), ("x", [(ORDERS, "t1", "COMMITTED", "", 1 << 63)]),
    ("x", [((None, "orders"), "t1", "COMMITTED", "", 0)]), ("x", [([], "t1", "COMMITTED", "", 0)]),
    ("x", [(([], "orders"), "t1", "COMMITTED", "", 0)]), (None, []), ([], []),
    ("x", [(ORDERS, "t1", "COMMITTED", "", 0), (ORDERS, "t2", "COMMITTED", 7, 0)]),
    ("x", [(ORDERS, "t1", "UNKNOWN", "", 0)] * 10_001),
]  # fmt: skip


def as_before(w: World) -> dict[str, Any]:
    return {**w.shard.status(), "last_polls": {app.app: app.last_poll_at for app in w.shard.apps.values()}}


async def honest(w: World) -> None:
    """A well-behaved producer is asked and heard as if nothing had happened."""
    w.producer("good", always("COMMITTED"))
    w.group.prepare("t1")
    assert await until(lambda: w.group.outcome("t1") == "COMMITTED", 5) < 3


@pytest.mark.parametrize("given", POLLS, ids=range(len(POLLS)))
def test_a_malformed_poll_is_refused_and_leaves_nothing(given: tuple[Any, ...]) -> None:
    """``poll("x", "a", [], 1)`` was accepted, and broke every later poll of all producers of the app."""

    async def main() -> None:
        async with world() as w:
            before = as_before(w)
            with pytest.raises(InvalidMessage):
                await w.feedback.poll(*given)
            assert as_before(w) == before
            await honest(w)

    run(main())


@pytest.mark.parametrize("given", ANSWERS, ids=range(len(ANSWERS)))
def test_malformed_answers_are_refused_and_none_of_them_counts(given: tuple[Any, ...]) -> None:
    async def main() -> None:
        async with world() as w:
            before = as_before(w)
            with pytest.raises(InvalidMessage):
                w.feedback.answer(*given)
            assert as_before(w) == before
            await honest(w)

    run(main())


@pytest.mark.parametrize("given", [None, "", 5, [], {}, b"x", "x" * 513])
def test_a_malformed_leave_is_refused(given: Any) -> None:
    async def main() -> None:
        async with world() as w:
            with pytest.raises(InvalidMessage, match="instance"):
                w.feedback.leave(given)
            await honest(w)

    run(main())


def test_nobody_s_poll_ends_by_the_nonsense_of_another() -> None:
    async def main() -> None:
        async with world() as w:
            parked = asyncio.create_task(w.feedback.poll("x", 1, [], 5.0))
            await asyncio.sleep(0.1)
            with pytest.raises(InvalidMessage):
                await w.feedback.poll("x", 1, [(("0", "orders"), "t", 0)], 5.0)
            assert not parked.done(), "the older poll of that producer stands, too"
            parked.cancel()

    run(main())


def test_what_producers_send_is_taken_as_it_is() -> None:
    found = checks.working_of((((1, "orders"), "a", 7), [[0, "bills"], "b", 0]))
    assert found == [(((1, "orders"), "a"), 7), (((0, "bills"), "b"), 0)]
    assert (checks.room_of(0), checks.wait_of(2), checks.wait_of(math.inf)) == (0, 2.0, 1e9)
    ((key, state, trouble, index),) = checks.answers_of([[(3, "orders"), "a", "UNKNOWN", "timed out", 5]])
    assert (key, state.value, trouble.value, index) == (((3, "orders"), "a"), "UNKNOWN", "timed out", 5)


@pytest.mark.parametrize(
    "source", [None, 0, "ab", (), (0,), (0, "t", 1), ("0", "t"), (-1, "t"), (0, ""), (0, 5)]
)
def test_a_source_that_is_none_is_refused(source: Any) -> None:
    with pytest.raises(InvalidMessage):
        checks.working_of([(source, "a", 0)])
    with pytest.raises(InvalidMessage):
        checks.answers_of([(source, "a", "COMMITTED", "", 0)])
