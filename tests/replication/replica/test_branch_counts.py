"""What operators are shown of transactions over several groups: the counts follow the tables."""

from __future__ import annotations

from escrowmq.replication.calling.answers import AcrossReport
from escrowmq.replication.format import ops
from escrowmq.replication.state import decided
from escrowmq.replication.state.decided import AcrossGroups, Decided
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.state.snapshot import capture, encode, restore
from tests.support.several_groups import APP, TOPIC, Client, SeveralGroups


def open_branches(world: SeveralGroups) -> list[int]:
    return [group.state.transactions.across.branches for group in world.groups]


def prepared(world: SeveralGroups, tx_id: str) -> tuple[Client, object]:
    client = Client(world)
    plan = client.plan(tx_id)
    assert client.prepare(plan) == {}
    return client, plan


def test_open_branches_are_counted_where_they_are_open_and_not_at_home() -> None:
    world = SeveralGroups(3)
    one, other = prepared(world, "x"), prepared(world, "y")
    world.groups[0].submit(ops.prepare(APP, TOPIC, ["lone"], None, 0, 0, [1], -1, 0))
    assert open_branches(world) == [0, 2, 2]
    for client, plan in (one, other):
        client.settle(plan)
    assert open_branches(world) == [0, 0, 0]


def test_the_count_of_open_branches_is_the_same_after_a_restart_from_a_snapshot() -> None:
    world = SeveralGroups(2)
    prepared(world, "x")
    state = world.groups[1].state
    again = StateMachine(1, 2)
    restore(again, "x.snap", b"".join(encode(capture(state, 1, []))))
    assert again.transactions.across.branches == 1 == open_branches(world)[1]


def test_the_oldest_decision_that_waits_is_told_also_when_it_was_put_behind() -> None:
    across = AcrossGroups()
    assert across.oldest_ms() == 0
    for number, at_ms in enumerate((100, 200, 300)):
        across.add(APP, f"t{number}", Decided(1, 7, 5, (1, 2), at_ms))
    across.put_behind(1, [(APP, "t0")])
    across.told(APP, "t0", 2)
    assert across.oldest_ms() == 100
    across.told(APP, "t0", 1)
    assert across.oldest_ms() == 200


def test_looking_for_the_oldest_decision_costs_the_same_however_many_wait() -> None:
    across = AcrossGroups()
    for number in range(10 * decided.OLDEST_AMONG):
        across.add(APP, f"t{number}", Decided(1, 7, 5, (1,), 100 + number))
    looked = 0

    class Counting(dict):  # type: ignore[type-arg]
        def values(self):  # type: ignore[no-untyped-def]
            nonlocal looked
            for value in super().values():
                looked += 1
                yield value

    across.undone = {gid: Counting(rows) for gid, rows in across.undone.items()}
    assert across.oldest_ms() == 100 and looked <= decided.OLDEST_AMONG + 1


def test_what_a_leader_has_done_is_told_with_what_the_state_holds() -> None:
    world = SeveralGroups(2)
    client, plan = prepared(world, "x")
    client.dies_before = lambda gid, block: gid != 0
    client.settle(plan)
    world.pass_time(1.0)
    told = world.groups[0].branches.with_counts(AcrossReport(undone=3))
    assert (told.undone, told.pushed, told.against_home) == (3, 1, 0)
    world.groups[0].branches.counts["against_home"] += 1
    assert world.groups[0].branches.with_counts(AcrossReport()).against_home == 1
