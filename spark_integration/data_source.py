"""The Python data source ``escrowmq``: batch and streaming, reading and writing.

    spark.read.format("escrowmq").option("subscribe", "orders").option("startingOffsets", "earliest").load()

Options (``options.OPTIONS``) and columns have the names of Spark's Kafka source; the column ``tx_id`` is
added. Spark runs every method in a separate process, so each one joins Ray by an explicit address. A plan
asks the leaders once. Tasks read from any replica, and get the same records however often Spark repeats them.
Only messages that were committed when the plan was made are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from escrowmq.actors.client.router import Router
from escrowmq.replication.errors import ConfigError
from escrowmq.spark_integration.decode.records import COLUMNS, RowFormat, schema_ddl
from escrowmq.spark_integration.decode.values import ValueDecoder, value_ddl
from escrowmq.spark_integration.ray_link import find_cluster
from escrowmq.spark_integration.source.heads import PLAN_TIMEOUT_S, LeaderCatalog
from escrowmq.spark_integration.source.options import SourceOptions, Use, parse_options
from escrowmq.spark_integration.source.planning import EVERYTHING, plan, push
from escrowmq.spark_integration.source.reading import Split, TaskReader, splits

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType

    from escrowmq.spark_integration.source.stream_reader import EscrowMQStreamReader


class EscrowMQDataSource(DataSource):
    """Format ``escrowmq``. :func:`register` makes it known to a session, with the session's cluster."""

    default_address = ""
    default_namespace = "escrowmq"

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "escrowmq"

    def schema(self) -> str:
        """The columns as DDL. Checks all options first, so that ``load()`` reports mistakes."""
        options = self._parsed(Use.SCHEMA)
        if options.value_format == "binary":
            return schema_ddl(options.columns)
        if options.value_schema is None:
            raise ConfigError(
                f"valueFormat={options.value_format} needs option 'valueSchema', the columns of a value as "
                "DDL: id BIGINT, price DOUBLE (or .schema() with all columns)"
            )
        return schema_ddl(options.columns, value_ddl(options.value_format, options.value_schema))

    def reader(self, schema: StructType) -> EscrowMQReader:
        """Reader of one batch."""
        options = self._parsed(Use.BATCH)
        kind = FilteringReader if options.push_filters else EscrowMQReader
        return kind(options, _tasks(options, schema))

    def streamReader(self, schema: StructType) -> EscrowMQStreamReader:
        """Reader of a stream of micro-batches."""
        from escrowmq.spark_integration.source.stream_reader import EscrowMQStreamReader

        options = self._parsed(Use.STREAM)
        return EscrowMQStreamReader(options, _tasks(options, schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Writer of one batch."""
        from escrowmq.spark_integration.sink.writers import batch_writer

        return batch_writer(self.options, schema, overwrite, self.default_address, self.default_namespace)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Writer of a streaming query."""
        from escrowmq.spark_integration.sink.writers import stream_writer

        return stream_writer(self.options, schema, self.default_address, self.default_namespace)

    def _parsed(self, use: Use) -> SourceOptions:
        return parse_options(
            self.options,
            use,
            default_address=self.default_address,
            default_namespace=self.default_namespace,
        )


def _tasks(options: SourceOptions, schema: StructType) -> TaskReader:
    """The task reader for the options and the schema, which is the source's own or the user's.

    Raises ConfigError for a schema that the source cannot provide.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        wanted = to_arrow_schema(schema, timezone="UTC")
    except PySparkException as error:  # its text has only the type, not the column
        raise ConfigError(
            f"the escrowmq source cannot provide the schema ({schema.simpleString()}): {error}"
        ) from error
    decoder = None
    if options.value_format != "binary" and "value" in wanted.names:
        decoder = ValueDecoder(options.value_format, wanted.field("value").type, options.value_mode)
    if set(wanted.names) <= set(COLUMNS):
        format = RowFormat(tuple(wanted.names), decoder)
        if format.schema == wanted:
            return TaskReader(options.address, options.namespace, format, options.fail_on_data_loss)
    raise ConfigError(
        f"the escrowmq source cannot provide the schema ({schema.simpleString()}): its columns are "
        f"{schema_ddl(COLUMNS)}; leave out .schema(), or give some of these columns with these types"
    )


class EscrowMQReader(DataSourceReader):
    """Plans on the driver and reads in the executors; carries only the options from one to the other."""

    def __init__(self, options: SourceOptions, tasks: TaskReader) -> None:
        self._options, self._tasks = options, tasks
        self._only = EVERYTHING

    def partitions(self) -> Sequence[Split]:
        """One split per task. Raises ClusterNotFound, UnknownTopic, ConfigError, DataLoss."""
        info = find_cluster(self._options.address, self._options.namespace)
        router = Router(info, name="escrowmq-spark")
        try:
            catalog = LeaderCatalog(router, PLAN_TIMEOUT_S, self._options.subscription)
            ranges = plan(self._options, catalog, self._only)
            return splits(router, ranges, catalog.ids)
        finally:
            router.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one split as Arrow batches."""
        return self._tasks.read(partition)


class FilteringReader(EscrowMQReader):
    """A reader whose filters shorten the plan, used if the option ``pushFilters`` asks for it.

    It is a separate class because Spark looks for the method ``pushFilters``. It is not the default: Spark
    4.2 keeps one reader for a DataFrame and all its views and copies, and plans all of them with the filters
    that came last, so that one query's filter silently removes rows from another query's result.
    """

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        """Use the filters that it can; Spark applies those that are returned to the rows."""
        self._only, left = push(filters)
        return left


def register(spark: SparkSession, *, address: str = "", namespace: str = "escrowmq") -> None:
    """Register ``format("escrowmq")`` with a session. ``address``, ``namespace``: defaults of its options.

    The defaults are stored in a subclass, because the processes in which Spark runs it share neither
    variables nor the Ray connection of this process. The session's settings are not changed.
    """
    source = type(
        "EscrowMQDataSource",
        (EscrowMQDataSource,),
        {
            "default_address": address,
            "default_namespace": namespace,
            "__module__": "escrowmq_session",
        },
    )
    spark.dataSource.register(source)
