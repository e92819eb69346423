"""Before a share consumer can ask for messages: the group's kind, its internal topics, and where it begins.

All of it exists after the first consumer of a group, so it is asked first and written only where it is
missing. Every step may be repeated, also by several consumers at once. Blocking calls, each bounded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from escrowmq.actors.client.catalog import TopicCatalog
from escrowmq.actors.client.results import outcome, submitting
from escrowmq.actors.client.router import Router, result_of
from escrowmq.actors.client.share_groups import make_internal_topics, of_kind
from escrowmq.actors.client.share_level import await_level
from escrowmq.actors.share_consumer.held_batches import PlaceOfBatch
from escrowmq.replication.errors import (
    EscrowMQError,
    GroupKindMismatch,
    Overloaded,
    TopicRecreated,
    UnknownTopic,
)
from escrowmq.replication.format.share_ops import share_create
from escrowmq.replication.format.share_settings import SHARE, GroupSettings
from escrowmq.replication.model import ResultCode


@dataclass(frozen=True, slots=True)
class Begun:
    """``topics``: broker group -> the topics of which it has partitions. ``places``: all of these partitions,
    with the ids of their topics."""

    settings: GroupSettings
    topics: Mapping[int, Sequence[str]]
    places: Set[PlaceOfBatch]


def begin(router: Router, group: str, topics: Sequence[str], create: str, timeout_s: float) -> Begun:
    """Makes everything that the group needs. ``create``: "earliest" or "latest", where it begins in
    partitions that it has never read.

    Raises UnknownTopic, GroupKindMismatch, NotSupported (below format level 9), Overloaded, Unavailable.
    """
    catalog = TopicCatalog(router, timeout_s, clock=router.clock)
    names = tuple(dict.fromkeys(topics))
    catalog.learn(names)
    by_group: dict[int, dict[str, list[int]]] = {}
    for topic in names:
        for partition in range(catalog.partitions(topic)):
            gid = router.places.group_of(topic, partition)
            by_group.setdefault(gid, {}).setdefault(topic, []).append(partition)
    await_level(router, timeout_s)
    # From here on something is written: a misspelt topic has no effect.
    submit = submitting(router, timeout_s)
    settings = of_kind(submit, router.info.groups, group, SHARE)
    make_internal_topics(router, submit, group, timeout_s)
    every: set[PlaceOfBatch] = set()
    for gid, found in by_group.items():
        places = [(topic, partition) for topic, partitions in found.items() for partition in partitions]
        ids = router.places.id_of
        every.update((*place, ids(place[0])) for place in places)
        request = b"".join(share_create(group, *place, create, ids(place[0])) for place in places)
        results = result_of(router.submit(gid, request, timeout_s), timeout_s)
        for (topic, _), result in zip(places, results, strict=True):
            code, info = outcome(result)
            if code not in (ResultCode.OK, ResultCode.DUPLICATE):
                raise not_begun(group, topic, code, info)
    # A broker group without partitions of the topics has no retries of them either.
    return Begun(settings, {gid: sorted(found) for gid, found in by_group.items()}, every)


def not_begun(group: str, topic: str, code: int, info: Any) -> EscrowMQError:
    """Why a group cannot read a partition."""
    if code == ResultCode.GROUP_KIND:
        return GroupKindMismatch(group, str(info))
    if code == ResultCode.OTHER_TOPIC:
        return TopicRecreated(topic)
    if code in (ResultCode.UNKNOWN_TOPIC, ResultCode.BAD_PARTITION):
        return UnknownTopic(topic)
    if code == ResultCode.TOO_MANY_SHARES:
        return Overloaded(f"share groups already read {info} partitions of a broker group, its limit", 1.0)
    return EscrowMQError(f"group {group!r} cannot read {topic!r}: {ResultCode(code).name} {info!r}")
