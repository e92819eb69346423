"""The datasource of a planned read: read tasks that turn offset ranges into Arrow blocks.

A task has nothing but its ranges. It reads them from any replica, through Ray, of which it is part already;
so a task that Ray repeats anywhere returns the same rows. A missing message is an error, never skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask

from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.replication.errors import DataLoss, EscrowMQError
from escrowmq.spark_integration.decode.records import RowFormat, record_batches
from escrowmq.spark_integration.ray_data.planning import PlannedRange, shared_out
from escrowmq.spark_integration.source.reading import stretches

if TYPE_CHECKING:
    from ray.data import DataContext

#: Bytes in Arrow per row, for the estimate of a block's size: fixed columns, and the ends of the others.
_ROW_BYTES = {"partition": 4, "offset": 8, "timestamp": 8, "key": 4, "value": 4, "headers": 4, "tx_id": 4}


class SnapshotLost(DataLoss):
    """Messages that a dataset was planned to read no longer exist."""

    def __str__(self) -> str:
        return (
            f"{self.args[0]}: retention removed them after the read was planned, or the topic was deleted. "
            "A dataset reads when it is executed: call materialize() soon after read(), plan the read again, "
            "or keep the topic's messages longer"
        )


class EscrowMQDatasource(Datasource):
    """Planned ranges of one topic. Ray Data asks for the size first, then for the tasks."""

    def __init__(
        self, info: ClusterInfo, topic: str, ranges: Sequence[PlannedRange], columns: tuple[str, ...]
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._info, self._topic = info, topic
        self._ranges, self._columns = list(ranges), columns

    def get_name(self) -> str:
        """The name that Ray Data shows."""
        return f"EscrowMQ({self._topic})"

    def estimate_inmemory_data_size(self) -> int:
        """Bytes of all blocks, from the sizes that the brokers know."""
        return sum(map(self._size, self._ranges))

    def get_read_tasks(
        self,
        parallelism: int,
        per_task_row_limit: int | None = None,
        data_context: DataContext | None = None,
    ) -> list[ReadTask]:
        """About ``parallelism`` tasks; one without rows, which knows the schema, if there is nothing to
        read."""
        schema = RowFormat(self._columns).schema
        tasks = []
        for ranges in shared_out(self._ranges, max(1, parallelism)) or [[]]:
            metadata = BlockMetadata(
                num_rows=sum(planned.messages for planned in ranges),
                size_bytes=sum(map(self._size, ranges)),
                exec_stats=None,
                input_files=None,
            )
            blocks = partial(read_ranges, self._info, ranges, self._columns)
            tasks.append(ReadTask(blocks, metadata, schema, per_task_row_limit))
        return tasks

    def _size(self, planned: PlannedRange) -> int:
        per_row = sum(_ROW_BYTES.get(name, 4 + len(self._topic)) for name in self._columns)
        contents = {"key", "value", "headers"} & set(self._columns)
        return planned.messages * per_row + (planned.size_bytes if contents else 0)


def read_ranges(
    info: ClusterInfo, ranges: Sequence[PlannedRange], columns: tuple[str, ...]
) -> Iterator[pa.Table]:
    """The messages of these ranges, in a task. Raises SnapshotLost, CorruptLog, Unavailable."""
    format = RowFormat(columns)
    if not ranges:
        yield format.schema.empty_table()
    for planned in ranges:
        part = planned.part
        found = stretches(
            info, part, _lost, leader=planned.leader, group=planned.group, topic_id=planned.topic_id
        )
        for batch in record_batches(part.topic, part.partition, found, format):
            yield pa.Table.from_batches([batch])


def _lost(what: str, error: EscrowMQError) -> None:
    raise SnapshotLost(what) from error
