"""Deleting the oldest messages of a topic by hand: planning what would go, and deleting it.

There are two steps, so that a person can look in between: the plan names an offset per partition, and the
plan is carried out, without evaluating the request a second time. It uses TRIM, as retention does. Only
readable messages have offsets, so what open transactions hold is never touched: it gets its offsets at
commit, behind everything that a plan can name, and its log is kept while it is open.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar

from escrowmq.actors.admin.topic_creation import Submit
from escrowmq.actors.consumer.offsets import OffsetReader
from escrowmq.replication.errors import (
    ConfigError,
    EscrowMQError,
    InvalidMessage,
    NotSupported,
    OffsetOutOfRange,
    TopicRecreated,
    UnknownTopic,
)
from escrowmq.replication.format import ops
from escrowmq.replication.model import NO_ID, ResultCode, TopicInfo

#: For each partition ``(start, end)``; for each partition the first offset at or after a time in ms.
Bounds = Callable[[Sequence[int]], Sequence[tuple[int, int]]]
AtTime = Callable[[Sequence[int], int], Sequence[int]]
P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class PartitionTrim:
    """A partition, which holds ``[start, end)``: messages below ``before`` are deleted."""

    partition: int
    start: int
    before: int
    end: int
    #: The id of the topic when this was planned; ``NO_ID``: it had none.
    topic_id: int = field(default=NO_ID, compare=False)

    @property
    def messages(self) -> int:
        """How many messages are deleted."""
        return max(self.before - self.start, 0)


class FoundPlaces:
    """``Bounds`` and ``AtTime`` of a topic, from the leaders of its partitions. Raises UnknownTopic."""

    def __init__(self, offsets: OffsetReader, name: str, timeout_s: float) -> None:
        self._offsets, self._name, self._timeout_s = offsets, name, timeout_s

    def at_time(self, partitions: Sequence[int], time_ms: int) -> list[int]:
        """See ``AtTime``."""
        found = self._offsets.offsets([(self._name, p, time_ms) for p in partitions], self._timeout_s)
        return [_known(offset) for offset in found]

    def bounds(self, partitions: Sequence[int]) -> list[tuple[int, int]]:
        """See ``Bounds``."""
        found = self._offsets.bounds([(self._name, p) for p in partitions], self._timeout_s)
        return [_known(found[self._name, p]) for p in partitions]


def _known(place: P | UnknownTopic) -> P:
    if isinstance(place, UnknownTopic):
        raise place
    return place


def plan_trim(
    topic: TopicInfo,
    before: int | datetime,
    partition: int | None,
    *,
    bounds: Bounds,
    at_time: AtTime,
) -> tuple[PartitionTrim, ...]:
    """What would be deleted. ``before``: an offset, which belongs to one partition, or a time (in UTC if it
    has no time zone).

    Raises ConfigError, UnknownTopic for a partition that does not exist, or OffsetOutOfRange for an offset
    beyond the end.
    """
    name, partitions = topic.name, topic.partitions
    if isinstance(before, bool) or not isinstance(before, int | datetime):
        raise ConfigError(f"before must be an offset or a datetime, not {before!r}")
    if partition is not None and not (type(partition) is int and 0 <= partition < partitions):
        raise UnknownTopic(name, partition, partitions)
    if isinstance(before, int) and partition is None and partitions > 1:
        raise ConfigError(
            f"an offset is a place in one partition, and {name!r} has {partitions}; name the partition"
        )
    wanted = range(partitions) if partition is None else [partition]
    if isinstance(before, datetime):
        moment = before if before.tzinfo else before.replace(tzinfo=UTC)
        places = at_time(wanted, max(int(moment.timestamp() * 1000), 0))
    else:
        places = [before] * len(wanted)
    plan = []
    for number, place, (start, end) in zip(wanted, places, bounds(wanted), strict=True):
        if not 0 <= place <= end:
            raise OffsetOutOfRange(name, number, place, start, end)
        plan.append(PartitionTrim(number, start, place, end, topic.topic_id))
    return tuple(plan)


def carry_out(
    submit: Submit, group_of: Callable[[str, int], int], topic: str, plan: Sequence[PartitionTrim]
) -> None:
    """Trims the partitions of the plan. ``group_of``: the broker group of each. Safe to repeat. Raises
    UnknownTopic if the topic was deleted, TopicRecreated if it was created again since."""
    by_group: dict[int, dict[int, int]] = {}
    topic_id = max((trim.topic_id for trim in plan), default=NO_ID)
    for trim in plan:
        if trim.messages:
            by_group.setdefault(group_of(topic, trim.partition), {})[trim.partition] = trim.before
    for gid, starts in by_group.items():
        try:
            code, _ = submit(gid, ops.trim(topic, starts, None if topic_id == NO_ID else topic_id))
        except InvalidMessage as error:  # the plan is valid, so this leader does not know TRIM yet
            raise NotSupported(
                f"an earlier version leads broker group {gid} and cannot trim; upgrade every replica first"
            ) from error
        if code == ResultCode.UNKNOWN_TOPIC:
            raise UnknownTopic(topic)
        if code == ResultCode.OTHER_TOPIC:
            raise TopicRecreated(topic)
        if code != ResultCode.OK:
            raise EscrowMQError(f"trimming {topic!r} was refused in group {gid}: {ResultCode(code).name}")
