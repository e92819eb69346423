"""The state of consumer groups: members, committed offsets and lag, of many groups at a time.

Each group's coordinator is asked for the members and committed offsets, and the leaders of the partitions for
the ends of those. A cluster can have tens of thousands of groups, so they are handled in portions: the groups
of a portion are asked for at once, and then the partitions of all of them together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from escrowmq.actors.admin.types import (
    GroupDescription,
    GroupPartition,
    ShareDescription,
    SharePartition,
    ShareSettings,
)
from escrowmq.actors.client.consumer_groups import GroupSnapshot, TopicPartition, coordinator_group
from escrowmq.actors.client.router import Router, result_of
from escrowmq.actors.client.share_groups import settings_told
from escrowmq.actors.consumer.offsets import OffsetReader, Passing
from escrowmq.replication.calling.answers import SharePlace, SharePlaces
from escrowmq.replication.errors import EscrowMQError, Overloaded, Unavailable, UnknownTopic
from escrowmq.replication.format.internal_topics import dead_topic, retry_topic
from escrowmq.replication.format.settings import STREAM

# ------------------------------------------------------------------------------------------------------------
# How far share groups are: asked of the leaders of all broker groups, and added up.


def describe_shares(
    router: Router, groups: Sequence[tuple[str, ShareSettings]], timeout_s: float
) -> dict[str, ShareDescription]:
    """One description for each group; asks for all of them at once."""
    asked = {
        name: [
            router.leader_call(gid, "share_places", name, timeout_s=timeout_s)
            for gid in range(router.info.groups)
        ]
        for name, _ in groups
    }
    found: dict[str, ShareDescription] = {}
    for name, settings in groups:
        answers: list[SharePlaces] = [result_of(future, timeout_s) for future in asked[name]]
        found[name] = _described(name, settings, [row for answer in answers for row in answer.rows()])
    return found


def _described(group: str, settings: ShareSettings, rows: Sequence[SharePlace]) -> ShareDescription:
    retries = [row for row in rows if row.topic == retry_topic(group)]
    dead = [row for row in rows if row.topic == dead_topic(group)]
    own = {retry_topic(group), dead_topic(group)}
    partitions = [
        SharePartition(
            row.topic, row.partition, row.start, row.end, row.waiting, row.leased, row.expired, row.ranges
        )
        for row in sorted(rows)
        if row.topic not in own
    ]
    later = sum(row.later for row in retries)
    return ShareDescription(
        settings,
        tuple(partitions),
        sum(row.leased for row in rows),
        sum(row.waiting for row in retries) + later,
        later,
        sum(row.waiting for row in dead),
    )


#: Groups asked for at a time. Their calls occupy the sixteen threads of a leader that also serve heartbeats.
AT_A_TIME = 32

Bounds = Mapping[TopicPartition, tuple[int, int] | EscrowMQError]


def describe_groups(
    router: Router, offsets: OffsetReader, groups: Iterable[str], timeout_s: float
) -> list[GroupDescription]:
    """One description for each group, in the order given; ``timeout_s`` is for each call."""
    found: list[GroupDescription] = []
    for each in describe_each(router, offsets, groups, timeout_s):
        if isinstance(each, EscrowMQError):
            raise each
        found.append(each)
    return found


def describe_each(
    router: Router, offsets: OffsetReader, groups: Iterable[str], timeout_s: float
) -> Iterator[GroupDescription | EscrowMQError]:
    """As ``describe_groups``, with the error of a broker group in place of the descriptions that need it. One
    that does not answer is waited for a few times in all, however many groups there are."""
    away: dict[int, EscrowMQError] = {}
    for names in _portions(groups):
        snapshots = _snapshots(router, names, timeout_s, away)
        shares = _shares(router, snapshots, timeout_s, away)
        bounds = _bounds(router, offsets, snapshots.values(), timeout_s, away)
        attempts = _attempts(router, snapshots, timeout_s, away)
        for name in names:
            snapshot, share, failed = snapshots[name], shares.get(name), attempts.get(name, {})
            if isinstance(snapshot, EscrowMQError):
                yield snapshot
            elif isinstance(share, EscrowMQError):
                yield share
            elif isinstance(failed, EscrowMQError):
                yield failed
            else:
                yield _description(router, name, snapshot, share, bounds, failed)


def _description(
    router: Router,
    name: str,
    snapshot: GroupSnapshot,
    share: ShareDescription | None,
    bounds: Bounds,
    attempts: Mapping[TopicPartition, int],
) -> GroupDescription | EscrowMQError:
    partitions = _described_partitions(snapshot, bounds, attempts)
    if isinstance(partitions, EscrowMQError):
        return partitions
    gid = coordinator_group(name, router.info.groups)
    share = _of_kind(name, share, partitions)
    return GroupDescription(name, gid, snapshot.members, partitions, snapshot.generation, share)


def _of_kind(
    group: str, share: ShareDescription | None, partitions: Iterable[GroupPartition]
) -> ShareDescription | None:
    """A group that reads by offsets has handled its retries up to the committed ones. If it retries in order,
    what has failed is there."""
    if share is None or share.settings.kind != STREAM:
        return share
    own = retry_topic(group)
    waiting = sum((each.lag or 0) if each.topic == own else each.attempts > 0 for each in partitions)
    return replace(share, retrying=waiting + share.retrying_later)


def _portions(groups: Iterable[str]) -> Iterator[list[str]]:
    names = iter(groups)
    while portion := list(islice(names, AT_A_TIME)):
        yield portion


def _snapshots(
    router: Router, names: Sequence[str], timeout_s: float, away: dict[int, EscrowMQError]
) -> dict[str, GroupSnapshot | EscrowMQError]:
    homes = {name: coordinator_group(name, router.info.groups) for name in names}
    asked = {
        name: router.leader_call(gid, "group_describe", name, timeout_s=timeout_s)
        for name, gid in homes.items()
        if gid not in away
    }
    found: dict[str, GroupSnapshot | EscrowMQError] = {}
    for name, gid in homes.items():
        if name not in asked:
            found[name] = away[gid]
            continue
        try:
            found[name] = result_of(asked[name], timeout_s)
        except EscrowMQError as error:
            found[name] = error
            if isinstance(error, Passing):
                away[gid] = error
    return found


def _shares(
    router: Router,
    snapshots: Mapping[str, GroupSnapshot | EscrowMQError],
    timeout_s: float,
    away: Mapping[int, EscrowMQError],
) -> dict[str, ShareDescription | EscrowMQError]:
    """Of the groups with settings. All broker groups have a part of each: without one, none is described."""
    with_settings = [
        (name, ShareSettings.of(settings_told(snapshot.settings)))
        for name, snapshot in snapshots.items()
        if not isinstance(snapshot, EscrowMQError) and snapshot.settings
    ]
    try:
        for error in away.values():
            raise error
        return dict(describe_shares(router, with_settings, timeout_s))
    except EscrowMQError as error:
        return {name: error for name, _ in with_settings}


def _bounds(
    router: Router,
    offsets: OffsetReader,
    snapshots: Iterable[GroupSnapshot | EscrowMQError],
    timeout_s: float,
    away: dict[int, EscrowMQError],
) -> dict[TopicPartition, tuple[int, int] | EscrowMQError]:
    known = [snapshot for snapshot in snapshots if not isinstance(snapshot, EscrowMQError)]
    wanted = sorted({tp for snapshot in known for tp in _partitions(snapshot)})
    placement, topics = router.placement, {topic for topic, _ in wanted}
    try:  # of group 0, which says where topics are
        if 0 not in away:
            offsets.hear(placement.unheard(topics), timeout_s)
    except (Unavailable, Overloaded) as error:
        away[0] = error
    unheard = placement.unheard(topics) if 0 in away else set[str]()
    found: dict[TopicPartition, tuple[int, int] | EscrowMQError] = {}
    for topic, number in wanted:
        gid = 0 if topic in unheard else _host(router, topic, number)
        if gid in away:
            found[topic, number] = away[gid]
    asked = [tp for tp in wanted if tp not in found]
    try:
        found.update(offsets.bounds_each(asked, timeout_s))
    except EscrowMQError as error:
        found.update(dict.fromkeys(asked, error))
        return found
    for tp in asked:
        problem = found[tp]
        if isinstance(problem, Passing):
            away.setdefault(_host(router, *tp), problem)
    return found


def _host(router: Router, topic: str, number: int) -> int:
    try:
        return router.placement.group_of(topic, number)
    except UnknownTopic:
        return -1  # deleted since it was committed


def _attempts(
    router: Router,
    snapshots: Mapping[str, GroupSnapshot | EscrowMQError],
    timeout_s: float,
    away: dict[int, EscrowMQError],
) -> dict[str, dict[TopicPartition, int] | EscrowMQError]:
    """How often the messages at the committed offsets of groups with retries have failed."""
    found: dict[str, dict[TopicPartition, int] | EscrowMQError] = {}
    asked = []
    for name, snapshot in snapshots.items():
        if isinstance(snapshot, EscrowMQError) or not snapshot.settings:
            continue
        if settings_told(snapshot.settings).kind != STREAM:
            continue
        gid = coordinator_group(name, router.info.groups)
        if gid in away:
            found[name] = away[gid]
            continue
        committed = snapshot.committed.items()
        messages = [(topic, number, at) for topic, by in committed for number, at in by.items()]
        call = router.leader_call(gid, "failed_attempts", name, messages, timeout_s=timeout_s)
        asked.append((name, gid, messages, call))
    for name, gid, messages, call in asked:
        try:
            counts = result_of(call, timeout_s)
        except EscrowMQError as error:
            found[name] = error
            if isinstance(error, Passing):
                away[gid] = error
        else:
            tps = [(topic, number) for topic, number, _ in messages]
            found[name] = dict(zip(tps, counts, strict=True))
    return found


def _partitions(snapshot: GroupSnapshot) -> set[TopicPartition]:
    """Partitions that a member reads, and partitions with a committed offset."""
    read = {tp for member in snapshot.members for tp in member.partitions}
    return read | {(topic, number) for topic, by in snapshot.committed.items() for number in by}


def _described_partitions(
    snapshot: GroupSnapshot, bounds: Bounds, attempts: Mapping[TopicPartition, int]
) -> tuple[GroupPartition, ...] | EscrowMQError:
    readers = {tp: member.member for member in snapshot.members for tp in member.partitions}
    found: list[GroupPartition] = []
    for topic, number in sorted(_partitions(snapshot)):
        known = bounds[topic, number]
        if isinstance(known, UnknownTopic):
            continue  # deleted since it was committed
        if isinstance(known, EscrowMQError):
            return known
        start, end = known
        committed = snapshot.committed.get(topic, {}).get(number)
        lag = None if committed is None else max(end - max(committed, start), 0)
        tp = topic, number
        found.append(GroupPartition(*tp, readers.get(tp), committed, end, lag, attempts.get(tp, 0)))
    return tuple(found)
