"""How a topic is deleted: the one that has the name now, in every broker group, and no later one.

Broker group 0 tells which one that is, by its id; the others delete what has that id, or an earlier one that
was left when its deletion was cut short. So a request that arrives late deletes nothing that was created
meanwhile.
"""

from __future__ import annotations

from typing import Any

from escrowmq.actors.admin.topic_creation import Submit
from escrowmq.replication.errors import EscrowMQError, InvalidMessage, NotSupported, UnknownTopic
from escrowmq.replication.format import ops
from escrowmq.replication.model import NO_ID, ResultCode

_GONE = (ResultCode.OK, ResultCode.UNKNOWN_TOPIC, ResultCode.OTHER_TOPIC)


def delete_topic(submit: Submit, groups: int, name: str, known: int | None) -> None:
    """Deletes the topic in every group. Safe to repeat, also where it was cut short.

    ``known``: its id as group 0 has told it; None: group 0 has no topic of that name. Raises UnknownTopic if
    no group had it.
    """
    topic_id: int | None = NO_ID if known is None else known
    codes: list[int] = []
    for gid in range(groups):
        code, info, told = _delete(submit, gid, name, topic_id)
        if code not in _GONE:
            raise EscrowMQError(f"deleting {name!r} was refused in group {gid}: {ResultCode(code).name}")
        codes.append(code)
        if gid == 0 and not told:
            topic_id = None  # nor do the others know ids
        elif gid == 0 and known is None and code == ResultCode.UNKNOWN_TOPIC:
            topic_id = info  # whatever is left in the others is no later one
        elif gid == 0 and known is None and code == ResultCode.OTHER_TOPIC:
            raise UnknownTopic(name)  # there was none, and one is being created
    if known is None and ResultCode.OK not in codes:
        raise UnknownTopic(name)


def _delete(submit: Submit, gid: int, name: str, topic_id: int | None) -> tuple[int, Any, bool]:
    """The answer, and whether the id was told: a group below level 6 gives no ids."""
    if topic_id is not None:
        try:
            return *submit(gid, ops.delete_topic(name, topic_id)), True
        except (NotSupported, InvalidMessage):  # the latter from an earlier version, which cannot decode it
            if topic_id != NO_ID:
                raise
    return *submit(gid, ops.delete_topic(name)), False
