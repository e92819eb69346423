"""Transaction ids and producer instance ids.

FMQ's form: ``clientVersion-clientIP-clientStart-pid-connectionNo-transactionNo``. The part before the last
dash names one producer object in one process and is never used again, so a counter after it is unique without
any coordination; a client keeps no state across crashes.
"""

from __future__ import annotations

import itertools
import os
import socket
import threading
import time
from collections.abc import Iterator
from importlib import metadata

_connections = itertools.count(1)
_process_lock = threading.Lock()
_process_start: tuple[int, int] | None = None  # pid, ms: a forked child must not use its parent's


def _start_ms() -> int:
    global _process_start
    with _process_lock:
        if _process_start is None or _process_start[0] != os.getpid():
            _process_start = (os.getpid(), int(time.time() * 1000))
        return _process_start[1]


def client_version() -> str:
    """Version of the installed package; 0.0.0 if only its files were copied (a Ray runtime environment)."""
    try:
        return metadata.version("escrowmq")
    except metadata.PackageNotFoundError:
        return "0.0.0"


def local_ip() -> str:
    """This machine's address as others see it; sends no packet. 127.0.0.1 without any network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # TEST-NET-1: only looks up the route
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def instance_id(version: str, ip: str | None = None) -> str:
    """Name of one producer object: ``version-ip-start-pid-connection``; a new one at every call."""
    return f"{version}-{ip or local_ip()}-{_start_ms()}-{os.getpid()}-{next(_connections)}"


def transaction_ids(instance: str) -> Iterator[str]:
    """``instance-1``, ``instance-2``, ... for any number of threads.

    Made of C iterators only (two threads may not advance a generator at the same time).
    """
    return map((instance + "-").__add__, map(str, itertools.count(1)))
