"""The client processes of a round: starts them, listens to them, kills them, restarts those that crash.

Only processes started here are ever signalled, by their pid. If a client ends in another way than by its
planned crash or by a kill from here, it has found a problem, and its log is reported.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.chaos.client import FOUND, OWN_CRASH, ClientSettings

MODULES = {"producer": "producer", "consumer": "consumer", "reader": "consumer"}
MODULES |= {"sharer": "sharer", "scheduler": "scheduler"}
#: Those that say when nothing of theirs is under way any more.
THAT_REST = ("producer", "scheduler")
START_PATIENCE_S = 120.0
END_PATIENCE_S = 45.0


@dataclass(slots=True)
class _Client:
    settings: ClientSettings
    starts: int = 0
    popen: subprocess.Popen[str] | None = None
    killed: bool = False
    ready: threading.Event = field(default_factory=threading.Event)
    rested: threading.Event = field(default_factory=threading.Event)
    watcher: threading.Thread | None = None


class Fleet:
    """Clients by name. Each one that ends is started again until the fleet rests."""

    def __init__(self) -> None:
        self._clients: dict[str, _Client] = {}
        self._resting = False
        self._lock = threading.Lock()
        #: What clients did that no client may do, with the log that has the details.
        self.problems: list[str] = []
        self.own_crashes = 0

    def add(self, settings: ClientSettings) -> None:
        """Start a client and keep it running."""
        client = self._clients[settings.name] = _Client(settings)
        self._start(client)

    def wait_ready(self) -> None:
        """Wait until all clients work. Raises TimeoutError."""
        for name, client in self._clients.items():
            if not client.ready.wait(START_PATIENCE_S):
                raise TimeoutError(f"client {name} is not ready after {START_PATIENCE_S:g} s")

    def names(self, *roles: str) -> list[str]:
        """Names of the clients with one of these roles."""
        return sorted(name for name, client in self._clients.items() if client.settings.role in roles)

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> int:
        """Send a client a signal that ends it; it is then started again. Returns the pid that got it."""
        client = self._clients[name]
        client.ready.wait(START_PATIENCE_S)
        with self._lock:
            popen = client.popen
            assert popen is not None
            client.killed = True
            popen.send_signal(number)
        return popen.pid

    def stop(self, name: str) -> int:
        """As ``kill``, but with SIGTERM, so that the client closes what it has open before it ends."""
        return self.kill(name, signal.SIGTERM)

    def rest(self) -> None:
        """Let all clients begin nothing new; those that are gone are restarted, since checks need answers."""
        with self._lock:
            self._resting = True
            for client in self._clients.values():
                self._say(client, "rest")

    def wait_rested(self, within_s: float) -> None:
        """Wait until nobody who sends has anything under way. Raises TimeoutError."""
        deadline = time.monotonic() + within_s
        for name in self.names(*THAT_REST):
            if not self._clients[name].rested.wait(max(deadline - time.monotonic(), 0.0)):
                raise TimeoutError(f"client {name} has work under way after {within_s:g} s of rest")

    def end(self) -> None:
        """Let all clients end; kill those that do not."""
        with self._lock:
            running = [client for client in self._clients.values() if client.popen is not None]
            self._clients = {}
            for client in running:
                assert client.popen is not None and client.popen.stdin is not None
                client.killed = True  # from now on it may end in any way, except with FOUND
                with _ignored_pipe():
                    client.popen.stdin.close()
        deadline = time.monotonic() + END_PATIENCE_S
        for client in running:
            assert client.popen is not None
            try:
                client.popen.wait(max(deadline - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                self.problems.append(f"client {client.settings.name} did not end by itself")
                client.popen.kill()
                client.popen.wait()

    # -------------------------------------------------------------- one client

    def _start(self, client: _Client) -> None:
        client.starts += 1
        client.killed = False
        name = f"{client.settings.name}.{client.starts}"
        settings = replace(client.settings, name=name)
        if self._resting:
            settings = replace(settings, crashes=0.0)
        module = f"tests.chaos.{MODULES[settings.role]}"
        with (Path(settings.directory) / f"{name}.log").open("w") as log:
            client.popen = subprocess.Popen(
                [sys.executable, "-m", module, settings.encode()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        if self._resting:
            self._say(client, "rest")
        client.watcher = threading.Thread(target=self._watch, args=(client, client.popen, name), daemon=True)
        client.watcher.start()

    def _say(self, client: _Client, word: str) -> None:
        if client.popen is not None and client.popen.stdin is not None:
            with _ignored_pipe():
                client.popen.stdin.write(word + "\n")
                client.popen.stdin.flush()

    def _watch(self, client: _Client, popen: subprocess.Popen[str], name: str) -> None:
        assert popen.stdout is not None
        for line in popen.stdout:
            said = {"ready": client.ready, "rested": client.rested}.get(line.strip())
            if said is not None:
                said.set()
        code = popen.wait()
        with self._lock:
            if client.settings.name not in self._clients or client.popen is not popen:
                return
            client.ready.clear()
            client.rested.clear()
            if code == OWN_CRASH:
                self.own_crashes += 1
            elif not client.killed or code == FOUND:
                self.problems.append(f"client {name} ended with {code}: see {name}.log")
            self._start(client)


class _ignored_pipe:
    """Ignores a broken pipe: the client has just died."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        return kind is not None and issubclass(kind, (BrokenPipeError, ValueError))
