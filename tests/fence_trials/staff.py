"""Processes of a trial that share one file for what they say; and the death of a leader."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from escrowmq import Cluster


class Staff:
    """Those of one shape of trial. ``end`` kills whoever is left."""

    def __init__(self, log: Path) -> None:
        self._log_file, self._log = log, log.open("ab")
        self._processes: list[subprocess.Popen[bytes]] = []

    def hire(
        self, module: str, *told: str, settings: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """One that runs this module of the package."""
        command = [sys.executable, "-m", f"tests.fence_trials.{module}", *told]
        environment = os.environ | dict(settings or {})
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=self._log, stderr=self._log
        )
        self._processes.append(process)
        return process

    def fire(self, process: subprocess.Popen[bytes]) -> None:
        """Kill it, and wait for its death."""
        process.kill()
        process.communicate()
        self._processes.remove(process)

    def end(self) -> None:
        """Everybody."""
        for process in [*self._processes]:
            self.fire(process)
        self._log.close()

    def ended(self) -> list[str]:
        """A problem for each that has ended by itself."""
        codes = [process.poll() for process in self._processes]
        return [f"a process has ended by itself, with {code}" for code in codes if code is not None]

    def said(self) -> str:
        """The end of what they said, and which of them are alive."""
        alive = [process.poll() for process in self._processes]
        return f"exit codes {alive}\n{self._log_file.read_text(errors='replace')[-4000:]}"


def tell(process: subprocess.Popen[bytes], line: str) -> None:
    """A line for its standard input."""
    assert process.stdin is not None
    process.stdin.write(f"{line}\n".encode())
    process.stdin.flush()


def kill_leader(cluster: Cluster) -> None:
    """That of the first group, if it has one just now."""
    group = cluster.status().groups[0]
    leader = next((replica for replica in group.replicas if replica.role == "leader"), None)
    if leader is not None:
        os.kill(leader.details["pid"], signal.SIGKILL)
