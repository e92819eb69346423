"""Producers of an earlier version: their keys do not name a PREPARE, and still their answers count."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from escrowmq.feedback.asking.earlier import EarlierProducers
from escrowmq.feedback.asking.one_pair import OnePair
from tests.support.clock import run, until
from tests.support.feedback_producers import World, world


async def asked(producers: EarlierProducers, working: list[tuple[int, str]] | None = None) -> list[Any]:
    """What a poll returns, with keys as that version gives them."""
    status, found = await producers.poll("old", 16, working or [], 5.0)
    assert status == "ok"
    rows: list[Any] = found
    return rows


async def answered(w: World, state: str) -> str:
    producers = EarlierProducers(w.feedback)
    w.group.prepare("t1")
    ((gid, tx_id, query_id, checks, answer_s),) = await asked(producers)
    assert (gid, tx_id, query_id, checks) == (0, "t1", "t1", 0) and answer_s > 0
    again = asyncio.create_task(asked(producers, [(0, "t1")]))
    await asyncio.sleep(2 * w.config.confirm_s)
    assert w.feedback.counts["handed"] == 1, "it is known to work on it"
    assert producers.answer("old", [(gid, tx_id, state, "")]) == ("ok", None)
    again.cancel()
    await until(lambda: w.group.outcome("t1") != "PREPARE", 5)
    return w.group.outcome("t1")


def test_what_it_answers_counts() -> None:
    async def main() -> None:
        for state in ("COMMITTED", "ROLLBACK"):
            async with world() as w:
                assert await answered(w, state) == state

    run(main())


def test_after_a_restart_a_commit_is_believed_and_a_rollback_asked_again() -> None:
    async def main() -> None:
        async with world() as w:
            producers = EarlierProducers(w.feedback)
            w.group.prepare("t1")
            w.group.prepare("t2")
            producers.answer("old", [(0, "t1", "COMMITTED", ""), (0, "t2", "ROLLBACK", "")])
            await until(lambda: w.group.outcome("t1") == "COMMITTED", 5)
            assert w.group.outcome("t2") == "PREPARE"
            ((_, tx_id, *_),) = await asked(producers)
            assert tx_id == "t2"

    run(main())


def test_it_is_not_asked_about_what_a_producer_of_this_version_may_still_run() -> None:
    """The owner polls the feedback processes; here it would be taken for gone, and rolled back."""

    async def main() -> None:
        async with world() as w:
            for owned in (False, True):
                feedback = OnePair("shop", "orders", 1, 3, w.brokers, w.config, random.Random(1), owned=owned)
                producers = EarlierProducers(w.also(feedback))
                if not owned:
                    w.group.prepare("owned", instance="new")
                    w.group.prepare("mine")
                    ((_, tx_id, *_),) = await asked(producers)
                    assert tx_id == "mine"
                    producers.answer("old", [(0, "mine", "COMMITTED", "")])
                    for _ in range(10):
                        assert await asked(producers) == []
                    assert w.group.outcome("mine") == "COMMITTED"
                    await feedback.close()
                else:  # what became of it without that rule: asked once its owner seems to be gone
                    while not (found := await asked(producers)):
                        pass
                    assert found[0][1] == "owned"

    run(main())
