"""A member that lost a partition and is offered it again stands at an old offset until it takes the offer
over: others may have read on since, or the group was deleted. Its commits do not count before."""

from typing import Any

import pytest

from tests.actors.broker import test_coordinator

Group: Any = test_coordinator.Group


def orders(*partitions: int) -> set[tuple[str, int]]:
    return {("orders", p) for p in partitions}


def loses_its_partition(group: Any, member: str = "a") -> int:
    """The member expires, another one reads on and leaves. Returns the generation that it read under."""
    first: int = group.join(member).assignment.generation
    group.beat(member, first)
    group.now += 7.0
    group.join("other")
    group.coordinator.leave("g", "other")
    return first


def commits_at_its_old_offset(joins_again: int) -> bool:
    """Whether it may, after ``joins_again`` more joins whose offers it has not taken over."""
    group = Group()
    read_under = loses_its_partition(group)
    joined = group.join("a", owned=sorted(orders(0, 1, 2, 3)), generation=read_under)
    for _ in range(joins_again):
        joined = group.join("a", generation=joined.base)
    assert joined.assignment.partitions == orders(0, 1, 2, 3) and not joined.kept
    group.beat("a", joined.base)
    assert group.may_commit("a", joined.assignment.generation, 0, 1, 2, 3), "it has taken the offer over"
    return bool(group.may_commit("a", joined.base, 0))


@pytest.mark.parametrize("joins_again", [0, 1, 2])
def test_a_member_commits_nothing_where_it_stood_before_it_lost_the_partition(joins_again: int) -> None:
    assert not commits_at_its_old_offset(joins_again)


def test_it_commits_what_it_kept_meanwhile() -> None:
    group = Group()
    read_under = group.join("a", topics=["orders"]).assignment.generation
    group.beat("a", read_under)
    owned = sorted(orders(0, 1, 2, 3))
    joined = group.join("a", topics=["orders", "items"], owned=owned, generation=read_under)
    assert joined.kept == orders(0, 1, 2, 3) and len(joined.assignment.partitions) == 6
    assert group.may_commit("a", joined.base, 0, 1, 2, 3)


def test_a_claim_under_a_generation_in_which_the_partition_was_only_offered_is_void() -> None:
    """The member claims again what an earlier join has told is lost."""
    group = Group()
    owned = sorted(orders(0, 1, 2, 3))
    joined = group.join("a", owned=owned, generation=loses_its_partition(group))
    for _ in range(3):
        joined = group.join("a", owned=owned, generation=joined.base)
        assert not joined.kept
    assert not group.may_commit("a", joined.base, 0)
