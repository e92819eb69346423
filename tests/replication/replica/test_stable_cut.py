"""A stable cut through several groups: of every transaction all parts lie below it, or none."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest

from escrowmq.actors.admin.stable_cut import Ask, Cut, find_stable_cut, is_unmoved
from escrowmq.replication.calling.answers import GroupCut
from escrowmq.replication.errors import InvalidMessage, TopicRecreated, Unavailable
from escrowmq.replication.format import ops
from escrowmq.replication.format.codec import encode_row
from escrowmq.replication.format.ops import HOLD_MS_MAX, TOPICS_PER_CUT_MAX, cut
from escrowmq.replication.model import ResultCode
from escrowmq.replication.replica.admission import REST
from escrowmq.replication.replica.validation import parse_request
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.state.snapshot import capture, encode, restore
from tests.support.reading import everything, named
from tests.support.several_groups import (
    APP,
    PARTITIONS,
    TOPIC,
    Client,
    SeveralGroups,
    committed_at_home,
    prepared,
)

SEEDS = range(60)


def asked(world: SeveralGroups, gid: int, topics: tuple[str, ...] = (TOPIC,), hold_ms: int = 0) -> GroupCut:
    ((code, found),) = world.groups[gid].submit(cut(topics, hold_ms))
    assert code == ResultCode.OK
    return GroupCut(*found)


class Traffic:
    """Transactions that begin, are decided and reach their branches between the questions of a cut."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.world = SeveralGroups(self.rng.choice((2, 3)))
        self.ids: list[str] = []

    def goes_on(self) -> None:
        for _ in range(self.rng.choice((0, 1, 1, 2))):
            self._something()

    def _something(self) -> None:
        rng, world = self.rng, self.world
        what = rng.random()
        if what < 0.2:
            world.pass_time(rng.choice((0.01, 0.06, 0.2)))
            return
        tx_id = f"x{len(self.ids)}"
        self.ids.append(tx_id)
        client = Client(world)
        plan = client.plan(tx_id)
        assert client.prepare(plan) == {}
        if what < 0.7:  # the producer dies on the way, and the leaders do the rest
            told = rng.randrange(1, len(world.groups))
            client.dies_before = lambda gid, block: gid >= told
        client.settle(plan, commit=rng.random() < 0.9)

    def cut(self) -> Cut:
        steps = find_stable_cut([TOPIC], len(self.world.groups))
        ask = next(steps)
        while True:
            self.world.pass_time(ask.pause_s)
            try:
                ask = steps.send(self._answers(ask))
            except StopIteration as found:
                ends: Cut = found.value
                return ends

    def _answers(self, ask: Ask) -> Mapping[int, GroupCut]:
        found: dict[int, GroupCut] = {}
        for gid in self.rng.sample(list(ask.groups), len(ask.groups)):
            self.goes_on()
            found[gid] = asked(self.world, gid, tuple(ask.topics))  # nothing is held: the worst case
        return found

    def torn(self, ends: Cut) -> list[str]:
        """Transactions of which a part lies below these ends and another one does not."""
        below: dict[str, int] = {}
        for group in self.world.groups:
            for (topic, partition), end in ends.items():
                if partition in group.state.topics.topics[topic].partitions:
                    for text in named(everything(group.single.replica.fetch, topic, partition))[:end]:
                        below[text.split(".")[0]] = below.get(text.split(".")[0], 0) + 1
        return [tx_id for tx_id, count in below.items() if count != len(self.world.groups)]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_cut_has_all_of_a_transaction_or_nothing(seed: int) -> None:
    traffic = Traffic(seed)
    for _ in range(3):
        traffic.goes_on()
        try:
            ends = traffic.cut()
        except Unavailable:
            continue
        assert len(ends) == PARTITIONS
        assert not traffic.torn(ends), f"seed {seed}"
    traffic.world.pass_time(1.0)  # in the calm one is found, and nothing lies behind it
    traffic.rng = random.Random(seed)
    traffic.goes_on = lambda: None  # type: ignore[method-assign]
    ends = traffic.cut()
    assert sum(ends.values()) == sum(map(len, traffic.world.readable())) and not traffic.torn(ends)


def test_a_decision_behind_the_question_in_its_own_entry_makes_a_cut_unstable() -> None:
    """A leader writes requests that wait together into one entry."""
    world = SeveralGroups(2)
    _, plan = prepared(world)
    waiting, answers = [cut((), 0), ops.commit(APP, [plan.tx_id])], list[Any]()  # type: ignore[attr-defined]
    group = world.groups[0]
    for request in waiting:
        parsed = parse_request(request, from_broker=False, group_and_count=(0, 2))
        group.single.replica.submit(request, parsed, answers.append)
    group.single.now_ms += 1
    group.single.replica.pump(group.single.now_ms)
    (_, [[_, found]]), (_, [committed]) = answers
    settled, last = GroupCut(*found), asked(world, 0, ())
    assert committed[0] == ResultCode.OK and settled.undone == 0, "it was asked before the decision"
    assert last.decided_index == settled.at and not is_unmoved({0: settled}, {0: last})


def test_a_decision_that_a_branch_has_not_carried_out_is_waited_for() -> None:
    world = SeveralGroups(2)
    committed_at_home(world)
    assert asked(world, 0).undone == 1
    world.pass_time(0.06)  # less than the leader otherwise waits before it tells the branch
    assert asked(world, 0).undone == 0 and world.outcomes("x") == ["COMMITTED"] * 2


def test_a_branch_group_without_a_leader_makes_a_cut_unavailable() -> None:
    traffic = Traffic(0)
    traffic.goes_on = lambda: None  # type: ignore[method-assign]
    traffic.world = SeveralGroups(2)
    committed_at_home(traffic.world)
    traffic.world.down = {1}
    with pytest.raises(Unavailable, match="group 0 has decided are not carried out"):
        traffic.cut()


def test_after_a_start_from_a_snapshot_a_decision_may_have_been_anywhere_before_it() -> None:
    world = SeveralGroups(2)
    first = asked(world, 0)
    client, plan = prepared(world)
    assert client.settle(plan) == {}  # type: ignore[arg-type]
    state = world.groups[0].state
    assert state.stable.decided_index > first.at
    again = StateMachine(0, 2)
    restore(again, "x.snap", b"".join(encode(capture(state, 1, []))))
    assert again.stable.decided_index == state.applied_index > first.at


def test_a_replica_that_began_with_a_snapshot_notes_what_it_decides() -> None:
    world = SeveralGroups(2)
    client, plan = prepared(world)
    state = world.groups[0].state
    again = StateMachine(0, 2)
    restore(again, "x.snap", b"".join(encode(capture(state, 1, []))))
    before = state.applied_index
    assert client.settle(plan) == {}  # type: ignore[arg-type]
    journal = world.groups[0].single.journal
    for index in range(before + 1, state.applied_index + 1):
        again.apply(index, journal.read(index))
    assert before < again.stable.decided_index == state.stable.decided_index


@pytest.mark.parametrize("topics, hold_ms", [((TOPIC,) * (TOPICS_PER_CUT_MAX + 1), 0), ((), 251), ((), -1)])
def test_more_than_a_cut_may_ask_for_is_refused(topics: tuple[str, ...], hold_ms: int) -> None:
    with pytest.raises(InvalidMessage, match="CUT takes"):
        parse_request(cut(topics, hold_ms))


def test_an_unknown_topic_is_named() -> None:
    (result,) = SeveralGroups(2).groups[1].submit(cut((TOPIC, "nothing"), 0))
    assert result == [ResultCode.UNKNOWN_TOPIC, ["nothing"]]


def test_groups_that_know_different_topics_of_a_name_give_no_cut() -> None:
    steps = find_stable_cut([TOPIC], 2)
    next(steps)
    steps.send({gid: GroupCut(5, 0, 0) for gid in range(2)})
    steps.send({gid: GroupCut(6, 0, 0, [(gid, [gid, 1])]) for gid in range(2)})
    with pytest.raises(TopicRecreated):
        steps.send({gid: GroupCut(7, 0, 0) for gid in range(2)})


# ---------------------------------------------------------------- commits wait for a moment


class Waiting:
    """A home group with a transaction over two groups that is to be committed."""

    def __init__(self) -> None:
        self.world = SeveralGroups(2)
        self.single = self.world.groups[0].single
        self.answers: list[tuple[object, ...]] = []
        self.wait_index = self.prepare("x")

    def prepare(self, tx_id: str) -> int:
        client = Client(self.world)
        plan = client.plan(tx_id)
        assert client.prepare(plan) == {} and plan.home_index is not None
        return plan.home_index

    def send(self, *frames: bytes) -> None:
        request = b"".join(frames)
        self.single.replica.submit(request, parse_request(request), self.answers.append)
        self.single.replica.pump(self.single.now_ms)

    def commit(self, tx_id: str = "x", index: int | None = None) -> None:
        self.send(ops.commit("shop", [tx_id], "producer", [index or self.wait_index]))

    def cut(self, hold_ms: int) -> None:
        self.send(cut((), hold_ms))

    def later(self, ms: int) -> None:
        self.single.now_ms += ms
        self.single.replica.pump(self.single.now_ms)


def test_commits_over_several_groups_wait_while_a_cut_is_looked_for_and_nothing_else_does() -> None:
    waiting = Waiting()
    waiting.cut(HOLD_MS_MAX)
    waiting.commit()
    assert len(waiting.answers) == 1
    partition = next(iter(waiting.single.state.topics.topics[TOPIC].partitions))
    waiting.send(ops.message(TOPIC, partition, "p", 0, 0, [encode_row(None, b"v", None, None)]))
    assert len(waiting.answers) == 2, "a plain message does not wait"
    waiting.cut(0)
    assert [answer[0] for answer in waiting.answers] == ["ok"] * 4
    assert waiting.world.outcomes("x")[0] == "COMMITTED"


def test_a_hold_ends_by_itself() -> None:
    waiting = Waiting()
    waiting.cut(HOLD_MS_MAX)
    waiting.commit()
    waiting.later(HOLD_MS_MAX - 1)
    assert len(waiting.answers) == 1
    assert waiting.single.replica.wake_in_ms() == 1
    waiting.later(1)
    assert [answer[0] for answer in waiting.answers] == ["ok"] * 2


def test_holds_take_a_fifth_of_the_time_at_most() -> None:
    waiting = Waiting()
    second = waiting.prepare("y")
    waiting.cut(HOLD_MS_MAX)
    waiting.later(100)
    waiting.cut(0)
    waiting.later(REST * 100 - 1)
    waiting.cut(HOLD_MS_MAX)
    waiting.commit()
    assert len(waiting.answers) == 4, "it did not wait"
    waiting.later(1)
    waiting.cut(HOLD_MS_MAX)
    waiting.commit("y", second)
    assert len(waiting.answers) == 5, "it waits"


def test_a_leader_that_loses_its_office_answers_what_waits() -> None:
    waiting = Waiting()
    waiting.cut(HOLD_MS_MAX)
    waiting.commit()
    waiting.single.replica.admission.fail_all(("not_leader",))
    assert waiting.answers[-1] == ("not_leader",) and waiting.single.replica.admission.waiting() == 0
