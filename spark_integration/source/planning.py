"""Plans one batch read: the partitions, their offset ranges, and how these are split into Spark tasks.

Pure decisions from a ``Catalog`` (the cluster's topics and offsets). Offsets are dense and a committed
message never changes, so a plan reads the same records however often Spark retries its tasks. A plan never
goes beyond what was committed when it was made.
"""

from __future__ import annotations

import heapq
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from escrowmq.actors.client.consumer_groups import TopicPartition
from escrowmq.replication.errors import ConfigError, DataLoss, Unavailable, UnknownTopic
from escrowmq.replication.format.internal_topics import is_internal
from escrowmq.spark_integration.source.bounds import EARLIEST, LATEST, Bound, BoundKind
from escrowmq.spark_integration.source.options import SourceOptions, Subscription
from escrowmq.spark_integration.source.pushdown import EVERYTHING, Restriction

log = logging.getLogger(__name__)

#: Next offset to read, by partition.
Offsets = Mapping[TopicPartition, int]


class Catalog(Protocol):
    """The cluster's data that planning needs."""

    def topics(self) -> Mapping[str, int]:
        """Topic -> number of partitions."""

    def offsets(self, wanted: Sequence[tuple[str, int, int]]) -> list[int]:
        """For each (topic, partition, ms | -1 latest | -2 earliest): the first offset at or after it."""

    def cut(self, topics: Sequence[str]) -> Offsets:
        """The ends of all partitions at a stable cut."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets ``start`` to ``end`` (exclusive) of one partition: the work of one Spark task."""

    topic: str
    partition: int
    start: int
    end: int


def plan(options: SourceOptions, catalog: Catalog, only: Restriction = EVERYTHING) -> list[OffsetRange]:
    """The tasks of one read, ordered by topic, partition and offset, without empty ranges."""
    chosen = select_partitions(options.subscription, catalog.topics())
    partitions = [which for which in chosen if only.allows(*which)]
    for bound in (options.starting, options.ending):
        _check_named(bound, chosen)  # all subscribed ones: a filter must not hide a mistake
    earliest = _ask(catalog, partitions, EARLIEST)
    latest = _latest(options, catalog, partitions)
    starts = _resolve(options.starting, partitions, earliest, latest, catalog)
    starts = _inside(starts, earliest, latest, options.fail_on_data_loss)
    ends = _resolve(options.ending, partitions, earliest, latest, catalog)
    ends = _inside(ends, dict.fromkeys(ends, 0), latest, options.fail_on_data_loss)
    ranges = []
    for which in partitions:
        start, end = only.narrow(starts[which], ends[which])
        if start < end:
            ranges.append(OffsetRange(*which, start, end))
    ranges = _narrow_by_time(ranges, only, catalog)
    return split(ranges, options.min_partitions, options.max_records_per_partition)


def initial_offsets(options: SourceOptions, catalog: Catalog) -> dict[TopicPartition, int]:
    """Where a new stream starts: the first offset to read of each partition."""
    partitions = select_partitions(options.subscription, catalog.topics())
    _check_named(options.starting, partitions)
    earliest = _ask(catalog, partitions, EARLIEST)
    latest = _latest(options, catalog, partitions)
    starts = _resolve(options.starting, partitions, earliest, latest, catalog)
    return _inside(starts, earliest, latest, options.fail_on_data_loss)


def _latest(options: SourceOptions, catalog: Catalog, partitions: Sequence[TopicPartition]) -> Offsets:
    if not options.at_a_cut:
        return _ask(catalog, partitions, LATEST)
    topics = sorted({topic for topic, _ in partitions})
    ends = catalog.cut(topics) if topics else {}
    # What a transaction below the cut has been sent to was created before it.
    if select_partitions(options.subscription, catalog.topics()) != list(partitions):
        raise Unavailable("topics or partitions came or went while a cut was looked for; read again", 1.0)
    return {which: ends[which] for which in partitions}


def select_partitions(subscription: Subscription, topics: Mapping[str, int]) -> list[TopicPartition]:
    """The partitions of a subscription. Raises UnknownTopic; but a pattern may match nothing."""
    if subscription.assigned:
        for topic, wanted in subscription.assigned.items():
            if topic not in topics:
                raise UnknownTopic(topic)
            for partition in wanted:
                if partition >= topics[topic]:
                    raise UnknownTopic(topic, partition, topics[topic])
    for name in subscription.topics:
        if name not in topics:
            raise UnknownTopic(name)
    return present_partitions(subscription, topics)


def present_partitions(subscription: Subscription, topics: Mapping[str, int]) -> list[TopicPartition]:
    """The existing partitions of a subscription, for a stream, whose topics may be created and deleted."""
    if subscription.assigned:
        return sorted(
            (topic, p)
            for topic, wanted in subscription.assigned.items()
            for p in wanted
            if p < topics.get(topic, 0)
        )
    if subscription.pattern is not None:
        match = re.compile(subscription.pattern).fullmatch
        names = [name for name in topics if not is_internal(name) and match(name)]
    else:
        names = [name for name in subscription.topics if name in topics]
    return sorted((name, p) for name in names for p in range(topics[name]))


def split(
    ranges: Sequence[OffsetRange], min_partitions: int | None, max_records: int | None
) -> list[OffsetRange]:
    """Split ranges so that none is longer than ``max_records`` and there are at least ``min_partitions``.

    As in the Kafka source, ranges that are too long are split first. Only if there are still too few ranges,
    the large ones are split further into pieces of about the same size. There are never more pieces than
    records.
    """
    pieces = list(ranges)
    if max_records is not None:
        pieces = [piece for r in ranges for piece in _cut(r, -(-(r.end - r.start) // max_records))]
    if min_partitions is None or len(pieces) >= min_partitions:
        return pieces
    counts = _counts([r.end - r.start for r in pieces], min_partitions)
    return [piece for r, count in zip(pieces, counts, strict=True) for piece in _cut(r, count)]


def _cut(r: OffsetRange, count: int) -> list[OffsetRange]:
    """``count`` pieces whose sizes differ by at most one record."""
    size = r.end - r.start
    cuts = [r.start + size * i // count for i in range(count + 1)]
    return [OffsetRange(r.topic, r.partition, a, b) for a, b in pairwise(cuts)]


def _counts(sizes: Sequence[int], wanted: int) -> list[int]:
    """The number of pieces for each of ``sizes``, ``wanted`` in total, or slightly more because of rounding.

    Sizes whose share is one piece stay whole, and the others share the rest in proportion. Rounding can give
    too few pieces; the Kafka source accepts that, but here the sizes with the longest pieces get one more.
    """

    def share(size: int, total: int, count: int) -> int:
        return min(size, max(1, (2 * size * count + total) // (2 * total)))

    total = sum(sizes)
    large = [i for i, size in enumerate(sizes) if share(size, total, wanted) > 1]
    left, rest = max(1, wanted - len(sizes) + len(large)), sum(sizes[i] for i in large)
    counts = [1] * len(sizes)
    for i in large:
        counts[i] = share(sizes[i], rest, left)
    longest = [(-size / count, i) for i, (size, count) in enumerate(zip(sizes, counts, strict=True))]
    heapq.heapify(longest)
    for _ in range(min(wanted, total) - sum(counts)):
        _, i = longest[0]
        counts[i] += 1
        heapq.heapreplace(longest, (-sizes[i] / counts[i], i))
    return counts


def _ask(catalog: Catalog, partitions: Sequence[TopicPartition], moment: int) -> dict[TopicPartition, int]:
    found = catalog.offsets([(topic, partition, moment) for topic, partition in partitions])
    return dict(zip(partitions, found, strict=True))


def _resolve(
    bound: Bound,
    partitions: Sequence[TopicPartition],
    earliest: Offsets,
    latest: Offsets,
    catalog: Catalog,
) -> Offsets:
    if bound.kind is BoundKind.EARLIEST:
        return earliest
    if bound.kind is BoundKind.LATEST:
        return latest
    if bound.kind is BoundKind.OFFSETS:
        words = {EARLIEST: earliest, LATEST: latest}
        named = {which: bound.table[which[0]][which[1]] for which in partitions}
        return {which: words[offset][which] if offset < 0 else offset for which, offset in named.items()}
    moments = [
        (topic, p, bound.table[topic][p] if bound.kind is BoundKind.TIMESTAMPS else bound.timestamp_ms)
        for topic, p in partitions
    ]
    found: dict[TopicPartition, int] = {}
    for (topic, p, moment), offset in zip(moments, catalog.offsets(moments), strict=True):
        # A message may have been committed since ``latest`` was read; the plan must not go beyond ``latest``.
        found[topic, p] = min(offset, latest[topic, p])
        if bound.strict and offset >= latest[topic, p]:
            raise ConfigError(
                f"option {bound.option!r}: {topic}/{p} has no message of {moment} ms or later; give an "
                "earlier time, or startingOffsetsByTimestampStrategy=latest to start at its end"
            )
    return found


def _inside(
    offsets: Offsets, earliest: Offsets, latest: Offsets, fail_on_data_loss: bool
) -> dict[TopicPartition, int]:
    """``offsets``, moved into the log if they are outside. Raises DataLoss if ``fail_on_data_loss``."""
    found = {}
    for which, offset in offsets.items():
        first, last = earliest[which], latest[which]
        found[which] = max(first, min(offset, last))
        if found[which] == offset:
            continue
        before, behind = f"offsets {offset} to {first} are gone", f"ends at offset {last}, before {offset}"
        gone = f"{which[0]}/{which[1]}: {before if offset < first else behind}"
        if fail_on_data_loss:
            raise DataLoss(gone)
        log.warning("%s: skipped, since failOnDataLoss is false", gone)
    return found


def _check_named(bound: Bound, partitions: Sequence[TopicPartition]) -> None:
    if bound.kind not in (BoundKind.OFFSETS, BoundKind.TIMESTAMPS):
        return
    named = {(topic, p) for topic, table in bound.table.items() for p in table}
    missing, extra = sorted(set(partitions) - named), sorted(named - set(partitions))
    if missing or extra:
        raise ConfigError(
            f"option {bound.option!r} must name exactly the partitions that are read: "
            f"missing {listed(missing)}, not read {listed(extra)}"
        )


def _narrow_by_time(ranges: list[OffsetRange], only: Restriction, catalog: Catalog) -> list[OffsetRange]:
    for moment, from_there in ((only.time_min_ms, True), (only.time_end_ms, False)):
        if moment is None or not ranges:
            continue
        found = catalog.offsets([(r.topic, r.partition, max(moment, 0)) for r in ranges])
        cut = [
            OffsetRange(r.topic, r.partition, max(r.start, offset), r.end)
            if from_there
            else OffsetRange(r.topic, r.partition, r.start, min(r.end, offset))
            for r, offset in zip(ranges, found, strict=True)
        ]
        ranges = [r for r in cut if r.start < r.end]
    return ranges


def listed(partitions: Sequence[TopicPartition]) -> str:
    """Partitions as text for errors: ``orders/0, orders/1``."""
    return ", ".join(f"{topic}/{partition}" for topic, partition in partitions) or "none"
