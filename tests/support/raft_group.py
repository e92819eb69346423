"""Raft by itself, running: drivers in this process, loopback TCP, real segment files.

What is committed is bytes, and to apply them is to write them down; no broker stands above it.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from escrowmq.replication.errors import Unavailable
from escrowmq.replication.host.driver import Driver
from escrowmq.replication.log.disk import RealDisk
from escrowmq.replication.log.journal import SegmentJournal
from escrowmq.replication.net.handshake import PeerIdentity
from escrowmq.replication.net.tls import TlsFiles
from escrowmq.replication.raft.node import PeerLink, RaftConfig, RaftNode
from tests.support.running_group import RunningGroup

SECRET = b"a test's secret"


class RaftReplica:
    """One replica: journal, node, driver, and the list of what it applied."""

    def __init__(self, group: RaftGroup, rid: int) -> None:
        self.group, self.rid = group, rid
        self.peers = [str(other) for other in range(group.replicas) if other != rid]
        self.applied: list[tuple[int, bytes]] = []
        self.fatal: list[BaseException] = []
        self.journal = SegmentJournal(RealDisk(group.path / f"r{rid}"))
        self.driver = Driver(
            self._build,
            self.journal,
            identity=PeerIdentity("test-cluster", 0, str(rid)),
            peers=frozenset(self.peers),
            listen_host="127.0.0.1",
            listen_port=0,
            secret=group.secrets.get(rid, SECRET),
            resolve=group.resolve,
            fatal=self.fatal.append,
            tls=group.tls.get(rid),
        )

    def _build(self, link: PeerLink, clock: Callable[[], float]) -> RaftNode:
        return RaftNode(
            str(self.rid),
            self.peers,
            self.journal,
            link,
            self._apply,
            config=self.group.config,
            clock=clock,
            rng=random.Random(f"{self.group.seed}/{self.rid}"),
        )

    def _apply(self, index: int, term: int, command: bytes) -> int:
        self.applied.append((index, command))
        return index

    def stop(self) -> None:
        self.driver.stop()
        self.journal.close()

    def whoami(self) -> tuple[bool, int | None, int]:
        """(ready leader?, who leads if known, term), as a broker answers it."""
        node = self.driver.node
        return node.ready, None if node.leader_id is None else int(node.leader_id), node.term

    def raft_address(self) -> tuple[str, int]:
        if self.driver.address is None:
            raise Unavailable(f"replica {self.rid} is starting", 0.2)
        return self.driver.address

    def propose(self, command: bytes) -> Outcome:
        outcome = Outcome()
        self.driver.submit(lambda: self.driver.node.propose(command, outcome.settle))
        return outcome

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


class RaftGroup(RunningGroup[RaftReplica]):
    """``with RaftGroup(tmp_path) as group``. ``secrets`` and ``tls`` by replica, where they are not alike."""

    def __init__(
        self,
        path: Path,
        *,
        config: RaftConfig | None = None,
        seed: int = 0,
        secrets: dict[int, bytes] | None = None,
        tls: dict[int, TlsFiles] | None = None,
    ) -> None:
        super().__init__(path, replicas=3)
        self.seed, self.config = seed, config or RaftConfig()
        self.secrets, self.tls = secrets or {}, tls or {}
        self._killed: list[RaftReplica] = []  # their files stay open until the test ends

    def create(self, rid: int) -> RaftReplica:
        self.alive[rid] = replica = RaftReplica(self, rid)
        return replica

    def run(self, replica: RaftReplica) -> None:
        replica.driver.start()

    def kill(self, rid: int) -> None:
        """End a replica as SIGKILL would: no handover, no sync; its links break."""
        self._killed.append(self.alive.pop(rid))
        driver = self._killed[-1].driver
        driver._failed = True
        assert driver._loop is not None and driver._done is not None
        driver._loop.call_soon_threadsafe(driver._done.set)
        driver._thread.join(10)
