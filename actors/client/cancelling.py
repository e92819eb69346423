"""Cancelling a delayed message: the request, and what its answer means.

The log decides of each message, once, whether it was cancelled or became readable. So an answer is final,
and asking again is harmless. But of what was cancelled, a group remembers only the last 100,000 once their
time has passed: then it answers a request that was sent again, because its first answer was lost, as if
nothing had been cancelled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from escrowmq.actors.client.schedule_ids import ScheduleId
from escrowmq.replication.errors import (
    EscrowMQError,
    InvalidMessage,
    OutcomeUnknown,
    Unavailable,
    UnknownTopic,
)
from escrowmq.replication.format import timer_ops
from escrowmq.replication.model import ResultCode

#: How often it is asked again because the topic was deleted and created again meanwhile.
TOPICS_MAX = 3


class Cancellation:
    """Cancels one message; ``note_repeated`` is to be called if a request for it is sent again."""

    def __init__(self, message: ScheduleId) -> None:
        self.message, self._repeated = message, False

    def note_repeated(self) -> None:
        """An earlier sending got no answer, and may have been carried out."""
        self._repeated = True

    def request(self, topic_id: int) -> bytes:
        """For the broker group of the message's partition. ``topic_id``: that of its topic."""
        one = self.message
        return timer_ops.cancel(one.topic, one.partition, [(one.time_ms, one.owner, one.ordinal)], topic_id)

    def is_done(self, result: Sequence[Any]) -> bool | OtherTopic:
        """From the answer, whether the message will never be read; False: it can be read already, or nothing
        is known of it. Raises UnknownTopic (the topic was deleted, and the message with it), Unavailable,
        OutcomeUnknown."""
        done = _is_cancelled(self.message, result)
        if done is False and self._repeated:
            raise OutcomeUnknown(f"cancelling a message to {self.message.topic}")
        return done


class OtherTopic(NamedTuple):
    """The topic was created again, and has this id now. Nothing was done."""

    topic_id: int


def _is_cancelled(message: ScheduleId, result: Sequence[Any]) -> bool | OtherTopic:
    code: int = result[0]
    info: Any = result[1] if len(result) > 1 else None
    if code == ResultCode.PARTIAL:
        ((_, code, *_),) = info
    if code in (ResultCode.OK, ResultCode.DUPLICATE):
        return True
    if code == ResultCode.UNKNOWN_TIMER:
        return False
    if code == ResultCode.RETRY:
        raise Unavailable(f"{message.topic}: a transaction with the same id is open", 1.0)
    if code == ResultCode.OTHER_TOPIC:
        return OtherTopic(info if isinstance(info, int) else info[-1])
    if code == ResultCode.UNKNOWN_TOPIC:
        raise UnknownTopic(message.topic)
    if code == ResultCode.BAD_PARTITION:
        raise UnknownTopic(message.topic, message.partition)
    if code == ResultCode.MALFORMED:
        raise InvalidMessage(f"the broker refused to cancel a message: {info}")
    raise EscrowMQError(f"cancelling was refused: {ResultCode(code).name} {info!r}")
