"""Changing consumer groups by hand: offsets set, groups deleted, settings checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeAlias

from escrowmq.actors.admin.topic_creation import delete_topic
from escrowmq.actors.client.consumer_groups import (
    GroupCallRefused,
    GroupLives,
    GroupSnapshot,
    MembershipStale,
    PlacesMoved,
    TopicIsOther,
    TopicMissing,
    TopicPartition,
    coordinator_group,
)
from escrowmq.actors.client.router import Router, result_of
from escrowmq.actors.client.share_groups import Submit
from escrowmq.actors.consumer.offsets import OffsetReader
from escrowmq.replication.errors import (
    ConfigError,
    EscrowMQError,
    GroupNotEmpty,
    InvalidMessage,
    OffsetOutOfRange,
    Overloaded,
    TopicRecreated,
    UnknownGroup,
    UnknownTopic,
)
from escrowmq.replication.format import ops, share_ops
from escrowmq.replication.format.internal_topics import dead_topic, owner_problem, retry_topic
from escrowmq.replication.format.settings import SHARE, Value, group_settings_problem
from escrowmq.replication.model import NO_ID, ResultCode

# ------------------------------------------------------------------------------------------------------------
# Setting a consumer group's offsets by hand: planning the new offsets, and setting them.
#
# There are two steps, as in trimming, so that a person can look in between: exactly the plan is carried out.
# It is an ordinary commit through the group's coordinator, sent without being a member. The coordinator
# accepts it only while the group has no members: members would continue where they are and commit over it.

#: One of NAMED, an offset, or a time.
Goal: TypeAlias = str | int | datetime
NAMED = ("earliest", "latest")
#: A generation that no member has, for a commit that comes from no member.
NO_GENERATION = 0


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """The group's committed offset in one partition, which holds ``[start, end)``, and the new one.
    ``committed`` None: it has none. ``topic_id`` and ``generation``: the topic and the group's generation
    when this was planned; ``NO_ID`` and 0: unknown."""

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
) -> tuple[OffsetReset, ...]:
    """The new offsets of ``partitions``. ``id_of``: the ids of their topics; ``generation``: the
    coordinator's. Both must be older than this call. A time (in UTC if it has no time zone) stands for the
    first message at or after it.

    Raises ConfigError, UnknownTopic, or OffsetOutOfRange for an offset that the partition does not have.
    """
    wanted = sorted(partitions)
    if isinstance(to, bool) or not (to in NAMED or isinstance(to, int | datetime)):
        raise ConfigError(f"to must be 'earliest', 'latest', an offset or a datetime, not {to!r}")
    if isinstance(to, int) and len(wanted) > 1:
        raise ConfigError("an offset belongs to one partition; name the topic and the partition")
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
        chosen = start if to == "earliest" else end if to == "latest" else times[i] if times else to
        if isinstance(chosen, UnknownTopic):  # deleted between the two requests
            raise chosen
        assert isinstance(chosen, int)
        if not start <= chosen <= end:
            raise OffsetOutOfRange(*tp, chosen, start, end, advice="give one in this range")
        plan.append(OffsetReset(*tp, committed.get(tp), chosen, start, end, id_of(tp[0]), generation))
    return tuple(plan)


def carry_out(router: Router, group: str, plan: Sequence[OffsetReset], timeout_s: float) -> None:
    """Commits the offsets of the plan. Safe to repeat. Raises GroupNotEmpty, UnknownTopic, TopicRecreated,
    OutcomeUnknown, Unavailable."""
    by_topic: dict[str, dict[int, int]] = {}
    for reset in plan:
        by_topic.setdefault(reset.topic, {})[reset.partition] = reset.to
    ids = {reset.topic: reset.topic_id for reset in plan if reset.topic_id != NO_ID}
    generation = max((reset.generation for reset in plan), default=NO_GENERATION)
    gid = coordinator_group(group, router.info.groups)
    answer: MembershipStale | TopicMissing | TopicIsOther | GroupCallRefused | None = result_of(
        router.leader_call(gid, "commit_offsets", group, "", generation, by_topic, ids, timeout_s=timeout_s),
        timeout_s,
    )
    if isinstance(answer, MembershipStale):
        raise GroupNotEmpty(group)
    if isinstance(answer, TopicMissing):
        raise UnknownTopic(answer.topic)
    if isinstance(answer, TopicIsOther):
        raise TopicRecreated(answer.topic)
    if isinstance(answer, GroupCallRefused):
        refused = InvalidMessage(f"offsets of group {group!r} were refused: {answer.reason}")
        raise answer.error(group, refused)


# ------------------------------------------------------------------------------------------------------------
# Deleting a consumer group: its offsets, in its coordinator's broker group, its settings, and its internal
# topics.
#
# The coordinator deletes only the offsets that the caller has seen, and only while the group has no members.
# So a request that arrives late does nothing to a group that is in use again. A former member that does not
# know of the deletion is refused when it commits: otherwise the group would come back with this member's
# offsets.

#: A further round is needed only if another client committed offsets meanwhile.
ROUNDS_MAX = 5


def delete_group(
    router: Router, group: str, timeout_s: float, submit: Submit, by: str, topics: Mapping[str, int]
) -> None:
    """Deletes the group's offsets and settings; of a share group, what all broker groups know of it; and then
    its topics of retries and dead letters. ``topics``: the ids of those that broker group 0 knows.

    A new group of the name would otherwise read what the deleted one had handled: which of the retries are
    final is forgotten with the group. Safe to repeat: a group of which only topics are left is deleted, too.
    Raises UnknownGroup if there is nothing, GroupNotEmpty, OffsetsPending while a transaction holds one of
    its partitions, Overloaded if other clients keep committing offsets.
    """
    has_topics = owner_problem("group", group) is None
    try:
        shared = _delete(router, group, timeout_s, submit, by, has_topics)
    except UnknownGroup:
        if not (has_topics and delete_topics(submit, router.info.groups, group, topics)):
            raise
        return
    if has_topics and (shared or topics):
        delete_topics(submit, router.info.groups, group, topics)


def delete_topics(submit: Submit, groups: int, group: str, known: Mapping[str, int]) -> bool:
    """Deletes the group's internal topics in every broker group; returns whether there was one. ``known``:
    see ``delete_group``."""
    found = False
    for name in (retry_topic(group), dead_topic(group)):
        try:
            delete_topic(submit, groups, name, known.get(name))
        except UnknownTopic:
            continue
        found = True
    return found


def _delete(router: Router, group: str, timeout_s: float, submit: Submit, by: str, has_topics: bool) -> bool:
    """Everything but topics; returns whether it was a share group."""
    gid = coordinator_group(group, router.info.groups)
    for _ in range(ROUNDS_MAX):
        seen: GroupSnapshot = result_of(
            router.leader_call(gid, "group_describe", group, timeout_s=timeout_s), timeout_s
        )
        if seen.members:
            raise GroupNotEmpty(group, [member.member for member in seen.members])
        if seen.settings.get("kind") == SHARE:
            _check_unused(router, group, timeout_s)
            delete_share_group(submit, router.info.groups, group, by)
            return True
        if not seen.committed and not seen.settings:
            # A leader that was deposed and does not know it has not heard of a young group: ask the log.
            if has_topics and _has_settings(submit, gid, group):
                continue
            # Perhaps an earlier deletion was interrupted behind its first step.
            if seen.generation and _forget_settings(submit, router.info.groups, group):
                return False
            raise UnknownGroup(group)
        committed = {topic: dict(by) for topic, by in seen.committed.items()}
        answer: GroupLives | PlacesMoved | GroupCallRefused | None = result_of(
            router.leader_call(gid, "group_delete", group, committed, timeout_s=timeout_s), timeout_s
        )
        if answer is None:
            if seen.settings:
                _forget_settings(submit, router.info.groups, group)
            return False
        if isinstance(answer, GroupLives):
            raise GroupNotEmpty(group, answer.members)
        if isinstance(answer, GroupCallRefused):
            refused = InvalidMessage(f"deleting group {group!r} was refused: {answer.reason}")
            raise answer.error(group, refused)
    raise Overloaded(f"the offsets of group {group!r} keep changing", 1.0)


def _check_unused(router: Router, group: str, timeout_s: float) -> None:
    """Asks all broker groups before anything is deleted in any: a member that holds a message of one keeps
    only that one from forgetting what the group has finished. Raises GroupNotEmpty."""
    asked = [
        router.leader_call(gid, "share_members", group, timeout_s=timeout_s)
        for gid in range(router.info.groups)
    ]
    if members := sorted({member for future in asked for member in result_of(future, timeout_s)}):
        raise GroupNotEmpty(group, members)


def _has_settings(submit: Submit, gid: int, group: str) -> bool:
    """Whether the group has settings in this broker group, according to its log."""
    code, told = submit(gid, share_ops.group_settings(group, {}))
    return code == ResultCode.OK and bool(told[1])


def _forget_settings(submit: Submit, groups: int, group: str) -> bool:
    """Deletes the settings of a group that reads by offsets in all broker groups but its coordinator's, which
    has deleted the group. Returns whether one had any."""
    found = [_gone(submit, gid, group) for gid in range(groups) if gid != coordinator_group(group, groups)]
    return any(found)


def delete_share_group(submit: Submit, groups: int, group: str, by: str) -> None:
    """Deletes what broker groups know of a share group. The one that decides its kind is the last: until then
    an interrupted deletion can be repeated. Each leader refuses it while members hold or want its messages.

    Raises GroupNotEmpty, UnknownGroup."""
    last = coordinator_group(group, groups)
    found = False
    for gid in (*(gid for gid in range(groups) if gid != last), last):
        found = _gone(submit, gid, group, by if gid == last else "") or found
    if not found:
        raise UnknownGroup(group)


def _gone(submit: Submit, gid: int, group: str, by: str = "") -> bool:
    """Deletes it in one broker group; returns whether anything was there. Raises GroupNotEmpty."""
    code, info = submit(gid, ops.delete_group(group, 0, by))
    if code == ResultCode.LEASE_LOST:
        raise GroupNotEmpty(group, info)
    if code not in (ResultCode.OK, ResultCode.DUPLICATE):
        raise EscrowMQError(f"deleting group {group!r} was refused: {ResultCode(code).name} {info!r}")
    return code == ResultCode.OK


# ------------------------------------------------------------------------------------------------------------
# The settings of a consumer group as operators give them: names, units, and what is wrong with a value.

#: What ``Admin.set_group`` takes. The kind is not among them: the group's first use decides it.
NAMES = ("max_attempts", "delays_s", "lease_s", "max_age_s", "dead_letters")
NO_LIMIT = -1


def values_of(settings: Mapping[str, Any]) -> dict[str, Value]:
    """The values for the log; all times in ms. Raises ConfigError."""
    unknown = sorted(settings.keys() - set(NAMES))
    if unknown:
        raise ConfigError(f"unknown group setting {unknown[0]!r}; known: {', '.join(NAMES)}")
    values: dict[str, Value] = {}
    for name, value in settings.items():
        if name == "delays_s":
            if isinstance(value, str | bytes) or not isinstance(value, Sequence):
                raise ConfigError(f"delays_s must be a list of seconds, not {value!r}")
            values["delays_ms"] = [_ms(name, delay) for delay in value]
        elif name == "max_age_s" and value is None:
            values["max_age_ms"] = NO_LIMIT
        elif name in ("lease_s", "max_age_s"):
            values[name[:-1] + "ms"] = _ms(name, value)
        else:
            if type(value) not in (int, str):
                raise ConfigError(f"{name} must be a number or a word, not {value!r}")
            values[name] = value
    if (problem := group_settings_problem(values)) is not None:
        raise ConfigError(_in_seconds(problem))
    return values


def _ms(name: str, seconds: Any) -> int:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < 1e12:
        raise ConfigError(f"{name} must be a number of seconds, from 0 to ten years, not {seconds!r}")
    return round(seconds * 1000)


def _in_seconds(problem: str) -> str:
    for name in ("delays", "lease", "max_age"):
        problem = problem.replace(f"{name}_ms", f"{name}_s (in ms)")
    return f"delays_s: {problem}" if problem.startswith("a delay") else problem
