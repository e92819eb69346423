"""The lock of a directory that only one process may use at a time.

It is a kernel lock on an open file: it ends with its process, however that ends, so a dead process blocks
nobody. The file contains the process's number, for the error message to a process that comes too late.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

from escrowmq.replication.errors import DataDirLocked


def process_started(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if it is not running (or is a zombie)."""
    try:
        said = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    state, *numbers = said.rpartition(b")")[2].split()  # the name before it may contain any character
    return None if state in (b"Z", b"X") else int(numbers[18])


def take_lock(path: Path, mode: int, in_use: Callable[[str], str]) -> int:
    """Lock the file at ``path``, created with ``mode`` if missing; returns the descriptor that holds the
    lock.

    Raises DataDirLocked with the text that ``in_use`` makes of the holder's process number.
    """
    number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.pread(number, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(number)
        if holder.isdecimal() and process_started(int(holder)) is None:
            holder += ", which has ended: one of its child processes holds the lock"
        raise DataDirLocked(in_use(holder)) from None
    with contextlib.suppress(OSError):  # e.g. a full disk: the number only improves a message
        os.ftruncate(number, 0)
        os.pwrite(number, f"{os.getpid()}\n".encode(), 0)
    return number
