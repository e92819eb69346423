"""How a topic is altered while it is used: retention, limits, check policy, in every broker group.

As at creation, broker group 0 decides, and its log orders alterations: each gets a number there. It is done
there only if no other one came since its sender looked, and in the other groups only if none of a higher
number was there before. So a request that arrives late, of an alterer that stood still or has died, changes
nothing behind another one. An alteration that is cut short leaves groups behind until any alteration of the
topic, also one without settings, is carried through.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from escrowmq.actors.admin.topic_creation import Submit
from escrowmq.replication.errors import ConfigError, EscrowMQError, Overloaded, UnknownTopic
from escrowmq.replication.format import ops
from escrowmq.replication.model import ResultCode, TopicInfo
from escrowmq.replication.state.topics import ALTERABLE, alter_problem

#: Each further round means that somebody else has altered the topic during the last one.
ROUNDS_MAX = 10
#: The number of no alteration: group 0 then only tells what it has.
NONE = -1


def alter_topic(
    submit: Submit, groups: int, name: str, settings: Mapping[str, int | str | None]
) -> TopicInfo:
    """Alters the topic in every group, and returns the settings that it has then. Safe to repeat.

    A setting that is None stays as it is. Raises ConfigError, UnknownTopic, and Overloaded when others alter
    the topic all the time.
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
        raise Overloaded(f"others alter topic {name!r} all the time", 1.0)
    wanted = {key: info[key] for key in ALTERABLE}
    for gid in range(1, groups):
        _altered(submit, gid, name, wanted, number)
    return TopicInfo(**info)


def _altered(
    submit: Submit, gid: int, name: str, settings: Mapping[str, int | str], number: int
) -> tuple[bool, dict[str, Any], int]:
    """Whether it was done, what is in force in the group afterwards, and the number of that."""
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
