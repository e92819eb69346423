"""Decisions for another group that are too many for one of its requests are sent in smaller requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from escrowmq.replication.replica.branches import Branches
from tests.support.several_groups import (
    CHECK_S,
    FOLLOWS_S,
    Group,
    SeveralGroups,
    committed_at_home,
    nothing_left,
)

IDS = [f"{number:0100}" for number in range(40)]
#: Fifteen transactions are too many for what home sends, and for what a branch writes into its own log.
REQUEST_BYTES_MAX = 1_500
WAIT_S = CHECK_S + 10 * FOLLOWS_S


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> SeveralGroups:
    """With the bounds of ``broker.request_bytes_max`` and of a log's largest entry."""
    call, write = Group.call, Group.write

    def bounded_call(
        group: Group, gid: int, method: str, args: tuple[Any, ...], done: Callable[[Any], None]
    ) -> None:
        if method == "follow" and len(args[0]) > REQUEST_BYTES_MAX:
            done(None)
        else:
            call(group, gid, method, args, done)

    def bounded_write(group: Group, request: bytes, done: Callable[[Any], None]) -> None:
        if len(request) > REQUEST_BYTES_MAX:
            done(None)
        else:
            write(group, request, done)

    monkeypatch.setattr(Group, "call", bounded_call)
    monkeypatch.setattr(Group, "write", bounded_write)
    return SeveralGroups()


@pytest.mark.parametrize("home_tells", [True, False], ids=["home-tells", "branch-asks"])
def test_fewer_are_told_at_a_time(
    world: SeveralGroups, home_tells: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not home_tells:
        monkeypatch.setattr(Branches, "_push", lambda self, gid, rows: None)
    for tx_id in IDS:
        committed_at_home(world, tx_id)
    world.pass_time(WAIT_S)
    assert {world.groups[1].outcome(tx_id) for tx_id in IDS} == {"COMMITTED"}
    assert nothing_left(world) or not home_tells


def test_planted_all_of_them_again_and_again(world: SeveralGroups, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Branches, "_fitted", lambda *args: None)
    for tx_id in IDS:
        committed_at_home(world, tx_id)
    world.pass_time(WAIT_S)
    assert {world.groups[1].outcome(tx_id) for tx_id in IDS} == {"PREPARE"}, "the fault is seen"
