"""Plans micro-batches: when the next one comes, its end, the ranges that it reads, and what is missing.

Pure decisions from offsets and the brokers' bounds. A batch is the difference of two offset tables, which
Spark records before it asks for the ranges. So after a restart the same batch is planned again and must give
the same rows. Therefore everything that depends on the present state is decided in ``advance``, and nothing
in ``batch``, except that retention may have removed messages meanwhile, which is reported.

A limit is divided among partitions in proportion to their lags, as in the Kafka source, so that all
partitions reach their ends together. Unlike there, the limit is never exceeded, and still no partition
starves: each partition with a lag gets at least one message if the limit allows it; otherwise they take
turns.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from escrowmq.actors.client.consumer_groups import TopicPartition
from escrowmq.replication.errors import ConfigError, DataLoss
from escrowmq.spark_integration.source.planning import OffsetRange, Offsets, listed

#: A key next to the topics in the end of the first batch: where the query started. Spark does not store the
#: initial offset until a batch is complete; without this key, a query that starts at ``latest`` and is
#: stopped before that would start at another offset and read another first batch than the planned one. No
#: topic's name contains "#".
INITIAL = "#initial"
Json = dict[str, Any]
Key = TypeVar("Key", bound=Hashable)


class Bounds(NamedTuple):
    """The offsets ``[start, end)`` that a partition has."""

    start: int
    end: int


Heads = Mapping[TopicPartition, Bounds]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What one micro-batch reads (``ranges``), and texts about what it can no longer read (``missing``)."""

    ranges: list[OffsetRange]
    missing: list[str]


def to_json(offsets: Offsets, initial: Offsets | None = None) -> Json:
    """Offsets in Kafka's form, ``{"orders": {"0": 23}}``, in a fixed order, since Spark compares texts."""
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
        raise ConfigError(f"the checkpoint has no offsets of the escrowmq source: {table!r}") from error
    return offsets, from_json(table[INITIAL])[0] if INITIAL in table else None


def begin(offsets: Offsets, heads: Heads, which: TopicPartition) -> int:
    """The first offset to read of a partition. New and recreated partitions are read from their start."""
    head = heads[which]
    offset = offsets.get(which, head.start)
    return head.start if offset > head.end else max(offset, head.start)


def lags(offsets: Offsets, heads: Heads) -> dict[TopicPartition, int]:
    """Number of messages that have yet to be read, by partition."""
    return {which: head.end - begin(offsets, heads, which) for which, head in heads.items()}


def advance(offsets: Offsets, heads: Heads, shares: Mapping[TopicPartition, int] | None) -> Offsets:
    """The end of the next batch: everything (``shares`` None), or each partition's share.

    It has only the partitions in ``heads``, which are all that exist.
    """
    if shares is None:
        return {which: head.end for which, head in heads.items()}
    return {which: begin(offsets, heads, which) + shares.get(which, 0) for which in heads}


def share_out(sizes: Mapping[Key, int], limit: int, turn: int = 0) -> dict[Key, int]:
    """Divide ``limit`` in proportion to ``sizes``: no share exceeds its size; the sum is min(limit, total).

    ``turn``: any number that increases from batch to batch; it decides which partitions get a share if
    ``limit`` is less than their number.
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
    lost = left - sum(floors.values())  # by rounding, less than one each; given to those that lost most
    by_loss = sorted(waiting, key=lambda key: (waiting[key] - 1) * left % rest, reverse=True)
    for key in by_loss[:lost]:
        floors[key] += 1
    return shares | {key: 1 + more for key, more in floors.items()}


class BatchDelay:
    """Decides whether a micro-batch is delayed because of too few messages, as in the Kafka source."""

    def __init__(self, min_offsets: int | None, max_delay_s: float) -> None:
        self._min_offsets, self._max_delay_s = min_offsets, max_delay_s
        self._last: float | None = None

    def waits(self, messages: int, now: float) -> bool:
        """Whether to wait with this number of messages; never for the first batch. No restarts the delay."""
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
    """Texts about partitions that cannot be continued at ``offsets``: deleted, recreated, or trimmed."""
    found = []
    gone = sorted(set(offsets) - set(heads))
    if gone:
        found.append(f"{listed(gone)}: deleted, or no longer subscribed")
    for which, (start, end) in sorted(heads.items()):
        offset = offsets.get(which)
        name = f"{which[0]}/{which[1]}"
        if offset is None:
            if start > 0:
                found.append(f"{name}: new, and starts at offset {start} instead of 0")
        elif offset > end:
            found.append(f"{name}: ends at offset {end}, before {offset}: it was deleted and created again")
        elif offset < start:
            found.append(f"{name}: offsets {offset} to {start} are gone")
    return found


def batch(start: Offsets, end: Offsets, heads: Heads) -> MicroBatch:
    """The ranges between two offset tables. A partition that only ``end`` has is read from its start."""
    ranges, missing = [], []
    gone = sorted(set(start) - set(end))
    if gone:
        missing.append(f"{listed(gone)}: deleted, or no longer subscribed")
    for which, stop in sorted(end.items()):
        name = f"{which[0]}/{which[1]}"
        first = heads[which].start if which in heads else 0
        offset = start.get(which)
        if offset is None:
            offset = first
            if first > 0:
                missing.append(f"{name}: new, and starts at offset {first} instead of 0")
        elif stop < offset:
            missing.append(f"{name}: went from offset {offset} back to {stop}: it was created again")
            offset = first
        elif offset < stop and offset < first:
            missing.append(f"{name}: offsets {offset} to {min(first, stop)} are gone")
            offset = first
        if offset < stop:
            ranges.append(OffsetRange(*which, offset, stop))
    return MicroBatch(ranges, missing)


def require(missing: list[str], fail_on_data_loss: bool) -> list[str]:
    """Raise DataLoss if anything is missing and that is an error; otherwise return it, for the log."""
    if missing and fail_on_data_loss:
        raise DataLoss("; ".join(missing))
    return missing


# ------------------------------------------------------------------------------------------------------------
# Computes a streaming query's lag, by partition, from the progress that Spark reports.
#
# Spark has no custom metrics for Python sources. But each progress contains the end of the batch and, from
# ``reportLatestOffset``, the end of the log at that time; the lag is the difference.


def lag(progress: Any) -> dict[str, dict[int, int]]:
    """Number of messages that the query had yet to read when ``progress`` was made, by topic and partition.

    ``progress``: ``query.lastProgress`` or a listener's ``event.progress``. If several sources of the query
    read a partition, the larger lag counts. Empty if there is no progress yet. A progress does not name the
    format of a source, so sources are recognized by the form of their offsets, which is also that of Kafka
    sources.
    """
    behind: dict[str, dict[int, int]] = {}
    for source in [] if progress is None else _get(progress, "sources"):
        ends, heads = _table(_get(source, "endOffset")), _table(_get(source, "latestOffset"))
        for topic, partitions in heads.items():
            for partition, head in partitions.items():
                waiting = max(0, head - ends.get(topic, {}).get(partition, 0))
                here = behind.setdefault(topic, {})
                here[int(partition)] = max(waiting, here.get(int(partition), 0))
    return behind


def _table(offset: Any) -> dict[str, dict[str, int]]:
    """Parse offsets, which Spark gives as JSON, as a table, or as None; {} for offsets of other sources."""
    table = json.loads(offset) if isinstance(offset, str) and offset.startswith("{") else offset
    if not isinstance(table, Mapping):
        return {}
    return {
        topic: dict(partitions)
        for topic, partitions in table.items()
        if topic != INITIAL
        and isinstance(partitions, Mapping)
        and all(str(p).isdigit() and isinstance(offset, int) for p, offset in partitions.items())
    }


def _get(thing: Any, name: str) -> Any:
    return thing.get(name) if isinstance(thing, Mapping) else getattr(thing, name)
