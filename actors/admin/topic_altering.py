"""Altering a topic while it is in use: retention, limits, check policy, in every broker group.

As at creation, broker group 0 decides, and its log orders the alterations: each gets a number there. Group 0
carries one out only if there was no other since its sender looked; the other groups do so only if they have
not seen a higher number. So a request that arrives late, from a client that was paused or has died, cannot
undo a newer alteration. An interrupted alteration leaves groups behind until any alteration of the topic,
even one without settings, is completed.

An alteration names the id of its topic, so a later topic of the same name is not changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from escrowmq.actors.admin.topic_creation import Submit, retention_problem
from escrowmq.actors.client.call_arguments import unsendable
from escrowmq.replication.errors import (
    ConfigError,
    EscrowMQError,
    InvalidMessage,
    NotSupported,
    Overloaded,
    TopicRecreated,
    UnknownTopic,
)
from escrowmq.replication.format import ops
from escrowmq.replication.model import NO_ID, ResultCode, TopicInfo
from escrowmq.replication.state.topics import ALTERABLE, alter_problem

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
    topic_id: int | None = ops.ANY_ID
    try:
        _, _, number, topic_id = _altered(submit, 0, name, {}, NONE, topic_id)
    except (NotSupported, InvalidMessage):  # the latter from an earlier version, which cannot decode it
        _, _, number, topic_id = _altered(submit, 0, name, {}, NONE, None)
    for _ in range(ROUNDS_MAX):
        done, info, number, _ = _altered(submit, 0, name, stated, number, topic_id)
        if done:
            break
    else:
        raise Overloaded(f"others keep altering topic {name!r}", 1.0)
    wanted = {key: info[key] for key in ALTERABLE}
    for gid in range(1, groups):
        try:
            _altered(submit, gid, name, wanted, number, topic_id)
        except NotSupported:
            if topic_id != NO_ID:
                raise
            _altered(submit, gid, name, wanted, number, None)
    return TopicInfo(**info, topic_id=topic_id or NO_ID)


def _altered(
    submit: Submit, gid: int, name: str, settings: Mapping[str, int | str], number: int, topic_id: int | None
) -> tuple[bool, dict[str, Any], int, int | None]:
    """Whether it was done, the settings in force in the group afterwards, their number, and the topic's id
    (None below level 6)."""
    code, told = submit(gid, ops.alter_topic(name, settings, number, topic_id))
    if code in (ResultCode.OK, ResultCode.DUPLICATE, ResultCode.RETRY):
        info, newest, *ids = told
        return code == ResultCode.OK, info, newest, ids[0] if ids else None
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
