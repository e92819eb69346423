"""What a system under test is: it starts, runs rows, is stopped while the other one runs, ends."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from benchmarks.peers.packages import Packages
from benchmarks.peers.processes import Processes
from benchmarks.peers.program import LoadProgram
from benchmarks.peers.rows import Figure

ROOT = Path(__file__).resolve().parents[2]
#: Every JVM that serves.
HEAP = ("-Xms1g", "-Xmx1g")


class System(ABC):
    """One system with one kind of settings: servers, and one load program, in processes of their own."""

    name: ClassVar[str]
    rows: ClassVar[tuple[str, ...]]

    def __init__(self) -> None:
        self._processes: Processes | None = None
        self._load: LoadProgram | None = None

    def start(self, folder: Path) -> None:
        """Start servers and load program. Raises NotAvailable if the packages cannot be had."""
        self.install()
        folder.mkdir(parents=True)
        self._processes = Processes(folder)
        try:
            self._load = self.serve(folder, self._processes)
        except BaseException:
            self.stop()
            raise

    @abstractmethod
    def install(self) -> None:
        """Get the packages."""

    @abstractmethod
    def serve(self, folder: Path, processes: Processes) -> LoadProgram:
        """Start the servers in ``folder``, then the load program."""

    def measure(self, row: str, seconds: float) -> Figure:
        """Run one row."""
        assert self._load is not None, "start first"
        return self._load.ask(row, seconds)

    def pause(self) -> None:
        """Stop all its processes where they are (SIGSTOP): the other one gets the whole machine."""
        if self._processes is not None:
            self._processes.pause()

    def go_on(self) -> None:
        """Let them run again."""
        if self._processes is not None:
            self._processes.go_on()

    def stop(self) -> None:
        """End them."""
        if self._processes is not None:
            self._processes.stop()
        self._processes = self._load = None

    def python_load(
        self, processes: Processes, module: str, *arguments: str, path: Mapping[str, str] | None = None
    ) -> LoadProgram:
        """A load program of ours in Python. ``path``: what it finds besides this repository."""
        command = [sys.executable, "-m", f"benchmarks.peers.{module}", *arguments]
        return LoadProgram(processes.start("load", command, path, piped=True), processes)


class Peer(System):
    """A system of other people, from packages."""

    #: Whose entry in ``versions.toml`` it uses.
    product: ClassVar[str]
    title: ClassVar[str]
    durable: ClassVar[str]
    settings: ClassVar[str]

    def __init__(self, packages: Path) -> None:
        super().__init__()
        self.packages = Packages(self.product, packages)

    def python_client(self, processes: Processes, module: str, *arguments: str) -> LoadProgram:
        """A load program in Python, which sees the peer's client."""
        return self.python_load(
            processes, module, *arguments, path={"PYTHONPATH": f"{self.packages.pip()}:{ROOT}"}
        )
