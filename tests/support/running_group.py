"""Replicas that run in this process: threads of their own, TCP on loopback, files with real fsync.

What ``RaftGroup`` (bytes over Raft) and ``BrokerGroup`` (whole brokers) have in common: who is alive, who
leads, where a peer listens, stopping and starting.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

from escrowmq.replication.errors import Unavailable
from tests.support.waiting import wait_until


class Replica(Protocol):
    """What a group asks of each of its replicas."""

    @property
    def rid(self) -> int: ...
    def stop(self) -> None: ...
    def whoami(self) -> tuple[bool, int | None, int]: ...
    def raft_address(self) -> tuple[str, int]: ...


R = TypeVar("R", bound=Replica)


class RunningGroup(Generic[R]):
    """``with``: all replicas are started, and whatever still runs at the end is stopped."""

    def __init__(self, path: Path, replicas: int) -> None:
        self.path, self.replicas = path, replicas
        self.alive: dict[int, R] = {}

    def create(self, rid: int) -> R:
        """A replica over the directory of ``rid``, not yet running; peers find it from now on."""
        raise NotImplementedError

    def run(self, replica: R) -> None:
        """Start what ``create`` made."""
        raise NotImplementedError

    def start(self, *rids: int) -> list[R]:
        """Those, or all: each is there before the first one runs."""
        made = [self.create(rid) for rid in rids or range(self.replicas)]
        for replica in made:
            self.run(replica)
        return made

    def stop(self, rid: int) -> None:
        """It ends in good order: a leader hands over."""
        self.alive.pop(rid).stop()

    def close(self) -> None:
        """Stop whatever runs."""
        for rid in list(self.alive):
            self.stop(rid)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.close()

    def resolve(self, peer: str) -> tuple[str, int] | None:
        """Where that peer listens; None while it does not run."""
        replica = self.alive.get(int(peer))
        try:
            return None if replica is None else replica.raft_address()
        except Unavailable:
            return None

    def leader(self, timeout_s: float = 10.0) -> R:
        """The one that leads and is ready; an election may have to come to its end first."""

        def found() -> R | None:
            return next((replica for replica in list(self.alive.values()) if replica.whoami()[0]), None)

        leader = wait_until(found, timeout_s, "a leader's election")
        assert leader is not None
        return leader

    def follower(self, timeout_s: float = 10.0) -> tuple[R, R]:
        """One that knows who leads, and that leader. A follower learns it some time after the election."""

        def found() -> tuple[R, R] | None:
            leader = self.leader()
            for replica in list(self.alive.values()):
                if replica is not leader and replica.whoami()[1] == leader.rid:
                    return replica, leader
            return None

        pair = wait_until(found, timeout_s, "a follower's knowledge of its leader")
        assert pair is not None
        return pair

    def a_follower(self) -> int:
        """The number of a replica that runs and does not lead."""
        leader = self.leader().rid
        return next(rid for rid in self.alive if rid != leader)
