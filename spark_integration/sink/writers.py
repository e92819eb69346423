"""The sink of format ``escrowmq`` for batch and streaming: thin classes around the modules that decide.

    frame.writeStream.format("escrowmq").option("topic", "alerts").option("checkpointLocation", ...).start()
    frame.write.format("escrowmq").mode("append").option("topic", "alerts").save()
    frame.writeStream.foreachBatch(lambda batch, epoch: batch.write.format("escrowmq").mode("append")
        .options(topic="alerts", epoch=epoch, checkpointLocation=...).save())   # once, in any output mode

Tasks prepare in executors. The driver's side commits in a process that Spark starts next to the driver and
keeps for later epochs. A new stream writer is made for every epoch, from the options alone: tasks learn the
query and the epoch from Spark's task context, and the commit learns them from the tasks' reports.
"""

from __future__ import annotations

import functools
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import ray
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from escrowmq.actors.client.catalog import TopicCatalog
from escrowmq.actors.client.router import Router
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.replication.errors import ConfigError
from escrowmq.spark_integration.ray_link import collector_paused, find_cluster
from escrowmq.spark_integration.sink.batch import abort_batch, commit_batch, home_of, sweep_behind
from escrowmq.spark_integration.sink.commit import abort_epoch, commit_epoch
from escrowmq.spark_integration.sink.intents import Attempt, IntentStore, app_of, epoch_id_of
from escrowmq.spark_integration.sink.link import SinkLink
from escrowmq.spark_integration.sink.options import SinkOptions, check_columns, parse_sink_options
from escrowmq.spark_integration.sink.task import attempt_name, write_batches

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_lock = threading.Lock()
#: A worker of Spark serves many tasks and epochs, so it keeps one router per cluster as long as it lives.
_routers: dict[tuple[str, str], tuple[tuple[ClusterInfo, str], Router]] = {}
_known_topics: set[tuple[str, str, str]] = set()


@dataclass(frozen=True)
class Prepared(WriterCommitMessage):
    """A task's report: what it prepared, and for which epoch of which query (in a batch write: its id)."""

    query_id: str
    epoch: int
    attempt: Attempt
    references: Mapping[int, int] = field(default_factory=dict)


def router_to(options: SinkOptions) -> Router:
    """This process's router to the brokers. Raises ClusterNotFound, Unavailable."""
    key = (options.address, options.namespace)
    info = find_cluster(*key)
    # After reconnecting to Ray, this process has a new job id, and actor handles from before do not work.
    now = info, ray.get_runtime_context().get_job_id()
    with _lock:
        known = _routers.get(key)
        if known is not None and known[0] == now:
            return known[1]
        router = Router(info, name="escrowmq-sink")
        _routers[key] = now, router
    if known is not None:
        known[1].close()
    return router


def check_topic(options: SinkOptions) -> None:
    """If option ``topic`` names the topic, raise UnknownTopic before anything runs."""
    if options.topic is None:
        return
    key = (options.address, options.namespace, options.topic)
    if key not in _known_topics:
        TopicCatalog(router_to(options)).partitions(options.topic)
        _known_topics.add(key)


def _prepare(
    options: SinkOptions,
    app: str,
    epoch_id: str,
    batches: Iterator[pa.RecordBatch],
    home: Callable[[int], int] | None = None,
) -> tuple[Attempt, dict[int, int]]:
    context = TaskContext.get()
    assert context is not None

    def connect() -> tuple[SinkLink, Callable[[str], int]]:
        router = router_to(options)
        return SinkLink(router, app), TopicCatalog(router).partitions

    with collector_paused():
        return write_batches(
            batches,
            connect,
            epoch_id=epoch_id,
            attempt=attempt_name(context.partitionId(), context.attemptNumber()),
            topic=options.topic,
            message_bytes_max=options.message_bytes_max,
            timeout_ms=options.transaction_timeout_ms,
            home_of=home,
            compression=options.compression,
        )


class EscrowMQStreamWriter(DataSourceStreamArrowWriter):
    """Writer of a streaming query in append or complete mode; it writes the rows that Spark passes.

    Spark has no update mode for Python sinks; see :class:`EscrowMQEpochWriter`.
    """

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Prepared:
        """In a task: prepare its rows."""
        context = TaskContext.get()
        assert context is not None
        query_id = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        if not query_id or not batch:
            raise ConfigError("the escrowmq sink found no query id: it needs Spark's micro-batch engine")
        epoch = int(batch)
        prepared = _prepare(self._options, app_of(query_id), epoch_id_of(query_id, epoch), iterator)
        return Prepared(query_id, epoch, *prepared)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver: make the epoch readable."""
        found = _reports(messages)
        store = IntentStore(self._options.checkpoint)
        query_id = found[0].query_id if found else store.query_id()
        link = SinkLink(router_to(self._options), app_of(query_id))
        attempts = [report.attempt for report in found]
        commit_epoch(store, link, query_id, batchId, attempts, [report.references for report in found])

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver, after a failure: roll back what the finished tasks prepared."""
        found = _reports(messages)
        if any(report.attempt.chunks for report in found):
            store = IntentStore(self._options.checkpoint)
            link = SinkLink(router_to(self._options), app_of(found[0].query_id))
            abort_epoch(store, link, found[0].query_id, batchId, [report.attempt for report in found])


class EscrowMQEpochWriter(DataSourceArrowWriter):
    """Writer of one batch inside foreachBatch, which writes it once however often Spark repeats the batch."""

    def __init__(self, options: SinkOptions, epoch: int) -> None:
        self._options, self._epoch = options, epoch
        self._query_id = IntentStore(options.checkpoint, options.name).query_id()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Prepared:
        """In a task: prepare its rows."""
        query_id, epoch = self._query_id, self._epoch
        prepared = _prepare(self._options, app_of(query_id), epoch_id_of(query_id, epoch), iterator)
        return Prepared(query_id, epoch, *prepared)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver: make the batch readable, unless it already is."""
        found = _reports(messages)
        attempts = [report.attempt for report in found]
        references = [report.references for report in found]
        commit_epoch(self._store(), self._link(), self._query_id, self._epoch, attempts, references)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver, after a failure: roll back what the finished tasks prepared."""
        attempts = [report.attempt for report in _reports(messages)]
        abort_epoch(self._store(), self._link(), self._query_id, self._epoch, attempts)

    def _store(self) -> IntentStore:
        return IntentStore(self._options.checkpoint, self._options.name)

    def _link(self) -> SinkLink:
        return SinkLink(router_to(self._options), app_of(self._query_id))


class EscrowMQBatchWriter(DataSourceArrowWriter):
    """Writer of one batch. It is made once, on the driver; copies of it run in the tasks."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._write_id = f"batch-{uuid.uuid4()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Prepared:
        """In a task: prepare its rows."""
        name = self._write_id
        prepared = _prepare(
            self._options, app_of(name), epoch_id_of(name, 0), iterator, functools.partial(home_of, name)
        )
        return Prepared(self._write_id, 0, *prepared)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver: make everything readable."""
        found = _reports(messages)
        link = SinkLink(router_to(self._options), app_of(self._write_id))
        attempts = [report.attempt for report in found]
        commit_batch(link, self._write_id, attempts, [report.references for report in found])
        sweep_behind(link, self._write_id)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver, after a failure: roll back everything."""
        link = SinkLink(router_to(self._options), app_of(self._write_id))
        abort_batch(link, self._write_id)
        sweep_behind(link, self._write_id)


def _reports(messages: Sequence[WriterCommitMessage | None]) -> list[Prepared]:
    return [message for message in messages if isinstance(message, Prepared)]


def _checked(
    options: Mapping[str, str], schema: StructType, address: str, namespace: str, *, streaming: bool
) -> SinkOptions:
    parsed = parse_sink_options(
        options, streaming=streaming, default_address=address, default_namespace=namespace
    )
    check_columns([(f.name, f.dataType.simpleString()) for f in schema.fields], parsed.topic)
    check_topic(parsed)
    return parsed


def batch_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool, address: str, namespace: str
) -> DataSourceArrowWriter:
    """For ``DataSource.writer``. Raises ConfigError, UnknownTopic, ClusterNotFound."""
    if overwrite:
        raise ConfigError(
            "a topic cannot be overwritten; write with .mode('append'), or delete the topic and create it "
            "again"
        )
    checked = _checked(options, schema, address, namespace, streaming=False)
    return (
        EscrowMQBatchWriter(checked) if checked.epoch is None else EscrowMQEpochWriter(checked, checked.epoch)
    )


def stream_writer(
    options: Mapping[str, str], schema: StructType, address: str, namespace: str
) -> EscrowMQStreamWriter:
    """For ``DataSource.streamWriter``. Raises ConfigError, UnknownTopic, ClusterNotFound.

    In complete mode, Spark asks to replace the table; as with Kafka, its present rows are appended instead.
    """
    return EscrowMQStreamWriter(_checked(options, schema, address, namespace, streaming=True))
