"""What producers say to a feedback actor that they share: nonsense is refused, and hurts nobody else."""

from __future__ import annotations

import asyncio
import math
from typing import Any

from hypothesis import strategies as st

from escrowmq.feedback.asking.shard import FeedbackShard
from escrowmq.replication.errors import InvalidMessage
from tests.fuzz.engine import EXAMPLES, drawn
from tests.support.clock import run, until
from tests.support.feedback_producers import ORDERS, World, always, world

odd = st.sampled_from([
    None, True, 0, 1, 64, -1, 1 << 62, 1 << 70, 0.0, 0.5, -1.5, 1e300, math.inf, -math.inf, math.nan, "", "x",
    "good", "x" * 513, "\ud800", "\0", b"x", [], (), {}, set(), [None], [[]], ["ab"], [(ORDERS, "t1")],
    [(0, "t1", 0)],
    [[[0, "orders"], "t1", 0]], [((1 << 70, "orders"), "t1", 0)], [((-1, "orders"), "t1", 0)],
    [((0, 5), "t1", 0)], [(ORDERS, None, 0)], [(ORDERS, [], 0)], [([], "t1", 0)],
    [(([], "orders"), "t1", 0)],
    [(ORDERS, "t1", "u")], [(ORDERS, "t1", 1 << 63)], [(ORDERS, "t1", 5)],
    {0: "t1"}, [(ORDERS, "t1", "ROLLBACK", "", 0)], [(ORDERS, "t1", "UNKNOWN", "busy", 0)],
    [((7, "orders"), "t1", "UNKNOWN", "", 0)], [(ORDERS, "t1", "DONE", "", 0)], [(ORDERS, "t1", [], "", 0)],
    [(ORDERS, "t1", "UNKNOWN", {}, 0)], [(ORDERS, "other", "COMMITTED", "", 0)],
    [(ORDERS, "t1", "UNKNOWN", "raised", 0), None],
    [(ORDERS, 5, "COMMITTED", "", 0)], [(ORDERS, "t1", 0)] * 2000,
])  # fmt: skip
#: Mostly of the right shape, with one thing wrong or none.
polls = st.tuples(st.just("x") | odd, st.just(1) | odd, st.just([]) | odd, st.just(0.01) | odd)
answers = st.tuples(st.just("x") | odd, odd)
calls = st.lists(
    st.tuples(st.just("poll"), polls)
    | st.tuples(st.just("answer"), answers)
    | st.tuples(st.just("leave"), st.tuples(odd) | st.tuples(odd, odd)),
    min_size=1,
    max_size=8,
)


def of_producers(shard: FeedbackShard) -> tuple[object, ...]:
    """What calls of producers change at once; the rest moves by itself while a poll is on its way."""
    report, apps = shard.report(), shard.apps.values()
    polls = [(app.last_poll_at, sorted(app._present)) for app in apps]
    return polls, report.producers, report.polls_parked, report.poll_wait_s


async def nonsense(w: World, method: str, given: tuple[Any, ...]) -> None:
    """One call. It is refused before anything has changed, or it is a call like any other."""
    before = of_producers(w.shard)
    try:
        if method == "poll":
            await asyncio.wait_for(w.feedback.poll(*given), 0.05)
        else:
            getattr(w.feedback, method)(*given)
    except TimeoutError:
        pass  # parked, as a poll may be
    except InvalidMessage as error:
        assert str(error) and len(str(error)) < 300
        assert of_producers(w.shard) == before


@drawn(calls, examples=EXAMPLES // 2)
def test_nonsense_is_refused_and_the_honest_are_served(sequence: list[tuple[str, tuple[Any, ...]]]) -> None:
    async def main() -> None:
        async with world() as w:
            w.group.prepare("t1")
            for method, given in sequence:
                await nonsense(w, method, given)
            w.producer("honest", always("COMMITTED"))
            w.group.prepare("t2")
            await until(lambda: w.group.outcome("t2") == "COMMITTED", 60)
            await until(lambda: w.group.outcome("t1") in ("COMMITTED", "ROLLBACK"), 60)
            parts = [w.shard.counts, *(group["counts"] for group in w.pair.status()["groups"])]
            assert not any(counts.get("errors") for counts in parts), "a loop failed"

    run(main())
