"""Ray nodes of this machine as machines of their own: each at a loopback address, lost as a whole.

``ray start`` is called as ``ray_cluster.yaml`` calls it, so that what the file says is what is tested; only
addresses, ports and directories are replaced.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml

FILE = Path(__file__).parents[2] / "ray_cluster.yaml"
BIN = Path(sys.executable).parent
RAY = str(BIN / "ray")
START_S = 90
#: Processes that no test needs.
SPARING = "--include-log-monitor=false"
SPARING_HEAD = ("--include-dashboard=false", "--no-monitor", SPARING)


def cluster_file() -> dict[str, Any]:
    """The content of ``ray_cluster.yaml``."""
    loaded: dict[str, Any] = yaml.safe_load(FILE.read_text())
    return loaded


def ray_start(command: str) -> tuple[dict[str, str], list[str]]:
    """(variables, arguments of ``ray``) of a line of the file that ends in ``ray start ...``."""
    words = shlex.split(command.rpartition(";")[2])
    at = words.index("ray")
    return dict(word.split("=", 1) for word in words[:at]), words[at + 1 :]


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


@dataclass(slots=True)
class Machine:
    """One Ray node: ``ray start --block`` and everything that it has started."""

    name: str
    ip: str
    arguments: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _said_before: int = field(default=0, init=False)

    def start(self) -> None:
        """In a session of its own, as a machine of its own would be."""
        more = [f"--node-name={self.name}", f"--node-ip-address={self.ip}", "--num-cpus=1", "--block"]
        self._said_before = len(self.log.read_text()) if self.log.exists() else 0
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [RAY, *self.arguments, *more],
                env={**os.environ, **self.environment},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def runs(self) -> bool:
        """Whether ``ray start`` has not ended."""
        return self.process is not None and self.process.poll() is None

    def wait_started(self) -> None:
        """Until Ray says so. One node after the other: several at once starve each other, and give up."""
        deadline = time.monotonic() + START_S
        while "Ray runtime started" not in (said := self.log.read_text()[self._said_before :]):
            assert self.runs and time.monotonic() < deadline, said[-3000:]
            time.sleep(0.1)

    @property
    def raylet_is_alive(self) -> bool:
        """Whether Ray still works there."""
        return any(process.name() == "raylet" for process in self._all())

    def lose(self) -> None:
        """SIGKILL to all of its processes, as when its power is cut."""
        family = self._all()
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        if self.process is not None:
            self.process.wait(10)
        psutil.wait_procs(family, timeout=10)

    def _all(self) -> list[psutil.Process]:
        if self.process is None:
            return []
        try:
            parent = psutil.Process(self.process.pid)
            return [parent, *parent.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []


def machines_of(
    directory: Path, names: Sequence[str], changes: Mapping[str, str | None], port: int
) -> list[Machine]:
    """The head (the first of ``names``) and workers, at 127.0.0.1 and further addresses; not started.

    ``changes``: variables beside or instead of the file's; None takes one away.
    """
    content = cluster_file()
    address = f"127.0.0.1:{port}"
    found = []
    for number, name in enumerate(names):
        kind = "head" if number == 0 else "worker"
        variables, words = ray_start(content[f"{kind}_start_ray_commands"][1])
        if "RAY_gcs_storage_path" in variables:
            variables["RAY_gcs_storage_path"] = str(directory / "gcs")
        given: dict[str, str | None] = {**variables, "RAY_AUTH_MODE": "disabled", **changes}
        arguments = [w for w in words if not w.startswith(("--port", "--autoscaling-config", "--address"))]
        if number == 0:
            arguments += [f"--port={port}", f"--temp-dir={directory / 'ray'}", *SPARING_HEAD]
        else:
            arguments += [f"--address={address}", SPARING]
        environment = {key: value for key, value in given.items() if value is not None}
        ip = f"127.0.0.{number + 1}"
        found.append(Machine(name, ip, arguments, environment, directory / f"{name}.log"))
    return found
