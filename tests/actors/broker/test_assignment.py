"""The balanced, sticky assignment, checked against its own definition over random input."""

import random

import pytest

from escrowmq.actors.broker.coordinator import balance

SEEDS = range(200)


def loads(assignment, members):
    return {member: sum(1 for owner in assignment.values() if owner == member) for member in members}


def test_one_member_reads_everything():
    assert balance({"a": {"t"}}, {"t": 3}, {}) == {("t", 0): "a", ("t", 1): "a", ("t", 2): "a"}


def test_partitions_are_shared_evenly():
    assignment = balance({"a": {"t"}, "b": {"t"}, "c": {"t"}}, {"t": 8}, {})
    assert sorted(loads(assignment, "abc").values()) == [2, 3, 3]


def test_a_newcomer_takes_only_what_balance_needs():
    before = balance({"a": {"t"}, "b": {"t"}}, {"t": 6}, {})
    after = balance({"a": {"t"}, "b": {"t"}, "c": {"t"}}, {"t": 6}, before)
    moved = [tp for tp in before if before[tp] != after[tp]]
    assert len(moved) == 2
    assert {after[tp] for tp in moved} == {"c"}


def test_a_leavers_partitions_move_and_no_others():
    before = balance({"a": {"t"}, "b": {"t"}, "c": {"t"}}, {"t": 6}, {})
    after = balance({"a": {"t"}, "b": {"t"}}, {"t": 6}, before)
    assert all(after[tp] == owner for tp, owner in before.items() if owner != "c")


def test_unknown_topics_have_no_partitions_yet():
    assert balance({"a": {"t", "later"}}, {"t": 1}, {}) == {("t", 0): "a"}


@pytest.mark.parametrize("seed", SEEDS)
def test_random_subscriptions_are_covered_balanced_and_sticky(seed):
    rng = random.Random(seed)
    topics = {f"t{i}": rng.randrange(0, 9) for i in range(rng.randrange(1, 5))}
    members = [f"m{i}" for i in range(rng.randrange(1, 7))]
    subscriptions = {m: {t for t in topics if rng.random() < 0.7} for m in members}
    everything = [(t, p) for t, n in topics.items() for p in range(n)]
    holders = {tp: rng.choice([*members, "gone"]) for tp in everything if rng.random() < 0.5}

    assignment = balance(subscriptions, topics, holders)

    assert set(assignment) == {(t, p) for t, p in everything if any(t in s for s in subscriptions.values())}
    load = loads(assignment, members)
    for (topic, _), owner in assignment.items():
        assert topic in subscriptions[owner]
        assert all(load[m] >= load[owner] - 1 for m in members if topic in subscriptions[m]), f"seed {seed}"
    assert balance(subscriptions, topics, assignment) == assignment, "an assignment that is balanced stays"
