"""The Python data source ``escrowmq``: batch reads of committed messages.

    spark.read.format("escrowmq").option("subscribe", "orders").option("startingOffsets", "earliest").load()

Names of options (``options.OPTIONS``) and columns are those of Spark's Kafka source, and ``tx_id``. Every
method runs in a process of its own that Spark starts, so each one joins Ray by the explicit address.
Plans ask the leaders, once; tasks read from any replica, as often as Spark repeats them, and get the
same records. Only what was committed when the plan was made is read.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from escrowmq.actors.offsets import OffsetReader
from escrowmq.actors.reader import Block, PartitionReader
from escrowmq.actors.router import Router, result_of
from escrowmq.actors.topology import ClusterInfo
from escrowmq.replication.errors import ConfigError, OffsetOutOfRange, UnknownTopic
from escrowmq.spark_integration.options import SourceOptions, parse_options
from escrowmq.spark_integration.planning import OffsetRange, plan
from escrowmq.spark_integration.ray_link import find_cluster, join_from_worker
from escrowmq.spark_integration.records import arrow_schema, record_batches, schema_ddl

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)

#: Planning asks two or three small questions; a fail-over takes a second or two.
PLAN_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Split(InputPartition):
    """The work of one Spark task."""

    info: ClusterInfo
    range: OffsetRange


class EscrowMQDataSource(DataSource):
    """Format ``escrowmq``. :func:`register` makes it known to a session, with the session's cluster."""

    default_address = ""
    default_namespace = "escrowmq"

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "escrowmq"

    def schema(self) -> str:
        """Columns as DDL; checks all options first, so that mistakes are told at ``load()``."""
        return schema_ddl(self._parsed().include_headers)

    def reader(self, schema: StructType) -> EscrowMQReader:
        """Reader of one batch."""
        options = self._parsed()
        columns = arrow_schema(options.include_headers).names
        if list(schema.names) != columns:
            raise ConfigError(
                f"the schema of the escrowmq source is fixed ({', '.join(columns)}): leave out .schema()"
            )
        return EscrowMQReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Writer of one batch."""
        from escrowmq.spark_integration.sink import batch_writer

        return batch_writer(self.options, schema, overwrite, self.default_address, self.default_namespace)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Writer of a streaming query."""
        from escrowmq.spark_integration.sink import stream_writer

        return stream_writer(self.options, schema, self.default_address, self.default_namespace)

    def _parsed(self) -> SourceOptions:
        return parse_options(
            self.options, default_address=self.default_address, default_namespace=self.default_namespace
        )


class EscrowMQReader(DataSourceReader):
    """Plans on the driver's side, reads in the executors; holds nothing but the options between the two."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[Split]:
        """One split per task. Raises ClusterNotFound, UnknownTopic, ConfigError, OffsetOutOfRange."""
        info = find_cluster(self._options.address, self._options.namespace)
        router = Router(info, name="escrowmq-spark")
        try:
            return [Split(info, part) for part in plan(self._options, _LeaderCatalog(router))]
        finally:
            router.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one split as Arrow batches."""
        assert isinstance(partition, Split)
        join_from_worker(self._options.address, self._options.namespace)
        part = partition.range
        schema = arrow_schema(self._options.include_headers)
        yield from record_batches(part.topic, part.partition, self._blocks(partition.info, part), schema)

    def _blocks(self, info: ClusterInfo, part: OffsetRange) -> Iterator[Block]:
        start = part.start
        while start < part.end:
            try:
                with PartitionReader(info, part.topic, part.partition, start, part.end) as reader:
                    for block in reader:
                        yield block
                        start = block.base_offset + block.messages
                return
            except OffsetOutOfRange as error:
                # Retention moved on between plan and read.
                if self._options.fail_on_data_loss or not start < error.start:
                    raise
                log.warning(
                    "%s/%s: offsets %s to %s are gone", part.topic, part.partition, start, error.start
                )
                start = error.start


class _LeaderCatalog:
    """What planning asks, asked of the leaders: a follower may lag behind what was acknowledged."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._offsets = OffsetReader(router)

    def topics(self) -> Mapping[str, int]:
        call = self._router.leader_call(0, "topics", True, timeout_s=PLAN_TIMEOUT_S)
        entries: Sequence[dict[str, Any]] = result_of(call, PLAN_TIMEOUT_S)
        return {entry["name"]: entry["partitions"] for entry in entries}

    def offsets(self, wanted: Sequence[tuple[str, int, int]]) -> list[int]:
        found = self._offsets.offsets(wanted, PLAN_TIMEOUT_S) if wanted else []
        for offset in found:
            if isinstance(offset, UnknownTopic):
                raise offset
        return [offset for offset in found if isinstance(offset, int)]


def register(spark: SparkSession, *, address: str = "", namespace: str = "escrowmq") -> None:
    """Make ``format("escrowmq")`` known to a session; ``address`` and ``namespace`` are its defaults.

    The defaults travel inside the class, because the processes in which Spark runs it share neither
    variables nor a Ray connection with this one.
    """
    source = type(
        "EscrowMQDataSource",
        (EscrowMQDataSource,),
        {"default_address": address, "default_namespace": namespace, "__module__": "escrowmq_session"},
    )
    spark.dataSource.register(source)
