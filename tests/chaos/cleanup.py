"""Leaving nothing behind: every process that a run started, directly or not, ends with it.

All of them inherit an environment variable with the run's own value. So they are found for certain, also
when the process that started them is dead, and killed by their pids; nobody else's can be among them.
"""

from __future__ import annotations

import contextlib
import os
import time

import psutil

MARK = "CHAOS_RUN_OF_TESTS"
GONE_S = 10.0


def marked(value: str) -> list[psutil.Process]:
    """Living processes that carry this run's mark, but not this one."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(MARK) == value:
                found.append(process)
    return found


def end_all(value: str) -> int:
    """SIGKILL all of them, until none is left; how many there were. A stopped process dies of it too."""
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
