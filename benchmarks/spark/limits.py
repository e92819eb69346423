"""Upper limits on this machine: a Python source that reads nothing, and three plain files that are synced.

A Python source passes its rows to Spark's JVM through a socket. A source that repeatedly returns the same
batch in memory shows the cost of that alone. Three replicas of a topic write and sync every byte three times.
Plain files that are written in the same way, in pieces as large as the sink's chunks, show the cost of the
disk and the page cache.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

BATCH_BYTES = 4 << 20
PIECE_BYTES = 4 << 20


class MemorySource(DataSource):
    """A source of ``rows`` rows of ``rowBytes`` random bytes in ``partitions`` partitions, from memory."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "memory-rows"

    def schema(self) -> str:
        """The first two columns of the EscrowMQ source."""
        return "key BINARY, value BINARY"

    def reader(self, schema: Any) -> DataSourceReader:
        """A reader for the options' rows."""
        return _Reader(*(int(self.options[name]) for name in ("rows", "rowBytes", "partitions")))


class _Reader(DataSourceReader):
    def __init__(self, rows: int, row_bytes: int, partitions: int) -> None:
        self._rows, self._row_bytes, self._partitions = rows, row_bytes, partitions

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(self._partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        rng = random.Random(partition.value)
        size = max(1, BATCH_BYTES // self._row_bytes)
        keys = pa.array([b"k%03d" % (number % 1000) for number in range(size)], pa.binary())
        values = pa.array([rng.randbytes(self._row_bytes) for _ in range(size)], pa.binary())
        batch = pa.RecordBatch.from_arrays([keys, values], names=["key", "value"])
        left = self._rows // self._partitions + (partition.value < self._rows % self._partitions)
        while left > 0:
            yield batch.slice(0, min(left, size))
            left -= size


def memory_rows(spark: SparkSession, rows: int, row_bytes: int, partitions: int) -> DataFrame:
    """A DataFrame of such rows."""
    by_value: Any = cloudpickle.register_pickle_by_value  # executors need not find this file
    by_value(sys.modules[__name__])
    spark.dataSource.register(MemorySource)
    reader = spark.read.format(MemorySource.name()).option("rows", rows).option("rowBytes", row_bytes)
    return reader.option("partitions", partitions).load()


def synced_copies(folder: Path, size: int, copies: int = 3) -> None:
    """Write ``size`` bytes to each of ``copies`` new files at the same time, and sync every piece.

    The files of the previous call are removed only afterwards, because a log keeps its files as well; memory
    pages that were just freed would make the writes cheaper.
    """
    piece = random.Random(1).randbytes(PIECE_BYTES)
    before = list(folder.glob("copy-*"))
    paths = [folder / f"copy-{time.monotonic_ns()}-{n}" for n in range(copies)]

    def write(path: Path) -> None:
        with path.open("wb", buffering=0) as file:
            left = size
            while left > 0:
                file.write(memoryview(piece)[: min(left, PIECE_BYTES)])
                os.fdatasync(file.fileno())
                left -= PIECE_BYTES

    writers = [threading.Thread(target=write, args=(path,)) for path in paths]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert all(path.stat().st_size == size for path in paths), "a writer failed"
    for path in before:
        path.unlink()
