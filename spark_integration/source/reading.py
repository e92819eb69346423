"""The work of one Spark task: reads exactly the messages of an offset range, as Arrow batches.

It runs in an executor's Python worker, which has only the split. It may read from any replica; a task that
Spark repeats anywhere returns the same rows. A missing message is an error or, if the user chose that, a
warning; it is never skipped silently.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition

from escrowmq.actors.client.replica_calls import ReplicaCalls
from escrowmq.actors.client.router import Router
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.actors.consumer.fetcher import LAG_PATIENCE_S
from escrowmq.actors.consumer.offsets import OffsetReader
from escrowmq.actors.consumer.reader import PartitionReader, Stretch
from escrowmq.replication.errors import (
    CorruptLog,
    DataLoss,
    EscrowMQError,
    OffsetOutOfRange,
    OutcomeUnknown,
    Overloaded,
    TopicRecreated,
    Unavailable,
    UnknownTopic,
)
from escrowmq.replication.model import NO_ID
from escrowmq.spark_integration.decode.records import RowFormat, record_batches
from escrowmq.spark_integration.ray_link import collector_paused, join_from_worker
from escrowmq.spark_integration.source.planning import OffsetRange

if TYPE_CHECKING:
    import pyarrow as pa


# ------------------------------------------------------------------------------------------------------------
# Reads all messages of an offset range, for a task, and finds out why some of them cannot be read.
#
# It may read from any replica. A message that a replica does not have is lost only if retention has moved on,
# or if the leader says that the partition ends before it: what the caller is told then, it must not ignore.

#: Limit of a task's call to the leader when it found fewer messages than planned.
ASK_TIMEOUT_S = 30.0
#: Is told what is lost, and the reader's error; if it returns, reading continues after the loss.
Lost = Callable[[str, EscrowMQError], None]


def stretches(
    info: ClusterInfo,
    part: OffsetRange,
    lost: Lost,
    *,
    calls: ReplicaCalls | None = None,
    lag_patience_s: float = LAG_PATIENCE_S,
    ask_timeout_s: float = ASK_TIMEOUT_S,
    leader: int | None = None,
    group: int = 0,
    topic_id: int = NO_ID,
) -> Iterator[Stretch]:
    """All messages of ``part``, as far as they are not ``lost``. Raises CorruptLog, Unavailable.

    ``calls``: makes calls to brokers otherwise than through Ray. ``ask_timeout_s``: for the leader, which is
    asked what no replica has. ``topic_id``: the topic that was planned;
    all of ``part`` is lost if there is another one of that name.
    """
    reader_of = partial(
        PartitionReader,
        calls=calls,
        lag_patience_s=lag_patience_s,
        leader=leader,
        group=group,
        topic_id=topic_id,
    )
    at = part.start
    while at < part.end:
        try:
            with reader_of(info, part.topic, part.partition, at, part.end) as reader:
                for stretch in reader.stretches():
                    first, last = stretch.runs[0], stretch.runs[-1]
                    if first[0] != at:
                        raise CorruptLog(
                            f"{part.topic}/{part.partition}: offset {at} was expected, but "
                            f"{first[0]} was read: offsets are dense, so messages are missing"
                        )
                    at = last[0] + last[1]
                    yield stretch
            if at != part.end:
                raise CorruptLog(f"{part.topic}/{part.partition}: ended at {at}, not at {part.end}")
        except (OffsetOutOfRange, UnknownTopic) as error:
            bounds = partial(_bounds_at_leader, info, part, group, calls, ask_timeout_s)
            at = _after_loss(part, at, error, bounds, lost)


def _after_loss(
    part: OffsetRange,
    at: int,
    error: OffsetOutOfRange | UnknownTopic,
    bounds: Callable[[], tuple[int, int] | UnknownTopic],
    lost: Lost,
) -> int:
    """The offset at which reading continues if no replica has ``at``. ``bounds`` asks the leader."""
    name = f"{part.topic}/{part.partition}"
    if isinstance(error, TopicRecreated):  # a replica has the new topic, so there is no more of the old one
        lost(f"{name}: offsets {at} to {part.end} are gone, since it was deleted and created again", error)
        return part.end
    if isinstance(error, OffsetOutOfRange) and at < error.start:  # retention moved on since the plan
        first = min(error.start, part.end)
        lost(f"{name}: offsets {at} to {first} are gone", error)
        return first
    # No replica has that offset, or knows the topic. All may lag, and a replica that has just started may
    # not know what was created since its last checkpoint. Only the leader knows whether there is more.
    found = bounds()
    if isinstance(found, UnknownTopic):
        lost(f"{name}: {found}", found)
    elif at < found[1]:
        raise Unavailable(f"the replicas lag behind offset {at} of {name}", 1.0)
    else:
        lost(f"{name}: ends before offset {at}: it was deleted and created again", error)
    return part.end


def _bounds_at_leader(
    info: ClusterInfo, part: OffsetRange, group: int, calls: ReplicaCalls | None, timeout_s: float
) -> tuple[int, int] | UnknownTopic:
    """The partition's bounds if it exists in that broker group; if it is in another group, the topic was
    deleted and created again. Raises Unavailable, so that the task is retried."""
    router = Router(info, calls=calls, name="escrowmq-spark")
    which = part.topic, part.partition
    try:
        found = OffsetReader(router).bounds([which], timeout_s)[which]
        if isinstance(found, UnknownTopic) or router.placement.group_of(*which) == group:
            return found
        return UnknownTopic(*which)
    except (Overloaded, OutcomeUnknown) as error:
        name = f"{part.topic}/{part.partition}"
        raise Unavailable(f"no replica has all of {name}, and its leader does not answer", 1.0) from error
    finally:
        router.close()


log = logging.getLogger(__name__)
#: Of topics that may be any of their name.
NO_IDS: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True)
class Split(InputPartition):
    """The work of one Spark task. ``group``: the partition's broker group. ``leader``: the replica that led
    it when this was planned. ``topic_id``: the topic that was planned; ``NO_ID``: any of that name."""

    info: ClusterInfo
    range: OffsetRange
    leader: int | None = None
    group: int = 0
    topic_id: int = NO_ID


def splits(router: Router, ranges: Iterable[OffsetRange], ids: Mapping[str, int] = NO_IDS) -> list[Split]:
    """One split for each range. ``router``: it must have asked the leaders before, so that it knows them.
    ``ids``: topic -> its id from before the ranges were planned."""

    def one(part: OffsetRange) -> Split:
        group = router.placement.group_of(part.topic, part.partition)
        topic_id = ids.get(part.topic, NO_ID)
        return Split(router.info, part, router.channels[group].leader, group, topic_id)

    return [one(part) for part in ranges]


@dataclass(frozen=True)
class TaskReader:
    """What tasks need besides their split; it is sent with the plan."""

    address: str
    namespace: str
    format: RowFormat
    fail_on_data_loss: bool

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of one split. Raises DataLoss, CorruptLog, Unavailable."""
        if not isinstance(partition, Split):  # Spark's dummy for a plan without splits
            return
        join_from_worker(self.address, self.namespace)
        part = partition.range
        stretches = self.stretches(
            partition.info,
            part,
            leader=partition.leader,
            group=partition.group,
            topic_id=partition.topic_id,
        )
        with collector_paused():
            yield from record_batches(part.topic, part.partition, stretches, self.format)

    def stretches(self, info: ClusterInfo, part: OffsetRange, **how: Any) -> Iterator[Stretch]:
        """All messages of ``part``, and ``how`` they are read: see
        :func:`~escrowmq.spark_integration.source.reading.stretches`."""
        return stretches(info, part, self._lost, **how)

    def _lost(self, what: str, error: EscrowMQError) -> None:
        if self.fail_on_data_loss:
            raise DataLoss(what)
        log.warning("%s: skipped, since failOnDataLoss is false", what)
