"""Recovery: how much of its log a replica reads when it starts, and how long that takes.

The single replica of a group writes a log of many segments with messages of 1 KiB, is stopped, and is
restarted. It must read only what follows its newest snapshot, however long the log is. To show this, the same
is done with a log of twice the size. It runs without Ray, as the replica alone in this process.
"""

from __future__ import annotations

import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from escrowmq.actors.admin.topic_creation import topic_settings
from escrowmq.actors.broker.config import BrokerConfig
from escrowmq.actors.broker.parts import Parts
from escrowmq.replication.format import ops
from escrowmq.replication.format.codec import encode_row
from escrowmq.replication.host.replica_process import open_replica
from escrowmq.replication.host.replica_setup import ReplicaSetup
from escrowmq.replication.log.datadir import Identity

MESSAGE_BYTES, MESSAGES_PER_CALL = 1024, 64
SEGMENT_BYTES = 16 << 20


@dataclass(frozen=True)
class RecoveryFigure:
    """The figures of one restart."""

    log_mb: float
    entries: int
    messages: int
    entries_redone: int
    read_mb: float
    seconds: float


def measure_recovery(folder: Path, log_megabytes: int) -> RecoveryFigure:
    """Write a log of that size into ``folder``, restart the replica, and remove the folder."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        written = _fill(folder, log_megabytes * 1_000_000)
        return _restart(folder, written)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def results(figures: list[RecoveryFigure]) -> list[dict[str, Any]]:
    """The figures for the JSON file."""
    return [asdict(figure) for figure in figures]


def _leader(folder: Path) -> Parts:
    """The only replica of its group, running and leading."""
    setup = ReplicaSetup(
        config=BrokerConfig(segment_bytes=SEGMENT_BYTES),
        identity=Identity(cluster_id="bench", group=0, replica=0),
        groups=1,
        founders=1,
        data_dir=folder,
        listen_host="127.0.0.1",
        secret=b"only for this benchmark",
        resolve=lambda peer: None,
    )
    running = open_replica(setup)
    deadline = time.monotonic() + 60
    while not running.whoami()[0]:
        if time.monotonic() > deadline:
            raise TimeoutError("the replica did not become the leader of its group of one")
        time.sleep(0.002)
    return Parts(running)


def _fill(folder: Path, wanted_bytes: int) -> int:
    leader = _leader(folder)
    leader.requests.submit(ops.create_topic("bench", topic_settings(4)))
    rows = [encode_row(b"key", os.urandom(MESSAGE_BYTES), None, None) for _ in range(MESSAGES_PER_CALL)]
    requests = [ops.message("bench", p, "bench", 0, -1, rows) for p in range(4)]
    calls = wanted_bytes // len(requests[0])
    with ThreadPoolExecutor(8) as pool:
        for status in pool.map(lambda n: leader.requests.submit(requests[n % 4]), range(calls)):
            if status[0] != "ok" or any(result[0] for result in status[1]):
                raise RuntimeError(f"the replica answered {status}")
    leader.running.close()
    return calls * MESSAGES_PER_CALL


def _restart(folder: Path, written: int) -> RecoveryFigure:
    log_bytes = sum(path.stat().st_size for path in (folder / "log").glob("*.log"))
    before, begin = _bytes_read(), time.perf_counter()
    leader = _leader(folder)
    seconds, read = time.perf_counter() - begin, _bytes_read() - before
    report = leader.inspection.status()
    ends = [leader.reads.partition_bounds("bench")[p][1] for p in range(4)]
    leader.running.close()
    if sum(ends) != written:
        raise RuntimeError(f"{written} messages were written, but {sum(ends)} recovered")
    return RecoveryFigure(
        log_bytes / 1e6,
        report.last_index,
        written,
        report.last_index - report.recovered_index,
        read / 1e6,
        seconds,
    )


def _bytes_read() -> int:
    """Bytes read by system calls of this process. (Mapped files are not read at the start.)"""
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("rchar:"):
            return int(line.split()[1])
    return 0
