"""What runs on top of the log in a simulation, and what its clients do: exchangeable.

``Application`` is one replica's state machine between two starts; ``Workload`` opens it (again)
from the replica's disk, acts as the clients, and may check more at the end. ``RawWorkload`` puts
random commands into the log and keeps a hash chain of what was applied; the broker's replicated
state plugs in the same way.
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
    from tests.sim.replica import SimReplica
    from tests.sim.world import World


@dataclass(frozen=True, slots=True)
class ReplicaContext:
    """What an application gets of its replica. ``later`` is forgotten when the replica crashes."""

    name: str
    #: Of the process: a predecessor that lives on (a ghost) has the name, and another address.
    address: str
    disk: Disk
    journal: SegmentJournal
    rng: random.Random
    clock: Callable[[], float]
    later: Callable[[float, Callable[[], None]], None]
    #: Runs a client's direct access as the replica's process does: None if that ended it.
    guarded: Callable[[Callable[[], Any]], Any]


class Application(Protocol):
    """One replica's state from one start to the next crash."""

    @property
    def applied_index(self) -> int:
        """Index up to which the recovered state stands (1: from the log's beginning)."""

    def attach(self, raft: RaftNode) -> None: ...
    def apply(self, index: int, term: int, command: bytes) -> Any: ...
    def after_tick(self, now_s: float) -> None: ...
    def timer_s(self) -> float:
        """When, by the replica's clock, ``after_tick`` has something to do that nothing asked for."""

    def digest(self, force: bool = False) -> bytes | None:
        """Hash of the state after the last applied entry; None where that would cost too much now, which
        it never does with ``force``."""

    def repair_files(self, last_index: int) -> list[str] | None:
        """Files that a replica needs beside the log up to ``last_index``; None if there are none that fit."""

    def want_checkpoint(self) -> None:
        """Take one as soon as possible."""

    def want_retention(self) -> None:
        """Drop what may be dropped as soon as possible."""


class Cluster(Protocol):
    """What a workload may ask of the running simulation."""

    rng: random.Random
    world: World
    replicas: list[SimReplica]
    prefix: str

    @property
    def calm(self) -> bool:
        """The faults are over."""

    def leaders(self) -> Sequence[tuple[RaftNode, Application]]:
        """All replicas that believe to lead, deposed ones that do not know it yet included."""

    def struck(self, kind: str, victim: str) -> None:
        """Log that something of this kind has its effect now."""

    def acknowledged(self, index: int, term: int, command: bytes) -> None:
        """Tell the checker that a client was told this entry is done."""


class Workload(Protocol):
    """One per simulation."""

    def open(self, context: ReplicaContext) -> Application: ...
    def act(self, cluster: Cluster) -> None:
        """A moment in a client's life; called again and again at random times."""

    def check_end(self, applications: Sequence[Application]) -> None:
        """After the calm: raise Violation for what only this workload can see."""


# ------------------------------------------------------------------ the plain one
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
            return None
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
    """Random commands at every replica that believes to lead."""

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
