"""Plans a read: offset ranges within what is committed now, with their sizes in bytes, shared out to tasks.

Offsets are dense and a committed message never changes, so a plan reads the same rows however often Ray
repeats its tasks. Leaders are asked, since followers may lag.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypeVar

from escrowmq.actors.client.catalog import TopicCatalog
from escrowmq.actors.client.router import Router, result_of
from escrowmq.actors.consumer.offsets import EARLIEST, LATEST, OffsetReader
from escrowmq.replication.calling.answers import PartitionSpans
from escrowmq.replication.calling.patience import Backoff, Patience, patiently
from escrowmq.replication.errors import (
    ConfigError,
    OffsetOutOfRange,
    OutcomeUnknown,
    Overloaded,
    Unavailable,
    UnknownTopic,
)
from escrowmq.replication.model import NO_ID, ResultCode
from escrowmq.spark_integration.source.planning import OffsetRange

T = TypeVar("T")
#: Limit of one call. Planning makes three small ones; a fail-over takes 1 to 2 s, a lost node up to 15 s.
CALL_S = 15.0
#: How long planning survives failing leaders: somebody waits for ``read`` to return.
PATIENCE_S = 45.0
RETRY = Backoff(first_s=0.05, longest_s=1.0, jitter=0.5)
#: Brokers answer for this many partitions at a time.
PARTITIONS_PER_CALL = 10_000
#: Asks for the size of a whole range.
ALL_BYTES = 1 << 60


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """A range, the bytes that its messages take in the log, the broker group that has it, the replica that
    led it when this was planned, and the id of its topic."""

    part: OffsetRange
    size_bytes: int
    group: int = 0
    leader: int | None = None
    topic_id: int = NO_ID

    @property
    def messages(self) -> int:
        return self.part.end - self.part.start


def plan(
    router: Router, topic: str, start: Any, end: Any, partitions: Sequence[int] | None
) -> list[PlannedRange]:
    """The ranges to read, by partition, without empty ones. See ``faces.read``."""
    earliest, latest, topic_id = _bounds(router, topic, partitions)
    starts = _resolve(router, topic, "start", start, earliest, latest, earliest)
    ends = _resolve(router, topic, "end", end, earliest, latest, latest)
    ranges = []
    for partition, first in starts.items():
        if ends[partition] < first and isinstance(start, Mapping) and isinstance(end, Mapping):
            raise ConfigError(
                f"start and end: {topic}/{partition} would be read from {first} back to {ends[partition]}"
            )
        if first < ends[partition]:
            ranges.append(OffsetRange(topic, partition, first, ends[partition]))
    sizes = _patiently(lambda: _sizes(router, ranges))
    group_of = router.placement.group_of
    return [
        PlannedRange(
            part, size, gid := group_of(topic, part.partition), router.channels[gid].leader, topic_id
        )
        for part, size in zip(ranges, sizes, strict=True)
    ]


def resolved(router: Router, topic: str, at: Any, partitions: Sequence[int] | None) -> dict[int, int]:
    """Partition -> offset. See ``faces.offsets``."""
    earliest, latest, _ = _bounds(router, topic, partitions)
    return _resolve(router, topic, "at", at, earliest, latest, latest)


def shared_out(ranges: Sequence[PlannedRange], tasks: int) -> list[list[PlannedRange]]:
    """The work of each task: the same number of messages for all, and at least one.

    The ranges are laid end to end and cut into equal parts, so one task may read the end of one partition and
    the beginning of the next one.
    """
    total = sum(planned.messages for planned in ranges)
    tasks = min(tasks, total)
    cuts = [total * i // tasks for i in range(1, tasks + 1)]
    shares: list[list[PlannedRange]] = [[]]
    done = 0
    for planned in ranges:
        at, end = planned.part.start, planned.part.end
        while at < end:
            upto = min(end, at + cuts[len(shares) - 1] - done)
            size = planned.size_bytes * (upto - at) // planned.messages
            shares[-1].append(
                replace(planned, part=replace(planned.part, start=at, end=upto), size_bytes=size)
            )
            done += upto - at
            at = upto
            if done == cuts[len(shares) - 1] and done < total:
                shares.append([])
    return shares if ranges else []


def _bounds(
    router: Router, topic: str, partitions: Sequence[int] | None
) -> tuple[dict[int, int], dict[int, int], int]:
    """Beginning and end of each partition that is read, and the topic's id from before that: if the topic is
    replaced meanwhile, nothing of the new one is read."""
    count = _patiently(lambda: TopicCatalog(router).partitions(topic))
    topic_id = router.placement.id_of(topic)
    chosen = sorted(range(count) if partitions is None else partitions)
    if chosen[-1] >= count:
        raise UnknownTopic(topic, chosen[-1], count)
    found = _offsets(router, [(topic, p, what) for what in (EARLIEST, LATEST) for p in chosen])
    return (
        dict(zip(chosen, found[: len(chosen)], strict=True)),
        dict(zip(chosen, found[len(chosen) :], strict=True)),
        topic_id,
    )


def _resolve(
    router: Router,
    topic: str,
    name: str,
    given: Any,
    earliest: Mapping[int, int],
    latest: Mapping[int, int],
    absent: Mapping[int, int],
) -> dict[int, int]:
    if isinstance(given, str):
        return dict(earliest if given == "earliest" else latest)
    if isinstance(given, datetime):
        ts_ms = max(int(given.timestamp() * 1000), 0)
        found = _offsets(router, [(topic, partition, ts_ms) for partition in latest])
        # A message may have been committed since ``latest`` was read; the plan must not go beyond that.
        return {p: min(offset, latest[p]) for p, offset in zip(latest, found, strict=True)}
    others = sorted(set(given) - set(latest))
    if others:
        raise ConfigError(f"{name} names partitions of {topic!r} that are not read: {others[:10]}")
    offsets = {**absent, **given}
    for partition, offset in offsets.items():
        if not earliest[partition] <= offset <= latest[partition]:
            raise OffsetOutOfRange(topic, partition, offset, earliest[partition], latest[partition])
    return offsets


def _offsets(router: Router, requests: Sequence[tuple[str, int, int]]) -> list[int]:
    found = _patiently(lambda: OffsetReader(router).offsets(requests, CALL_S))
    for offset in found:
        if isinstance(offset, UnknownTopic):
            raise offset
    return [offset for offset in found if isinstance(offset, int)]


def _sizes(router: Router, ranges: Sequence[OffsetRange]) -> list[int]:
    """Bytes of each range in the log."""
    by_group: dict[int, list[int]] = {}
    for i, part in enumerate(ranges):
        by_group.setdefault(router.placement.group_of(part.topic, part.partition), []).append(i)
    calls = []
    for gid, members in by_group.items():
        for at in range(0, len(members), PARTITIONS_PER_CALL):
            some = members[at : at + PARTITIONS_PER_CALL]
            asked = [
                (ranges[i].topic, ranges[i].partition, ranges[i].start, ranges[i].end, ALL_BYTES)
                for i in some
            ]
            calls.append((some, router.leader_call(gid, "spans", asked, timeout_s=CALL_S)))
    sizes = [0] * len(ranges)
    for some, call in calls:
        answer: PartitionSpans = result_of(call, CALL_S)
        for i, code, size in zip(some, answer.codes, answer.sizes, strict=True):
            if code != ResultCode.OK:
                raise UnknownTopic(ranges[i].topic, gone=True)
            sizes[i] = size
    return sizes


def _patiently(ask: Callable[[], T]) -> T:
    patience = Patience(PATIENCE_S, RETRY, random.Random())
    passing = (Unavailable, Overloaded, OutcomeUnknown)  # these calls only read, so they can be repeated
    return patiently(ask, patience, passing, clock=time.monotonic, sleep=time.sleep)
