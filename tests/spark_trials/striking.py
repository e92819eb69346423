"""Strikes inside Spark's Python processes: a sink that dies, stalls or raises at a drawn step.

The sink's own code has no hooks. The trial's data source hands Spark a writer that, for the one epoch that
is struck, wraps the function at that step. A strike happens once, even if another process repeats the step:
its marker file is created exclusively before anything else.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from escrowmq.spark_integration.data_source import EscrowMQDataSource
from escrowmq.spark_integration.sink import commit as sink_commit
from escrowmq.spark_integration.sink import task as sink_task
from escrowmq.spark_integration.sink.intents import IntentStore
from escrowmq.spark_integration.sink.link import SinkLink
from escrowmq.spark_integration.sink.options import SinkOptions
from escrowmq.spark_integration.sink.writers import EscrowMQStreamWriter, Prepared
from tests.spark_trials.plan import TASK_STEPS, Step, Strike, Victim

#: So small that a file of some hundred rows is several chunks.
CHUNK_BYTES = 2_000
#: How long a struck process waits for the leader to be killed.
KILL_WAIT_S = 30.0


class StruckError(RuntimeError):
    """What a step raises when its strike says so."""


@dataclass(frozen=True, slots=True)
class Trap:
    """The strikes of one trial. ``markers``: a directory; ``driver``: process group of the driver."""

    strikes: tuple[Strike, ...]
    markers: str
    driver: int

    def armed(self, epoch: int, task: bool) -> Strike | None:
        """The strike that this process may carry out in this epoch."""
        for strike in self.strikes:
            if strike.epoch == epoch and (strike.step in TASK_STEPS) is task:
                return strike
        return None

    def spring(self, strike: Strike) -> None:
        """Strike, unless it has happened. Returns for a zombie and for a killed leader."""
        marker = Path(self.markers) / f"{strike.number}"
        try:
            marker.touch(exist_ok=False)
        except FileExistsError:
            return
        if strike.victim is Victim.RAISE:
            raise StruckError(f"struck at step {strike.step.value!r}")
        if strike.victim is Victim.WORKER:
            os.kill(os.getpid(), signal.SIGKILL)
        if strike.victim is Victim.DRIVER:
            os.killpg(self.driver, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        if strike.victim is Victim.ZOMBIE:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            os.setsid()  # Spark's worker daemon takes its children along
            os.killpg(self.driver, signal.SIGKILL)
            time.sleep(strike.pause_s)
        if strike.victim is Victim.LEADER:
            deadline = time.monotonic() + KILL_WAIT_S
            while not marker.with_suffix(".killed").exists():
                assert time.monotonic() < deadline, "nobody killed the leader"
                time.sleep(0.005)


class TrialSource(EscrowMQDataSource):
    """Format ``escrowmq`` whose streaming sink has a trap in it."""

    trap: Trap

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """The sink's own writer, in a wrapping."""
        plain = super().streamWriter(schema, overwrite)
        assert isinstance(plain, EscrowMQStreamWriter)
        return TrialWriter(plain._options, self.trap)


class TrialWriter(EscrowMQStreamWriter):
    """See the module's text."""

    def __init__(self, options: SinkOptions, trap: Trap) -> None:
        super().__init__(options)
        self._trap = trap

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Prepared:
        """In a task; the one with number 0 is struck."""
        context = TaskContext.get()
        assert context is not None
        strike = self._trap.armed(int(context.getLocalProperty("streaming.sql.batchId") or -1), True)
        with mock.patch.object(sink_task, "CHUNK_BYTES", CHUNK_BYTES):
            if strike is None or context.partitionId() != 0:
                return super().write(iterator)
            if strike.step is Step.SENDING:
                with _after(sink_task.ChunkWriter, "_send", lambda: self._trap.spring(strike)):
                    return super().write(iterator)
            report = super().write(iterator)
            self._trap.spring(strike)
            return report

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver."""
        strike = self._trap.armed(batchId, False)
        if strike is None:
            super().commit(messages, batchId)
            return
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._wrapped(strike))
            try:
                if strike.step is Step.PREPARED:
                    self._trap.spring(strike)
                super().commit(messages, batchId)
                if strike.step is Step.RETURNING:
                    self._trap.spring(strike)
            finally:
                if strike.victim is Victim.ZOMBIE:
                    (Path(self._trap.markers) / f"{strike.number}.ended").touch()

    def _wrapped(self, strike: Strike) -> contextlib.AbstractContextManager[None]:
        def spring() -> None:
            self._trap.spring(strike)

        if strike.step is Step.VERIFIED:
            return _before(IntentStore, "create", spring)
        if strike.step is Step.INTENT:
            return _after(IntentStore, "create", spring)
        if strike.step is Step.COMMIT_SENT:
            return _once_sent(spring)
        if strike.step is Step.COMMITTED:
            return _before(sink_commit, "clear_leftovers", spring)
        return contextlib.nullcontext()


@contextlib.contextmanager
def _before(owner: Any, name: str, spring: Callable[[], None]) -> Iterator[None]:
    original = getattr(owner, name)

    def wrapped(*args: Any, **options: Any) -> Any:
        spring()
        return original(*args, **options)

    with mock.patch.object(owner, name, wrapped):
        yield


@contextlib.contextmanager
def _after(owner: Any, name: str, spring: Callable[[], None]) -> Iterator[None]:
    original = getattr(owner, name)

    def wrapped(*args: Any, **options: Any) -> Any:
        result = original(*args, **options)
        spring()
        return result

    with mock.patch.object(owner, name, wrapped):
        yield


@contextlib.contextmanager
def _once_sent(spring: Callable[[], None]) -> Iterator[None]:
    """The COMMIT has left this process, and its answer has not come."""
    original = SinkLink.finish

    def wrapped(link: SinkLink, gid: int, request: bytes, future: Any, count: int) -> Any:
        time.sleep(0.002)
        spring()
        return original(link, gid, request, future, count)

    with mock.patch.object(SinkLink, "finish", wrapped):
        yield
