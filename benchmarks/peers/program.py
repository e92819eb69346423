"""Talks to a load program: one line ``ROW SECONDS`` in, one line of JSON out.

A load program is a process of its own, as an application would be, so that no peer shares an interpreter or a
JVM with the one that measures.
"""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from typing import Any

from benchmarks.peers.processes import Processes
from benchmarks.peers.rows import Figure

READY_S = 120.0
#: A row may take this much longer than asked: producers are made, and what was committed becomes visible.
GRACE_S = 60.0


class LoadProgram:
    """A running load program."""

    def __init__(self, process: subprocess.Popen[str], processes: Processes) -> None:
        self._process, self._processes = process, processes
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self._answer(READY_S)

    def ask(self, row: str, seconds: float) -> Figure:
        """Run one row. What fails inside the program becomes a figure with an error."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{row} {seconds}\n")
        self._process.stdin.flush()
        return Figure.of(self._answer(seconds + GRACE_S))

    def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            for line in self._process.stdout:
                if line.startswith("{"):  # libraries may print, too
                    self._answers.put(json.loads(line))
        except ValueError:  # closed while it was read: the system is being stopped
            pass

    def _answer(self, seconds: float) -> dict[str, Any]:
        for _ in range(max(1, int(seconds))):
            try:
                return self._answers.get(timeout=1.0)
            except queue.Empty:
                self._processes.check()
        raise TimeoutError(f"the load program did not answer within {seconds:.0f} s")
