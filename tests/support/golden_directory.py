"""Data directories of three replicas, as earlier versions have left them: tests/golden/directories/.

``format-1.tar.xz`` was written by the first version of format 1. It is never written again: it stands for
what lies on users' disks. One for a further format level:

    PYTHONPATH=$PWD python tests/support/golden_directory.py tests/golden/directories/format-1-level-N.tar.xz

The constants say what is in them.
"""

from __future__ import annotations

import sys
import tarfile
import tempfile
import time
from pathlib import Path

from escrowmq.actors.broker.config import BrokerConfig
from escrowmq.replication.format import ops, share_ops, timer_ops
from escrowmq.replication.format.codec import encode_row
from escrowmq.replication.format.internal_topics import dead_topic, retry_topic
from escrowmq.replication.format.ops import PrepareExtra
from tests.support.broker_group import BrokerGroup
from tests.support.requests import APP, TOPIC, prepare

FOLDER = Path(__file__).parent.parent / "golden" / "directories"
NAMES = tuple(sorted(file.name.removesuffix(".tar.xz") for file in FOLDER.glob("*.tar.xz")))
SEGMENT_BYTES = 64 << 10
#: Readable messages of t/0, by their transaction; transactions left open; one rolled back; a group's offset.
PUBLISHED = [f"x{number}" for number in range(60)]
OPEN, ROLLED_BACK = ["open-1", "open-2"], "undone"
GROUP, OFFSET = "readers", 17
#: Several segments, so that there are sidecars, snapshots and run files.
VALUE_BYTES = 4_000
#: A topic of its own for the rest: messages that wait, one of them cancelled, and a share group with one
#: final message and one dead letter; and a named producer's claim.
OTHER, WAITING, SHARES, NAME, EPOCH = "other", 2, "workers", "relay", 7
#: When the waiting messages can be read: in the year 2100.
LATER_MS = 4_102_444_800_000


def config() -> BrokerConfig:
    return BrokerConfig(segment_bytes=SEGMENT_BYTES, disk_reserve_bytes=0)


def write(path: Path) -> None:
    """Replicas ``r0`` to ``r2`` below ``path``."""
    with BrokerGroup(path, config()) as group:
        group.topic(TOPIC)
        _write_the_rest(group)
        group.submit(prepare([OPEN[0]], extra=PrepareExtra("me", fence=b"f" * ops.FENCE_BYTES)))
        for tx in PUBLISHED:
            group.publish(tx, size=VALUE_BYTES)
        group.submit(prepare([OPEN[1], ROLLED_BACK]))
        group.submit(ops.rollback(APP, [ROLLED_BACK]))
        group.submit(ops.group_offsets(GROUP, TOPIC, {0: OFFSET}))
        time.sleep(1.0)  # followers hear of the last commit


def _write_the_rest(group: BrokerGroup) -> None:
    group.topic(OTHER)
    rows = [encode_row(None, b"v", None, None)] * 3
    times = [LATER_MS + number for number in range(len(rows))]
    owner = timer_ops.owner_of("golden")
    group.submit(ops.message(OTHER, 0, "golden", 0, 0, rows))
    group.submit(timer_ops.scheduled(OTHER, 0, "golden/later", 0, 0, times, rows, owner, 0))
    group.submit(timer_ops.cancel(OTHER, 0, [(times[-1], owner, len(rows) - 1)]))
    for name in (retry_topic(SHARES), dead_topic(SHARES)):
        group.topic(name)
    group.submit(share_ops.group_settings(SHARES, {"kind": "share"}))
    group.submit(share_ops.share_create(SHARES, OTHER, 0, share_ops.EARLIEST))
    group.submit(share_ops.share_ack(SHARES, OTHER, 0, [0, 0]))
    group.submit(share_ops.nack(SHARES, OTHER, 0, [1], [share_ops.REJECT], ["no"], "", "golden"))
    group.submit(ops.claim(NAME, EPOCH, "golden"))


def pack(path: Path, file: Path) -> None:
    """Without what only a live replica has."""

    def kept(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        name = Path(entry.name).name
        entry.uid = entry.gid = entry.mtime = 0
        entry.uname = entry.gname = ""
        return None if name in ("lock", "raft-port") else entry

    with tarfile.open(file, "w:xz", preset=9) as tar:
        for replica in sorted(path.iterdir()):
            tar.add(replica, replica.name, filter=kept)


def unpack(name: str, path: Path) -> None:
    """The directories of that name, below ``path``."""
    # Python warns without a filter from 3.12 on; 3.11 has it since 3.11.4.
    filtered = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(FOLDER / f"{name}.tar.xz") as archive:
        archive.extractall(path, **filtered)  # type: ignore[arg-type]


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        write(Path(directory))
        pack(Path(directory), Path(sys.argv[1]))


if __name__ == "__main__":
    main()
