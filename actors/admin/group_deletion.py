"""Deleting a consumer group: its places, which are all that is kept of it, in its coordinator's broker group.

The coordinator deletes what the caller has seen and nothing else, and only while the group has no members: so
a request that arrives late does nothing to a group that is used again. Who was a member before and does not
know yet is told when it commits: what it has read since counts no more, or the group would be back with the
places of that one member.
"""

from __future__ import annotations

from escrowmq.actors.client.consumer_groups import (
    GroupCallRefused,
    GroupLives,
    GroupSnapshot,
    PlacesMoved,
    coordinator_group,
)
from escrowmq.actors.client.router import Router, result_of
from escrowmq.replication.errors import (
    GroupNotEmpty,
    InvalidMessage,
    NotSupported,
    Overloaded,
    UnknownGroup,
)

#: Each further round means that somebody has set its places meanwhile.
ROUNDS_MAX = 5


def delete_group(router: Router, group: str, timeout_s: float) -> None:
    """Deletes its places. Raises UnknownGroup for one that has none, GroupNotEmpty, NotSupported while a
    replica runs older software, Overloaded when others set its places all the time."""
    gid = coordinator_group(group, router.info.groups)
    for _ in range(ROUNDS_MAX):
        seen: GroupSnapshot = result_of(
            router.leader_call(gid, "group_describe", group, timeout_s=timeout_s), timeout_s
        )
        if seen.members:
            raise GroupNotEmpty(group, [member.member for member in seen.members])
        if not seen.committed:
            raise UnknownGroup(group)
        if not seen.generation:
            raise NotSupported(f"group {group!r} cannot be deleted yet: upgrade every replica first")
        places = {topic: dict(offsets) for topic, offsets in seen.committed.items()}
        answer: GroupLives | PlacesMoved | GroupCallRefused | None = result_of(
            router.leader_call(gid, "group_delete", group, places, timeout_s=timeout_s), timeout_s
        )
        if answer is None:
            return
        if isinstance(answer, GroupLives):
            raise GroupNotEmpty(group, answer.members)
        if isinstance(answer, GroupCallRefused):
            raise InvalidMessage(f"deleting group {group!r} was refused: {answer.reason}")
    raise Overloaded(f"others set places of group {group!r} all the time", 1.0)
