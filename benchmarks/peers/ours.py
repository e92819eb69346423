"""EscrowMQ: one broker group of three replicas on Ray, as ``make bench`` runs it, synced on a majority."""

from __future__ import annotations

from pathlib import Path

from benchmarks.peers.processes import Processes
from benchmarks.peers.program import LoadProgram
from benchmarks.peers.rows import (
    LONE_PLAIN,
    LONE_TX,
    PLAIN_1K,
    PLAIN_256,
    READING,
    READING_TABLES,
    TABLE_1K,
    TABLE_256,
    TX_64,
    TX_64_ONE_WAY,
    TX_BULK,
    TX_OF_100,
    TX_TASKS,
)
from benchmarks.peers.system import System


class Ours(System):
    """With the defaults. Lone plain messages do not linger; one-way commit is a row of its own."""

    name = "escrowmq"
    rows = (
        *(PLAIN_256, TABLE_256, PLAIN_1K, TABLE_1K, READING, READING_TABLES),
        *(LONE_PLAIN, LONE_TX, TX_64, TX_64_ONE_WAY, TX_OF_100, TX_TASKS, TX_BULK),
    )

    def install(self) -> None:
        """It is installed."""

    def serve(self, folder: Path, processes: Processes) -> LoadProgram:
        return self.python_load(processes, "ours_load", str(folder / "data"))
