"""Limits the CPU time of the brokers with a kernel control group.

On a machine that clients and brokers share, clients cannot offer much more than the brokers can process. With
a quota on the brokers, they can: the sustainable rate becomes small, and the clients have the rest of the
machine. The brokers get their quota with priority, so that other processes do not reduce it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

#: Where the ``cpu`` controller of cgroup v1 is usually mounted.
ROOTS = (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup/cpu,cpuacct"))
#: Short, so that a broker is never paused long enough for an election to start.
PERIOD_US = 10_000
#: Other processes have 1024 shares, so brokers really get what the quota allows.
SHARES = 50 * 1024
HINT = (
    "the brokers are not limited: that needs cgroup v1 with its cpu controller, and permission to write there"
)


@contextmanager
def cpu_quota(pids: Iterable[int], cores: float) -> Iterator[str | None]:
    """Limit these processes together to ``cores``; yields None, or why that was not possible.

    Afterwards, those that are still alive are moved back to the root group.
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
