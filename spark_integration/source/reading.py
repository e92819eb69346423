"""The work of one Spark task: reads exactly the messages of an offset range, as Arrow batches.

It runs in an executor's Python worker, which has only the split. It may read from any replica; a task that
Spark repeats anywhere returns the same rows. A missing message is an error or, if the user chose that, a
warning; it is never skipped silently.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from escrowmq.actors.client.replica_calls import ReplicaCalls
from escrowmq.actors.client.router import Router
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.actors.consumer.reader import Stretch
from escrowmq.actors.consumer.replica_choice import LAG_PATIENCE_S
from escrowmq.replication.errors import DataLoss, EscrowMQError
from escrowmq.replication.model import NO_ID
from escrowmq.spark_integration.collector import collector_paused
from escrowmq.spark_integration.decode.records import RowFormat, record_batches
from escrowmq.spark_integration.ray_link import join_from_worker
from escrowmq.spark_integration.source.planning import OffsetRange
from escrowmq.spark_integration.source.ranges import stretches

if TYPE_CHECKING:
    import pyarrow as pa

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
        group = router.places.group_of(part.topic, part.partition)
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

    def stretches(
        self,
        info: ClusterInfo,
        part: OffsetRange,
        *,
        calls: ReplicaCalls | None = None,
        lag_patience_s: float = LAG_PATIENCE_S,
        leader: int | None = None,
        group: int = 0,
        topic_id: int = NO_ID,
    ) -> Iterator[Stretch]:
        """All messages of ``part``; see :func:`~escrowmq.spark_integration.source.ranges.stretches`."""
        return stretches(
            info,
            part,
            self._lost,
            calls=calls,
            lag_patience_s=lag_patience_s,
            leader=leader,
            group=group,
            topic_id=topic_id,
        )

    def _lost(self, what: str, error: EscrowMQError) -> None:
        if self.fail_on_data_loss:
            raise DataLoss(what)
        log.warning("%s: skipped, since failOnDataLoss is false", what)
