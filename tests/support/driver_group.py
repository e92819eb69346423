"""A real group for tests: three drivers in this process, loopback TCP, real segment files."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from escrowmq.replication.host.driver import Driver
from escrowmq.replication.log.disk import RealDisk
from escrowmq.replication.log.journal import SegmentJournal
from escrowmq.replication.net.handshake import PeerIdentity
from escrowmq.replication.net.tls import TlsFiles
from escrowmq.replication.raft.node import PeerLink, RaftConfig, RaftNode

SECRET = b"a test's secret"


def wait_until(condition: Callable[[], Any], timeout_s: float = 10.0, what: str = "the condition") -> Any:
    deadline = time.monotonic() + timeout_s
    while not (result := condition()):
        assert time.monotonic() < deadline, f"{what} did not come true within {timeout_s} s"
        time.sleep(0.005)
    return result


class Member:
    """One replica: journal, node, driver, and the list of what it applied."""

    def __init__(self, group: Group, name: str) -> None:
        self.group, self.name = group, name
        self.applied: list[tuple[int, bytes]] = []
        self.fatal: list[BaseException] = []
        self.journal = SegmentJournal(RealDisk(group.path / name))
        self.driver = Driver(
            self._build,
            self.journal,
            identity=PeerIdentity("test-cluster", 0, name),
            peers=frozenset(group.names) - {name},
            listen_host="127.0.0.1",
            listen_port=0,
            secret=group.secrets.get(name, SECRET),
            resolve=group.addresses.get,
            fatal=self.fatal.append,
            tls=group.tls.get(name),
        )

    def _build(self, link: PeerLink, clock: Callable[[], float]) -> RaftNode:
        return RaftNode(
            self.name,
            [n for n in self.group.names if n != self.name],
            self.journal,
            link,
            self._apply,
            config=self.group.config,
            clock=clock,
            rng=random.Random(f"{self.group.seed}/{self.name}"),
        )

    def _apply(self, index: int, term: int, command: bytes) -> int:
        self.applied.append((index, command))
        return index

    def start(self) -> Member:
        self.driver.start()
        assert self.driver.address is not None
        self.group.addresses[self.name] = self.driver.address
        return self

    def stop(self) -> None:
        self.driver.stop()
        self.journal.close()

    def propose(self, command: bytes) -> Outcome:
        outcome = Outcome()
        self.driver.submit(lambda: self.driver.node.propose(command, outcome.settle))
        return outcome

    @property
    def ready(self) -> bool:
        return self.driver.node.ready

    def commands(self) -> list[bytes]:
        return [command for _, command in self.applied if command]


class Outcome:
    """What ``done`` was called with; waits for it."""

    def __init__(self) -> None:
        self.event, self.calls = threading.Event(), 0
        self.result: Any = None
        self.applied: bool | None = None

    def settle(self, result: Any, applied: bool | None) -> None:
        self.result, self.applied, self.calls = result, applied, self.calls + 1
        self.event.set()

    def wait(self, timeout_s: float = 10.0) -> bool | None:
        assert self.event.wait(timeout_s), "the proposal was never answered"
        return self.applied


class Group:
    """``with Group(tmp_path) as group``: all members up; whatever still runs is stopped at the end."""

    def __init__(
        self, path: Path, *, size: int = 3, config: RaftConfig | None = None, seed: int = 0,
        secrets: dict[str, bytes] | None = None, tls: dict[str, TlsFiles] | None = None,
    ) -> None:  # fmt: skip
        self.path, self.seed, self.config = path, seed, config or RaftConfig()
        self.names = [f"r{n}" for n in range(size)]
        self.secrets, self.tls = secrets or {}, tls or {}
        self.addresses: dict[str, tuple[str, int]] = {}
        self.members: dict[str, Member] = {}
        self._killed: list[Member] = []

    def __enter__(self) -> Group:
        for name in self.names:
            self.start(name)
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members.values():
            member.driver.stop()
        for name in list(self.members):
            self.members.pop(name).journal.close()

    def start(self, name: str) -> Member:
        self.members[name] = member = Member(self, name).start()
        return member

    def stop(self, name: str) -> None:
        self.members.pop(name).stop()

    def kill(self, name: str) -> None:
        """End a replica as SIGKILL would: no handover, no sync; its links break."""
        member = self.members.pop(name)
        self._killed.append(member)
        member.driver._failed = True
        assert member.driver._loop is not None and member.driver._done is not None
        member.driver._loop.call_soon_threadsafe(member.driver._done.set)
        member.driver._thread.join(10)

    def leader(self, timeout_s: float = 10.0) -> Member:
        def find() -> Member | None:
            return next((m for m in self.members.values() if m.ready), None)

        member: Member = wait_until(find, timeout_s, "a leader's election")
        return member
