"""Transactions over several groups that a claim overtakes: home rolls back at once, and branches follow."""

from __future__ import annotations

from typing import Any

import pytest

from escrowmq.actors.client.group_work import GroupWork
from escrowmq.actors.producer.transactions.offset_blocks import first_block, with_offsets
from escrowmq.replication.format import ops
from escrowmq.replication.format.ops import NONE_YET, ROLLBACK
from escrowmq.replication.model import ResultCode as Code
from tests.support.several_groups import FOLLOWS_S, Client, SeveralGroups, nothing_left

NAME, READERS, HOUR_MS = "billing-0", "billing", 3_600_000
INPUT, TOPIC_ID = "in", 2


@pytest.fixture
def world() -> SeveralGroups:
    made = SeveralGroups()
    for group in made.groups:
        request = ops.create_topic(INPUT, {"partitions": 2}, 0, TOPIC_ID if group.gid else 0)
        assert group.submit(request) == [[0, TOPIC_ID]]
    return made


def claim(world: SeveralGroups, epoch: int, *gids: int) -> None:
    """In these groups, or in all."""
    for gid in gids or range(len(world.groups)):
        request = ops.claim(NAME, epoch, f"claimant {epoch}")
        assert world.groups[gid].submit(request) == [[0, [epoch, 0]]]


def member(world: SeveralGroups, epoch: int) -> Client:
    client = Client(world, instance=f"claimant {epoch}")
    for batcher in client.batchers:
        batcher.send_under(NAME, epoch)
    return client


def prepare(client: Client, tx_id: str, *, local: bool = False) -> tuple[Any, Any]:
    """One message in each group, and an offset of the readers that group 1, a branch, has. Returns what the
    caller is told, and the plan."""
    plan = client.plan(tx_id, timeout_ms=HOUR_MS)
    with_offsets(plan, GroupWork(READERS, {(INPUT, 0): (NONE_YET, 7)}, {INPUT: TOPIC_ID}), 1)
    first_block(plan).on_timeout = "" if local else ROLLBACK
    return client.prepare(plan), plan


def pending(told: Any) -> bool:
    return bool(told[0][0] == Code.OFFSETS_PENDING)


def test_home_rolls_back_at_once_and_the_offset_at_a_branch_is_free_soon(world: SeveralGroups) -> None:
    claim(world, 1)
    told, _ = prepare(member(world, 1), "x")
    assert told == {} and world.outcomes("x") == ["PREPARE", "PREPARE"], "and it is killed"
    claim(world, 2)
    successor = member(world, 2)
    told, _ = prepare(successor, "y")
    assert world.outcomes("x") == ["ROLLBACK", "PREPARE"], "the branch has still to be told"
    assert pending(told)
    world.pass_time(0.3)
    assert world.outcomes("x") == ["ROLLBACK", "ROLLBACK"]
    told, plan = prepare(successor, "z")
    assert told == {} and successor.settle(plan) == {}
    world.pass_time(FOLLOWS_S)
    assert world.outcomes("z") == ["COMMITTED", "COMMITTED"] and nothing_left(world)
    assert world.groups[1].state.group_offsets[READERS] == {INPUT: {0: 7}}
    assert world.readable() == [["z"], ["z"]]
    assert not any(group.reports for group in world.groups)


def test_a_branch_waits_for_home_whoever_claims_the_name_there(world: SeveralGroups) -> None:
    claim(world, 1)
    first = member(world, 1)
    told, plan = prepare(first, "x")
    claim(world, 2, 1)
    world.pass_time(FOLLOWS_S)
    assert told == {} and world.outcomes("x") == ["PREPARE", "PREPARE"]
    assert first.settle(plan) == {}, "home has not heard of the claim yet"
    claim(world, 2, 0)
    world.pass_time(FOLLOWS_S)
    assert world.outcomes("x") == ["COMMITTED", "COMMITTED"] and nothing_left(world)
    assert world.readable() == [["x"], ["x"]]


def test_beside_a_local_transaction_nothing_is_rolled_back(world: SeveralGroups) -> None:
    claim(world, 1)
    first = member(world, 1)
    told, plan = prepare(first, "x", local=True)
    claim(world, 2)
    world.pass_time(FOLLOWS_S)
    assert told == {} and world.outcomes("x") == ["PREPARE", "PREPARE"]
    assert first.settle(plan) == {}
    world.pass_time(FOLLOWS_S)
    assert world.outcomes("x") == ["COMMITTED", "COMMITTED"]


def test_a_group_without_a_leader_catches_up(world: SeveralGroups) -> None:
    claim(world, 1)
    prepare(member(world, 1), "x")
    world.down = {1}
    claim(world, 2, 0)
    world.pass_time(FOLLOWS_S)
    assert world.outcomes("x") == ["ROLLBACK", "PREPARE"]
    world.down = set()
    world.groups[0].fail_over()
    claim(world, 2, 1)
    world.pass_time(FOLLOWS_S)
    assert world.outcomes("x") == ["ROLLBACK", "ROLLBACK"] and nothing_left(world)
