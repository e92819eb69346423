"""Cancelling a delayed message: the request, and what its answer means.

The log decides of each message, once, whether it was cancelled or became readable. So an answer is final,
and asking again is harmless. But of what was cancelled, a group remembers only the last 100,000 once their
time has passed: then it answers a request that was sent again, because its first answer was lost, as if
nothing had been cancelled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import google_crc32c

from escrowmq.replication.errors import (
    EscrowMQError,
    InvalidMessage,
    OutcomeUnknown,
    Unavailable,
    UnknownTopic,
)
from escrowmq.replication.format import timer_ops
from escrowmq.replication.model import ResultCode

# ------------------------------------------------------------------------------------------------------------
# The id of a delayed message, by which it can be cancelled: which one it is of all that wait, as text.
#
# ``topic/partition/time/owner/ordinal/check``. The first five name the message; a client knows them without
# asking. The check is over them and the cluster's id, so an id that was mistyped, or comes from another
# cluster, is told from one whose message can be read already.

#: Limits of the numbers in a request.
_PARTITION_MAX, _TIME_MAX = (1 << 31) - 1, (1 << 53) - 1
_OWNER_MAX, _ORDINAL_MAX = (1 << 64) - 1, (1 << 32) - 1


class ScheduleId(NamedTuple):
    """What an id says.

    ``time_ms``: from when on the message can be read, in ms since the epoch. ``owner`` stands for the
    transaction or the producer, ``ordinal`` counts what that one scheduled.
    """

    topic: str
    partition: int
    time_ms: int
    owner: int
    ordinal: int

    def text(self, cluster_id: str) -> str:
        """The id."""
        body = f"{self.topic}/{self.partition}/{self.time_ms}/{self.owner:016x}/{self.ordinal}"
        return f"{body}/{_check(body, cluster_id)}"

    @classmethod
    def parse(cls, text: object, cluster_id: str) -> ScheduleId:
        """The inverse of :meth:`text`. Raises InvalidMessage for anything else."""
        if not isinstance(text, str):
            raise InvalidMessage(f"a schedule id is a str, not {type(text).__name__}")
        parts = text.rsplit("/", 5)
        try:
            topic, numbers, check = parts[0], parts[1:5], parts[5]
            partition, time_ms, ordinal = int(numbers[0]), int(numbers[1]), int(numbers[3])
            found = cls(topic, partition, time_ms, int(numbers[2], 16), ordinal)
        except (ValueError, IndexError):
            raise InvalidMessage(f"{text!r:.300} is no schedule id; {_WHERE}") from None
        if found.text(cluster_id) != text or not found._fits():
            where = "was mistyped, or comes from another cluster"
            raise InvalidMessage(f"schedule id {text!r:.300} (check {check:.8}) {where}; {_WHERE}")
        return found

    def _fits(self) -> bool:
        return (
            bool(self.topic)
            and 0 <= self.partition <= _PARTITION_MAX
            and 0 <= self.time_ms <= _TIME_MAX
            and 0 <= self.owner <= _OWNER_MAX
            and 0 <= self.ordinal <= _ORDINAL_MAX
        )


_WHERE = "take it from the result of a send or a transaction, or from 'escrowmq schedule list'"


def _check(body: str, cluster_id: str) -> str:
    text = f"{cluster_id}\0{body}".encode(errors="surrogatepass")
    return f"{google_crc32c.value(text):08x}"


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
