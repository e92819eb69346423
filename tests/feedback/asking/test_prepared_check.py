"""Before a check commits, it looks whether all of the transaction is prepared; else a person decides."""

from __future__ import annotations

import pytest

from escrowmq.replication.format import ops
from escrowmq.replication.format.ops import PrepareExtra
from tests.support.clock import run, until
from tests.support.feedback_processes import Processes, processes
from tests.support.feedback_producers import always

APP, TOPIC = "shop", "orders"


def begin(it: Processes) -> None:
    for group in it.brokers.groups:
        group.topic(TOPIC, 2)
    it.producer(APP, always("COMMITTED"))


def open_at_home(it: Processes, tx_id: str) -> int:
    """In group 0, with a branch in group 1 to come; returns the log index of home's record."""
    home = PrepareExtra(participants=[1], heard_ms=it.group.now_ms() + 1)
    request = ops.prepare(APP, TOPIC, [tx_id], [tx_id], 100, 0, [1], -1, 0, home)
    ((code, index),) = it.group.submit(request)
    assert code == 0
    return int(index)


def open_branch(it: Processes, tx_id: str, home_index: int) -> None:
    branch = it.brokers.groups[1]
    extra = PrepareExtra(home_index=[home_index], heard_ms=branch.now_ms() + 1)
    request = ops.prepare(APP, TOPIC, [tx_id], [tx_id], 60_000, 0, [1], 0, 0, extra)
    assert branch.submit(request) == [[0]]


def is_parked(it: Processes, tx_id: str) -> bool:
    return bool(it.group.open(tx_id, APP).due_ms == -1)


def test_what_is_not_prepared_everywhere_is_parked_with_the_reason() -> None:
    """The application has used its key again under another id, say, and that one is committed."""

    async def main() -> None:
        async with processes(groups=2) as it:
            begin(it)
            open_at_home(it, "x")
            await until(lambda: is_parked(it, "x"), 10)
            assert it.group.outcome("x", APP) == "PREPARE"
            assert it.group.open("x", APP).parked_for == "NotFullyPrepared: it is not prepared in group 1"

    run(main())


def test_what_is_prepared_everywhere_is_committed_once_all_groups_have_said_so() -> None:
    async def main() -> None:
        async with processes(groups=2) as it:
            begin(it)
            open_branch(it, "x", open_at_home(it, "x"))
            it.brokers.groups[1].dead = {0, 1, 2}
            with pytest.raises(AssertionError):
                await until(lambda: it.group.outcome("x", APP) != "PREPARE", 20)
            assert not is_parked(it, "x"), "a group that does not answer proves nothing"
            it.brokers.groups[1].dead = set()
            await until(lambda: it.group.outcome("x", APP) == "COMMITTED", 20)

    run(main())
