"""Cancelling a delayed message: the request, and what its answer means.

The log decides of each message, once, whether it was cancelled or became readable. So an answer is final,
and asking again is harmless.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from escrowmq.actors.client.schedule_ids import ScheduleId
from escrowmq.replication.errors import EscrowMQError, InvalidMessage, UnknownTopic
from escrowmq.replication.format import timer_ops
from escrowmq.replication.model import ResultCode

#: How often it is asked again because the topic was deleted and created again meanwhile.
TOPICS_MAX = 3


def cancellation(message: ScheduleId, topic_id: int) -> bytes:
    """The request, for the broker group of the message's partition. ``topic_id``: that of the topic."""
    key = message.time_ms, message.owner, message.ordinal
    return timer_ops.cancel(message.topic, message.partition, [key], topic_id)


class OtherTopic(NamedTuple):
    """The topic was created again, and has this id now. Nothing was done."""

    topic_id: int


def is_cancelled(message: ScheduleId, result: Sequence[Any]) -> bool | OtherTopic:
    """From the answer, whether the message will never be read; False: it can be read already, or nothing is
    known of it.

    Raises UnknownTopic: the topic was deleted, and the message with it.
    """
    code: int = result[0]
    info: Any = result[1] if len(result) > 1 else None
    if code == ResultCode.PARTIAL:
        ((_, code, *_),) = info
    if code in (ResultCode.OK, ResultCode.DUPLICATE):
        return True
    if code == ResultCode.UNKNOWN_TIMER:
        return False
    if code == ResultCode.OTHER_TOPIC:
        return OtherTopic(info if isinstance(info, int) else info[-1])
    if code == ResultCode.UNKNOWN_TOPIC:
        raise UnknownTopic(message.topic)
    if code == ResultCode.BAD_PARTITION:
        raise UnknownTopic(message.topic, message.partition)
    if code == ResultCode.MALFORMED:
        raise InvalidMessage(f"the broker refused to cancel a message: {info}")
    raise EscrowMQError(f"cancelling was refused: {ResultCode(code).name} {info!r}")
