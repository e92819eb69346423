"""A data directory of three replicas, as earlier versions have left them: tests/golden/directories/.

``level-1.tar.xz`` was written by the software before format levels (commit 431ec1c, this script with that
checkout's tree in PYTHONPATH), ``level-2.tar.xz`` by the first with level 2, ``level-3.tar.xz``
to ``level-9.tar.xz`` by the last that had no level above. They are never written again:
they stand for what lies on users' disks. One for a further level:

    PYTHONPATH=$PWD python tests/support/golden_directory.py tests/golden/directories/level-N.tar.xz

It uses only what has been there since level 1. ``CONTENT`` says what is in them.
"""

from __future__ import annotations

import sys
import tarfile
import tempfile
import time
from pathlib import Path

from escrowmq.actors.broker.config import BrokerConfig
from escrowmq.replication.format import ops
from tests.support.broker_group import BrokerGroup
from tests.support.requests import APP, TOPIC, prepare

FOLDER = Path(__file__).parent.parent / "golden" / "directories"
LEVELS = (1, 2, 3, 4, 5, 6, 7, 8, 9)
SEGMENT_BYTES = 64 << 10
#: Readable messages of t/0, by their transaction; transactions left open; one rolled back; a group's offset.
PUBLISHED = [f"x{number}" for number in range(60)]
OPEN, ROLLED_BACK = ["open-1", "open-2"], "undone"
GROUP, OFFSET = "readers", 17
#: Several segments, so that there are sidecars, snapshots and run files.
VALUE_BYTES = 4_000


def config() -> BrokerConfig:
    return BrokerConfig(segment_bytes=SEGMENT_BYTES, disk_reserve_bytes=0)


def write(path: Path, settle_s: float = 3.0) -> None:
    """Replicas ``r0`` to ``r2`` below ``path``. ``settle_s``: until the group has taken its highest level."""
    with BrokerGroup(path, config()) as group:
        group.topic(TOPIC)
        time.sleep(settle_s)
        group.submit(prepare([OPEN[0]]))
        for tx in PUBLISHED:
            group.publish(tx, size=VALUE_BYTES)
        group.submit(prepare([OPEN[1], ROLLED_BACK]))
        group.submit(ops.rollback(APP, [ROLLED_BACK]))
        group.submit(ops.group_offsets(GROUP, TOPIC, {0: OFFSET}))
        time.sleep(1.0)  # followers hear of the last commit


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


def unpack(level: int, path: Path) -> None:
    """The directories of a level, below ``path``."""
    from tests.support.earlier_software import extract  # the writing of earlier directories has no such file

    with tarfile.open(FOLDER / f"level-{level}.tar.xz") as tar:
        extract(tar, path)


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        write(Path(directory))
        pack(Path(directory), Path(sys.argv[1]))


if __name__ == "__main__":
    main()
