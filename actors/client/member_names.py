"""Names of a group's members, and what they contain: a static member's name begins with its instance id.

The id is part of the name, so that ``group_join`` needs no further argument: a broker of an earlier version
treats a static member as an ordinary one. Each consumer object gets a new name, which distinguishes two
processes of one instance; the last part of a name begins with the time, which shows which process began
later.
"""

from __future__ import annotations

import uuid

#: Longest instance id, in characters: it is part of a member's name.
INSTANCE_ID_MAX = 200
#: Length of the last part: 12 digits of a time in ms since the epoch, and 4 that distinguish equal times.
_SALT = 16


def dynamic_name(group: str) -> str:
    """The name of a member without an instance id."""
    return f"{group[:64]}-{uuid.uuid4().hex[:_SALT]}"


def static_name(instance_id: str, now_ms: int) -> str:
    """The name of a member with an instance id."""
    return f"{instance_id}@{now_ms & (1 << 48) - 1:012x}{uuid.uuid4().hex[:4]}"


def instance_of(member: str) -> str | None:
    """The instance id of a static member, None for any other."""
    return member[: -_SALT - 1] if member[-_SALT - 1 : -_SALT] == "@" and len(member) > _SALT + 1 else None


def began_after(member: str, other: str) -> bool:
    """Whether the first of two static members began later, according to their clocks."""
    return member[-_SALT:] > other[-_SALT:]
