"""Transactions over several groups come to their end, whoever dies in between.

The rows of the table of crashes in docs/reliability.md, each by its name, with the clients' own flows over
groups in memory. Below them what each defect looked like: a decision that home forgot, a branch that nobody
leads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from escrowmq.actors.producer.blocks import DoneBlock
from escrowmq.replication.calling.answers import Standing
from escrowmq.replication.errors import InvalidMessage
from escrowmq.replication.format import ops
from escrowmq.replication.format.codec import PrepareExtra, decode_ops
from escrowmq.replication.model import ResultCode
from escrowmq.replication.replica import branches
from escrowmq.replication.replica.validation import parse_request
from escrowmq.replication.state import decided
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.state.open_table import OpenTx
from escrowmq.replication.state.snapshot import capture, encode, restore
from tests.support.several_groups import APP, TOPIC, Client, Group, SeveralGroups

Done = Callable[[Any], None]
CHECK_S = 6.0
#: A branch follows after its group's leader was killed; and the leader's work of a few calls.
FOLLOWS_S = 2.0


def prepared(world: SeveralGroups, tx_id: str = "x", **options: bool) -> tuple[Client, object]:
    client = Client(world)
    plan = client.plan(tx_id, **options)
    assert client.prepare(plan) == {} and world.outcomes(tx_id) == ["PREPARE"] * len(world.groups)
    return client, plan


def committed_at_home(world: SeveralGroups, tx_id: str = "x") -> Client:
    """Home has decided, and the client died before it told anybody else."""
    client = Client(world)
    plan = client.plan(tx_id)
    assert client.prepare(plan) == {}
    client.dies_before = lambda gid, block: gid != 0
    assert client.settle(plan) is None
    assert world.outcomes(tx_id) == ["COMMITTED", *["PREPARE"] * (len(world.groups) - 1)]
    return client


def late_extra(index: int) -> PrepareExtra:
    """Of a branch's PREPARE that is so late that its id may be forgotten, and is not refused as stale: its
    client had heard of a time far ahead."""
    return PrepareExtra(home_index=[index], heard_ms=1 << 50)


def nothing_left(world: SeveralGroups) -> bool:
    """No transaction is open, and home owes nobody anything."""
    return all(
        group.state.transactions.open_count() == 0 and group.state.transactions.across.decided == 0
        for group in world.groups
    )


# ---------------------------------------------------------------- the table of crashes


@pytest.mark.parametrize("groups", [2, 3])
def test_producer_dies_home_prepared_some_branches_not(groups: int) -> None:
    """The check closes home with ROLLBACK; push closes what exists, and marks what does not."""
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
    """As in one group: the check at home decides."""
    world = SeveralGroups()
    prepared(world)
    world.pass_time(CHECK_S + 60)
    assert world.outcomes("x") == ["PREPARE", "PREPARE"], "home is open: its branches wait"
    home = world.groups[0]
    standing = home.standing("x")
    decision = ops.commit_branches if local_commit else ops.rollback_branches
    assert home.submit(decision(APP, ["x"], "feedback", [standing.home_index])) == [[0]]
    world.pass_time(1.0)
    assert world.outcomes("x") == ["COMMITTED" if local_commit else "ROLLBACK"] * 2 and nothing_left(world)
    assert world.readable() == [["x"] if local_commit else []] * 2


def test_homes_leader_dies_decision_durable_branches_not_told() -> None:
    """The next leader finds what is decided in its state and pushes."""
    world = SeveralGroups(3)
    committed_at_home(world)
    world.groups[0].fail_over()
    world.pass_time(FOLLOWS_S)
    assert world.outcomes("x") == ["COMMITTED"] * 3 and nothing_left(world)


def test_branch_group_without_a_leader_for_long() -> None:
    """What is decided waits; readers of the other groups go on; then it follows at once."""
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
    """The mark refuses it; if that is forgotten, it opens, asks, and is rolled back."""
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
    """It forgot it with half a million others, and then the branch heard "unknown" for ever."""
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


def committed_at_home_while_branch_is_down(world: SeveralGroups) -> None:
    world.down = set()
    client, plan = prepared(world)
    world.down = {1}
    assert client.settle(plan) == {}  # type: ignore[arg-type]


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


def test_a_branch_of_the_first_version_follows_what_home_remembers_and_is_never_presumed() -> None:
    world = SeveralGroups()
    client = Client(world, old=True)
    plan = client.plan("x")
    assert client.prepare(plan) == {}
    client.dies_before = lambda gid, block: gid == 1
    client.settle(plan)
    client = Client(world)
    for tx_id in ("known", "unknown"):
        world.groups[1].submit(ops.prepare(APP, TOPIC, [tx_id], None, 0, 0, [1], 0, 0))
    world.pass_time(CHECK_S + FOLLOWS_S)
    assert world.outcomes("x") == ["COMMITTED", "COMMITTED"]
    world.pass_time(600.0)
    assert world.groups[1].outcome("unknown") == "PREPARE"


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
    late copy of its PREPARE is open: only home knows that it owes this branch nothing."""
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
    """Its first PREPARE there is refused as stale once that group has forgotten ids; it comes again with what
    it has heard, once home has said that the transaction is open."""
    world = SeveralGroups()
    for group in world.groups:
        group.forget_settled()
    client = Client(world)
    plan = client.plan("x")
    assert client.prepare(plan) == {} and client.settle(plan) == {}
    world.pass_time(1.0)
    assert world.outcomes("x") == ["COMMITTED", "COMMITTED"] and nothing_left(world)


# ---------------------------------------------------------------- identity: id and home index


def branch(index: int, tx_id: str = "x", digest: int = 1, **more: int) -> bytes:
    """A branch's PREPARE in group 1, without messages."""
    extra = PrepareExtra(home_index=[index], heard_ms=1 << 50, **more)
    return ops.prepare(APP, TOPIC, [tx_id], None, 0, 0, [digest], 0, 0, extra)


def refusal(result: list[object]) -> int:
    """The code of the one transaction of an operation that was refused."""
    assert result[0] == ResultCode.PARTIAL, result
    ((_, code, _),) = result[1]  # type: ignore[misc]
    return int(code)


def test_a_prepare_of_an_older_or_a_newer_transaction_of_the_same_id_does_not_join_it() -> None:
    group = SeveralGroups().groups[1]
    assert group.submit(branch(50)) == [[0]] == group.submit(branch(50))
    assert refusal(group.submit(branch(51))[0]) == ResultCode.RETRY, "the older one goes first"
    assert refusal(group.submit(branch(49))[0]) == ResultCode.TX_CONFLICT, "this one is late"
    without = ops.prepare(APP, TOPIC, ["x"], None, 0, 0, [1], 0, 0)
    assert refusal(group.submit(without)[0]) == ResultCode.TX_CONFLICT, "of the first version"


def test_a_decision_does_nothing_to_a_transaction_with_another_home_index() -> None:
    group = SeveralGroups().groups[1]
    group.submit(branch(50))
    for build in (ops.commit_branches, ops.rollback_branches):
        for by in ("producer", "operator:ann"):
            assert refusal(group.submit(build(APP, ["x"], by, [51], 0))[0]) == ResultCode.RETRY
            assert refusal(group.submit(build(APP, ["x"], by, [49], 0))[0]) == ResultCode.UNKNOWN_TX
        from_home = group.submit(build(APP, ["x"], "home:0", [51], 0), from_broker=True)
        assert refusal(from_home[0]) == ResultCode.RETRY
    assert refusal(group.submit(ops.commit(APP, ["x"]))[0]) == ResultCode.TX_CONFLICT, "without any"
    assert group.outcome("x") == "PREPARE"
    assert group.submit(ops.commit_branches(APP, ["x"], "producer", [50], 0)) == [[0]]


@pytest.mark.parametrize("home_here", [True, False])
def test_an_index_of_one_log_says_nothing_of_another_ones(home_here: bool) -> None:
    world = SeveralGroups(3)
    group = world.groups[1]
    if home_here:  # opened by this group itself, at that place of its own log
        index = group.single.journal.last_index + 1
        extra = PrepareExtra(participants=[2])
        assert group.submit(ops.prepare(APP, TOPIC, ["x"], None, 0, 0, [1], -1, 0, extra)) == [[0, index]]
    else:
        index = 50
        group.submit(ops.prepare(APP, TOPIC, ["x"], None, 0, 0, [1], 2, 0, PrepareExtra(home_index=[index])))
    for build in (ops.commit_branches, ops.rollback_branches):
        assert refusal(group.submit(build(APP, ["x"], "producer", [index], 0))[0]) == ResultCode.UNKNOWN_TX
        told = group.submit(build(APP, ["x"], "home:0", [index], 0), from_broker=True)
        assert refusal(told[0]) == ResultCode.UNKNOWN_TX, "home:0 is not to tell it again"
    told = group.submit(ops.rollback(APP, ["x"], "home:0"), from_broker=True)
    assert refusal(told[0]) != 0 and group.outcome("x") == "PREPARE"
    home_group = -1 if home_here else 2
    assert group.submit(ops.commit_branches(APP, ["x"], "producer", [index], home_group)) == [[0]]


def test_the_home_group_is_what_tells_them_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OpenTx, "is_under", lambda record, home, index: record.home_record == index)
    group = SeveralGroups(3).groups[1]
    group.submit(ops.prepare(APP, TOPIC, ["x"], None, 0, 0, [1], 2, 0, PrepareExtra(home_index=[50])))
    group.submit(ops.rollback_branches(APP, ["x"], "producer", [50], 0))
    assert group.outcome("x") == "ROLLBACK", "the transaction of group 2, by group 0's producer"


def test_home_tells_a_roll_back_once_where_a_branch_of_the_first_version_has_the_id() -> None:
    world = SeveralGroups()
    home, other = world.groups
    other.submit(ops.prepare(APP, TOPIC, ["x"], None, 0, 0, [1], 0, 0))  # of the first version: it stays
    extra = PrepareExtra(participants=[1])
    ((_, index),) = home.submit(ops.prepare(APP, TOPIC, ["x"], None, 0, 0, [1], -1, 0, extra))
    assert home.submit(ops.rollback_branches(APP, ["x"], "producer", [index])) == [[0]]
    world.pass_time(1.0)
    assert home.decided("x") is None, "nothing is owed to a group that has no branch of it"
    # A PREPARE of that branch that was still under way: home is asked, and does not owe it anything.
    other.submit(ops.rollback(APP, ["x"]))
    other.forget_settled()
    other.submit(branch(index))
    world.pass_time(CHECK_S + FOLLOWS_S)
    assert other.outcome("x") == "ROLLBACK"


def test_a_roll_back_may_hold_for_the_newest_prepare_only() -> None:
    group = SeveralGroups(3).groups[0]
    extra = PrepareExtra(participants=[1], given=True, instance="one", heard_ms=1 << 50)
    first = ops.prepare(APP, TOPIC, ["x"], None, 0, 0, [1], -1, 0, extra)
    ((_, index),) = group.submit(first)
    group.submit(first)  # somebody took it up
    undo = ops.rollback_branches(APP, ["x"], "producer", [index], newest_index=[index])
    assert refusal(group.submit(undo)[0]) == ResultCode.RETRY
    newest = group.state.transactions.look(APP).open["x"].newest_index
    undo = ops.rollback_branches(APP, ["x"], "producer", [index], newest_index=[newest])
    assert group.submit(undo) == [[0]]


def test_a_repetition_with_other_participants_is_another_transaction() -> None:
    group = SeveralGroups(3).groups[0]

    def home(*participants: int) -> bytes:
        extra = PrepareExtra(participants=list(participants))
        return ops.prepare(APP, TOPIC, ["x"], None, 0, 0, [1], -1, 0, extra)

    ((code, index),) = group.submit(home(1, 2))
    assert (code, index) == (0, group.state.transactions.look(APP).open["x"].log_index)
    newest = group.single.journal.last_index + 1
    assert group.submit(home(1, 2)) == [[0, [newest, index]]], "a repetition is told both"
    problem, told = group.submit(home(1))[0][1:]
    assert problem[0][:2] == [0, ResultCode.TX_CONFLICT] and told[1:] == [-1], "not whose record it is"
    assert refusal(group.submit(ops.prepare(APP, TOPIC, ["x"], None, 0, 0, [1], -1, 0))[0]) == 5


def test_groups_that_make_no_sense_are_refused() -> None:
    group = SeveralGroups(3).groups[0]
    for home, extra in [
        (-1, PrepareExtra(participants=[0])),
        (-1, PrepareExtra(participants=[1, 3])),
        (-1, PrepareExtra(participants=[1, 1])),
        (-1, PrepareExtra(home_index=[4])),
        (-1, PrepareExtra(participants=list(range(1, 70)))),
        (0, PrepareExtra(home_index=[4])),
        (3, PrepareExtra(home_index=[4])),
        (1, PrepareExtra(home_index=[4, 5])),
        (1, PrepareExtra(participants=[2], home_index=[4])),
    ]:
        with pytest.raises(InvalidMessage):
            group.submit(ops.prepare(APP, TOPIC, ["x"], None, 0, 0, [1], home, 0, extra))


def test_only_brokers_decide_in_the_name_of_a_home_group() -> None:
    for frame in (ops.commit(APP, ["x"], "home:0"), ops.rollback_branches(APP, ["x"], "home:0", [3])):
        with pytest.raises(InvalidMessage, match="only brokers"):
            parse_request(frame)
        assert parse_request(frame, from_broker=True)


def test_home_takes_no_more_than_it_can_remember_and_never_refuses_a_decision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = SeveralGroups()
    monkeypatch.setattr(decided, "ACROSS_MAX", 2)
    committed_at_home(world, "a")
    client, plan = prepared(world, "b")
    assert client.prepare(plan) == {}, "open already"  # type: ignore[arg-type]
    third = client.plan("c")
    assert client.prepare(third) == {0: (ResultCode.TOO_MANY_OPEN, 1_000_000)}
    assert client.settle(plan) == {}  # type: ignore[arg-type]
    world.pass_time(1.0)
    assert client.prepare(client.plan("c")) == {} and nothing_left(world) is False


# ---------------------------------------------------------------- telling and asking


def test_a_branch_that_is_recorded_otherwise_is_alarmed_and_does_not_keep_home_from_forgetting() -> None:
    world = SeveralGroups()
    committed_at_home(world)
    home, other = world.groups
    index = home.decided("x").home_index
    wrong = ops.rollback_branches(APP, ["x"], "home:0", [index], 0)  # must never happen
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


# ---------------------------------------------------------------- who commits and is not the producer


def test_a_check_or_an_operator_commits_only_what_it_has_looked_at() -> None:
    world = SeveralGroups()
    prepared(world)
    home = world.groups[0]
    for by in ("feedback", "operator:ann"):
        assert refusal(home.submit(ops.commit(APP, ["x"], by))[0]) == ResultCode.NOT_PREPARED
    assert home.submit(ops.commit_branches(APP, ["x"], "operator:ann", [home.standing("x").home_index])) == [
        [0]
    ]


def test_nobody_but_the_producer_commits_what_lacks_parts() -> None:
    group = SeveralGroups().groups[0]
    parts = PrepareExtra(parts=2)
    group.submit(ops.prepare(APP, TOPIC, ["x"], None, 0, 0, [1], -1, 0, parts))
    assert refusal(group.submit(ops.commit(APP, ["x"], "feedback"))[0]) == ResultCode.NOT_PREPARED
    assert not group.standing("x").whole
    group.submit(ops.prepare(APP, TOPIC, ["x"], None, 0, 1, [2], -1, 0, parts))
    assert group.standing("x").whole
    assert group.submit(ops.commit(APP, ["x"], "feedback")) == [[0]]


def test_what_a_check_parks_says_why_and_is_not_checked_again() -> None:
    group = SeveralGroups().groups[0]
    group.submit(ops.prepare(APP, TOPIC, ["x"], None, 0, 0, [1], -1, 0))
    assert group.submit(ops.park(APP, ["x"], "NotFullyPrepared: for a reason")) == [[0]]
    record = group.state.transactions.look(APP).open["x"]
    assert (record.due_ms, record.parked_for) == (-1, "NotFullyPrepared: for a reason")


# ---------------------------------------------------------------- planted faults


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
        done([deposed._inquire(0, op) for op in frame])
        return None

    monkeypatch.setattr(Group, "call", from_state)
    world.pass_time(CHECK_S + FOLLOWS_S)
    client.settle(plan)  # type: ignore[arg-type]
    assert torn(world), "the fault is seen"


def test_planted_committed_followed_after_done(monkeypatch: pytest.MonkeyPatch) -> None:
    def follows_whatever_home_says(home: Standing, gid: int) -> tuple[int | None, bool]:
        outcome = branches._OUTCOMES.get(home.state)
        return (outcome, False) if outcome else judge(home, gid)

    judge = branches.judge
    monkeypatch.setattr(branches, "judge", follows_whatever_home_says)
    with pytest.raises(AssertionError):
        test_a_committed_branch_that_comes_back_is_not_committed_twice()


def test_planted_done_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that tells home before the branch has answered."""
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
    """Branches first, with a place in home's log that is not known yet."""
    world = SeveralGroups()
    branch_first = world.groups[1].submit(branch(1, "x", 1))
    assert branch_first == [[0]]
    world.pass_time(CHECK_S + FOLLOWS_S)
    client = Client(world)
    assert client.prepare(client.plan("x")) != {}, "the branch has been rolled back before home was prepared"


def torn(world: SeveralGroups, tx_id: str = "x") -> bool:
    return len(set(world.outcomes(tx_id))) > 1
