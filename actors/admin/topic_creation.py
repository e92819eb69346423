"""Creating a topic: what its creator can choose, and what counts as "exists already".

The defaults here are the client's. The client writes every setting into CREATE_TOPIC, so the log states what
applies; the meaning of an entry without a setting is part of the log's format and never changes
(``replication.format.settings``). The default must not delete what a transaction promised, so messages are
kept for ever.

A setting that the caller did not state accepts the value of an existing topic. Broker group 0 decides: the
other groups get its settings, also after an interrupted creation by another client. They also get the group
in which the topic begins, which the creator chooses by a checksum of the name, and the topic's id, which
group 0 assigns. If an interrupted deletion left an earlier topic of that name in another group, the new topic
replaces it there.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from typing import Any, TypeVar

from escrowmq.actors.client.call_arguments import unsendable
from escrowmq.actors.consumer.offsets import OffsetReader
from escrowmq.replication.errors import (
    ConfigError,
    EscrowMQError,
    OffsetOutOfRange,
    Overloaded,
    TopicExists,
    TopicRecreated,
    UnknownTopic,
)
from escrowmq.replication.format import ops
from escrowmq.replication.format.internal_topics import RESERVED, is_reserved, owner_of
from escrowmq.replication.format.settings import ALTERABLE, alter_problem, settings_problem
from escrowmq.replication.limits import NUMBER_MAX
from escrowmq.replication.model import BY_NAME, NO_ID, ResultCode, TopicInfo

#: Submits one operation to a broker group; returns its result code and the information that comes with it.
Submit = Callable[[int, bytes], tuple[int, Any]]
_UNITS_MS = ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1000, "second"))
_UNITS_BYTES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOptions:
    """What a topic's creator can choose besides the number of partitions. All of it is replicated."""

    #: Time from prepare to the first check. Longer than most local transactions take, since an earlier check
    #: costs a needless query.
    transaction_timeout_ms: int = 6000
    #: Number of counted checks before ``on_check_exhausted`` applies. With pauses of up to 30 s that is about
    #: five minutes during which a producer is online but cannot answer.
    check_max: int = 15
    #: "hold": the transaction stays open, *parked*, until a person decides it. "rollback": it is rolled back.
    #: The default is "hold", since a broker that decides by itself can contradict your database.
    on_check_exhausted: str = "hold"
    #: Messages older than this are deleted; -1: no limit. Unlimited by default, since only you know when a
    #: promised message may go; this needs disk space.
    retention_ms: int = -1
    #: The oldest messages of a partition are deleted beyond this size; -1: no limit.
    retention_bytes: int = -1


_NEW_NAME = re.compile(r"[a-zA-Z0-9._-]{1,200}", re.ASCII)
_KNOWN = [item.name for item in fields(TopicOptions)]


def new_name_problem(name: object) -> str | None:
    """Why a topic that does not exist yet cannot have this name, or None. (A wrong type is reported
    elsewhere.)

    Narrower than what the log accepts, which never changes: topic names appear in command lines, in metrics
    and in paths of other systems, where other characters have a meaning or look like one another.
    """
    if type(name) is str and (_NEW_NAME.fullmatch(name) is None or name in (".", "..")):
        return (
            f"topic name {name!r} is not allowed for a new topic; choose 1 to 200 of the characters a-z, "
            "A-Z, 0-9, '.', '_' and '-', but neither '.' nor '..'"
        )
    if type(name) is str and is_reserved(name):
        return f"topic name {name!r} is not allowed for a new topic: EscrowMQ's own begin with {RESERVED!r}"
    return None


def topic_settings(partitions: int = 1, **options: int | str) -> dict[str, int | str]:
    """All settings of a CREATE_TOPIC, with the client's defaults for those that are not given."""
    return {"partitions": partitions, **asdict(TopicOptions()), **options}


def spread_over(name: str, groups: int) -> int:
    """The group in which a new topic begins, by a checksum, which spreads similar names well (the sum of
    their bytes does not). The result is written into the log, so a later version may choose differently."""
    return zlib.crc32(name.encode()) % groups


def create_topic(
    submit: Submit,
    groups: int,
    name: str,
    partitions: int | None,
    options: Mapping[str, int | str | None],
    *,
    known: TopicInfo | None = None,
) -> TopicInfo:
    """Creates the topic in every group, and returns what then exists. Safe to repeat.

    An option that is None counts as not stated. ``known``: the topic, if it exists and was not placed by this
    function: topics of retries, dead letters and replies. Raises ConfigError, or TopicExists if a stated
    option differs.
    """
    stated = _stated(name, partitions, options)
    settings = topic_settings(**stated)  # type: ignore[arg-type]
    problem = unsendable(settings) or settings_problem(name, settings) or retention_problem(stated)
    if problem is not None:
        raise ConfigError(problem)
    first = BY_NAME if groups == 1 else spread_over(name, groups)
    if known is not None:
        _require_same(stated, asdict(known))
        first, settings = known.first_group, {key: getattr(known, key) for key in settings}
    topic_id = NO_ID
    for gid in range(groups):
        code, info = submit(gid, ops.create_topic(name, settings, first, topic_id))
        if code == ResultCode.OTHER_TOPIC:
            raise TopicRecreated(name)
        if code == ResultCode.TOPIC_EXISTS:
            if gid:
                raise _differs_from_group_0(name, gid, {**settings, "first_group": first}, info)
            _require_same(stated, info)
            first, topic_id = info["first_group"], info["topic_id"]
            settings = {key: info[key] for key in settings}
        elif code == ResultCode.MALFORMED:
            raise ConfigError(str(info))
        elif code not in (ResultCode.OK, ResultCode.DUPLICATE):
            raise EscrowMQError(f"creating {name!r} was refused: {ResultCode(code).name}")
        elif gid == 0:
            topic_id = info
    return TopicInfo(name, **settings, first_group=first, topic_id=topic_id)  # type: ignore[arg-type]


def _require_same(stated: Mapping[str, int | str], info: Mapping[str, int | str]) -> None:
    differs = _differences(stated, info)
    if differs:
        todo = "give the same settings, or alter the topic"
        if "partitions" in stated and stated["partitions"] != info["partitions"]:
            todo = "give the same number of partitions, which cannot be altered, or choose another name"
        raise TopicExists(f"topic {info['name']!r} exists with other settings: {differs}; {todo}")


def _differs_from_group_0(
    name: str, gid: int, wanted: Mapping[str, int | str], found: Mapping[str, int | str]
) -> TopicExists:
    return TopicExists(
        f"topic {name!r} has other settings in broker group {gid} than in group 0 "
        f"({_differences(wanted, found)}): alter it again with the settings it should have"
    )


def _stated(
    name: object, partitions: object, options: Mapping[str, int | str | None]
) -> dict[str, int | str]:
    """The caller's settings, after checking that they can be written into the log."""
    unknown = sorted(set(options) - set(_KNOWN))
    if unknown:
        raise ConfigError(f"unknown topic options {unknown}; known: {sorted(_KNOWN)}")
    if type(name) is not str:
        raise ConfigError(f"a topic's name is a str, not {name!r}")
    if partitions is not None and type(partitions) is not int:
        raise ConfigError(f"partitions must be an int, not {partitions!r}")
    given = {"partitions": partitions, **options}
    return {key: value for key, value in given.items() if value is not None}


def retention_problem(stated: Mapping[str, object]) -> str | None:
    """Why nobody wants this retention, or None. The log accepts 0, and always will; it deletes messages that
    no consumer has had time to read, and who writes it means "without a limit" as often."""
    for name in ("retention_ms", "retention_bytes"):
        if stated.get(name) == 0:
            return f"{name}=0 deletes messages before anybody reads them; -1 keeps them without a limit"
    return None


def _differences(wanted: Mapping[str, int | str], found: Mapping[str, int | str]) -> str:
    """``retention_ms is 604800000, not -1`` for every setting that differs; empty if none does."""
    return ", ".join(
        f"{k} is {found[k]!r}, not {wanted[k]!r}" for k in sorted(wanted) if found[k] != wanted[k]
    )


def kept(topic: TopicInfo) -> str:
    """How long the topic's messages are kept, in words: ``for ever``, ``deleted after 7 days``."""
    limits = []
    if topic.retention_ms >= 0:
        limits.append(f"after {_in_units(topic.retention_ms, _UNITS_MS, 'ms')}")
    if topic.retention_bytes >= 0:
        limits.append(f"beyond {_in_units(topic.retention_bytes, _UNITS_BYTES, 'bytes')} a partition")
    return "deleted " + " or ".join(limits) if limits else "for ever"


def _in_units(value: int, units: tuple[tuple[int, str], ...], smallest: str) -> str:
    """The value in the largest unit that divides it evenly."""
    for size, unit in units:
        if value and value % size == 0:
            count = value // size
            return f"{count} {unit}" + ("s" if count > 1 and smallest == "ms" else "")
    return f"{value} {smallest}"


# ------------------------------------------------------------------------------------------------------------
# Altering a topic while it is in use: retention, limits, check policy, in every broker group.
#
# As at creation, broker group 0 decides, and its log orders the alterations: each gets a number there. Group
# 0 carries one out only if there was no other since its sender looked; the other groups do so only if they
# have not seen a higher number. So a request that arrives late, from a client that was paused or has died,
# cannot undo a newer alteration. An interrupted alteration leaves groups behind until any alteration of the
# topic, even one without settings, is completed.
#
# An alteration names the id of its topic, so a later topic of the same name is not changed.

#: Each further round means that someone else altered the topic during the last one.
ROUNDS_MAX = 10
#: The number of no alteration: with it, group 0 only reports its settings.
NONE = -1


def alter_topic(
    submit: Submit, groups: int, name: str, settings: Mapping[str, int | str | None]
) -> TopicInfo:
    """Alters the topic in every group, and returns the settings that it then has. Safe to repeat.

    A setting that is None keeps its value. Raises ConfigError, UnknownTopic, or Overloaded when others keep
    altering the topic.
    """
    if type(name) is not str:
        raise ConfigError(f"a topic's name is a str, not {name!r}")
    stated: dict[str, Any] = {k: v for k, v in settings.items() if v is not None or k not in ALTERABLE}
    problem = unsendable(stated) or alter_problem(name, stated) or retention_problem(stated)
    if problem is not None:
        raise ConfigError(problem)
    _, _, number, topic_id = _altered(submit, 0, name, {}, NONE, NO_ID)
    for _ in range(ROUNDS_MAX):
        done, info, number, _ = _altered(submit, 0, name, stated, number, topic_id)
        if done:
            break
    else:
        raise Overloaded(f"others keep altering topic {name!r}", 1.0)
    wanted = {key: info[key] for key in ALTERABLE}
    for gid in range(1, groups):
        _altered(submit, gid, name, wanted, number, topic_id)
    return TopicInfo(**info, topic_id=topic_id)


def _altered(
    submit: Submit, gid: int, name: str, settings: Mapping[str, int | str], number: int, topic_id: int
) -> tuple[bool, dict[str, Any], int, int]:
    """Whether it was done, the settings in force in the group afterwards, their number, the topic's id."""
    code, told = submit(gid, ops.alter_topic(name, settings, number, topic_id))
    if code in (ResultCode.OK, ResultCode.DUPLICATE, ResultCode.RETRY):
        info, newest, found_id = told
        return code == ResultCode.OK, info, newest, found_id
    if code == ResultCode.OTHER_TOPIC:
        raise TopicRecreated(name)
    if code != ResultCode.UNKNOWN_TOPIC:
        raise EscrowMQError(f"altering {name!r} was refused in broker group {gid}: {ResultCode(code).name}")
    if gid == 0:
        raise UnknownTopic(name)
    raise EscrowMQError(
        f"broker group {gid} does not know topic {name!r}, which group 0 has: its creation or deletion was "
        "cut short or is under way; repeat that, then alter it again"
    )


# ------------------------------------------------------------------------------------------------------------
# Deleting a topic in every broker group: the one that has the name now, and no later one.
#
# Broker group 0 reports the id of that topic. The other groups delete the topic with that id, or an earlier
# one that an interrupted deletion left there. So a request that arrives late never deletes a topic that was
# created meanwhile.

#: No topic has this id. Broker group 0 is asked with it about a topic that it does not have, and so cannot
#: delete one that is being created.
_NO_TOPICS_ID = NUMBER_MAX
_GONE = (ResultCode.OK, ResultCode.UNKNOWN_TOPIC, ResultCode.OTHER_TOPIC)


def delete_topic(submit: Submit, groups: int, name: str, known: int | None) -> None:
    """Deletes the topic in every group. Safe to repeat, also after an interruption.

    ``known``: its id according to group 0; None: group 0 has no topic of that name. Raises UnknownTopic if no
    group had it, ConfigError if it is an internal topic of a share group.
    """
    topic_id = _NO_TOPICS_ID if known is None else known
    codes: list[int] = []
    for gid in range(groups):
        code, info = submit(gid, ops.delete_topic(name, topic_id))
        if code == ResultCode.GROUP_KIND:
            raise ConfigError(
                f"topic {name!r} belongs to {info} group {owner_of(name)!r}, and is deleted with it: "
                f"'escrowmq group delete {owner_of(name)}'"
            )
        if code not in _GONE:
            raise EscrowMQError(f"deleting {name!r} was refused in group {gid}: {ResultCode(code).name}")
        codes.append(code)
        if gid == 0 and known is None:
            if code == ResultCode.OTHER_TOPIC or info == NO_ID:
                raise UnknownTopic(name)  # one is being created, or there never was any
            topic_id = info  # a topic that is left in the other groups is not newer
    if known is None and ResultCode.OK not in codes:
        raise UnknownTopic(name)


# ------------------------------------------------------------------------------------------------------------
# Deleting the oldest messages of a topic by hand: planning what would go, and deleting it.
#
# There are two steps, so that a person can look in between: the plan names an offset per partition, and the
# plan is carried out, without evaluating the request a second time. It uses TRIM, as retention does. Only
# readable messages have offsets, so what open transactions hold is never touched: it gets its offsets at
# commit, behind everything that a plan can name, and its log is kept while it is open.

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
    #: The id of the topic when this was planned.
    topic_id: int = field(default=NO_ID, compare=False)

    @property
    def messages(self) -> int:
        """How many messages are deleted."""
        return max(self.before - self.start, 0)


class TopicOffsets:
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


def _known(found: P | UnknownTopic) -> P:
    if isinstance(found, UnknownTopic):
        raise found
    return found


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
            f"an offset belongs to one partition, and {name!r} has {partitions}; name the partition"
        )
    wanted = range(partitions) if partition is None else [partition]
    if isinstance(before, datetime):
        moment = before if before.tzinfo else before.replace(tzinfo=UTC)
        offsets = at_time(wanted, max(int(moment.timestamp() * 1000), 0))
    else:
        offsets = [before] * len(wanted)
    plan = []
    for number, offset, (start, end) in zip(wanted, offsets, bounds(wanted), strict=True):
        if not 0 <= offset <= end:
            raise OffsetOutOfRange(name, number, offset, start, end, advice="give one in this range")
        plan.append(PartitionTrim(number, start, offset, end, topic.topic_id))
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
        code, _ = submit(gid, ops.trim(topic, starts, topic_id))
        if code == ResultCode.UNKNOWN_TOPIC:
            raise UnknownTopic(topic)
        if code == ResultCode.OTHER_TOPIC:
            raise TopicRecreated(topic)
        if code != ResultCode.OK:
            raise EscrowMQError(f"trimming {topic!r} was refused in group {gid}: {ResultCode(code).name}")
