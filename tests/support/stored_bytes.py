"""Bytes as a file that no longer changes, and run files and tables over them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from escrowmq.replication.errors import CorruptLog
from escrowmq.replication.state.stored_runs import (
    Columns,
    KeptBlocks,
    RunFile,
    StoredTable,
    encode_runs,
    open_runs,
)


class StoredBytes:
    """See ``StoredFile``. ``reads``: (position, bytes) of all."""

    def __init__(self, data: bytes | bytearray, name: str = "x") -> None:
        self.name, self.data = name, bytes(data)
        self.size = len(data)
        self.reads: list[tuple[int, int]] = []

    def read(self, pos: int, size: int) -> bytes:
        self.reads.append((pos, size))
        if pos + size > self.size:
            raise CorruptLog(f"{self.name}: cut off")
        return self.data[pos : pos + size]


def run_file(data: bytes | bytearray, name: str = "x") -> RunFile:
    """Raises as ``open_runs``."""
    return open_runs(StoredBytes(data, name), KeptBlocks())


def stored(tables: Mapping[int, Columns]) -> Iterable[tuple[int, StoredTable]]:
    """Slots and tables of a run file that holds these."""
    return run_file(b"".join(encode_runs(tables))).tables()
