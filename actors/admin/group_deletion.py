"""Deleting a consumer group: its places, in its coordinator's broker group, its settings, and its internal
topics.

The coordinator deletes only the places that the caller has seen, and only while the group has no members. So
a request that arrives late does nothing to a group that is in use again. A former member that does not know
of the deletion is refused when it commits: otherwise the group would come back with this member's places.
"""

from __future__ import annotations

from collections.abc import Mapping

from escrowmq.actors.admin.topic_deletion import delete_topic
from escrowmq.actors.client.consumer_groups import (
    GroupCallRefused,
    GroupLives,
    GroupSnapshot,
    PlacesMoved,
    coordinator_group,
)
from escrowmq.actors.client.router import Router, result_of
from escrowmq.actors.client.share_groups import Submit
from escrowmq.replication.errors import (
    EscrowMQError,
    GroupNotEmpty,
    InvalidMessage,
    NotSupported,
    Overloaded,
    UnknownGroup,
    UnknownTopic,
)
from escrowmq.replication.format import share_ops
from escrowmq.replication.format.internal_topics import dead_topic, owner_problem, retry_topic
from escrowmq.replication.format.share_settings import SHARE
from escrowmq.replication.model import ResultCode

#: A further round is needed only if another client set the group's places meanwhile.
ROUNDS_MAX = 5


def delete_group(
    router: Router, group: str, timeout_s: float, submit: Submit, by: str, topics: Mapping[str, int]
) -> None:
    """Deletes the group's places and settings; of a share group, what all broker groups know of it; and then
    its topics of retries and dead letters. ``topics``: the ids of those that broker group 0 knows.

    A new group of the name would otherwise read what the deleted one had handled: which of the retries are
    final is forgotten with the group. Safe to repeat: a group of which only topics are left is deleted, too.
    Raises UnknownGroup if there is nothing, GroupNotEmpty, NotSupported while a replica runs older software,
    OffsetsPending while a transaction holds one of its places, Overloaded if other clients keep setting them.
    """
    has_topics = owner_problem("group", group) is None
    try:
        shared = _delete(router, group, timeout_s, submit, by, has_topics)
    except UnknownGroup:
        if not (has_topics and delete_topics(submit, router.info.groups, group, topics)):
            raise
        return
    if has_topics and (shared or topics):
        delete_topics(submit, router.info.groups, group, topics)


def delete_topics(submit: Submit, groups: int, group: str, known: Mapping[str, int]) -> bool:
    """Deletes the group's internal topics in every broker group; returns whether there was one. ``known``:
    see ``delete_group``."""
    found = False
    for name in (retry_topic(group), dead_topic(group)):
        try:
            delete_topic(submit, groups, name, known.get(name))
        except UnknownTopic:
            continue
        found = True
    return found


def _delete(router: Router, group: str, timeout_s: float, submit: Submit, by: str, has_topics: bool) -> bool:
    """Everything but topics; returns whether it was a share group."""
    gid = coordinator_group(group, router.info.groups)
    for _ in range(ROUNDS_MAX):
        seen: GroupSnapshot = result_of(
            router.leader_call(gid, "group_describe", group, timeout_s=timeout_s), timeout_s
        )
        if seen.members:
            raise GroupNotEmpty(group, [member.member for member in seen.members])
        if seen.settings.get("kind") == SHARE:
            _check_unused(router, group, timeout_s)
            delete_share_group(submit, router.info.groups, group, by)
            return True
        if not seen.committed and not seen.settings:
            # A leader that was deposed and does not know it has not heard of a young group: ask the log.
            if has_topics and _has_settings(submit, gid, group):
                continue
            # Perhaps an earlier deletion was interrupted behind its first step.
            if seen.generation and _forget_settings(submit, router.info.groups, group):
                return False
            raise UnknownGroup(group)
        if not seen.generation:
            raise NotSupported(f"group {group!r} cannot be deleted yet: upgrade every replica first")
        places = {topic: dict(offsets) for topic, offsets in seen.committed.items()}
        answer: GroupLives | PlacesMoved | GroupCallRefused | None = result_of(
            router.leader_call(gid, "group_delete", group, places, timeout_s=timeout_s), timeout_s
        )
        if answer is None:
            if seen.settings:
                _forget_settings(submit, router.info.groups, group)
            return False
        if isinstance(answer, GroupLives):
            raise GroupNotEmpty(group, answer.members)
        if isinstance(answer, GroupCallRefused):
            refused = InvalidMessage(f"deleting group {group!r} was refused: {answer.reason}")
            raise answer.error(group, refused)
    raise Overloaded(f"the places of group {group!r} keep changing", 1.0)


def _check_unused(router: Router, group: str, timeout_s: float) -> None:
    """Asks all broker groups before anything is deleted in any: a member that holds a message of one keeps
    only that one from forgetting what the group has finished. Raises GroupNotEmpty, and NotSupported."""
    asked = [
        router.leader_call(gid, "share_members", group, timeout_s=timeout_s)
        for gid in range(router.info.groups)
    ]
    if members := sorted({member for future in asked for member in result_of(future, timeout_s)}):
        raise GroupNotEmpty(group, members)


def _has_settings(submit: Submit, gid: int, group: str) -> bool:
    """Whether the group has settings in this broker group, according to its log."""
    try:
        code, told = submit(gid, share_ops.group_settings(group, {}))
    except (NotSupported, InvalidMessage):  # below format level 9 no group has; the second: older software
        return False
    return code == ResultCode.OK and bool(told[1])


def _forget_settings(submit: Submit, groups: int, group: str) -> bool:
    """Deletes the settings of a group that reads by offsets in all broker groups but its coordinator's, which
    has deleted the group. Returns whether one had any."""
    found = [_gone(submit, gid, group) for gid in range(groups) if gid != coordinator_group(group, groups)]
    return any(found)


def delete_share_group(submit: Submit, groups: int, group: str, by: str) -> None:
    """Deletes what broker groups know of a share group. The one that decides its kind is the last: until then
    an interrupted deletion can be repeated. Each leader refuses it while members hold or want its messages.

    Raises GroupNotEmpty, UnknownGroup."""
    last = coordinator_group(group, groups)
    found = False
    for gid in (*(gid for gid in range(groups) if gid != last), last):
        found = _gone(submit, gid, group, by if gid == last else "") or found
    if not found:
        raise UnknownGroup(group)


def _gone(submit: Submit, gid: int, group: str, by: str = "") -> bool:
    """Deletes it in one broker group; returns whether anything was there. Raises GroupNotEmpty."""
    code, info = submit(gid, share_ops.delete_share_group(group, by))
    if code == ResultCode.LEASE_LOST:
        raise GroupNotEmpty(group, info)
    if code not in (ResultCode.OK, ResultCode.DUPLICATE):
        raise EscrowMQError(f"deleting group {group!r} was refused: {ResultCode(code).name} {info!r}")
    return code == ResultCode.OK
