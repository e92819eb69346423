"""Servers and load programs: each in a process group of its own, tied to this process, ended by its id."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import psutil

import escrowmq

#: The kernel ends what it runs as soon as this process ends: no JVM may stay behind.
TETHER = Path(escrowmq.__file__).parent / "spark_integration/session/parent_death.py"
#: Load programs import this folder, which is not installed, and do not run where it lies.
_PYTHONPATH = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
START_S = 90.0
STOP_S = 10.0


class ServerEnded(RuntimeError):
    """A process ended that should have gone on; the text has the end of its log."""


class Processes:
    """The processes of one system."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: list[tuple[subprocess.Popen[Any], Path]] = []
        self._paused: list[psutil.Process] = []

    def start(
        self,
        name: str,
        command: Sequence[str | Path],
        environment: Mapping[str, str] | None = None,
        piped: bool = False,
    ) -> subprocess.Popen[str]:
        """Start a program; what it says goes to ``NAME.log``. ``piped``: its input and output are ours."""
        log = self.folder / f"{name}.log"
        with log.open("ab") as file:
            output: IO[bytes] | int = subprocess.PIPE if piped else file
            process = subprocess.Popen(
                [sys.executable, str(TETHER), str(os.getpid()), *map(str, command)],
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": _PYTHONPATH, **(environment or {})},
                stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
                stdout=output,
                stderr=file,
                start_new_session=True,
                text=True,
            )
        self._running.append((process, log))
        return process

    def check(self) -> None:
        """Raise ServerEnded if one of them has ended."""
        for process, log in self._running:
            if process.poll() is not None:
                raise ServerEnded(f"{log.stem} ended with {process.returncode}: {tail(log)}")

    def wait_for_port(self, port: int, seconds: float = START_S) -> None:
        """Wait until somebody listens."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.check()
            with socket.socket() as probe:
                probe.settimeout(1.0)
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.1)
        raise ServerEnded(f"nobody listens at port {port} after {seconds:.0f} s")

    def pause(self) -> None:
        """Stop all with their descendants where they are, parents first: none of them begins another one."""
        self._paused = [one for process, _ in self._running for one in _with_descendants(process.pid)]
        _signal(self._paused, signal.SIGSTOP)

    def go_on(self) -> None:
        """The opposite of ``pause``; nothing if none is paused."""
        paused, self._paused = self._paused, []
        _signal(paused, signal.SIGCONT)

    def stop(self) -> None:
        """End all, politely first. The data are thrown away, so nothing is lost by haste."""
        self.go_on()
        for process, _ in reversed(self._running):
            _signal_group(process, signal.SIGTERM)
        end = time.monotonic() + STOP_S
        for process, _ in self._running:
            try:
                process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                pass
            _signal_group(process, signal.SIGKILL)
            process.wait(STOP_S)
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        self._running.clear()


def _with_descendants(pid: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _signal(processes: Sequence[psutil.Process], number: int) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def _signal_group(process: subprocess.Popen[Any], number: int) -> None:
    try:
        os.killpg(process.pid, number)  # start_new_session: the group has the id of its first process
    except ProcessLookupError:
        pass


def tail(log: Path, characters: int = 600) -> str:
    """The end of a log, in one line."""
    return " ".join(log.read_text(errors="replace")[-characters:].split())


def free_ports(count: int, below: int = 0) -> list[int]:
    """Ports of loopback that nobody uses now, with the port ``below`` each, which RocketMQ takes, too."""
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(20_000, 32_000)
        if all(abs(port - other) > below for other in found) and _free(port) and _free(port - below):
            found.append(port)
    return found


def _free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
