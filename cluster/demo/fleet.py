"""The demo's producer processes: starts, reads, kills and replaces them.

For each process, a thread here turns its output into events in one bounded queue. Signals are sent only to
processes started here, by pid.
"""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from escrowmq.cluster.demo.events import Event, Failed, OrderEnded, read_events
from escrowmq.cluster.demo.worker import WorkerSettings

#: Events waiting to be counted: more than the orders of a second.
QUEUE_MAX = 10_000
#: Time from closing a process's standard input to its end; its producer flushes and closes meanwhile.
END_TIMEOUT_S = 15.0


@dataclass(slots=True)
class _Process:
    number: int
    popen: subprocess.Popen[str]
    keys: list[int]
    done: set[int] = field(default_factory=set)
    killed: bool = False
    listener: threading.Thread | None = None


class Fleet:
    """Producer processes by number. ``base``: the settings that all of them share."""

    def __init__(self, base: WorkerSettings, directory: Path) -> None:
        self._base, self._directory = base, directory
        self._processes: dict[int, _Process] = {}
        self._starts = 0
        self.events: queue.Queue[tuple[int, Event]] = queue.Queue(QUEUE_MAX)

    def start(self, number: int, keys: Sequence[int]) -> int:
        """Start process ``number`` with its share of the orders; returns its pid."""
        self._starts += 1
        run = f"{number}.{self._starts}"
        keys_file = self._directory / f"keys-{run}.json"
        keys_file.write_text(json.dumps(list(keys)))
        settings = replace(self._base, keys_file=str(keys_file))
        with (self._directory / f"producer-{run}.log").open("w") as log:
            popen = subprocess.Popen(
                [sys.executable, "-m", "escrowmq.cluster.demo.worker", settings.encode()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        process = self._processes[number] = _Process(number, popen, list(keys))
        process.listener = threading.Thread(target=self._listen, args=(process,), daemon=True)
        process.listener.start()
        return popen.pid

    def kill(self, number: int) -> list[int]:
        """Kill a process with SIGKILL; returns the orders that it had not reported as done."""
        process = self._processes[number]
        process.killed = True
        process.popen.send_signal(signal.SIGKILL)
        process.popen.wait()
        assert process.listener is not None
        process.listener.join(END_TIMEOUT_S)  # what it reported before its end still counts
        return [key for key in process.keys if key not in process.done]

    def stop(self) -> None:
        """Let all processes end; kill those that do not end in time."""
        for process in self._processes.values():
            if process.popen.stdin is not None:
                process.popen.stdin.close()
        for process in self._processes.values():
            try:
                process.popen.wait(END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.popen.kill()
                process.popen.wait()

    def _listen(self, process: _Process) -> None:
        assert process.popen.stdout is not None
        for event in read_events(process.popen.stdout):
            if isinstance(event, OrderEnded):
                process.done.add(event.key)
            self.events.put((process.number, event))
        code = process.popen.wait()
        if code != 0 and not process.killed:
            self.events.put((process.number, Failed(f"producer process {process.number} ended with {code}")))
