"""Names of a group's members, and what they say: a static member's begins with its instance id.

The id stands in the name, so that ``group_join`` takes no further argument: a broker of an earlier version
takes a static member for an ordinary one. A name is new with each consumer object, so two processes of one
instance are told apart; its last part begins with the time, which says who of them began later.
"""

from __future__ import annotations

import uuid

#: Longest instance id, in characters: it stands in a member's name.
INSTANCE_ID_MAX = 200
#: Of the last part: 12 digits of a time in ms since the epoch, and 4 that tell those of one moment apart.
_SALT = 16


def dynamic_name(group: str) -> str:
    """Of a member without an instance id."""
    return f"{group[:64]}-{uuid.uuid4().hex[:_SALT]}"


def static_name(instance_id: str, now_ms: int) -> str:
    """Of a member that says who it is."""
    return f"{instance_id}@{now_ms & (1 << 48) - 1:012x}{uuid.uuid4().hex[:4]}"


def instance_of(member: str) -> str | None:
    """The instance id of a static member, None for any other."""
    return member[: -_SALT - 1] if member[-_SALT - 1 : -_SALT] == "@" and len(member) > _SALT + 1 else None


def began_after(member: str, other: str) -> bool:
    """Whether the first of two static members began later, as far as their clocks tell."""
    return member[-_SALT:] > other[-_SALT:]
