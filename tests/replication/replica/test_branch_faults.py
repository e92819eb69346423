"""Planted faults in how branches are completed: each is found by what becomes of a transaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from escrowmq.replication.format import ops
from escrowmq.replication.format.codec import decode_ops
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.state.transactions import standings
from tests.support.several_groups import (
    APP,
    CHECK_S,
    FOLLOWS_S,
    Client,
    Group,
    SeveralGroups,
    branch,
    prepared,
    torn,
)

Done = Callable[[Any], None]


def test_planted_inquire_answered_from_a_deposed_leaders_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not know yet what was prepared under its successor, and what it does not know is rolled
    back."""
    world = SeveralGroups()
    deposed = StateMachine(0, 2)  # its state is from before
    client, plan = prepared(world)
    asked = Group.call

    def from_state(group: Group, gid: int, method: str, args: tuple[object, ...], done: Done) -> None:
        if method != "submit":
            return asked(group, gid, method, args, done)
        frame = decode_ops(args[0])  # type: ignore[arg-type]
        done([standings(deposed.transactions, op.meta) for op in frame])
        return None

    monkeypatch.setattr(Group, "call", from_state)
    world.pass_time(CHECK_S + FOLLOWS_S)
    client.settle(plan)  # type: ignore[arg-type]
    assert torn(world), "the fault is seen"


def test_planted_done_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that reports to home before the branch has answered."""
    world = SeveralGroups()
    client, plan = prepared(world)
    world.down = {1}
    index = world.groups[0].standing("x").home_index
    assert client.settle(plan) == {}  # type: ignore[arg-type]
    world.groups[0].submit(ops.done(APP, ["x"], [index], 1))
    world.down = set()
    world.pass_time(CHECK_S + FOLLOWS_S)
    assert torn(world), "the fault is seen"


def test_planted_home_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Branches first, with an index in home's log that is not known yet."""
    world = SeveralGroups()
    branch_first = world.groups[1].submit(branch(1, "x", 1))
    assert branch_first == [[0]]
    world.pass_time(CHECK_S + FOLLOWS_S)
    client = Client(world)
    assert client.prepare(client.plan("x")) != {}, "the branch has been rolled back before home was prepared"
