"""The work of one Spark task: all messages of an offset range, exactly, as Arrow batches.

Runs in an executor's Python worker, which knows nothing but the split. Reads from any replica, so a task
that Spark repeats, anywhere, gives the same rows. A message that should be there and is not is an error or,
if the user wants that, a warning: it is never skipped in silence.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from escrowmq.actors.offsets import OffsetReader
from escrowmq.actors.reader import PartitionReader, Stretch
from escrowmq.actors.router import Router
from escrowmq.actors.topology import ClusterInfo
from escrowmq.replication.errors import CorruptLog, DataLoss, OffsetOutOfRange, Unavailable, UnknownTopic
from escrowmq.spark_integration.collector import collector_paused
from escrowmq.spark_integration.planning import OffsetRange
from escrowmq.spark_integration.ray_link import join_from_worker
from escrowmq.spark_integration.records import RowFormat, record_batches

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

#: One question to the leader, of a task that found less than was planned.
ASK_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Split(InputPartition):
    """The work of one Spark task."""

    info: ClusterInfo
    range: OffsetRange


@dataclass(frozen=True)
class TaskReader:
    """What tasks need beside their split; travels with the plan."""

    address: str
    namespace: str
    format: RowFormat
    fail_on_data_loss: bool

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of one split. Raises DataLoss, CorruptLog, Unavailable."""
        if not isinstance(partition, Split):  # what Spark makes of a plan without any split
            return
        join_from_worker(self.address, self.namespace)
        part = partition.range
        stretches = self._stretches(partition.info, part)
        with collector_paused():
            yield from record_batches(part.topic, part.partition, stretches, self.format)

    def _stretches(self, info: ClusterInfo, part: OffsetRange) -> Iterator[Stretch]:
        at = part.start
        while at < part.end:
            try:
                with PartitionReader(info, part.topic, part.partition, at, part.end) as reader:
                    for stretch in reader.stretches():
                        first, last = stretch.runs[0], stretch.runs[-1]
                        if first[0] != at:
                            raise CorruptLog(
                                f"{part.topic}/{part.partition}: offset {at} was to be read, and "
                                f"{first[0]} came: offsets are dense, so messages are missing"
                            )
                        at = last[0] + last[1]
                        yield stretch
                if at != part.end:
                    raise CorruptLog(f"{part.topic}/{part.partition}: ended at {at}, not at {part.end}")
            except UnknownTopic as error:
                self._lost(f"{part.topic}/{part.partition}: {error}")
                return
            except OffsetOutOfRange as error:
                at = self._after_loss(info, part, at, error)

    def _after_loss(self, info: ClusterInfo, part: OffsetRange, at: int, error: OffsetOutOfRange) -> int:
        """Where reading goes on when ``at`` is not there."""
        name = f"{part.topic}/{part.partition}"
        if at < error.start:  # retention moved on between plan and read
            first = min(error.start, part.end)
            self._lost(f"{name}: offsets {at} to {first} are gone")
            return first
        # No replica has got that far. They may all lag; only the leader knows that there is no more.
        router = Router(info, name="escrowmq-spark")
        try:
            bounds = OffsetReader(router).bounds([(part.topic, part.partition)], ASK_TIMEOUT_S)
        finally:
            router.close()
        found = bounds[part.topic, part.partition]
        if not isinstance(found, UnknownTopic) and at < found[1]:
            raise Unavailable(f"the replicas lag behind offset {at} of {name}", 1.0)
        self._lost(f"{name}: ends before offset {at}: it was deleted and created anew")
        return part.end

    def _lost(self, what: str) -> None:
        if self.fail_on_data_loss:
            raise DataLoss(what)
        log.warning("%s: skipped, since failOnDataLoss is false", what)
