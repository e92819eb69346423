"""Decisions for another group that are too many for one of its requests are sent in smaller requests."""

from __future__ import annotations

import pytest

from tests.support.several_groups import CHECK_S, FOLLOWS_S, SeveralGroups, committed_at_home, nothing_left

IDS = [f"{number:0100}" for number in range(40)]
#: Fifteen transactions are too many for what home sends, and for what a branch writes into its own log.
REQUEST_BYTES_MAX = 1_500
WAIT_S = CHECK_S + 10 * FOLLOWS_S


@pytest.mark.parametrize("home_tells", [True, False], ids=["home-tells", "branch-asks"])
def test_fewer_are_told_at_a_time(home_tells: bool) -> None:
    """With the bounds of ``broker.request_bytes_max`` and of a log's largest entry."""
    world = SeveralGroups()

    def serves(method: str, request: bytes) -> bool:
        if method == "follow" and not home_tells:
            return False
        return method == "submit" or len(request) <= REQUEST_BYTES_MAX

    world.serves = serves
    for tx_id in IDS:
        committed_at_home(world, tx_id)
    world.pass_time(WAIT_S)
    assert {world.groups[1].outcome(tx_id) for tx_id in IDS} == {"COMMITTED"}
    assert nothing_left(world) or not home_tells
