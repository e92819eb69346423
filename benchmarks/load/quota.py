"""Processor time for the brokers only as much as is allowed: a control group of the kernel around them.

On a machine that clients and brokers share, clients cannot offer much more than brokers can do. With a quota
on the brokers they can: what is sustainable becomes small, and the clients keep the rest of the machine. The
quota is theirs before anybody else's turn, so that clients and strangers do not take from it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

#: Where the ``cpu`` controller of cgroup v1 is usually mounted.
ROOTS = (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup/cpu,cpuacct"))
#: Short, so that a broker is never held up for as long as an election takes to begin.
PERIOD_US = 10_000
#: Against 1024 of every other process: what the quota allows, they get.
SHARES = 50 * 1024
HINT = (
    "the brokers are not capped: that needs cgroup v1 with its cpu controller, and the right to write there"
)


@contextmanager
def cpu_quota(pids: Iterable[int], cores: float) -> Iterator[str | None]:
    """All these processes together get ``cores`` of processor time; yields why not, or None.

    Afterwards they are back where they were (in the root group), those that still live.
    """
    root = next((r for r in ROOTS if (r / "cpu.cfs_quota_us").exists()), None)
    if root is None:
        yield HINT
        return
    group = root / f"escrowmq-load-{os.getpid()}"
    processes = list(pids)
    try:
        group.mkdir()
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(int(cores * PERIOD_US)))
        (group / "cpu.shares").write_text(str(SHARES))
        for pid in processes:
            (group / "cgroup.procs").write_text(str(pid))
    except OSError as error:
        _dissolve(root, group, processes)
        yield f"{HINT} ({error})"
        return
    try:
        yield None
    finally:
        _dissolve(root, group, processes)


def _dissolve(root: Path, group: Path, processes: list[int]) -> None:
    for pid in processes:
        with suppress(OSError):  # it has ended
            (root / "cgroup.procs").write_text(str(pid))
    with suppress(OSError):
        group.rmdir()
