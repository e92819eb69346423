"""Transactions over several groups are completed, whichever process dies in between.

First the rows of the table of crashes in docs/evidence/recovery.md, each by its name, with the clients' own
flows over groups in memory. Then tests that show former defects: a decision that home forgot, a branch group
without a leader.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from escrowmq.actors.producer.encoding.blocks import DoneBlock
from escrowmq.replication.format import ops
from escrowmq.replication.format.ops import PrepareExtra
from escrowmq.replication.model import ResultCode
from escrowmq.replication.replica import branches
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.state.snapshot import capture, encode, restore
from tests.support.several_groups import (
    APP,
    CHECK_S,
    FOLLOWS_S,
    TOPIC,
    Client,
    SeveralGroups,
    branch,
    committed_at_home,
    committed_at_home_while_branch_is_down,
    late_extra,
    nothing_left,
    prepared,
)

Done = Callable[[Any], None]
# ---------------------------------------------------------------- the table of crashes


@pytest.mark.parametrize("groups", [2, 3])
def test_producer_dies_home_prepared_some_branches_not(groups: int) -> None:
    """The check decides home with ROLLBACK; the push settles existing branches, and marks missing ones."""
    world = SeveralGroups(groups)
    client = Client(world)
    client.dies_before = lambda gid, block: gid == groups - 1
    late = client.plan("x")
    assert client.prepare(late) is None
    assert world.outcomes("x") == ["PREPARE"] * (groups - 1) + ["UNKNOWN"]
    world.pass_time(CHECK_S)
    world.groups[0].submit(ops.rollback(APP, ["x"], "feedback"))  # what the check does
    world.pass_time(1.0)
    assert world.outcomes("x") == ["ROLLBACK"] * groups and nothing_left(world)
    index = world.groups[0].state.applied_index
    branch = late_extra(index)
    (result,) = world.groups[-1].submit(ops.prepare(APP, TOPIC, ["x"], None, 0, 0, [1], 0, 0, branch))
    assert result[0] == ResultCode.PARTIAL and result[1][0][1] == ResultCode.TX_CONFLICT
    assert world.readable() == [[]] * groups


@pytest.mark.parametrize("local_commit", [True, False])
def test_producer_dies_all_prepared_before_or_after_its_local_commit(local_commit: bool) -> None:
    """The check at home decides, as with one group."""
    world = SeveralGroups()
    prepared(world)
    world.pass_time(CHECK_S + 60)
    assert world.outcomes("x") == ["PREPARE", "PREPARE"], "home is open: its branches wait"
    home = world.groups[0]
    standing = home.standing("x")
    decision = ops.commit if local_commit else ops.rollback
    assert home.submit(decision(APP, ["x"], "feedback", [standing.home_index])) == [[0]]
    world.pass_time(1.0)
    assert world.outcomes("x") == ["COMMITTED" if local_commit else "ROLLBACK"] * 2 and nothing_left(world)
    assert world.readable() == [["x"] if local_commit else []] * 2


def test_homes_leader_dies_decision_durable_branches_not_told() -> None:
    """The next leader finds the decisions in its state and pushes them."""
    world = SeveralGroups(3)
    committed_at_home(world)
    world.groups[0].fail_over()
    world.pass_time(FOLLOWS_S)
    assert world.outcomes("x") == ["COMMITTED"] * 3 and nothing_left(world)


def test_branch_group_without_a_leader_for_long() -> None:
    """Its decision waits; readers of the other groups continue; when it is back, it follows at once."""
    world = SeveralGroups(3)
    world.down = {2}
    client = Client(world)
    world.down = set()
    plan = client.plan("x")
    assert client.prepare(plan) == {}
    world.down = {2}
    assert client.settle(plan) == {}
    world.groups[0].forget_settled()
    world.pass_time(600.0)
    home = world.groups[0]
    assert world.outcomes("x") == ["COMMITTED", "COMMITTED", "PREPARE"]
    assert world.readable()[:2] == [["x"], ["x"]]
    assert home.decided("x").waiting == (2,)
    world.down = set()
    world.pass_time(branches.PAUSE.longest_s + FOLLOWS_S)
    assert world.outcomes("x")[2] == "COMMITTED" and nothing_left(world)


def test_a_late_prepare_reaches_a_branch_after_rollback_was_done() -> None:
    """The mark refuses it; if the mark is forgotten, it opens, asks home, and is rolled back."""
    world = SeveralGroups()
    client = Client(world)
    client.dies_before = lambda gid, block: gid == 1
    client.prepare(client.plan("x"))
    home, branch = world.groups
    index = home.standing("x").home_index
    home.submit(ops.rollback(APP, ["x"], "feedback"))
    world.pass_time(1.0)
    late = ops.prepare(APP, TOPIC, ["x"], None, 0, 0, [1], 0, 0, late_extra(index))
    assert branch.submit(late)[0][0] == ResultCode.PARTIAL, "the mark"
    branch.forget_settled()
    assert branch.submit(late) == [[0]] and branch.outcome("x") == "PREPARE"
    world.pass_time(CHECK_S + FOLLOWS_S)
    assert branch.outcome("x") == "ROLLBACK" and branch.branches.counts["presumed"] == 1


# ---------------------------------------------------------------- what it looked like before


def test_home_remembers_a_decision_until_its_branch_has_done_it() -> None:
    """Home forgot it among half a million others, and then answered the branch's question with "unknown"."""
    world = SeveralGroups()
    world.down = {1}
    committed_at_home_while_branch_is_down(world)
    world.groups[0].forget_settled()
    assert world.groups[0].outcome("x") == "COMMITTED"
    world.pass_time(60.0)
    world.down = set()
    world.pass_time(branches.PAUSE.longest_s + FOLLOWS_S)
    assert world.outcomes("x") == ["COMMITTED", "COMMITTED"] and world.readable()[1] == ["x"]
    world.groups[0].forget_settled()
    assert world.groups[0].outcome("x") == "UNKNOWN", "and then as any settled transaction"


def test_an_ordinary_transaction_leaves_nothing_for_home_to_tell() -> None:
    world = SeveralGroups(3)
    client, plan = prepared(world)
    assert client.settle(plan) == {}  # type: ignore[arg-type]
    world.pass_time(5.0)
    assert nothing_left(world) and world.calls == []
    assert world.readable() == [["x"]] * 3


def test_a_branch_that_home_does_not_know_is_rolled_back_once_it_is_due_and_not_before() -> None:
    world = SeveralGroups()
    branch = world.groups[1]
    branch.submit(ops.prepare(APP, TOPIC, ["x"], None, 0, 0, [1], 0, 0, PrepareExtra(home_index=[77])))
    world.pass_time(CHECK_S - 1)
    assert branch.outcome("x") == "PREPARE"
    world.pass_time(1 + FOLLOWS_S)
    assert branch.outcome("x") == "ROLLBACK"


def test_a_committed_branch_that_comes_back_is_not_committed_twice() -> None:
    """A copy of a PREPARE arrives when the branch has forgotten the transaction, which home still
    remembers."""
    world = SeveralGroups()
    client, plan = prepared(world)
    home, branch = world.groups
    index = home.standing("x").home_index
    assert client.settle(plan) == {}  # type: ignore[arg-type]
    world.pass_time(1.0)
    branch.forget_settled()
    late = ops.prepare(APP, TOPIC, ["x"], None, 0, 0, [1], 0, 0, late_extra(index))
    assert branch.submit(late) == [[0]] and home.outcome("x") == "COMMITTED"
    before = branch.texts()
    world.pass_time(CHECK_S + FOLLOWS_S)
    assert branch.outcome("x") == "ROLLBACK" and branch.texts() == before


def test_a_repeated_commit_does_not_commit_a_branch_that_came_back() -> None:
    """The client repeats its COMMIT; home says that it stands. The branch had done it and forgotten it, and a
    late copy of its PREPARE is open: only home knows that it has nothing more to tell this branch."""
    world = SeveralGroups()
    client, plan = prepared(world)
    index = world.groups[0].standing("x").home_index
    assert client.settle(plan) == {}  # type: ignore[arg-type]
    world.pass_time(1.0)
    world.groups[1].forget_settled()
    assert world.groups[1].submit(branch(index)) == [[0]]
    assert client.settle(plan) == {}, "it stands"  # type: ignore[arg-type]
    assert world.groups[1].outcome("x") == "PREPARE"
    world.pass_time(CHECK_S + FOLLOWS_S)
    assert world.groups[1].outcome("x") == "ROLLBACK"


def test_what_home_owes_comes_back_with_a_snapshot() -> None:
    world = SeveralGroups(3)
    committed_at_home(world)
    state = world.groups[0].state
    again = StateMachine(0, 3)
    restore(again, "x.snap", b"".join(encode(capture(state, 1, []))))
    assert again.transactions.look(APP).decided == state.transactions.look(APP).decided != {}
    assert again.transactions.across.undone == state.transactions.across.undone
    assert (again.transactions.across.decided, again.transactions.across.opened) == (1, 0)


def test_a_producer_that_has_heard_nothing_of_a_branch_group_prepares_there_all_the_same() -> None:
    """Its first PREPARE there is refused as stale once that group has forgotten ids; it is sent again with
    the time heard, once home has said that the transaction is open."""
    world = SeveralGroups()
    for group in world.groups:
        group.forget_settled()
    client = Client(world)
    plan = client.plan("x")
    assert client.prepare(plan) == {} and client.settle(plan) == {}
    world.pass_time(1.0)
    assert world.outcomes("x") == ["COMMITTED", "COMMITTED"] and nothing_left(world)


# ---------------------------------------------------------------- telling and asking


def test_a_branch_that_is_recorded_otherwise_is_alarmed_and_does_not_keep_home_from_forgetting() -> None:
    world = SeveralGroups()
    committed_at_home(world)
    home, other = world.groups
    index = home.decided("x").home_index
    wrong = ops.rollback(APP, ["x"], "home:0", [index], 0)  # must never happen
    other.submit(wrong, from_broker=True)
    world.pass_time(1.0)
    assert home.branches.counts["against_home"] == 1 and "branch-against-home" in home.reports[0]
    assert nothing_left(world)


def test_a_decision_that_its_branch_has_forgotten_is_done() -> None:
    world = SeveralGroups()
    client, plan = prepared(world)
    client.dies_before = lambda gid, block: isinstance(block, DoneBlock)
    assert client.settle(plan) == {} and world.groups[0].decided("x")  # type: ignore[arg-type]
    world.groups[1].forget_settled()
    world.pass_time(1.0)
    assert nothing_left(world) and world.groups[0].branches.counts["forgotten"] == 1
    assert world.readable()[1].count("x") == 1


def test_what_a_branch_cannot_do_now_does_not_hold_up_what_comes_behind_it() -> None:
    world = SeveralGroups()
    committed_at_home(world, "behind")
    home, other = world.groups
    old = home.decided("behind").home_index
    table = other.state.transactions.look(APP)
    table.open.replace("behind", table.open["behind"]._replace(home_index=old - 1))  # an older one of that id
    committed_at_home(world, "next")
    world.pass_time(1.0)
    assert other.outcome("next") == "COMMITTED" and home.decided("behind") is not None
    world.pass_time(CHECK_S + FOLLOWS_S)
    assert other.outcome("behind") == "ROLLBACK", "it asked its home, which does not know it"


def test_a_branch_that_its_home_does_not_name_is_rolled_back() -> None:
    world = SeveralGroups(3)
    home = world.groups[0]
    extra = PrepareExtra(participants=[1])
    ((_, index),) = home.submit(ops.prepare(APP, TOPIC, ["x"], None, 0, 0, [1], -1, 0, extra))
    for gid in (1, 2):
        world.groups[gid].submit(branch(index))
    world.pass_time(CHECK_S + FOLLOWS_S)
    assert world.outcomes("x") == ["PREPARE", "PREPARE", "ROLLBACK"]


def test_one_step_moves_no_more_than_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(branches, "BATCH", 3)
    world = SeveralGroups()
    for n in range(10):
        committed_at_home(world, f"x{n}")
    world.pass_time(0.2)
    assert world.groups[0].state.transactions.across.decided in (7, 4)
    world.pass_time(1.0)
    assert nothing_left(world)


def test_a_leader_that_lost_its_term_forgets_what_it_has_under_way() -> None:
    world = SeveralGroups()
    committed_at_home(world)
    home = world.groups[0]
    world.now += 0.2
    home.step()
    assert home.branches._pushing
    home.branches.resign()
    world.pass_time(0.05, leaders=False)  # the answer to the old leader's call
    assert home.decided("x") is not None
    world.pass_time(1.0)
    assert nothing_left(world)
