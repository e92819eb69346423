"""Planning one batch read: which partitions, from which offset to which, cut into how many Spark tasks.

Pure decisions over a ``Catalog`` (what the cluster says of topics and offsets). Offsets are dense and a
committed message never changes, so a plan made once reads the same records however often Spark
retries its tasks. Never plans beyond what was committed when the plan was made.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from escrowmq.replication.errors import ConfigError, OffsetOutOfRange, UnknownTopic
from escrowmq.spark_integration.options import (
    EARLIEST,
    LATEST,
    Bound,
    BoundKind,
    SourceOptions,
    Subscription,
)

TopicPartition = tuple[str, int]


class Catalog(Protocol):
    """What planning asks of the cluster."""

    def topics(self) -> Mapping[str, int]:
        """Number of partitions by topic."""

    def offsets(self, wanted: Sequence[tuple[str, int, int]]) -> list[int]:
        """For each (topic, partition, ms | -1 latest | -2 earliest) the first offset at or after it."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets ``start`` to ``end`` (exclusive) of one partition: the work of one Spark task."""

    topic: str
    partition: int
    start: int
    end: int


def plan(options: SourceOptions, catalog: Catalog) -> list[OffsetRange]:
    """The tasks of one read, in order of topic, partition and offset; empty ranges are left out."""
    partitions = select_partitions(options.subscription, catalog.topics())
    earliest = _ask(catalog, partitions, EARLIEST)
    latest = _ask(catalog, partitions, LATEST)
    starts = _resolve(options.starting, partitions, earliest, latest, catalog)
    ends = _resolve(options.ending, partitions, earliest, latest, catalog)
    ranges = []
    for which in partitions:
        start, end = starts[which], ends[which]
        if start < earliest[which]:
            if options.fail_on_data_loss:
                raise OffsetOutOfRange(*which, start, earliest[which], latest[which])
            start = earliest[which]
        if end > latest[which] or start > latest[which]:
            raise OffsetOutOfRange(*which, max(start, end), earliest[which], latest[which])
        if start < end:
            ranges.append(OffsetRange(*which, start, end))
    return split(ranges, options.min_partitions, options.max_records_per_partition)


def select_partitions(subscription: Subscription, topics: Mapping[str, int]) -> list[TopicPartition]:
    """The partitions that a subscription means. Raises UnknownTopic; a pattern may match nothing."""
    if subscription.assigned:
        for topic, wanted in subscription.assigned.items():
            if topic not in topics:
                raise UnknownTopic(topic)
            for partition in wanted:
                if partition >= topics[topic]:
                    raise UnknownTopic(topic, partition, topics[topic])
        return sorted((topic, p) for topic, wanted in subscription.assigned.items() for p in wanted)
    if subscription.pattern is not None:
        names = [name for name in topics if re.fullmatch(subscription.pattern, name)]
    else:
        names = list(subscription.topics)
        for name in names:
            if name not in topics:
                raise UnknownTopic(name)
    return sorted((name, p) for name in names for p in range(topics[name]))


def split(
    ranges: Sequence[OffsetRange], min_partitions: int | None, max_records: int | None
) -> list[OffsetRange]:
    """Cut ranges so that there are at least ``min_partitions`` and none is longer than ``max_records``.

    Long ranges are cut into more pieces than short ones, each into pieces that differ by one record at
    most; there are never more pieces than records.
    """
    total = sum(r.end - r.start for r in ranges)
    pieces: list[OffsetRange] = []
    for r in ranges:
        size, count = r.end - r.start, 1
        if min_partitions is not None:
            count = max(count, -(-size * min_partitions // total))
        if max_records is not None:
            count = max(count, -(-size // max_records))
        count = min(count, size)
        cuts = [r.start + size * i // count for i in range(count + 1)]
        pieces += [OffsetRange(r.topic, r.partition, a, b) for a, b in pairwise(cuts)]
    return pieces


def _ask(catalog: Catalog, partitions: Sequence[TopicPartition], moment: int) -> dict[TopicPartition, int]:
    found = catalog.offsets([(topic, partition, moment) for topic, partition in partitions])
    return dict(zip(partitions, found, strict=True))


def _resolve(
    bound: Bound,
    partitions: Sequence[TopicPartition],
    earliest: Mapping[TopicPartition, int],
    latest: Mapping[TopicPartition, int],
    catalog: Catalog,
) -> Mapping[TopicPartition, int]:
    if bound.kind is BoundKind.EARLIEST:
        return earliest
    if bound.kind is BoundKind.LATEST:
        return latest
    if bound.kind is BoundKind.TIMESTAMP:
        # A message may have been committed since ``latest`` was read: the plan must not pass it.
        found = _ask(catalog, partitions, bound.timestamp_ms)
        return {which: min(offset, latest[which]) for which, offset in found.items()}
    named = {(topic, p): offset for topic, table in bound.offsets.items() for p, offset in table.items()}
    missing, extra = sorted(set(partitions) - set(named)), sorted(set(named) - set(partitions))
    if missing or extra:
        raise ConfigError(
            f"option {bound.option!r} must name exactly the partitions that are read: "
            f"missing {_listed(missing)}, not read {_listed(extra)}"
        )
    words = {EARLIEST: earliest, LATEST: latest}
    return {which: words[offset][which] if offset < 0 else offset for which, offset in named.items()}


def _listed(partitions: Sequence[TopicPartition]) -> str:
    return ", ".join(f"{topic}/{partition}" for topic, partition in partitions) or "none"
