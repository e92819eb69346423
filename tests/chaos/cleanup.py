"""Ends every process that a run started, directly or not, when the run ends.

All of them inherit an environment variable with a value that is unique to the run. So all are found, even if
the process that started them is dead, and no other process is. They are killed by their pids.
"""

from __future__ import annotations

import contextlib
import os
import time

import psutil

MARK = "CHAOS_RUN_OF_TESTS"
GONE_S = 10.0


def marked(value: str) -> list[psutil.Process]:
    """Live processes with this run's mark, except this process."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(MARK) == value:
                found.append(process)
    return found


def end_all(value: str) -> int:
    """Send SIGKILL until none of them is left; returns their number. It also ends stopped processes."""
    killed: set[int] = set()
    deadline = time.monotonic() + GONE_S
    while found := marked(value):
        for process in found:
            killed.add(process.pid)
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(found, timeout=1.0)
        if time.monotonic() >= deadline:
            raise RuntimeError(f"processes {[p.pid for p in found]} survive SIGKILL")
    return len(killed)
