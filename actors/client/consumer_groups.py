"""What consumers, operators and the coordinator of a consumer group must agree on.

Which broker group's leader coordinates a consumer group, how long names may be, and the coordinator's
answers. These structs are sent between processes, also of other versions, and are never stored.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from escrowmq.replication.calling.carried_answers import Carried, prepare
from escrowmq.replication.errors import EscrowMQError, GroupKindMismatch, OffsetsPending

#: A partition of a topic: (topic, number from 0).
TopicPartition: TypeAlias = tuple[str, int]

#: Maximum length of a group's name: it is part of every offset commit.
GROUP_NAME_BYTES_MAX = 255

#: Stands for a generation, with ``""`` for the member, in a commit of *first* offsets, which changes none
#: that the group has.
FIRST_OFFSETS = -1


def coordinator_group(group: str, groups: int) -> int:
    """The broker group whose leader coordinates a consumer group and whose log holds its offsets."""
    return sum(group.encode()) % groups


class GroupAssignment(Carried, frozen=True):
    """What a member may read, in answer to a heartbeat.

    The member confirms it by a heartbeat of ``generation``, once it has released all other partitions.
    ``pending``: it will get more when other members release them, so ask again soon. ``ids``: those of the
    topics, so that a member can state which topic it reads.
    """

    generation: int
    partitions: frozenset[TopicPartition]
    pending: bool
    ids: Mapping[str, int] = {}


class GroupJoined(Carried, frozen=True):
    """What a member may read, in answer to its joining.

    It works and commits under generation ``base`` until it confirms ``assignment``. ``kept``: the part of
    the assignment that the member has claimed, and that no other member was given since. ``held``: the
    claims that it may commit under ``base``; a superset of ``kept``, since it may have to release some.
    """

    assignment: GroupAssignment
    kept: frozenset[TopicPartition]
    base: int
    held: frozenset[TopicPartition]


class MembershipStale(Carried, frozen=True):
    """The coordinator does not know this member, or not under this generation: the member must join again."""

    reason: str


class InstanceTaken(Carried, frozen=True):
    """Another member with the same instance id has replaced this static member, which must stop."""

    reason: str


class GroupCallRefused(Carried, frozen=True):
    """The caller asked for something that no coordinator grants; repeating it is useless. ``kind``: the group
    is of this kind, and the call is for another one. ``held``: except that an open transaction holds this
    partition, and may be settled soon."""

    reason: str
    kind: str = ""
    held: TopicPartition | None = None

    def error(self, group: str, otherwise: EscrowMQError) -> EscrowMQError:
        """What the caller raises: ``otherwise``, unless the group's kind or a transaction is the reason."""
        if self.held is not None:
            return OffsetsPending(group, *self.held)
        return GroupKindMismatch(group, self.kind) if self.kind else otherwise


class TopicMissing(Carried, frozen=True):
    """Offsets were not committed, because their topic or partition does not exist (any more)."""

    topic: str


class TopicIsOther(Carried, frozen=True):
    """Offsets were not committed, because their topic was deleted and created again."""

    topic: str


class GroupLives(Carried, frozen=True):
    """A group was not deleted, because it has live members."""

    members: tuple[str, ...]


class PlacesMoved(Carried, frozen=True):
    """A group was not deleted, because its offsets are not those that the caller has seen."""


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A live member of a consumer group; without a heartbeat its session ends in ``expires_in_s``."""

    member: str
    generation: int
    topics: tuple[str, ...]
    partitions: tuple[TopicPartition, ...]
    expires_in_s: float


class GroupSnapshot(Carried, frozen=True):
    """A consumer group as its coordinator sees it. ``committed``: topic -> partition -> next offset;
    ``generation``: the coordinator's newest one. ``settings``: those of the log, if any were ever set."""

    members: tuple[MemberDescription, ...]
    committed: Mapping[str, Mapping[int, int]]
    generation: int = 0
    settings: Mapping[str, int | str | Sequence[int]] = {}


prepare(__name__)


# ------------------------------------------------------------------------------------------------------------
# Names of a group's members, and what they contain: a static member's name begins with its instance id.
#
# The id is part of the name, so that ``group_join`` needs no further argument. Each consumer object gets a
# new name, which distinguishes two processes of one instance; the last part of a name begins with the time,
# which shows which process began later.

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
