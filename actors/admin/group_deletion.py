"""Deleting a consumer group: its places, the only state kept of it, in its coordinator's broker group.

The coordinator deletes only the places that the caller has seen, and only while the group has no members. So
a request that arrives late does nothing to a group that is in use again. A former member that does not know
of the deletion is refused when it commits: otherwise the group would come back with this member's places.
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

#: A further round is needed only if another client set the group's places meanwhile.
ROUNDS_MAX = 5


def delete_group(router: Router, group: str, timeout_s: float) -> None:
    """Deletes the group's places. Raises UnknownGroup if it has none, GroupNotEmpty, NotSupported while a
    replica runs older software, OffsetsPending while a transaction holds one of its places, Overloaded if
    other clients keep setting them."""
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
            refused = InvalidMessage(f"deleting group {group!r} was refused: {answer.reason}")
            raise answer.error(group, refused)
    raise Overloaded(f"the places of group {group!r} keep changing", 1.0)
