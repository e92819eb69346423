"""Deleting a topic in every broker group: the one that has the name now, and no later one.

Broker group 0 reports the id of that topic. The other groups delete the topic with that id, or an earlier one
that an interrupted deletion left there. So a request that arrives late never deletes a topic that was created
meanwhile.
"""

from __future__ import annotations

from typing import Any

from escrowmq.actors.admin.topic_creation import Submit
from escrowmq.replication.errors import ConfigError, EscrowMQError, InvalidMessage, NotSupported, UnknownTopic
from escrowmq.replication.format import ops
from escrowmq.replication.format.internal_topics import owner_of
from escrowmq.replication.model import NO_ID, ResultCode

_GONE = (ResultCode.OK, ResultCode.UNKNOWN_TOPIC, ResultCode.OTHER_TOPIC)


def delete_topic(submit: Submit, groups: int, name: str, known: int | None) -> None:
    """Deletes the topic in every group. Safe to repeat, also after an interruption.

    ``known``: its id according to group 0; None: group 0 has no topic of that name. Raises UnknownTopic if no
    group had it, ConfigError if it is an internal topic of a share group.
    """
    topic_id: int | None = NO_ID if known is None else known
    codes: list[int] = []
    for gid in range(groups):
        code, info, told = _delete(submit, gid, name, topic_id)
        if code == ResultCode.GROUP_KIND:
            raise ConfigError(
                f"topic {name!r} belongs to {info} group {owner_of(name)!r}, and is deleted with it: "
                f"'escrowmq group delete {owner_of(name)}'"
            )
        if code not in _GONE:
            raise EscrowMQError(f"deleting {name!r} was refused in group {gid}: {ResultCode(code).name}")
        codes.append(code)
        if gid == 0 and not told:
            topic_id = None  # the other groups know no ids either
        elif gid == 0 and known is None and code == ResultCode.UNKNOWN_TOPIC:
            topic_id = info  # a topic that is left in the other groups is not newer
        elif gid == 0 and known is None and code == ResultCode.OTHER_TOPIC:
            raise UnknownTopic(name)  # group 0 had none, and one is being created
    if known is None and ResultCode.OK not in codes:
        raise UnknownTopic(name)


def _delete(submit: Submit, gid: int, name: str, topic_id: int | None) -> tuple[int, Any, bool]:
    """The answer, and whether it contains an id: a group below level 6 gives none."""
    if topic_id is not None:
        try:
            return *submit(gid, ops.delete_topic(name, topic_id)), True
        except (NotSupported, InvalidMessage):  # the latter from an earlier version, which cannot decode it
            if topic_id != NO_ID:
                raise
    return *submit(gid, ops.delete_topic(name)), False
