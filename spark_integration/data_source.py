"""The Python data source ``escrowmq``: its faces for batch and streaming, reading and writing.

    spark.read.format("escrowmq").option("subscribe", "orders").option("startingOffsets", "earliest").load()

Names of options (``options.OPTIONS``) and columns are those of Spark's Kafka source, and ``tx_id``. Every
method runs in a process of its own that Spark starts, so each one joins Ray by the explicit address.
Plans ask the leaders, once; tasks read from any replica, as often as Spark repeats them, and get the
same records. Only what was committed when the plan was made is read.
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
from escrowmq.spark_integration.source.planning import plan
from escrowmq.spark_integration.source.pushdown import EVERYTHING, push
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
        """Columns as DDL; checks all options first, so that mistakes are told at ``load()``."""
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
    """What tasks do, by the options and the schema: ours, or the user's if it is one that we can give."""
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        wanted = to_arrow_schema(schema, timezone="UTC")
    except PySparkException as error:  # it names the type only
        raise ConfigError(
            f"the escrowmq source cannot give the schema ({schema.simpleString()}): {error}"
        ) from error
    decoder = None
    if options.value_format != "binary" and "value" in wanted.names:
        decoder = ValueDecoder(options.value_format, wanted.field("value").type, options.value_mode)
    if set(wanted.names) <= set(COLUMNS):
        format = RowFormat(tuple(wanted.names), decoder)
        if format.schema == wanted:
            return TaskReader(options.address, options.namespace, format, options.fail_on_data_loss)
    raise ConfigError(
        f"the escrowmq source cannot give the schema ({schema.simpleString()}): its columns are "
        f"{schema_ddl(COLUMNS)}; leave out .schema(), or name some of these with these types"
    )


class EscrowMQReader(DataSourceReader):
    """Plans on the driver's side, reads in the executors; holds nothing but the options between the two."""

    def __init__(self, options: SourceOptions, tasks: TaskReader) -> None:
        self._options, self._tasks = options, tasks
        self._only = EVERYTHING

    def partitions(self) -> Sequence[Split]:
        """One split per task. Raises ClusterNotFound, UnknownTopic, ConfigError, DataLoss."""
        info = find_cluster(self._options.address, self._options.namespace)
        router = Router(info, name="escrowmq-spark")
        try:
            catalog = LeaderCatalog(router, PLAN_TIMEOUT_S, self._options.subscription)
            return splits(router, plan(self._options, catalog, self._only))
        finally:
            router.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one split as Arrow batches."""
        return self._tasks.read(partition)


class FilteringReader(EscrowMQReader):
    """The same with filters that shorten the plan, for reads that ask for it by option ``pushFilters``.

    A class of its own, because Spark looks for the method. Never the default: Spark 4.2 keeps one reader for
    a DataFrame and all its views and copies, and plans all of them by the filters that came last, so one
    query's filter silently takes rows from another's result.
    """

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        """Takes what it can; what it gives back, Spark applies to the rows."""
        self._only, left = push(filters)
        return left


def register(spark: SparkSession, *, address: str = "", namespace: str = "escrowmq") -> None:
    """Make ``format("escrowmq")`` known to a session; ``address`` and ``namespace`` are its defaults.

    The defaults travel inside the class, because the processes in which Spark runs it share neither
    variables nor a Ray connection with this one. The session's settings are left alone.
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
