"""The state of consumer groups: members, committed offsets and lag, of many groups at a time.

Each group's coordinator is asked for the members and committed offsets, and the leaders of the partitions for
the ends of those. A cluster can have tens of thousands of groups, so they are handled in portions: the groups
of a portion are asked for at once, and then the partitions of all of them together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from escrowmq.actors.admin.share_places import describe_shares
from escrowmq.actors.admin.share_types import ShareDescription, ShareSettings
from escrowmq.actors.admin.types import GroupDescription, GroupPartition
from escrowmq.actors.client.consumer_groups import GroupSnapshot, TopicPartition, coordinator_group
from escrowmq.actors.client.router import Router, result_of
from escrowmq.actors.client.share_groups import settings_told
from escrowmq.actors.consumer.offsets import OffsetReader
from escrowmq.replication.errors import UnknownTopic
from escrowmq.replication.format.internal_topics import retry_topic
from escrowmq.replication.format.share_settings import STREAM

#: Groups asked for at a time. Their calls occupy the sixteen threads of a leader that also serve heartbeats.
AT_A_TIME = 32

Bounds = Mapping[TopicPartition, tuple[int, int] | UnknownTopic]


def describe_groups(
    router: Router, offsets: OffsetReader, groups: Iterable[str], timeout_s: float
) -> list[GroupDescription]:
    """One description for each group, in the order given; ``timeout_s`` is for each call."""
    found: list[GroupDescription] = []
    for names in _portions(groups):
        snapshots = _snapshots(router, names, timeout_s)
        with_settings = [
            (name, ShareSettings.of(settings_told(snapshot.settings)))
            for name, snapshot in zip(names, snapshots, strict=True)
            if snapshot.settings
        ]
        shares = describe_shares(router, with_settings, timeout_s)
        wanted = sorted({tp for snapshot in snapshots for tp in _partitions(snapshot)})
        bounds = offsets.bounds(wanted, timeout_s)
        attempts = _attempts(router, names, snapshots, timeout_s)
        for name, snapshot in zip(names, snapshots, strict=True):
            gid = coordinator_group(name, router.info.groups)
            places = _places(snapshot, bounds, attempts.get(name, {}))
            share = _of_kind(name, shares.get(name), places)
            found.append(GroupDescription(name, gid, snapshot.members, places, snapshot.generation, share))
    return found


def _of_kind(
    group: str, share: ShareDescription | None, places: Iterable[GroupPartition]
) -> ShareDescription | None:
    """A group that reads by offsets has handled its retries up to its places. If it retries in order, what
    has failed is at its places."""
    if share is None or share.settings.kind != STREAM:
        return share
    own = retry_topic(group)
    waiting = sum((place.lag or 0) if place.topic == own else place.attempts > 0 for place in places)
    return replace(share, retrying=waiting + share.retrying_later)


def _portions(groups: Iterable[str]) -> Iterator[list[str]]:
    names = iter(groups)
    while portion := list(islice(names, AT_A_TIME)):
        yield portion


def _snapshots(router: Router, names: Sequence[str], timeout_s: float) -> list[GroupSnapshot]:
    futures = [
        router.leader_call(
            coordinator_group(name, router.info.groups), "group_describe", name, timeout_s=timeout_s
        )
        for name in names
    ]
    return [result_of(future, timeout_s) for future in futures]


def _attempts(
    router: Router, names: Sequence[str], snapshots: Sequence[GroupSnapshot], timeout_s: float
) -> dict[str, dict[TopicPartition, int]]:
    """How often the messages at the places of groups with retries have failed."""
    asked = []
    for name, snapshot in zip(names, snapshots, strict=True):
        if not snapshot.settings or settings_told(snapshot.settings).kind != STREAM:
            continue
        committed = snapshot.committed.items()
        places = [(topic, number, at) for topic, by in committed for number, at in by.items()]
        gid = coordinator_group(name, router.info.groups)
        call = router.leader_call(gid, "failed_attempts", name, places, timeout_s=timeout_s)
        asked.append((name, places, call))
    return {
        name: {
            (topic, number): count
            for (topic, number, _), count in zip(places, result_of(call, timeout_s), strict=True)
        }
        for name, places, call in asked
    }


def _partitions(snapshot: GroupSnapshot) -> set[TopicPartition]:
    """Partitions that a member reads, and partitions with a committed offset."""
    read = {tp for member in snapshot.members for tp in member.partitions}
    return read | {(topic, number) for topic, by in snapshot.committed.items() for number in by}


def _places(
    snapshot: GroupSnapshot, bounds: Bounds, attempts: Mapping[TopicPartition, int]
) -> tuple[GroupPartition, ...]:
    readers = {tp: member.member for member in snapshot.members for tp in member.partitions}
    places: list[GroupPartition] = []
    for topic, number in sorted(_partitions(snapshot)):
        known = bounds[topic, number]
        if isinstance(known, UnknownTopic):
            continue  # deleted since it was committed
        start, end = known
        place = snapshot.committed.get(topic, {}).get(number)
        lag = None if place is None else max(end - max(place, start), 0)
        tp = topic, number
        places.append(GroupPartition(*tp, readers.get(tp), place, end, lag, attempts.get(tp, 0)))
    return tuple(places)
