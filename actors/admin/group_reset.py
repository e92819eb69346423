"""Setting a consumer group's offsets by hand: planning the new offsets, and setting them.

There are two steps, as in trimming, so that a person can look in between: exactly the plan is carried out. It
is an ordinary commit through the group's coordinator, sent without being a member. The coordinator accepts it
only while the group has no members: members would continue where they are and commit over it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeAlias

from escrowmq.actors.client.consumer_groups import (
    GroupCallRefused,
    MembershipStale,
    TopicIsOther,
    TopicMissing,
    TopicPartition,
    coordinator_group,
)
from escrowmq.actors.client.router import Router, result_of
from escrowmq.actors.consumer.offsets import OffsetReader
from escrowmq.replication.errors import (
    ConfigError,
    GroupNotEmpty,
    InvalidMessage,
    OffsetOutOfRange,
    TopicRecreated,
    UnknownTopic,
)
from escrowmq.replication.model import NO_ID

#: One of NAMED, an offset, or a time.
Goal: TypeAlias = str | int | datetime
NAMED = ("earliest", "latest")
#: A generation that no member has, for a commit that comes from no member.
NO_GENERATION = 0


@dataclass(frozen=True, slots=True)
class PlaceReset:
    """The group's place in one partition, which holds ``[start, end)``, if it has one, and the new place.
    ``topic_id`` and ``generation``: the topic and the group's generation when this was planned; ``NO_ID`` and
    0: unknown."""

    topic: str
    partition: int
    committed: int | None
    to: int
    start: int
    end: int
    topic_id: int = field(default=NO_ID, compare=False)
    generation: int = field(default=NO_GENERATION, compare=False)


def plan_reset(
    offsets: OffsetReader,
    committed: Mapping[TopicPartition, int],
    partitions: Iterable[TopicPartition],
    to: Goal,
    timeout_s: float,
    *,
    id_of: Callable[[str], int] = lambda topic: NO_ID,
    generation: int = NO_GENERATION,
) -> tuple[PlaceReset, ...]:
    """The new places of ``partitions``. ``id_of``: the ids of their topics; ``generation``: the
    coordinator's. Both must be older than this call. A time (in UTC if it has no time zone) stands for the
    first message at or after it.

    Raises ConfigError, UnknownTopic, or OffsetOutOfRange for an offset that the partition does not have.
    """
    wanted = sorted(partitions)
    if isinstance(to, bool) or not (to in NAMED or isinstance(to, int | datetime)):
        raise ConfigError(f"to must be 'earliest', 'latest', an offset or a datetime, not {to!r}")
    if isinstance(to, int) and len(wanted) > 1:
        raise ConfigError("an offset is a place in one partition; name the topic and the partition")
    bounds = offsets.bounds(wanted, timeout_s)
    times: Sequence[int | UnknownTopic] = ()
    if isinstance(to, datetime):
        moment = to if to.tzinfo else to.replace(tzinfo=UTC)
        ms = max(int(moment.timestamp() * 1000), 0)
        times = offsets.offsets([(topic, number, ms) for topic, number in wanted], timeout_s)
    plan = []
    for i, tp in enumerate(wanted):
        known = bounds[tp]
        if isinstance(known, UnknownTopic):
            raise known
        start, end = known
        place = start if to == "earliest" else end if to == "latest" else times[i] if times else to
        if isinstance(place, UnknownTopic):  # deleted between the two requests
            raise place
        assert isinstance(place, int)
        if not start <= place <= end:
            raise OffsetOutOfRange(*tp, place, start, end)
        plan.append(PlaceReset(*tp, committed.get(tp), place, start, end, id_of(tp[0]), generation))
    return tuple(plan)


def carry_out(router: Router, group: str, plan: Sequence[PlaceReset], timeout_s: float) -> None:
    """Commits the places of the plan. Safe to repeat. Raises GroupNotEmpty, UnknownTopic, TopicRecreated,
    OutcomeUnknown, Unavailable."""
    by_topic: dict[str, dict[int, int]] = {}
    for reset in plan:
        by_topic.setdefault(reset.topic, {})[reset.partition] = reset.to
    ids = {reset.topic: reset.topic_id for reset in plan if reset.topic_id != NO_ID}
    generation = max((reset.generation for reset in plan), default=NO_GENERATION)
    arguments = group, "", generation, by_topic, *([ids] if ids else [])  # a leader that gives ids takes them
    gid = coordinator_group(group, router.info.groups)
    answer: MembershipStale | TopicMissing | TopicIsOther | GroupCallRefused | None = result_of(
        router.leader_call(gid, "commit_offsets", *arguments, timeout_s=timeout_s), timeout_s
    )
    if isinstance(answer, MembershipStale):
        raise GroupNotEmpty(group)
    if isinstance(answer, TopicMissing):
        raise UnknownTopic(answer.topic)
    if isinstance(answer, TopicIsOther):
        raise TopicRecreated(answer.topic)
    if isinstance(answer, GroupCallRefused):
        refused = InvalidMessage(f"places of group {group!r} were refused: {answer.reason}")
        raise answer.error(group, refused)
