"""Creating a topic: what its creator can choose, and what counts as "exists already".

The defaults here are the client's. The client writes every setting into CREATE_TOPIC, so the log states what
applies; the meaning of an entry without a setting is part of the log's format and never changes
(``replication.state.topics``). The default must not delete what a transaction promised, so messages are kept
for ever.

A setting that the caller did not state accepts the value of an existing topic. Broker group 0 decides: the
other groups get its settings, also after an interrupted creation by another client. They also get the group
in which the topic begins, which the creator chooses by a checksum of the name, and the topic's id, which
group 0 assigns. If an interrupted deletion left an earlier topic of that name in another group, the new topic
replaces it there.
"""

from __future__ import annotations

import re
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from escrowmq.actors.client.call_arguments import unsendable
from escrowmq.replication.errors import (
    ConfigError,
    EscrowMQError,
    InvalidMessage,
    NotSupported,
    TopicExists,
    TopicRecreated,
)
from escrowmq.replication.format import ops
from escrowmq.replication.format.internal_topics import RESERVED, is_reserved
from escrowmq.replication.model import BY_NAME, NO_ID, ResultCode, TopicInfo
from escrowmq.replication.state.topics import settings_problem

#: Submits one operation to a broker group; returns its result code and the information that comes with it.
Submit = Callable[[int, bytes], tuple[int, Any]]
#: Groups raise their format level one after the other; each asks all replicas at least every five seconds.
LEVEL_WAIT_S, LEVEL_PAUSE_S = 15.0, 0.2
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
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
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
    topic_id: int | None = NO_ID  # None: group 0 assigns none
    until = clock() + LEVEL_WAIT_S
    gid = 0
    while gid < groups:
        placed = None if first == BY_NAME else first
        try:
            code, info = submit(gid, ops.create_topic(name, settings, placed, topic_id))
        except (NotSupported, InvalidMessage):  # the latter from an earlier version, which cannot decode it
            if placed is None and topic_id is None:
                raise
            if gid == 0 and topic_id is not None:
                topic_id = None  # topics get no id until all replicas are upgraded
            elif gid == 0:
                first = BY_NAME
            elif clock() < until:
                pause(LEVEL_PAUSE_S)  # group 0 has reached the level, so the others soon will
            else:
                raise
            continue
        if code == ResultCode.OTHER_TOPIC:
            raise TopicRecreated(name)
        if code == ResultCode.TOPIC_EXISTS:
            if gid:
                raise _differs_from_group_0(name, gid, {**settings, "first_group": first}, info)
            _require_same(stated, info)
            first = info.get("first_group", BY_NAME)
            topic_id = info.get("topic_id", NO_ID) or None
            settings = {key: info[key] for key in settings}
        elif code == ResultCode.MALFORMED:
            raise ConfigError(str(info))
        elif code not in (ResultCode.OK, ResultCode.DUPLICATE):
            raise EscrowMQError(f"creating {name!r} was refused: {ResultCode(code).name}")
        elif gid == 0 and topic_id is not None:
            topic_id = info or None
        gid += 1
    return TopicInfo(name, **settings, first_group=first, topic_id=topic_id or NO_ID)  # type: ignore[arg-type]


def _require_same(stated: Mapping[str, int | str], info: Mapping[str, int | str]) -> None:
    differs = _differences(stated, info)
    if differs:
        raise TopicExists(f"topic {info['name']!r} exists with other settings: {differs}")


def _differs_from_group_0(
    name: str, gid: int, wanted: Mapping[str, int | str], found: Mapping[str, int | str]
) -> TopicExists:
    found = {"first_group": BY_NAME, **found}
    todo = "alter it again with the settings it should have, or, if its deletion was cut short, delete it"
    if any(wanted[key] != found[key] for key in ("partitions", "first_group")):
        todo = "its deletion was cut short or is under way; delete it and create it again"
    differs = _differences(wanted, found)
    return TopicExists(
        f"topic {name!r} has other settings in broker group {gid} than in group 0 ({differs}): {todo}"
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
