"""What producers say to a feedback actor that they share: nonsense is refused, and hurts nobody else."""

from __future__ import annotations

import asyncio
import math
from typing import Any

from hypothesis import strategies as st

from escrowmq.feedback.asking.topic_feedback import TopicFeedback
from escrowmq.replication.errors import InvalidMessage
from tests.fuzz.engine import EXAMPLES, drawn
from tests.support.clock import run, until
from tests.support.feedback_producers import always, world

odd = st.sampled_from([
    None, True, 0, 1, 64, -1, 1 << 62, 1 << 70, 0.0, 0.5, -1.5, 1e300, math.inf, -math.inf, math.nan, "", "x",
    "good", "x" * 513, "\ud800", "\0", b"x", [], (), {}, set(), [None], [[]], ["ab"], [(0, "t1")],
    [[0, "t1", 0]], [(1 << 70, "t1", 0)], [(-1, "t1", 0)], [(0, None, 0)], [(0, [], 0)], [([], "t1", 0)],
    [(0, "t1", "u")], [(0, "t1", 1 << 63)], [(0, "t1", 5)],
    {0: "t1"}, [(0, "t1", "ROLLBACK", "", 0)], [(0, "t1", "UNKNOWN", "busy", 0)],
    [(7, "t1", "UNKNOWN", "", 0)], [(0, "t1", "DONE", "", 0)], [(0, "t1", [], "", 0)],
    [(0, "t1", "UNKNOWN", {}, 0)], [(0, "other", "COMMITTED", "", 0)], [(0, "t1", "UNKNOWN", "raised", 0),
    None],
    [(0, 5, "COMMITTED", "", 0)], [(0, "t1", 0)] * 2000,
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


def of_producers(feedback: TopicFeedback) -> tuple[object, ...]:
    """What calls of producers change at once; the rest moves by itself while a poll is on its way."""
    status = feedback.status()
    return status["producers"], status["polls_parked"], status["poll_wait_s"], feedback.last_poll_at


async def nonsense(feedback: TopicFeedback, method: str, given: tuple[Any, ...]) -> None:
    """One call. It is refused before anything has changed, or it is a call like any other."""
    before = of_producers(feedback)
    try:
        if method == "poll":
            await asyncio.wait_for(feedback.poll(*given), 0.05)
        else:
            getattr(feedback, method)(*given)
    except TimeoutError:
        pass  # parked, as a poll may be
    except InvalidMessage as error:
        assert str(error) and len(str(error)) < 300
        assert of_producers(feedback) == before


@drawn(calls, examples=EXAMPLES // 2)
def test_nonsense_is_refused_and_the_honest_are_served(sequence: list[tuple[str, tuple[Any, ...]]]) -> None:
    async def main() -> None:
        async with world() as w:
            w.group.prepare("t1")
            for method, given in sequence:
                await nonsense(w.feedback, method, given)
            w.producer("honest", always("COMMITTED"))
            w.group.prepare("t2")
            await until(lambda: w.group.outcome("t2") == "COMMITTED", 60)
            await until(lambda: w.group.outcome("t1") in ("COMMITTED", "ROLLBACK"), 60)
            counts = [w.feedback.counts["errors"]]
            counts += [group["counts"].get("errors", 0) for group in w.feedback.status()["groups"]]
            assert not any(counts), "a loop failed"

    run(main())
