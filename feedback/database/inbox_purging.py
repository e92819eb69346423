"""Removing an inbox's old rows in slices, as ``purging`` does with a fence's."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from escrowmq.feedback.database.inbox_rows import InboxRow, InboxStatements, disposable, origin_of
from escrowmq.feedback.database.links import Link
from escrowmq.feedback.database.rows import IDENTITY_KEY
from escrowmq.replication.errors import OffsetOutOfRange
from escrowmq.replication.format.forwarded import history
from escrowmq.replication.format.internal_topics import retry_topic
from escrowmq.replication.format.share_settings import SHARE
from escrowmq.replication.model import TopicInfo

#: Dead letters, and records in the topic of retries that the group is not past, of which a purge asks. With
#: more of them it removes nothing: their rows must stay, and each costs a call.
LETTERS_MAX, RETRIES_MAX = 100_000, 1_000
#: How often it looks whether there are fewer, and the pause: consumers that work take them in no time.
LOOKS, LOOK_S = 10, 0.2
#: A pause of the group's table, with what brokers add at random.
PAUSE_MORE = 1.1


class GroupPlaces(Protocol):
    """What a purge needs from ``cluster.admin``."""

    def topics(self) -> list[TopicInfo]:
        """All topics."""

    def describe_group(self, group: str) -> Any:
        """The group's place in each partition."""

    def dead_letters(self, group: str, limit: int = 100) -> Sequence[Any]:
        """Those that were neither redriven nor dropped."""

    def message(self, topic: str, partition: int, offset: int) -> Any:
        """One message that can be read."""


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
    now_ms: int,
    before_ms: int,
    slice_rows: int,
    pause_s: float,
    told: Callable[[InboxPurged], None],
) -> InboxPurged:
    """One pass over the table."""
    places = again = None
    if admin is not None:
        for look in range(LOOKS):
            time.sleep(LOOK_S if look else 0.0)
            letters, described, places = _described(admin, group)
            again = _coming_again(admin, group, described, letters)
            if again is not None:
                break
        before_ms -= max(_longest_pause_ms(described) - (now_ms - before_ms), 0)
        if again is None:
            return InboxPurged(0, 0)
    after, removed, read = IDENTITY_KEY, 0, 0  # no digest is all zeros
    while True:
        found = [_row(values) for values in link.rows(statements.slice, {"after": after, "most": slice_rows})]
        link.commit()
        keys = disposable(found, group, before_ms, places, again or frozenset())
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


def _described(
    admin: GroupPlaces, group: str
) -> tuple[Sequence[Any] | None, Any, dict[tuple[str, int], int]]:
    """The group's dead letters (None: too many), the group, and its places. In this order: what is redriven
    meanwhile is among the letters, and what the group passes meanwhile counts as not passed."""
    share = getattr(admin.describe_group(group), "share", None)
    letters: Sequence[Any] | None = []
    if share is not None and share.dead:
        letters = admin.dead_letters(group, limit=LETTERS_MAX)
        letters = None if len(letters) >= LETTERS_MAX else letters
    described = admin.describe_group(group)
    return letters, described, places_of(admin, described)


def _coming_again(
    admin: GroupPlaces, group: str, described: Any, letters: Sequence[Any] | None
) -> set[bytes] | None:
    """Keys of records of which copies are dead letters, or wait in the group's topic of retries for a
    consumer. A group that is past a record gets it again through these. None: there are too many."""
    if letters is None:
        return None
    again = {origin_of(letter).key(group) for letter in letters if letter.origin is not None}
    own, share = retry_topic(group), getattr(described, "share", None)
    spans = [(p.partition, p.committed or 0, p.end) for p in described.partitions if p.topic == own]
    if share is not None and share.settings.kind == SHARE and share.retrying > share.retrying_later:
        return None  # which ones is not told
    if sum(end - begin for _, begin, end in spans) > RETRIES_MAX:
        return None
    for partition, begin, end in spans:
        for offset in range(begin, end):
            try:
                found = history(admin.message(own, partition, offset).headers).origin
            except OffsetOutOfRange:  # retention has removed it
                continue
            if found is not None:
                again.add(origin_of(found).key(group))
    return again


def _longest_pause_ms(described: Any) -> int:
    """How long a copy may wait for its time: nobody can look into those. Pauses that ``nack`` was given are
    not known."""
    share = getattr(described, "share", None)
    return 0 if share is None else int(max(share.settings.delays_s, default=0.0) * PAUSE_MORE * 1000)


def places_of(admin: GroupPlaces, described: Any) -> dict[tuple[str, int], int]:
    """For each partition that exists: the offset from which the group is delivered records."""
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
