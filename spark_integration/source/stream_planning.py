"""Planning micro-batches: when the next one comes, how far it goes, which ranges it reads, what is missing.

Pure decisions over offsets and the brokers' bounds. A batch is the difference of two offset tables, which
Spark writes down before it asks for the ranges, so after a restart the same batch is planned again and
must give the same rows: everything that depends on the moment is decided in ``advance``, nothing in
``batch`` except what retention has meanwhile removed, and that is reported.

A limit is shared out over partitions by their lags, as in Kafka's source, so partitions arrive at their ends
together. Unlike there, the limit is never exceeded, and yet no partition starves: as long as the limit
allows, each one that has anything gets at least one message; if not even that is possible, they take turns.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from escrowmq.actors.client.consumer_groups import TopicPartition
from escrowmq.replication.errors import ConfigError, DataLoss
from escrowmq.spark_integration.source.planning import OffsetRange, Offsets, listed

#: Beside the topics in the first batch's end: where the query started. Spark keeps no first offset until a
#: batch has been completed; a query that starts at ``latest`` and is stopped before would start anew
#: elsewhere and read another first batch than the one that was planned. No topic has a name with "#".
INITIAL = "#initial"
Json = dict[str, Any]
Key = TypeVar("Key", bound=Hashable)


class Bounds(NamedTuple):
    """What a partition holds: offsets ``[start, end)``."""

    start: int
    end: int


Heads = Mapping[TopicPartition, Bounds]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What one micro-batch reads, and what it cannot read any more, in words."""

    ranges: list[OffsetRange]
    missing: list[str]


def to_json(offsets: Offsets, initial: Offsets | None = None) -> Json:
    """Kafka's form: ``{"orders": {"0": 23}}``, in a fixed order, since Spark compares the texts."""
    table: Json = {}
    for topic, partition in sorted(offsets):
        table.setdefault(topic, {})[str(partition)] = offsets[topic, partition]
    return table if initial is None else {**table, INITIAL: to_json(initial)}


def from_json(table: Json) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int] | None]:
    """``(offsets, where the query started if that is its first batch's end)``. Raises ConfigError."""
    try:
        offsets = {
            (topic, int(partition)): int(offset)
            for topic, partitions in table.items()
            if topic != INITIAL
            for partition, offset in partitions.items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"the checkpoint holds no offsets of the escrowmq source: {table!r}") from error
    return offsets, from_json(table[INITIAL])[0] if INITIAL in table else None


def begin(offsets: Offsets, heads: Heads, which: TopicPartition) -> int:
    """The first offset that can be read of a partition, new ones and ones created anew from their start."""
    head = heads[which]
    offset = offsets.get(which, head.start)
    return head.start if offset > head.end else max(offset, head.start)


def lags(offsets: Offsets, heads: Heads) -> dict[TopicPartition, int]:
    """How many messages are waiting, by partition."""
    return {which: head.end - begin(offsets, heads, which) for which, head in heads.items()}


def advance(offsets: Offsets, heads: Heads, shares: Mapping[TopicPartition, int] | None) -> Offsets:
    """The end of the next batch: everything, or each partition's share. Partitions that are gone are not
    in it any more; ``heads`` names all that are there.
    """
    if shares is None:
        return {which: head.end for which, head in heads.items()}
    return {which: begin(offsets, heads, which) + shares.get(which, 0) for which in heads}


def share_out(sizes: Mapping[Key, int], limit: int, turn: int = 0) -> dict[Key, int]:
    """``limit`` in proportion to ``sizes``: every share is at most its size, their sum min(limit, all).

    ``turn``: any number that moves on from batch to batch; decides who is served if ``limit`` is less than
    the number of partitions.
    """
    waiting = {key: size for key, size in sizes.items() if size > 0}
    total = sum(waiting.values())
    shares = dict.fromkeys(sizes, 0)
    if total <= limit:
        return shares | waiting
    if limit <= len(waiting):
        keys = list(waiting)
        return shares | {keys[(turn + i) % len(keys)]: 1 for i in range(limit)}
    left, rest = limit - len(waiting), total - len(waiting)
    floors = {key: (size - 1) * left // rest for key, size in waiting.items()}
    lost = left - sum(floors.values())  # less than one for each; given to those that lost most
    by_loss = sorted(waiting, key=lambda key: (waiting[key] - 1) * left % rest, reverse=True)
    for key in by_loss[:lost]:
        floors[key] += 1
    return shares | {key: 1 + more for key, more in floors.items()}


class BatchDelay:
    """Whether a micro-batch is still put off because there are too few messages, as Kafka's source does."""

    def __init__(self, min_offsets: int | None, max_delay_s: float) -> None:
        self._min_offsets, self._max_delay_s = min_offsets, max_delay_s
        self._last: float | None = None

    def waits(self, messages: int, now: float) -> bool:
        """Asked with what is there. The first batch of a run never waits; "no" starts the delay anew."""
        if (
            self._min_offsets is not None
            and messages < self._min_offsets
            and self._last is not None
            and now - self._last < self._max_delay_s
        ):
            return True
        self._last = now
        return False


def losses(offsets: Offsets, heads: Heads) -> list[str]:
    """What of ``offsets`` cannot be continued: topics that are gone or were created anew, and retention."""
    found = []
    gone = sorted(set(offsets) - set(heads))
    if gone:
        found.append(f"{listed(gone)}: gone, or not subscribed any more")
    for which, (start, end) in sorted(heads.items()):
        offset = offsets.get(which)
        name = f"{which[0]}/{which[1]}"
        if offset is None:
            if start > 0:
                found.append(f"{name}: new, and starts at offset {start} instead of 0")
        elif offset > end:
            found.append(f"{name}: ends at offset {end}, before {offset}: it was deleted and created anew")
        elif offset < start:
            found.append(f"{name}: offsets {offset} to {start} are gone")
    return found


def batch(start: Offsets, end: Offsets, heads: Heads) -> MicroBatch:
    """The ranges between two tables. A partition that only ``end`` has is read from its earliest message."""
    ranges, missing = [], []
    gone = sorted(set(start) - set(end))
    if gone:
        missing.append(f"{listed(gone)}: gone, or not subscribed any more")
    for which, stop in sorted(end.items()):
        name = f"{which[0]}/{which[1]}"
        first = heads[which].start if which in heads else 0
        offset = start.get(which)
        if offset is None:
            offset = first
            if first > 0:
                missing.append(f"{name}: new, and starts at offset {first} instead of 0")
        elif stop < offset:
            missing.append(f"{name}: went from offset {offset} back to {stop}: it was created anew")
            offset = first
        elif offset < stop and offset < first:
            missing.append(f"{name}: offsets {offset} to {min(first, stop)} are gone")
            offset = first
        if offset < stop:
            ranges.append(OffsetRange(*which, offset, stop))
    return MicroBatch(ranges, missing)


def require(missing: list[str], fail_on_data_loss: bool) -> list[str]:
    """Raise DataLoss for what is missing, if it shall be an error; else give it back, for the log."""
    if missing and fail_on_data_loss:
        raise DataLoss("; ".join(missing))
    return missing
