"""What is remembered of groups that were deleted is bounded, and nothing that was void counts again."""

from __future__ import annotations

import pytest

from escrowmq.replication.state import group_offsets
from escrowmq.replication.state.group_offsets import DeletedGroups


def test_beyond_the_bound_what_is_as_old_is_void_in_every_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_offsets, "DELETED_GROUPS_MAX", 2)
    groups = DeletedGroups()
    for generation, name in enumerate(("a", "b", "c"), 10):
        groups.add(name, generation)
    assert list(groups.generations) == ["b", "c"]
    assert [groups.last_void(name) for name in ("a", "b", "c", "never")] == [10, 11, 12, 10]
    groups.add("a", 9)
    assert groups.last_void("a") == 10 and len(groups.generations) == 2
