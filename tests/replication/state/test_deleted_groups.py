"""What is remembered of groups that were deleted is bounded, and nothing that was void counts again."""

from __future__ import annotations

from escrowmq.replication.state.group_offsets import DELETED_GROUPS_MAX, DeletedGroups


def test_beyond_the_bound_what_is_as_old_is_void_in_every_group() -> None:
    groups, newest = DeletedGroups(), 10 + DELETED_GROUPS_MAX
    for generation, name in enumerate(("a", *range(DELETED_GROUPS_MAX - 2), "b", "c"), 10):
        groups.add(str(name), generation)
    assert "a" not in groups.generations and len(groups.generations) == DELETED_GROUPS_MAX
    assert [groups.last_void(name) for name in ("a", "b", "c", "never")] == [
        10,
        newest - 1,
        newest,
        10,
    ]
    groups.add("a", 9)
    assert groups.last_void("a") == 10 and len(groups.generations) == DELETED_GROUPS_MAX
