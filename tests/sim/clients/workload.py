"""The exchangeable part of a simulation: the state machine on top of the log, and what its clients do.

``Application`` is one replica's state machine from one start to the next; ``Workload`` opens it from the
replica's disk at each start, acts as the clients, and may check more at the end. ``RawWorkload`` puts random
commands into the log and keeps a hash chain of what was applied; the broker's replicated state plugs in the
same way.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from escrowmq.replication.errors import DiskFull
from escrowmq.replication.log.disk import Disk
from escrowmq.replication.log.journal import SegmentJournal
from escrowmq.replication.raft.node import RaftNode

if TYPE_CHECKING:
    from tests.sim.checks.invariants import Checker
    from tests.sim.environment.network import SimNetwork
    from tests.sim.environment.world import World
    from tests.sim.group.replica import SimReplica
    from tests.sim.running.coverage import AnyPhase


@dataclass(frozen=True, slots=True)
class ReplicaContext:
    """What a replica gives its application. Calls scheduled with ``later`` are dropped when it crashes."""

    name: str
    #: Address of the process. A predecessor that is still alive (a ghost) has the same name, another address.
    address: str
    disk: Disk
    journal: SegmentJournal
    rng: random.Random
    clock: Callable[[], float]
    later: Callable[[float, Callable[[], None]], None]
    #: Runs a client's direct access as the replica's process does; None if that ended the process.
    guarded: Callable[[Callable[[], Any]], Any]
    #: The last process found damage in some file.
    doubtful: bool = False
    wall_clock: Callable[[], float] = float


class Application(Protocol):
    """One replica's state machine from one start to the next crash."""

    @property
    def applied_index(self) -> int:
        """Index up to which the recovered state has been applied (1: from the log's beginning)."""

    def attach(self, raft: RaftNode) -> None: ...
    def apply(self, index: int, term: int, command: bytes) -> Any: ...
    def after_tick(self, now_s: float) -> None: ...
    def timer_s(self) -> float:
        """When, by the replica's clock, ``after_tick`` next has something to do without being triggered."""

    def digest(self, force: bool = False) -> bytes | None:
        """Hash of the state after the last applied entry; None if that costs too much now (never with
        ``force``)."""

    def repair_files(self, last_index: int) -> list[str] | None:
        """Files that a replica needs besides the log up to ``last_index``; None if none fit."""

    def want_checkpoint(self) -> None:
        """Take a checkpoint as soon as possible."""

    def want_retention(self) -> None:
        """Apply retention as soon as possible: drop what may be dropped."""


class Cluster(Protocol):
    """What a workload may ask of the running simulation."""

    rng: random.Random
    world: World
    replicas: list[SimReplica]
    prefix: str
    recreate: Callable[[], bool]
    checker: Checker
    network: SimNetwork

    @property
    def calm(self) -> bool:
        """Whether the faults are over."""

    def leaders(self) -> Sequence[tuple[RaftNode, Application]]:
        """All replicas that believe they lead, including deposed ones that do not know it yet."""

    def crash(self, replica: SimReplica, power: bool, rng: random.Random) -> None:
        """End a replica's process, which starts again later."""

    def struck(self, kind: str, victim: str) -> None:
        """Log that a fault of this kind takes effect now."""

    def phase(self, phase: AnyPhase) -> None:
        """A transaction enters this phase."""

    def acknowledged(self, index: int, term: int, command: bytes) -> None:
        """Tell the checker that this entry was acknowledged to a client."""


class Workload(Protocol):
    """One per simulation."""

    def open(self, context: ReplicaContext) -> Application: ...
    def act(self, cluster: Cluster) -> None:
        """One step of the clients; called repeatedly at random times."""

    def check_end(self, applications: Sequence[Application]) -> None:
        """After the calm: raise Violation for faults that only this workload can see."""


# ------------------------------------------------------------------ raw commands
CHECKPOINT = "raw-state.json"


class RawApplication:
    """A hash chain over all applied entries; takes checkpoints and drops the log behind them."""

    def __init__(self, context: ReplicaContext, retain: bool) -> None:
        self._context, self._retain = context, retain
        self.applied_index, self._chain = 1, bytes(20)
        if context.disk.exists(CHECKPOINT):
            saved = json.loads(context.disk.read_all(CHECKPOINT))
            self.applied_index, self._chain = saved["applied"], bytes.fromhex(saved["chain"])
            if saved.get("members"):
                index, command = saved["members"]
                context.journal.members.begin(index, bytes.fromhex(command))
        if retain:
            self._schedule()

    def attach(self, raft: RaftNode) -> None: ...
    def after_tick(self, now_s: float) -> None: ...

    def timer_s(self) -> float:
        return math.inf

    def apply(self, index: int, term: int, command: bytes) -> int:
        assert index == self.applied_index + 1, (index, self.applied_index)
        self.applied_index = index
        self._chain = hashlib.sha1(self._chain + struct.pack("<QQ", index, term) + command).digest()
        return index

    def digest(self, force: bool = False) -> bytes:
        return self._chain

    def repair_files(self, last_index: int) -> list[str] | None:
        disk = self._context.disk
        if not disk.exists(CHECKPOINT) or json.loads(disk.read_all(CHECKPOINT))["applied"] > last_index:
            return []  # the whole log will do
        return [CHECKPOINT]

    def want_checkpoint(self) -> None:
        self._checkpoint(again=False)

    def want_retention(self) -> None:
        self._checkpoint(again=False)

    def _schedule(self) -> None:
        self._context.later(0.3 + 2 * self._context.rng.random(), self._checkpoint)

    def _checkpoint(self, again: bool = True) -> None:
        context = self._context
        saved: dict[str, Any] = {"applied": self.applied_index, "chain": self._chain.hex()}
        if (said := context.journal.members.said(self.applied_index)) is not None:
            saved["members"] = [said[0], said[1].hex()]
        try:
            context.disk.write_atomic(CHECKPOINT, [json.dumps(saved).encode()])
        except DiskFull:
            pass
        else:
            context.journal.drop_before(context.rng.randint(context.journal.first_index, self.applied_index))
        if again:
            self._schedule()


class RawWorkload:
    """Random commands at every replica that believes it leads."""

    def __init__(self, retain: bool = True) -> None:
        self._retain = retain
        self.proposed = 0
        self.outcomes = {True: 0, False: 0, None: 0}

    def open(self, context: ReplicaContext) -> RawApplication:
        return RawApplication(context, self._retain)

    def act(self, cluster: Cluster) -> None:
        leaders = cluster.leaders()
        if not leaders:
            return
        raft, _ = cluster.rng.choice(leaders)
        for _ in range(cluster.rng.choice((1, 1, 3, 8))):
            self._propose(cluster, raft)

    def _propose(self, cluster: Cluster, raft: RaftNode) -> None:
        self.proposed += 1
        command = b"\0" + struct.pack("<Q", self.proposed) + b"x" * cluster.rng.choice((10, 60, 300))
        term, answered = raft.term, False

        def done(result: Any, applied: bool | None) -> None:
            nonlocal answered
            assert not answered, "a proposal was answered twice"
            answered = True
            self.outcomes[applied] += 1
            if applied:
                cluster.acknowledged(result, term, command)

        raft.propose(command, done)

    def check_end(self, applications: Sequence[Application]) -> None: ...
