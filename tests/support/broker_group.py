"""One group of real brokers in this process: real files, real fsync, real TCP on loopback; no Ray.

A stopped replica's driver ends without a goodbye to clients, which is what they see of a SIGKILL; real
kills of real processes are in tests/integration.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from escrowmq.actors.broker.broker import BranchWork
from escrowmq.actors.broker.config import BrokerConfig
from escrowmq.actors.broker.parts import Parts
from escrowmq.replication.calling.answers import Leadership, LevelReport, MembersReport
from escrowmq.replication.errors import Closed, Unavailable
from escrowmq.replication.host.repair import Manifest
from escrowmq.replication.host.replica_process import ReplicaProcess
from escrowmq.replication.host.replica_setup import ReplicaSetup
from escrowmq.replication.log.datadir import Identity
from tests.support.failing_disk import FailingDisks
from tests.support.reading import at, everything, named
from tests.support.requests import TOPIC, Submitting
from tests.support.running_group import RunningGroup
from tests.support.waiting import wait_until


class Member:
    """One replica: its host, and its parts once it is open, as the Broker actor has them."""

    def __init__(self, setup: ReplicaSetup, branch_work: Callable[[Parts], BranchWork] | None = None) -> None:
        self.rid, self.host = setup.identity.replica, ReplicaProcess(setup)
        self._parts: Parts | None = None
        self._branch_work = branch_work
        self.branch_work: BranchWork | None = None

    @property
    def parts(self) -> Parts:
        """Raises Unavailable until the replica is open."""
        if self._parts is None:
            raise self.host.unavailable()
        return self._parts

    def open(self, patience_s: float = 10.0) -> None:
        self._parts = Parts(self.host.open(patience_s))
        if self._branch_work is not None:
            self.branch_work = self._branch_work(self._parts)

    def stop(self) -> None:
        if self.branch_work is not None:
            self.branch_work.close()
        self.host.close()

    def whoami(self) -> Leadership:
        return Leadership(False, None, 0) if self._parts is None else self._parts.running.whoami()

    def raft_address(self) -> tuple[str, int]:
        return self.parts.running.address


class BrokerGroup(RunningGroup[Member], Submitting):
    """A group by itself or one of several; also the PeerSource and the resolver of its members."""

    def __init__(
        self,
        path: Path,
        config: BrokerConfig | None = None,
        replicas: int = 3,
        gid: int = 0,
        groups: int = 1,
    ) -> None:
        super().__init__(path, replicas)
        self.config, self.gid, self.groups = config or BrokerConfig(), gid, groups
        self.ended: dict[int, BaseException] = {}
        #: The disks of all replicas.
        self.disks = FailingDisks()
        self.clock_ahead_s = 0.0  # of the wall clocks
        self.patience_s = 10.0  # of a replica that opens, with each thing that peers must answer
        #: For a group that is one of several: how its brokers reach the others.
        self.branch_work: Callable[[Parts], BranchWork] | None = None
        #: Replicas that count as ones with older software: they do not tell their format level.
        self.old: set[int] = set()
        self.had_a_leader = False  # what the supervisor would remember
        #: The replicas that the supervisor has placed so far, and that it names to each process it starts.
        self.seated: tuple[int, ...] = ()
        self._incarnations: dict[int, int] = {}  # of each replica that was created: see ``setup``

    def setup(self, rid: int) -> ReplicaSetup:
        """A replica whose directory was wiped comes as a new incarnation, as the supervisor would start
        it."""
        number = self._incarnations.get(rid, -1)
        if not (self.path / f"r{rid}" / "identity.json").exists():
            number += 1
        self._incarnations[rid] = max(number, 0)
        return ReplicaSetup(
            config=self.config,
            identity=Identity("c", self.gid, rid, self._incarnations[rid]),
            groups=self.groups,
            founders=self.replicas,
            data_dir=self.path / f"r{rid}",
            listen_host="127.0.0.1",
            secret=b"s" * 32,
            resolve=self.resolve,
            source=self,
            levels=lambda: self.ask_levels(),
            founded=lambda: self.had_a_leader,
            told=self.seated,
            ask_members=lambda: self.seated,
            fatal=lambda error: self.ended.__setitem__(rid, error),
            disk=self.disks,
            wall_clock=lambda: time.time() + self.clock_ahead_s,
        )

    def create(self, rid: int) -> Member:
        self.alive[rid] = member = Member(self.setup(rid), self.branch_work)
        return member

    def run(self, replica: Member) -> None:
        replica.open(self.patience_s)

    # ------------------------------------------------------------ what its members ask of it

    def ask_levels(self) -> dict[tuple[int, int], LevelReport | None]:
        """Of every replica; one that does not run does not answer."""
        return {(self.gid, rid): self.level_of(rid) for rid in range(self.replicas)}

    def level_of(self, rid: int) -> LevelReport | None:
        member = self.alive.get(rid)
        try:
            return None if member is None or rid in self.old else member.parts.running.levels()
        except Unavailable:
            return None

    def founded(self, peer: str) -> bool | None:
        member = self.alive.get(int(peer))
        return None if member is None else member.host.founded()

    def manifest(self, peer: str) -> Manifest | None:
        member = self.alive.get(int(peer))
        try:
            answer = ("gone",) if member is None else member.parts.offers.checkpoint_manifest()
        except Unavailable:
            return None
        return answer[1] if answer[0] == "ok" else None

    def never_voted(self, peer: str, rid: int) -> bool | None:
        member = self.alive.get(int(peer))
        try:
            answer = ("gone",) if member is None else member.parts.members.never_voted(rid)
        except Unavailable:
            return None
        return answer[1] if answer[0] == "ok" else None

    def read(self, peer: str, name: str, pos: int, size: int) -> bytes:
        return self.alive[int(peer)].parts.offers.checkpoint_read(name, pos, size)

    def suspect(self, peer: str, name: str, size: int) -> None:
        self.alive[int(peer)].parts.offers.checkpoint_suspect(name, size)

    def entries(self, peer: str, first: int, last: int) -> bytes | None:
        member = self.alive.get(int(peer))
        try:
            return None if member is None else member.host.entries(first, last)
        except (Unavailable, Closed):
            return None

    # ------------------------------------------------------------ what tests do

    def submit(self, *frames: bytes, timeout_s: float = 10.0) -> list[Any]:
        """As a client: follow the leader, send the same bytes again until there is an answer."""
        deadline = time.monotonic() + timeout_s
        while True:
            answer = self.leader().parts.requests.submit(b"".join(frames))
            if answer[0] == "ok":
                results: list[Any] = answer[1]
                return results
            assert time.monotonic() < deadline, answer
            time.sleep(0.02)

    def change_members(
        self,
        add: Sequence[int] = (),
        remove: Sequence[int] = (),
        change_id: str = "c",
        timeout_s: float = 20.0,
    ) -> MembersReport:
        """Act as the supervisor: ask the leader for each step until the change is done."""
        deadline = time.monotonic() + timeout_s
        while True:
            members = self.leader().parts.members
            answer = members.change(change_id, add, remove, members.members().version)
            if answer[0] == "ok" and answer[1].act == "DONE":
                done: MembersReport = answer[1].members
                return done
            assert time.monotonic() < deadline, answer
            time.sleep(0.02)

    def segments(self, rid: int) -> list[Path]:
        """The log files of a replica, oldest first."""
        return sorted((self.path / f"r{rid}" / "log").glob("*.log"))

    def stop_a_full_follower(self) -> tuple[list[str], int]:
        """A hundred committed messages over several segments, then a follower stops: (their texts, which)."""
        self.topic()
        names = [f"x{i}" for i in range(100)]
        for name in names:
            self.publish(name, size=5_000)
        victim = self.a_follower()
        self.stop(victim)
        return names, victim


def texts(member: Member, expected: int, timeout_s: float = 10.0) -> list[str]:
    """All in t/0 of one replica (see ``named``), once ``expected`` messages are there."""

    def are_there() -> bool:
        return member.parts.reads.partition_bounds(TOPIC).get(0, (0, 0))[1] >= expected

    wait_until(are_there, timeout_s, f"{expected} messages at replica {member.rid}")
    return named(everything(at(member), TOPIC, 0))
