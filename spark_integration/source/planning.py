"""Plans one batch read: the partitions, their offset ranges, and how these are split into Spark tasks.

Pure decisions from a ``Catalog`` (the cluster's topics and offsets). Offsets are dense and a committed
message never changes, so a plan reads the same records however often Spark retries its tasks. A plan never
goes beyond what was committed when it was made.
"""

from __future__ import annotations

import heapq
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Protocol

from escrowmq.actors.client.consumer_groups import TopicPartition
from escrowmq.replication.errors import ConfigError, DataLoss, Unavailable, UnknownTopic
from escrowmq.replication.format.internal_topics import is_internal
from escrowmq.spark_integration.source.options import (
    EARLIEST,
    LATEST,
    Bound,
    BoundKind,
    SourceOptions,
    Subscription,
)

# ------------------------------------------------------------------------------------------------------------
# Uses filters on ``topic``, ``partition``, ``offset`` and ``timestamp`` to shorten a plan.
#
# Filters on the first three columns are applied exactly, so Spark need not check the rows again. A filter on
# time is converted to offsets with the brokers' index, and Spark applies it as well. Filters are identified
# by the names of their classes, so this module does not need Spark. A filter that is not understood is
# returned to Spark and never dropped.

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
#: (positive, column, values): the column's value must be one of them, or none of them.
_Member = tuple[bool, str, frozenset[Any]]
_TYPES: dict[str, type] = {"topic": str, "partition": int, "offset": int}


@dataclass(frozen=True, slots=True)
class Restriction:
    """Conditions on rows: offsets in ``[offset_min, offset_end)``, likewise partitions, and times in ms."""

    members: tuple[_Member, ...] = ()
    partition_min: int | None = None
    partition_end: int | None = None
    offset_min: int | None = None
    offset_end: int | None = None
    time_min_ms: int | None = None
    time_end_ms: int | None = None

    def allows(self, topic: str, partition: int) -> bool:
        """Whether the partition can have rows that satisfy the conditions."""
        if self.partition_min is not None and partition < self.partition_min:
            return False
        if self.partition_end is not None and partition >= self.partition_end:
            return False
        here = {"topic": topic, "partition": partition}
        return all((here[column] in values) is positive for positive, column, values in self.members)

    def narrow(self, start: int, end: int) -> tuple[int, int]:
        """The part of the offsets ``[start, end)`` that can satisfy the conditions."""
        if self.offset_min is not None:
            start = max(start, self.offset_min)
        if self.offset_end is not None:
            end = min(end, self.offset_end)
        return start, end


EVERYTHING = Restriction()


def push(filters: Iterable[Any]) -> tuple[Restriction, list[Any]]:
    """``(restriction, those of the filters that Spark still has to apply)``."""
    only, left = EVERYTHING, []
    for filter_ in filters:
        narrower, exact = _apply(only, filter_)
        only = narrower or only
        if narrower is None or not exact:
            left.append(filter_)
    return only, left


def _apply(only: Restriction, filter_: Any) -> tuple[Restriction | None, bool]:
    """(narrower restriction or None, whether it is equivalent to the filter)."""
    kind, positive = type(filter_).__name__, True
    if kind == "Not":
        filter_, positive = filter_.child, False
        kind = type(filter_).__name__
    if len(filter_.attribute) != 1:
        return None, False
    (column,) = filter_.attribute
    if kind == "IsNotNull" and positive and column in (*_TYPES, "timestamp"):
        return only, True  # these are never null
    value: Any = getattr(filter_, "value", None)
    if kind in ("EqualTo", "EqualNullSafe"):
        kind, value = "In", (value,)
    if column in ("topic", "partition") and kind == "In":
        if not all(type(v) is _TYPES[column] for v in value):
            return None, False
        return replace(only, members=(*only.members, (positive, column, frozenset(value)))), True
    if not positive:
        return None, False
    if column in ("partition", "offset"):
        return _integers(only, column, kind, value)
    if column == "timestamp":
        return _times(only, kind, value), False
    return None, False


def _integers(only: Restriction, column: str, kind: str, value: Any) -> tuple[Restriction | None, bool]:
    if kind == "In":
        if not value or not all(type(v) is int for v in value):
            return None, False
        return _between(only, column, min(value), max(value) + 1), len(value) == 1
    if type(value) is not int or kind not in _LOWER | _UPPER:
        return None, False
    if kind in _LOWER:
        return _between(only, column, value + _LOWER[kind], None), True
    return _between(only, column, None, value + _UPPER[kind]), True


#: Comparison -> number to add to its operand to get the first value, or the (exclusive) end.
_LOWER = {"GreaterThan": 1, "GreaterThanOrEqual": 0}
_UPPER = {"LessThan": 0, "LessThanOrEqual": 1}


def _times(only: Restriction, kind: str, value: Any) -> Restriction | None:
    if kind == "In":
        if not value or not all(map(_is_moment, value)):
            return None
        return _between(only, "time", _floor_ms(min(value)), _floor_ms(max(value)) + 1)
    if not _is_moment(value) or kind not in _LOWER | _UPPER:
        return None
    # Rounded outwards to whole milliseconds; Spark compares exactly afterwards.
    if kind in _LOWER:
        return _between(only, "time", _floor_ms(value), None)
    return _between(only, "time", None, _floor_ms(value) + 1)


def _between(only: Restriction, column: str, low: int | None, end: int | None) -> Restriction:
    unit = "_ms" if column == "time" else ""
    lower, upper = f"{column}_min{unit}", f"{column}_end{unit}"
    old_low, old_end = getattr(only, lower), getattr(only, upper)
    lows = [n for n in (low, old_low) if n is not None]
    ends = [n for n in (end, old_end) if n is not None]
    changes = {lower: max(lows) if lows else None, upper: min(ends) if ends else None}
    return replace(only, **changes)  # type: ignore[arg-type]


def _is_moment(value: Any) -> bool:
    return isinstance(value, datetime) and value.tzinfo is not None  # else its time zone is not known


def _floor_ms(moment: datetime) -> int:
    return (moment - _EPOCH) // _MS


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
