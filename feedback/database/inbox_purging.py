"""Removing an inbox's old rows in slices, as ``purging`` does with a fence's."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from escrowmq.feedback.database.inbox_rows import InboxRow, InboxStatements, disposable
from escrowmq.feedback.database.links import Link
from escrowmq.feedback.database.rows import IDENTITY_KEY
from escrowmq.replication.format.share_settings import SHARE
from escrowmq.replication.model import TopicInfo


class GroupPlaces(Protocol):
    """What a purge needs from ``cluster.admin``."""

    def topics(self) -> list[TopicInfo]:
        """All topics."""

    def describe_group(self, group: str) -> Any:
        """The group's place in each partition."""


@dataclass(frozen=True, slots=True)
class InboxPurged:
    """What a purge did: rows removed, and rows read."""

    removed: int
    read: int


def purge_inbox(
    link: Link,
    statements: InboxStatements,
    group: str,
    admin: GroupPlaces | None,
    before_ms: int,
    slice_rows: int,
    pause_s: float,
    told: Callable[[InboxPurged], None],
) -> InboxPurged:
    """One pass over the table."""
    places = None if admin is None else places_of(admin, group)
    after, removed, read = IDENTITY_KEY, 0, 0  # no digest is all zeros
    while True:
        found = [_row(values) for values in link.rows(statements.slice, {"after": after, "most": slice_rows})]
        link.commit()
        keys = disposable(found, group, before_ms, places)
        if keys:
            link.run(*statements.remove(keys))
            link.commit()
        read, removed = read + len(found), removed + len(keys)
        so_far = InboxPurged(removed, read)
        if len(found) < slice_rows:
            return so_far
        told(so_far)
        after = found[-1].key
        time.sleep(pause_s)


def places_of(admin: GroupPlaces, group: str) -> dict[tuple[str, int], int]:
    """For each partition that exists: the offset from which the group is delivered records."""
    described = admin.describe_group(group)
    # Asked for afterwards: a topic that is created meanwhile must not look like a deleted one.
    places = {(info.name, number): 0 for info in admin.topics() for number in range(info.partitions)}
    for place in described.partitions:
        places[place.topic, place.partition] = place.committed or 0
    share = getattr(described, "share", None)
    if share is not None and share.settings.kind == SHARE:  # it commits no offsets
        places.update({(place.topic, place.partition): place.start for place in share.partitions})
    return places


def _row(values: Sequence[Any]) -> InboxRow:
    key, group, topic, partition, offset, handled_ms = values
    return InboxRow(
        bytes(key), bytes(group).decode(), bytes(topic).decode(), int(partition), int(offset), int(handled_ms)
    )
