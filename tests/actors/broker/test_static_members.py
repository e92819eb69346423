"""Members that say who they are: their partitions wait for a session, and only the latest of an instance has
it."""

from __future__ import annotations

import random

import pytest

from escrowmq.actors.broker.coordinator import Given, GroupCoordinator, _Group
from escrowmq.actors.client.consumer_groups import (
    GroupJoined,
    InstanceTaken,
    MembershipStale,
    began_after,
    dynamic_name,
    instance_of,
    static_name,
)

PARTITIONS = {"orders": 4}


class Group:
    """One group's calls with the clock and the topic filled in."""

    def __init__(self):
        self.now, self.life, self.term = 100.0, 1, 1
        self.coordinator = GroupCoordinator(lambda topic: self.life)
        self.coordinator.lead(self.term, self.now)

    def fail_over(self):
        self.term += 1
        self.coordinator.lead(self.term, self.now)

    def join(self, member, owned=()):
        return self.coordinator.join(
            "g", member, ["orders"], 6.0, self.now, partitions=PARTITIONS.get, had_offsets=self.term > 1,
            owned=owned,
        )  # fmt: skip

    def beat(self, member, generation):
        return self.coordinator.heartbeat("g", member, generation, self.now, partitions=PARTITIONS.get)

    def settle(self, *members):
        """Heartbeats until nothing moves; what each reads."""
        joined = {member: self.join(member) for member in members}
        at = {member: answer.assignment for member, answer in joined.items()}
        for _ in range(6):
            at = {member: self.beat(member, answer.generation) for member, answer in at.items()}
        return {member: {p for _, p in answer.partitions} for member, answer in at.items()}

    def may_commit(self, member, generation, partition):
        return (
            self.coordinator.check_commit("g", member, generation, [("orders", partition)], self.now) is None
        )

    @property
    def given(self):
        return {m.member: {p for _, p in m.partitions} for m in self.coordinator.describe("g", self.now)}


def orders(*partitions):
    return {("orders", p) for p in partitions}


def test_a_name_says_the_instance():
    first, second = static_name("eu@1-a", 1_000), static_name("eu@1-a", 2_000)
    assert instance_of(first) == instance_of(second) == "eu@1-a"
    assert began_after(second, first) and not began_after(first, second)
    assert instance_of(dynamic_name("a@b")) is None
    assert instance_of("short") is None


def test_who_comes_back_within_the_session_has_its_partitions_and_nothing_else_moves():
    group, a, again = Group(), static_name("a", 1), static_name("a", 2)
    reads = group.settle(a, "b")
    group.now += 3.0
    group.beat("b", group.coordinator.groups["g"].members["b"].generation)
    joined = group.join(again)
    assert isinstance(joined, GroupJoined) and not joined.kept
    assert {p for _, p in joined.assignment.partitions} == reads[a], "at once, in the answer"
    assert not joined.assignment.pending
    assert group.given == {"b": reads["b"], again: reads[a]}
    assert group.may_commit(again, joined.assignment.generation, min(reads[a]))


def test_who_comes_back_after_the_session_begins_as_anybody():
    group, a = Group(), static_name("a", 1)
    group.settle(a)
    group.now += 7.0
    assert group.settle("b") == {"b": {0, 1, 2, 3}}
    joined = group.join(static_name("a", 2))
    assert not joined.assignment.partitions and joined.assignment.pending


def test_the_first_of_two_that_live_is_told_so_and_counts_no_more():
    group, a, later = Group(), static_name("a", 2), static_name("a", 1)  # whose clock is behind
    group.settle(a)
    generation = group.coordinator.groups["g"].members[a].generation
    group.join(later)
    assert isinstance(group.beat(a, generation), InstanceTaken)
    assert isinstance(group.join(a, orders(0, 1, 2, 3)), InstanceTaken)
    assert not group.may_commit(a, generation, 0)
    assert group.given == {later: {0, 1, 2, 3}}


@pytest.mark.parametrize("ends", ["left as idle", "session ended"])
@pytest.mark.parametrize("claims", [(), orders(0, 1, 2, 3)], ids=["no claims", "claims"])
def test_one_that_was_gone_does_not_replace_its_successor(ends, claims):
    """This leader saw which was first, whatever their clocks say."""
    group, a, later = Group(), static_name("a", 2), static_name("a", 1)
    group.settle(a)
    if ends == "left as idle":
        group.coordinator.leave("g", a)
    group.now += 7.0
    assert group.settle(later) == {later: {0, 1, 2, 3}}
    assert isinstance(group.join(a, claims), InstanceTaken)
    assert group.given == {later: {0, 1, 2, 3}}
    group.now += 7.0
    assert isinstance(group.join(a, claims), InstanceTaken), "also once the successor is gone"


def test_one_that_was_gone_comes_back_if_nobody_took_its_partitions():
    group, a = Group(), static_name("a", 1)
    for _ in range(2):
        group.settle(a)
        group.coordinator.leave("g", a)
    group.settle(a)
    assert group.given == {a: {0, 1, 2, 3}}


def test_after_a_fail_over_one_that_hung_does_not_replace_a_later_one_that_was_gone():
    group, names = Group(), (static_name("a", 1), static_name("a", 2))
    group.fail_over()
    group.join(names[1], orders(0, 1, 2, 3))
    group.coordinator.leave("g", names[1])
    assert isinstance(group.join(names[0], orders(0, 1, 2, 3)), InstanceTaken)
    assert isinstance(group.join(names[1], orders(0, 1, 2, 3)), GroupJoined)


@pytest.mark.parametrize("first", [0, 1], ids=["the earlier one first", "the later one first"])
def test_after_a_fail_over_the_earlier_one_of_two_does_not_come_back(first):
    """It hung when its place was taken; the new leader has never heard of that."""
    group, names = Group(), (static_name("a", 1), static_name("a", 2))
    group.settle(names[0])
    group.join(names[1])
    group.fail_over()
    answers = {}
    for name in (names[first], names[1 - first]):
        answers[name] = group.join(name, orders(0, 1, 2, 3))
    if first:
        assert isinstance(answers[names[0]], InstanceTaken)
    else:
        assert isinstance(group.beat(names[0], answers[names[0]].base), InstanceTaken)
    assert group.given == {names[1]: {0, 1, 2, 3}}


def test_an_offset_in_a_topic_that_was_created_again_is_not_inherited():
    group, a, again = Group(), static_name("a", 1), static_name("a", 2)
    group.settle(a)
    group.life += 1
    joined = group.join(again)
    assert joined.assignment.partitions == orders(0, 1, 2, 3)
    assert not joined.kept


def test_what_the_dead_one_had_still_to_let_go_of_is_free():
    group, a, again = Group(), static_name("a", 1), static_name("a", 2)
    group.settle(a)
    waiting = group.join("b").assignment
    told = group.beat(a, group.coordinator.groups["g"].members[a].generation)
    assert len(told.partitions) == 2, "a was told, and dies before it confirms"
    group.join(again)
    given = group.beat("b", waiting.generation)
    assert given.partitions == orders(0, 1, 2, 3) - told.partitions


def storm(seed):
    """Random starts of three instances, deaths, heartbeats, lost answers: nobody reads what another reads,
    but for those whose place was taken, until they hear of it; and they commit nothing."""
    rng, group = random.Random(seed), Group()
    clients: dict[str, tuple[int, frozenset]] = {}
    latest: dict[str, str] = {}
    for step in range(100):
        group.now += rng.random() * 0.4
        if rng.random() < 0.2:
            instance = rng.choice("abc")
            name = static_name(instance, step * 10_000)
            joined = group.join(name)
            if rng.random() < 0.5:
                clients.pop(latest.get(instance), None)  # it died before; else it lives, and has not heard
            latest[instance] = name
            clients[name] = joined.assignment.generation, joined.assignment.partitions
        if rng.random() < 0.05 and clients:
            del clients[rng.choice(sorted(clients))]
        for name in sorted(clients):
            answer = group.beat(name, clients[name][0])
            if isinstance(answer, MembershipStale | InstanceTaken):
                del clients[name]
            elif rng.random() < 0.7:
                clients[name] = answer.generation, answer.partitions
        valid = [
            tp
            for name, (generation, mine) in clients.items()
            for tp in mine
            if group.may_commit(name, generation, tp[1])
        ]
        assert len(valid) == len(set(valid)), f"two may commit; seed {seed} step {step}"
        names = [instance_of(name) for name in group.given]
        assert len(names) == len(set(names)), f"two of an instance; seed {seed} step {step}"


@pytest.mark.parametrize("seed", range(40))
def test_in_a_storm_of_restarts_no_partition_has_two_who_may_commit(seed):
    storm(seed)


def test_planted_an_earlier_one_that_stays_a_member_is_found(monkeypatch):
    def succeed(self, state: _Group, earlier, member):
        later = state.members[earlier]
        state.members[member] = type(later)(
            later.topics, 6.0, later.expires, 0, 0, later.granted, later.granted
        )
        state.last_given.update((tp, Given(member, 1, later.generation)) for tp in later.granted)

    monkeypatch.setattr(GroupCoordinator, "_succeed", succeed)
    with pytest.raises(AssertionError, match="two"):
        for seed in range(40):
            storm(seed)
