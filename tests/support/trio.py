"""Three real replicas in one process: real files, real fsync, real TCP on loopback; no Ray.

A killed replica's driver is stopped without a goodbye, which is what its peers see of a SIGKILL; real
kills of real processes are in tests/integration.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from escrowmq.actors.broker.config import BrokerConfig
from escrowmq.replication.errors import Unavailable
from escrowmq.replication.format import ops
from escrowmq.replication.host.repair import Manifest
from escrowmq.replication.host.service import BrokerService
from escrowmq.replication.log.datadir import Identity


class Trio:
    """A group of three, by itself or one of several; also the PeerSource and the resolver of its members."""

    def __init__(
        self,
        path: Path,
        config: BrokerConfig | None = None,
        replicas: int = 3,
        gid: int = 0,
        groups: int = 1,
    ) -> None:
        self.path, self.config, self.replicas = path, config or BrokerConfig(), replicas
        self.gid, self.groups = gid, groups
        self.alive: dict[int, BrokerService] = {}
        self.ended: dict[int, BaseException] = {}

    def create(self, rid: int) -> BrokerService:
        service = BrokerService(
            self.config,
            Identity("c", self.gid, rid),
            groups=self.groups,
            replicas=self.replicas,
            data_dir=self.path / f"r{rid}",
            listen_host="127.0.0.1",
            secret=b"s" * 32,
            resolve=self.resolve,
            source=self,
            fatal=lambda error: self.ended.__setitem__(rid, error),
        )
        self.alive[rid] = service
        return service

    def start(self, *rids: int) -> None:
        for service in [self.create(rid) for rid in rids or range(self.replicas)]:
            service.start(10.0)

    def stop(self, rid: int) -> None:
        self.alive.pop(rid).stop()

    def close(self) -> None:
        for rid in list(self.alive):
            self.stop(rid)

    def resolve(self, peer: str) -> tuple[str, int] | None:
        service = self.alive.get(int(peer))
        try:
            return None if service is None else service.raft_address()
        except Unavailable:
            return None

    def founded(self, peer: str) -> bool | None:
        service = self.alive.get(int(peer))
        return None if service is None else service.founded()

    def manifest(self, peer: str) -> Manifest | None:
        service = self.alive.get(int(peer))
        answer = service.checkpoint_manifest() if service else ("gone",)
        return Manifest(*answer[1]) if answer[0] == "ok" else None

    def read(self, peer: str, name: str, pos: int, size: int) -> bytes:
        return self.alive[int(peer)].checkpoint_read(name, pos, size)

    def suspect(self, peer: str, name: str, size: int) -> None:
        self.alive[int(peer)].checkpoint_suspect(name, size)

    def leader(self, timeout_s: float = 10.0) -> BrokerService:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            for service in list(self.alive.values()):
                if service.whoami()[0]:
                    return service
            time.sleep(0.01)
        raise AssertionError("no leader")

    def follower(self, timeout_s: float = 10.0) -> tuple[BrokerService, BrokerService]:
        """One that knows who leads, and that leader. A follower learns it some time after the election."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            leader = self.leader()
            for service in list(self.alive.values()):
                if service is not leader and service.whoami()[1] == leader.rid:
                    return service, leader
            time.sleep(0.01)
        raise AssertionError("no follower knows the leader")

    def submit(self, *frames: bytes, timeout_s: float = 10.0) -> list[Any]:
        """As a client: follow the leader, send the same bytes again until there is an answer."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            answer = self.leader().submit(b"".join(frames))
            if answer[0] == "ok":
                results: list[Any] = answer[1]
                return results
            time.sleep(0.02)
        raise AssertionError(answer)

    def topic(self, **settings: Any) -> None:
        assert self.submit(ops.create_topic("t", {"partitions": 1, **settings}))[0][0] in (0, 2)
