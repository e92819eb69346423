"""Altering a topic while it is in use: retention, limits, check policy, in every broker group.

As at creation, broker group 0 decides. Its log orders the alterations, and each gets a number there. Group 0
accepts an alteration only if no other one has come since its sender last looked; the other groups accept it
only if they have not seen a higher number. So a late request, from a client that hung or died, cannot undo a
newer alteration. An interrupted alteration leaves some groups behind until any alteration of the topic (even
one without settings) completes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from escrowmq.actors.admin.topic_creation import Submit
from escrowmq.replication.errors import ConfigError, EscrowMQError, Overloaded, UnknownTopic
from escrowmq.replication.format import ops
from escrowmq.replication.model import ResultCode, TopicInfo
from escrowmq.replication.state.topics import ALTERABLE, alter_problem

#: Each further round means that someone else altered the topic during the last one.
ROUNDS_MAX = 10
#: Not the number of any alteration: group 0 then only reports what it has.
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
    problem = alter_problem(name, stated)
    if problem is not None:
        raise ConfigError(problem)
    _, _, number = _altered(submit, 0, name, {}, NONE)
    for _ in range(ROUNDS_MAX):
        done, info, number = _altered(submit, 0, name, stated, number)
        if done:
            break
    else:
        raise Overloaded(f"others keep altering topic {name!r}", 1.0)
    wanted = {key: info[key] for key in ALTERABLE}
    for gid in range(1, groups):
        _altered(submit, gid, name, wanted, number)
    return TopicInfo(**info)


def _altered(
    submit: Submit, gid: int, name: str, settings: Mapping[str, int | str], number: int
) -> tuple[bool, dict[str, Any], int]:
    """Whether it was done, the settings then in force in the group, and the number of their alteration."""
    code, told = submit(gid, ops.alter_topic(name, settings, number))
    if code in (ResultCode.OK, ResultCode.DUPLICATE, ResultCode.RETRY):
        info, newest = told
        return code == ResultCode.OK, info, newest
    if code != ResultCode.UNKNOWN_TOPIC:
        raise EscrowMQError(f"altering {name!r} was refused in broker group {gid}: {ResultCode(code).name}")
    if gid == 0:
        raise UnknownTopic(name)
    raise EscrowMQError(
        f"broker group {gid} does not know topic {name!r}, which group 0 has: its creation or deletion was "
        "cut short or is under way; repeat that, then alter it again"
    )
