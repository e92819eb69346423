"""The datasink: write tasks prepare, and the driver commits all of them at once, as Spark's sink does.

Each attempt of a task has its own random name, and its transactions are named after it. Only attempts whose
reports reach the driver are committed, so an attempt that Ray repeated adds nothing; what it has prepared is
rolled back. See ``sink/batch`` for the decision and for what may still appear after it.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import ray
from ray.data.block import Block, BlockAccessor
from ray.data.datasource import Datasink

from escrowmq.actors.client.catalog import TopicCatalog
from escrowmq.actors.client.router import Router
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.actors.producer.config import Compression
from escrowmq.replication.errors import ConfigError, EscrowMQError
from escrowmq.spark_integration.ray_data.arguments import ColumnNames
from escrowmq.spark_integration.sink.batch import (
    PAUSES_S,
    QUIET_S,
    abort_batch,
    commit_batch,
    home_of,
    settle_batch,
    settle_until_quiet,
    was_committed,
)
from escrowmq.spark_integration.sink.intents import RAY_DATA, Attempt, app_of, epoch_id_of
from escrowmq.spark_integration.sink.link import PASSING, SinkLink
from escrowmq.spark_integration.sink.task import attempt_name, attempt_number, write_batches

if TYPE_CHECKING:
    from ray.data import Dataset
    from ray.data._internal.execution.interfaces import TaskContext
    from ray.data.datasource import WriteResult

log = logging.getLogger(__name__)

#: Rows that are encoded at a time: a column of a batch must stay below 2 GiB.
BATCH_ROWS = 10_000
#: Errors wrap one another in Ray; a chain is never longer than this.
CAUSES_MAX = 20


@dataclass(frozen=True, slots=True)
class Prepared:
    """A write task's report: what it prepared, and its references by broker group."""

    attempt: Attempt
    references: Mapping[int, int]


class EscrowMQDatasink(Datasink[Prepared]):
    """One write. It is made on the driver; copies of it run in the tasks."""

    #: See ``sink/batch``.
    quiet_s, pauses_s = QUIET_S, PAUSES_S
    chunk_bytes: int | None = None

    def __init__(
        self,
        info: ClusterInfo,
        topic: str,
        names: ColumnNames,
        message_bytes_max: int,
        timeout_ms: int,
        compression: Compression | None = None,
    ) -> None:
        self.write_id = f"{RAY_DATA}{uuid.uuid4()}"
        #: Rows that were written, once the write is complete.
        self.messages = 0
        self._info, self._topic, self._names = info, topic, names
        self._message_bytes_max, self._timeout_ms = message_bytes_max, timeout_ms
        self._compression = compression

    def get_name(self) -> str:
        """The name that Ray Data shows."""
        return f"EscrowMQ({self._topic})"

    def new_router(self) -> Router:
        """A router to the brokers, in a task or on the driver; whoever asks for it closes it."""
        return Router(self._info, name="escrowmq-ray-data")

    def write(self, blocks: Iterable[Block], ctx: TaskContext) -> Prepared:
        """In a task: prepare its rows. If it fails, they are rolled back."""
        routers: list[Router] = []

        def connect() -> tuple[SinkLink, Any]:
            router = self.new_router()
            routers.append(router)
            return SinkLink(router, app_of(self.write_id)), TopicCatalog(router).partitions

        try:
            done = write_batches(
                self._batches(blocks),
                connect,
                epoch_id=epoch_id_of(self.write_id, 0),
                attempt=attempt_name(ctx.task_idx, attempts_before()),
                topic=self._topic,
                message_bytes_max=self._message_bytes_max,
                timeout_ms=self._timeout_ms,
                home_of=functools.partial(home_of, self.write_id),
                compression=self._compression,
                chunk_bytes=self.chunk_bytes,
            )
        finally:
            for router in routers:
                router.close()
        return Prepared(*done)

    def on_write_complete(self, write_result: WriteResult[Prepared]) -> None:
        """On the driver: make everything readable."""
        reports = sorted(
            write_result.write_returns, key=lambda report: int(report.attempt.name.partition(".")[0])
        )
        attempts = [report.attempt for report in reports]
        router, link = self._link()
        try:
            references = [report.references for report in reports]
            try:
                commit_batch(link, self.write_id, attempts, references, quiet_s=self.quiet_s)
            except PASSING:  # it may have been decided: whoever runs the write again must know
                settle_until_quiet(link, self.write_id, self.quiet_s)
                if not was_committed(link, self.write_id, attempts):
                    raise
        except BaseException:
            router.close()
            raise
        self.messages = int(write_result.num_rows)
        if any(attempt_number(attempt.name) for attempt in attempts):
            self._sweep_behind(router, link)  # a lost attempt may still run, on a node that is cut off
        else:
            router.close()

    def on_write_failed(self, error: Exception) -> None:
        """On the driver, after a failure: roll back everything. Raises nothing: ``error`` is what matters."""
        router, link = self._link()
        try:
            abort_batch(link, self.write_id, quiet_s=self.quiet_s)
        except EscrowMQError as problem:
            log.warning(
                "transactions of the write %s may stay open (%s); settle them with "
                "escrowmq.ray_data.resolve_write(%r)",
                self.write_id,
                problem,
                self.write_id,
            )
            router.close()
        else:
            self._sweep_behind(router, link)

    def _link(self) -> tuple[Router, SinkLink]:
        router = self.new_router()
        return router, SinkLink(router, app_of(self.write_id))

    def _sweep_behind(self, router: Router, link: SinkLink) -> None:
        """Ray does not wait for the tasks of a failed write; in the background, roll back what they still
        prepare."""
        job = _job()

        def sweep() -> None:
            try:
                for pause in self.pauses_s:
                    time.sleep(pause)
                    # A call would otherwise connect this process to Ray again.
                    if job is None or _job() != job:
                        return
                    settle_batch(link, self.write_id)
            except EscrowMQError as error:
                log.info("the clean-up after the write %s ends: %s", self.write_id, error)
            finally:
                router.close()

        threading.Thread(target=sweep, name=f"escrowmq-sweep-{self.write_id}", daemon=True).start()

    def _batches(self, blocks: Iterable[Block]) -> Iterator[pa.RecordBatch]:
        """The blocks with the columns that the encoder expects."""
        given = self._names.given()
        for block in blocks:
            table = BlockAccessor.for_block(block).to_arrow()
            if not table.num_rows:  # an empty block may have no columns either
                continue
            missing = sorted(set(given.values()) - set(table.column_names))
            if missing:
                raise ConfigError(
                    f"the dataset has no columns {missing}, which make the messages; it has "
                    f"{table.column_names}: give the names as value=..., key=..., or rename columns"
                )
            for part, name in given.items():
                check_type(part, name, table.schema.field(name).type)
            table = table.select(list(given.values())).rename_columns(list(given))
            yield from table.to_batches(max_chunksize=BATCH_ROWS)


def _job() -> str | None:
    """The id of this process's connection to Ray; None if there is none."""
    return str(ray.get_runtime_context().get_job_id()) if ray.is_initialized() else None


def check_type(part: str, name: str, type: pa.DataType) -> None:
    """Raises ConfigError if a column cannot be this part of messages."""
    kinds = pa.types
    if part in ("value", "key"):
        fits = kinds.is_binary(type) or kinds.is_string(type) or kinds.is_fixed_size_binary(type)
        fits |= kinds.is_large_binary(type) or kinds.is_large_string(type) or kinds.is_null(type)
        wanted = "bytes or strings; encode it first, for instance in map_batches"
    elif part == "partition":
        fits, wanted = kinds.is_integer(type), "whole numbers"
    else:
        pair = type.value_type if kinds.is_list(type) or kinds.is_large_list(type) else None
        fits = kinds.is_null(type) or (
            pair is not None and kinds.is_struct(pair) and {field.name for field in pair} == {"key", "value"}
        )
        wanted = "lists of structs with key and value"
    if not fits:
        raise ConfigError(f"column {name!r} is {type}, but a message's {part} needs {wanted}")


def attempts_before() -> int:
    """How often Ray has tried the current task before: lost attempts may have left transactions."""
    try:  # Ray has no public name for it; without it, the clean-up just looks at what is open
        worker: Any = ray._private.worker.global_worker
        return int(worker.core_worker.get_current_task_attempt_number())
    except AttributeError:
        return 0


def run_write(
    dataset: Dataset,
    sink: EscrowMQDatasink,
    *,
    concurrency: int | None,
    ray_remote_args: dict[str, Any] | None,
) -> int:
    """Execute the dataset into the sink; returns the number of messages."""
    try:
        dataset.write_datasink(sink, concurrency=concurrency, ray_remote_args=ray_remote_args)
    except Exception:
        raise
    except BaseException as error:  # Ray Data tells the sink of exceptions only, not of Ctrl-C
        sink.on_write_failed(RuntimeError(repr(error)))
        raise
    return sink.messages


class Rewording:
    """Raises the typed error that Ray has wrapped, if there is one, with a note of the write's id."""

    def __init__(self, write_id: str) -> None:
        self._write_id = write_id

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if error is None:
            return
        found = typed_cause(error)
        (found or error).add_note(f"the write's id is {self._write_id}")
        if found is not None and found is not error:
            raise found from None


def typed_cause(error: BaseException) -> EscrowMQError | None:
    """The EscrowMQError that Ray's error was made of; None for any other error."""
    at: BaseException | None = error
    for _ in range(CAUSES_MAX):
        if at is None:
            return None
        if isinstance(at, EscrowMQError) and not isinstance(at, ray.exceptions.RayError):
            return at
        at = getattr(at, "cause", None) or at.__cause__
    return None
