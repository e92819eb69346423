"""How long the disk lets a small write wait meanwhile: to tell a slow disk from a slow fail-over."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

WRITE = bytes(4096)
PAUSE_S = 0.01


class DiskProbe:
    """Writes 4 KiB and calls ``fdatasync``, again and again, in a thread."""

    def __init__(self, file: Path) -> None:
        self._fd = os.open(file, os.O_CREAT | os.O_WRONLY, 0o600)
        self._worst_s = 0.0
        self._began: float | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="disk-probe", daemon=True)
        self._thread.start()

    def restart(self) -> None:
        """Forget what was measured."""
        self._worst_s = 0.0

    def worst_ms(self) -> int:
        """The longest write since the last ``restart``, including one under way."""
        began = self._began
        under_way = 0.0 if began is None else time.monotonic() - began
        return round(1000 * max(self._worst_s, under_way))

    def _run(self) -> None:
        while not self._ending.wait(PAUSE_S):
            self._began = began = time.monotonic()
            os.pwrite(self._fd, WRITE, 0)
            os.fdatasync(self._fd)
            self._worst_s = max(self._worst_s, time.monotonic() - began)
            self._began = None

    def close(self) -> None:
        self._ending.set()
        self._thread.join(10.0)
        os.close(self._fd)


@contextmanager
def disk_probe(folder: Path) -> Iterator[DiskProbe]:
    """Running on the disk of this folder, until the block ends."""
    probe = DiskProbe(folder / "disk-probe")
    try:
        yield probe
    finally:
        probe.close()
