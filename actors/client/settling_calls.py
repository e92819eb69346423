"""Sends what is said of one message until it is durable: that it failed, or that it is done, with a reply."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from escrowmq.actors.client.results import outcome
from escrowmq.actors.client.router import Router, result_of
from escrowmq.actors.client.share_groups import create_internal_topic
from escrowmq.replication.calling.backoff import Backoff
from escrowmq.replication.errors import (
    EscrowMQError,
    LeaseLost,
    OffsetOutOfRange,
    TooManyScheduled,
    Unavailable,
    UnknownGroup,
    UnknownTopic,
)
from escrowmq.replication.model import ResultCode

#: Pauses before a nack that did not fit into its entry is sent again.
AGAIN = Backoff(first_s=0.02, longest_s=0.5, jitter=0.5)


def send_settling(
    router: Router,
    group: str,
    gid: int,
    request: bytes,
    place: tuple[str, int, int],
    timeout_s: float,
    pause: Callable[[float], None],
) -> None:
    """Sends a NACK, or an ack with a reply, of one message until it is durable; creates the topic that the
    copy or the reply goes to if it is missing. Raises LeaseLost, UnknownTopic, UnknownGroup (it was deleted),
    OffsetOutOfRange, TooManyScheduled, Unavailable, OutcomeUnknown."""
    deadline, attempts = router.clock() + timeout_s, 0

    def submit(at: int, operation: bytes) -> tuple[int, Any]:
        left_s = max(deadline - router.clock(), 0.001)
        return outcome(result_of(router.submit(at, operation, left_s), left_s)[0])

    while True:
        code, info = submit(gid, request)
        if code == ResultCode.PARTIAL:
            code, info = outcome(info[0][1:])
        if code in (ResultCode.OK, ResultCode.DUPLICATE):
            return
        if code == ResultCode.UNKNOWN_TOPIC and info and info[0] != place[0]:
            create_internal_topic(submit, router.info.groups, info[0])
        elif code != ResultCode.RETRY:
            raise why_not(group, place, code, info)
        if router.clock() >= deadline:
            raise Unavailable("a nack does not get into the log: the broker is busy with others", 1.0)
        pause(AGAIN.pause_s(attempts))
        attempts += 1


def why_not(group: str, place: tuple[str, int, int], code: int, info: Any) -> EscrowMQError:
    """The error for a message that a group could not settle. ``place``: topic, partition, offset."""
    topic, partition, offset = place
    if code == ResultCode.LEASE_LOST:
        return LeaseLost(topic, partition, offset)
    if code in (ResultCode.UNKNOWN_TOPIC, ResultCode.BAD_PARTITION, ResultCode.OTHER_TOPIC):
        return UnknownTopic(topic, gone=True)
    if code == ResultCode.UNKNOWN_SHARE:
        return UnknownGroup(group)
    if code == ResultCode.OUT_OF_RANGE:  # brokers of earlier versions tell the end alone
        start, end = (0, info) if type(info) is int else info
        return OffsetOutOfRange(topic, partition, offset, start, end, True)
    if code == ResultCode.TOO_MANY_SCHEDULED:
        return TooManyScheduled(f"{info} messages wait for their time in this broker group", 1.0)
    refused = f"offset {offset} of {topic}/{partition} cannot be settled"
    return EscrowMQError(f"{refused}: {ResultCode(code).name} {info!r}")
