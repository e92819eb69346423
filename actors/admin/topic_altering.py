"""How a topic is altered while it is used: retention, limits, check policy, in every broker group.

As at creation, broker group 0 decides: what stands there once the change is in its log is what the other
groups get. After the last of them group 0 is looked at again, through its log; if somebody else has altered
the topic meanwhile, the others get that. So whoever wrote last into a group wrote what group 0 had, and saw
that it still had it: however alterations meet, they end alike in all groups. One that is cut short leaves
groups behind until any alteration of the topic, also one without settings, is carried through.
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


def alter_topic(
    submit: Submit, groups: int, name: str, settings: Mapping[str, int | str | None]
) -> TopicInfo:
    """Alters the topic in every group, and returns the settings that are in force then. Safe to repeat.

    A setting that is None stays as it is. Raises ConfigError, UnknownTopic, and Overloaded when others alter
    the topic all the time.
    """
    if type(name) is not str:
        raise ConfigError(f"a topic's name is a str, not {name!r}")
    stated = {key: value for key, value in settings.items() if value is not None or key not in ALTERABLE}
    problem = alter_problem(name, stated)
    if problem is not None:
        raise ConfigError(problem)
    info = _altered(submit, 0, name, stated)  # type: ignore[arg-type]
    for _ in range(ROUNDS_MAX):
        wanted = {key: info[key] for key in ALTERABLE}
        for gid in range(1, groups):
            _altered(submit, gid, name, wanted)
        if groups == 1:
            return TopicInfo(**info)
        now = _altered(submit, 0, name, {})
        if now == info:
            return TopicInfo(**info)
        info = now
    raise Overloaded(f"others alter topic {name!r} all the time", 1.0)


def _altered(submit: Submit, gid: int, name: str, settings: Mapping[str, int | str]) -> dict[str, Any]:
    """What is in force in the group afterwards, through its log."""
    code, info = submit(gid, ops.alter_topic(name, settings))
    if code == ResultCode.OK:
        found: dict[str, Any] = info
        return found
    if code != ResultCode.UNKNOWN_TOPIC:
        raise EscrowMQError(f"altering {name!r} was refused in broker group {gid}: {ResultCode(code).name}")
    if gid == 0:
        raise UnknownTopic(name)
    raise EscrowMQError(
        f"broker group {gid} does not know topic {name!r}, which group 0 has: its creation or deletion was "
        "cut short or is under way; repeat that, then alter it again"
    )
