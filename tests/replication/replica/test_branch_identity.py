"""A transaction over several groups is (id, home group, home index): transactions with the same id are told
apart.

Uses the clients' own flows over groups in memory; the records below are opened by hand.
"""

from __future__ import annotations

import pytest

from escrowmq.replication.errors import InvalidMessage
from escrowmq.replication.format import ops
from escrowmq.replication.format.ops import PrepareExtra
from escrowmq.replication.model import ResultCode
from escrowmq.replication.replica.validation import parse_request
from escrowmq.replication.state.decided import ACROSS_MAX
from tests.support.several_groups import (
    APP,
    CHECK_S,
    FOLLOWS_S,
    TOPIC,
    SeveralGroups,
    branch,
    committed_at_home,
    nothing_left,
    prepared,
)


def refusal(result: list[object]) -> int:
    """The code for the one refused transaction of an operation."""
    assert result[0] == ResultCode.PARTIAL, result
    ((_, code, _),) = result[1]  # type: ignore[misc]
    return int(code)


def test_a_prepare_of_an_older_or_a_newer_transaction_of_the_same_id_does_not_join_it() -> None:
    group = SeveralGroups().groups[1]
    assert group.submit(branch(50)) == [[0]] == group.submit(branch(50))
    assert refusal(group.submit(branch(51))[0]) == ResultCode.RETRY, "the older one goes first"
    assert refusal(group.submit(branch(49))[0]) == ResultCode.TX_CONFLICT, "this one is late"


def test_a_decision_does_nothing_to_a_transaction_with_another_home_index() -> None:
    group = SeveralGroups().groups[1]
    group.submit(branch(50))
    for build in (ops.commit, ops.rollback):
        for by in ("producer", "operator:ann"):
            assert refusal(group.submit(build(APP, ["x"], by, [51], 0))[0]) == ResultCode.RETRY
            assert refusal(group.submit(build(APP, ["x"], by, [49], 0))[0]) == ResultCode.UNKNOWN_TX
        from_home = group.submit(build(APP, ["x"], "home:0", [51], 0), from_broker=True)
        assert refusal(from_home[0]) == ResultCode.RETRY
    assert refusal(group.submit(ops.commit(APP, ["x"]))[0]) == ResultCode.TX_CONFLICT, "without any"
    assert group.outcome("x") == "PREPARE"
    assert group.submit(ops.commit(APP, ["x"], "producer", [50], 0)) == [[0]]


@pytest.mark.parametrize("home_here", [True, False])
def test_an_index_of_one_log_says_nothing_of_another_ones(home_here: bool) -> None:
    world = SeveralGroups(3)
    group = world.groups[1]
    if home_here:  # opened by this group itself, at that index of its own log
        index = group.single.journal.last_index + 1
        extra = PrepareExtra(participants=[2])
        assert group.submit(ops.prepare(APP, TOPIC, ["x"], None, 0, 0, [1], -1, 0, extra)) == [[0, index]]
    else:
        index = 50
        group.submit(ops.prepare(APP, TOPIC, ["x"], None, 0, 0, [1], 2, 0, PrepareExtra(home_index=[index])))
    for build in (ops.commit, ops.rollback):
        assert refusal(group.submit(build(APP, ["x"], "producer", [index], 0))[0]) == ResultCode.UNKNOWN_TX
        told = group.submit(build(APP, ["x"], "home:0", [index], 0), from_broker=True)
        assert refusal(told[0]) == ResultCode.UNKNOWN_TX, "home:0 is not to tell it again"
    told = group.submit(ops.rollback(APP, ["x"], "home:0"), from_broker=True)
    assert refusal(told[0]) != 0 and group.outcome("x") == "PREPARE"
    home_group = -1 if home_here else 2
    assert group.submit(ops.commit(APP, ["x"], "producer", [index], home_group)) == [[0]]


def test_home_tells_a_roll_back_once_where_another_transaction_has_the_id() -> None:
    world = SeveralGroups()
    home, other = world.groups
    other.submit(ops.prepare(APP, TOPIC, ["x"], None, 0, 0, [1], -1, 0))  # of that group alone: it stays
    extra = PrepareExtra(participants=[1])
    ((_, index),) = home.submit(ops.prepare(APP, TOPIC, ["x"], None, 0, 0, [1], -1, 0, extra))
    assert home.submit(ops.rollback(APP, ["x"], "producer", [index])) == [[0]]
    world.pass_time(1.0)
    assert home.decided("x") is None, "nothing is owed to a group that has no branch of it"
    assert other.outcome("x") == "PREPARE"
    # A PREPARE of that branch was still under way: home is asked, and has no decision pending for it.
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
    group.submit(first)  # someone has continued it
    undo = ops.rollback(APP, ["x"], "producer", [index], newest_index=[index])
    assert refusal(group.submit(undo)[0]) == ResultCode.RETRY
    newest = group.state.transactions.look(APP).open["x"].newest_index
    undo = ops.rollback(APP, ["x"], "producer", [index], newest_index=[newest])
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
        (1, PrepareExtra()),
        (1, PrepareExtra(participants=[2], home_index=[4])),
    ]:
        with pytest.raises(InvalidMessage):
            group.submit(ops.prepare(APP, TOPIC, ["x"], None, 0, 0, [1], home, 0, extra))


def test_only_brokers_decide_in_the_name_of_a_home_group() -> None:
    for frame in (ops.commit(APP, ["x"], "home:0"), ops.rollback(APP, ["x"], "home:0", [3])):
        with pytest.raises(InvalidMessage, match="only brokers"):
            parse_request(frame)
        assert parse_request(frame, from_broker=True)


def test_home_takes_no_more_than_it_can_remember_and_never_refuses_a_decision() -> None:
    world = SeveralGroups()
    across = world.groups[0].state.transactions.across
    across.opened += ACROSS_MAX - 2  # room for two
    committed_at_home(world, "a")
    client, plan = prepared(world, "b")
    assert client.prepare(plan) == {}, "open already"  # type: ignore[arg-type]
    third = client.plan("c")
    assert client.prepare(third) == {0: (ResultCode.TOO_MANY_OPEN, ACROSS_MAX)}
    assert client.settle(plan) == {}  # type: ignore[arg-type]
    world.pass_time(1.0)
    assert client.prepare(client.plan("c")) == {} and nothing_left(world) is False


def test_a_check_or_an_operator_commits_only_what_it_has_looked_at() -> None:
    world = SeveralGroups()
    prepared(world)
    home = world.groups[0]
    for by in ("feedback", "operator:ann"):
        assert refusal(home.submit(ops.commit(APP, ["x"], by))[0]) == ResultCode.NOT_PREPARED
    assert home.submit(ops.commit(APP, ["x"], "operator:ann", [home.standing("x").home_index])) == [[0]]


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
    assert group.submit(ops.checked(APP, ["x"], "NotFullyPrepared: for a reason")) == [[0]]
    record = group.state.transactions.look(APP).open["x"]
    assert (record.due_ms, record.parked_for) == (-1, "NotFullyPrepared: for a reason")
