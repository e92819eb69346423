"""What must exist before a consumer group can use retries, dead letters or leases: its settings in every
broker group, and its internal topics.

As for topics, broker group 0 decides, and its log orders the changes: each gets a number there, and the other
groups take a change only if they have not seen a higher one. So a request that arrives late, from a client
that was paused, undoes nothing. An interrupted change leaves groups behind until the next one is completed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from escrowmq.actors.client.client_loop import ClientLoop
from escrowmq.actors.client.consumer_groups import coordinator_group
from escrowmq.actors.client.failure_arguments import check_group
from escrowmq.actors.client.router import result_of
from escrowmq.replication.errors import EscrowMQError, GroupKindMismatch, Overloaded
from escrowmq.replication.format import ops
from escrowmq.replication.format.internal_topics import dead_topic, retry_topic
from escrowmq.replication.format.share_ops import group_settings
from escrowmq.replication.format.share_settings import NAMES, GroupSettings, Value
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
    Raises ConfigError, GroupKindMismatch, NotSupported below format level 9, or Overloaded when others
    keep changing them.
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
            topic_id = info.get("topic_id", NO_ID)
            settings = {key: value for key, value in info.items() if key not in _NO_SETTINGS}
        elif gid == 0:
            topic_id = info or NO_ID
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
