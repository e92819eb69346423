"""What must exist before a consumer group can use retries, dead letters or leases: its settings in every
broker group, and its internal topics.

As for topics, broker group 0 decides, and its log orders the changes: each gets a number there, and the other
groups take a change only if they have not seen a higher one. So a request that arrives late, from a client
that was paused, undoes nothing. An interrupted change leaves groups behind until the next one is completed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from escrowmq.actors.client.call_arguments import check_group
from escrowmq.actors.client.client_loop import ClientLoop
from escrowmq.actors.client.consumer_groups import coordinator_group
from escrowmq.actors.client.results import outcome
from escrowmq.actors.client.router import Router, result_of
from escrowmq.replication.calling.patience import Backoff
from escrowmq.replication.errors import (
    EscrowMQError,
    GroupKindMismatch,
    LeaseLost,
    OffsetOutOfRange,
    Overloaded,
    TooManyScheduled,
    Unavailable,
    UnknownGroup,
    UnknownTopic,
)
from escrowmq.replication.format import ops
from escrowmq.replication.format.internal_topics import dead_topic, retry_topic
from escrowmq.replication.format.settings import NAMES, GroupSettings, Value
from escrowmq.replication.format.share_ops import group_settings
from escrowmq.replication.model import NO_ID, ResultCode

#: Submits one operation to a broker group; returns its result code and the information that comes with it.
Submit = Callable[[int, bytes], tuple[int, Any]]
#: Each further round means that someone else changed the group's settings during the last one.
ROUNDS_MAX = 10
_NO_SETTINGS = frozenset(("name", "first_group", "topic_id"))


def set_group(
    submit: Submit, groups: int, group: str, values: Mapping[str, Value], by: str = ""
) -> GroupSettings:
    """Gives the group these settings, in every broker group; returns all that are then in force. Safe to
    repeat; without values it completes an interrupted change. ``by``: whom the audit trail names for it.

    A kind is decided in the group's coordinator's broker group first, which knows whether it has offsets.
    Raises ConfigError, GroupKindMismatch, or Overloaded when others keep changing them.
    """
    check_group(group)
    found, number = _told(group, *submit(0, group_settings(group, {})))
    if values:
        if "kind" in values:
            gid = coordinator_group(group, groups)
            _told(group, *submit(gid, group_settings(group, {"kind": values["kind"]})))
        for _ in range(ROUNDS_MAX):
            code, told = submit(0, group_settings(group, values, number, by))
            found, number = _told(group, code, told)
            if code != ResultCode.RETRY:
                break
        else:
            raise Overloaded(f"others keep changing the settings of group {group!r}", 1.0)
    wanted = {name: value for name, value in found.items() if value != ""}  # no kind is decided
    for gid in range(1, groups):
        _told(group, *submit(gid, group_settings(group, wanted, number)))
    return settings_told(found)


def group_settings_now(submit: Submit, group: str) -> GroupSettings:
    """The settings in force, as broker group 0 has them."""
    return settings_told(_told(group, *submit(0, group_settings(group, {})))[0])


def settings_told(values: Mapping[str, Any]) -> GroupSettings:
    """What a broker has told; settings that only later versions know are left out."""
    return GroupSettings().changed({name: value for name, value in values.items() if name in NAMES})


def _told(group: str, code: int, told: Any) -> tuple[dict[str, Value], int]:
    if code in (ResultCode.OK, ResultCode.DUPLICATE, ResultCode.RETRY):
        settings, number = told
        return settings, number
    if code == ResultCode.GROUP_KIND:
        raise GroupKindMismatch(group, str(told))
    raise EscrowMQError(f"settings of group {group!r} were refused: {ResultCode(code).name} {told!r}")


def create_internal_topic(submit: Submit, groups: int, name: str) -> int:
    """Creates a topic into which only brokers write, in every broker group; returns its id. Safe to repeat; a
    topic that exists keeps its settings."""
    settings: dict[str, Any] = {"partitions": groups}
    topic_id = NO_ID
    for gid in range(groups):
        code, info = submit(gid, ops.create_topic(name, settings, 0, topic_id))
        if code not in (ResultCode.OK, ResultCode.DUPLICATE, ResultCode.TOPIC_EXISTS):
            raise EscrowMQError(
                f"creating {name!r} was refused in broker group {gid}: {ResultCode(code).name} {info!r}; if "
                "its deletion was interrupted, repeat that first"
            )
        if gid == 0 and code == ResultCode.TOPIC_EXISTS:
            topic_id = info["topic_id"]
            settings = {key: value for key, value in info.items() if key not in _NO_SETTINGS}
        elif gid == 0:
            topic_id = info
    return topic_id


def of_kind(submit: Submit, groups: int, group: str, kind: str) -> GroupSettings:
    """Decides the group's kind, if nobody has. Raises GroupKindMismatch."""
    settings = set_group(submit, groups, group, {})
    return settings if settings.kind == kind else set_group(submit, groups, group, {"kind": kind})


def make_internal_topics(router: ClientLoop, submit: Submit, group: str, timeout_s: float) -> None:
    """Creates the group's topics of retries and of dead letters, where they do not exist. Every broker group
    is asked: a creation that was interrupted behind the first one is to be completed."""
    names = [retry_topic(group), dead_topic(group)]
    groups = router.info.groups
    asked = [router.leader_call(gid, "topics", names, timeout_s=timeout_s) for gid in range(groups)]
    known = [{info.name for info in result_of(future, timeout_s)} for future in asked]
    for name in names:
        if not all(name in there for there in known):
            create_internal_topic(submit, groups, name)


# ------------------------------------------------------------------------------------------------------------
# Sends what is said of one message until it is durable: that it failed, or that it is done, with a reply.

#: Pauses before a nack that did not fit into its entry is sent again.
AGAIN = Backoff(first_s=0.02, longest_s=0.5, jitter=0.5)


def send_settling(
    router: Router,
    group: str,
    gid: int,
    request: bytes,
    message: tuple[str, int, int],
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
        if code == ResultCode.UNKNOWN_TOPIC and info and info[0] != message[0]:
            create_internal_topic(submit, router.info.groups, info[0])
        elif code != ResultCode.RETRY:
            raise why_not(group, message, code, info)
        if router.clock() >= deadline:
            raise Unavailable("a nack does not get into the log: the broker is busy with others", 1.0)
        pause(AGAIN.pause_s(attempts))
        attempts += 1


def why_not(group: str, message: tuple[str, int, int], code: int, info: Any) -> EscrowMQError:
    """The error for a message that a group could not settle. ``message``: topic, partition, offset."""
    topic, partition, offset = message
    if code == ResultCode.LEASE_LOST:
        return LeaseLost(topic, partition, offset)
    if code in (ResultCode.UNKNOWN_TOPIC, ResultCode.BAD_PARTITION, ResultCode.OTHER_TOPIC):
        return UnknownTopic(topic, gone=True)
    if code == ResultCode.UNKNOWN_SHARE:
        return UnknownGroup(group)
    if code == ResultCode.OUT_OF_RANGE:
        start, end = info
        return OffsetOutOfRange(topic, partition, offset, start, end, True)
    if code == ResultCode.TOO_MANY_SCHEDULED:
        return TooManyScheduled(f"{info} messages wait for their time in this broker group", 1.0)
    refused = f"offset {offset} of {topic}/{partition} cannot be settled"
    return EscrowMQError(f"{refused}: {ResultCode(code).name} {info!r}")
