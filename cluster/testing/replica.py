"""The only replica of its group, without Raft, threads and disk. It leads from the start.

Everything that decides is real: admission, the state machine, the log, snapshots and retention, the parts of
a broker. An entry is committed and applied when it is proposed. Every call is made under the stage's lock.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import msgspec

from escrowmq.actors.broker.broker_calls import BrokerCalls
from escrowmq.actors.broker.config import BrokerConfig
from escrowmq.actors.broker.parts import Parts
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.cluster.testing.memory_disk import MemoryDisk
from escrowmq.cluster.testing.parking import StagedLot
from escrowmq.cluster.testing.stage import Stage
from escrowmq.replication.calling.answers import LevelReport, ReplicaReport, Reply
from escrowmq.replication.format.membership import Members
from escrowmq.replication.host.driver import Driver
from escrowmq.replication.host.maintenance import CheckpointThread, RoomWatch, Scrubber, ScrubState
from escrowmq.replication.host.replica_setup import ReplicaSetup
from escrowmq.replication.host.running_replica import TIMER_S, ParkingLot, RunningReplica
from escrowmq.replication.host.sharing import Asked, Sharing
from escrowmq.replication.log.datadir import Identity
from escrowmq.replication.log.journal import SegmentJournal
from escrowmq.replication.log.peer_marks import Incarnations
from escrowmq.replication.metrics import LATENCY_S, Histogram
from escrowmq.replication.raft.node import RaftNode
from escrowmq.replication.raft.replicator import LeadCheck
from escrowmq.replication.raft.types import PeerStatus
from escrowmq.replication.replica.checkpoints import Checkpoints, Job
from escrowmq.replication.replica.replica import Limits, Replica
from escrowmq.replication.sharing.pieces import UNNUMBERED
from escrowmq.replication.state.machine import LEVEL_MAX, StateMachine

T = TypeVar("T")
#: Seconds between two timer steps (for retention) while no check comes due.
IDLE_S = 1.0
#: The first entry of a log: the first leader's entry without content.
NO_OP = b"\x01"


class StagedSharing(Sharing):
    """Share consumers' calls without threads: a call that finds nothing is put aside, as a fetch is."""

    def _ask(self, asked: Asked, wait_s: float, call: int, received: int) -> tuple[Reply, int]:
        def attempt() -> tuple[Reply, int] | None:
            found = super(StagedSharing, self)._ask(asked, 0.0, call, received)
            return found if found[0][0] != "ok" or found[0][1] else None

        return self._running.news.wait_for(attempt, wait_s) or (("ok", []), UNNUMBERED)


class MemoryNode:
    """Replaces the Raft node: applies a proposed entry at once."""

    ready = is_leader = members_applied = True
    leader_id, term = "0", 1

    def __init__(self, journal: SegmentJournal, replica: Replica) -> None:
        self._journal, self._replica = journal, replica
        self.marks, self.members = Incarnations(), Members(1, ("0",), highest=0)
        self._append(NO_OP)
        replica.apply(1, self.term, b"")

    @property
    def commit_index(self) -> int:
        return self._journal.last_index

    def progress(self) -> list[PeerStatus]:
        return []

    def propose(self, command: bytes, done: Callable[[Any, bool | None], None]) -> None:
        index = self._append(command)
        done(self._replica.apply(index, self.term, command), True)

    def check_lead(self) -> LeadCheck:
        return LeadCheck(self.term, 0)

    def leads_since(self, check: LeadCheck) -> bool:
        return True

    def _append(self, command: bytes) -> int:
        index = self._journal.last_index + 1
        self._journal.add(command, index, self.term)
        self._journal.sync()
        return index


class MemoryDriver:
    """Replaces the driver's thread: runs each submitted function before the call returns."""

    disk_full, door = False, None

    def __init__(self, after: Callable[[], object]) -> None:
        self._after = after
        self.stall_s, self.fsync_s = Histogram(LATENCY_S), Histogram(LATENCY_S)
        self.counters = SimpleNamespace(connects=0)

    def submit(self, fn: Callable[[], None]) -> None:
        fn()
        self._after()

    def call(self, fn: Callable[[], T], timeout_s: float = 10.0) -> T:
        result = fn()
        self._after()
        return result


class MemoryReplica(RunningReplica):
    """A ``RunningReplica`` as the parts of a broker see it. Never ``close`` it: it holds nothing."""

    threads = False

    def __init__(self, stage: Stage, info: ClusterInfo, gid: int, config: BrokerConfig) -> None:
        self._stage = stage
        self.setup = ReplicaSetup(
            config=config,
            identity=Identity(info.cluster_id, gid, 0),
            groups=info.groups,
            founders=1,
            data_dir=Path(os.sep),  # read only for the free space in the metrics
            listen_host="",
            secret=b"",
            resolve=lambda peer: None,
            wall_clock=stage.wall_s,
            monotonic=stage.now,
        )
        self.gid, self.rid = gid, 0
        self.address = ("in-memory", 0)
        self.recovered_index = 0
        self.closed = self._learner = False
        self.stops = []
        disk = self.disk = MemoryDisk()
        self.room = RoomWatch("room-in-memory", disk.free_bytes, self._disk_bytes, stage.now)
        self.room.look()  # once, without a thread
        self.checkpoints = Checkpoints(disk, segment_bytes=config.segment_bytes)
        self.journal = SegmentJournal(
            disk,
            segment_bytes=config.segment_bytes,
            on_roll=lambda first: self.checkpoints.want(first - 1),
        )
        self.room = RoomWatch("room", disk.free_bytes, disk.free_bytes)  # memory's room does not change
        self.room.look()
        self.news = cast(ParkingLot, StagedLot(stage))
        self.checks_due = cast(ParkingLot, StagedLot(stage))
        self.checkpointing = CheckpointThread("checkpoint-in-memory", self.end, self.later)  # never used
        self.scrubber = cast(Scrubber, SimpleNamespace(state=ScrubState()))
        self.replica = Replica(
            state=StateMachine(gid, info.groups),
            journal=self.journal,
            checkpoints=self.checkpoints,
            limits=Limits(
                open_transactions_max=config.open_transactions_max,
                queue_bytes_max=config.queue_bytes,
                copy_bytes=config.copy_bytes_max,
                timers_max=config.timers_max,
            ),
            start_job=_run_now,
            on_due=self.checks_due.announce,
            monotonic=stage.now,
        )
        self._last_applied = 0
        self._timer = stage.worker(self._on_timer, f"replica of group {gid}")
        self.driver = cast(Driver, MemoryDriver(self._after_tick))
        node = MemoryNode(self.journal, self.replica)
        self.node = cast(RaftNode, node)
        self.replica.attach(node)
        for level in range(self.replica.state.level, LEVEL_MAX):
            self.replica.raise_level([LevelReport(LEVEL_MAX, level)])
            self.replica.pump(self.now_ms())
        self._timer.start()

    def find_disk(self) -> MemoryDisk:
        """See ``RunningReplica``."""
        return MemoryDisk()

    def _after_tick(self) -> float:
        """Run after each function that the driver's thread would run."""
        self.replica.pump(self.now_ms())
        applied, desk = self.replica.state.applied_index, self.replica.lease_dispatcher
        if applied != self._last_applied or desk.freed:
            self._last_applied, desk.freed = applied, False
            self.news.announce()
            self._timer.wake = min(self._timer.wake, self._look_again_at())
        return self.replica.agenda.next

    def _on_timer(self) -> float:
        self.replica.on_timer(self.now_ms())
        self._note_leading(self.node, self._stage.now())
        self._after_tick()
        return self._look_again_at()

    def _look_again_at(self) -> float:
        """When the timer steps next. A real replica's timer runs ten times a second; this one only when
        something can be due."""
        now = self._stage.now()
        due_ms, ends_ms = self.replica.state.due.next_ms(), self.replica.lease_dispatcher.leases.next_ms()
        pauses_ms = [IDLE_S * 1000]
        pauses_ms += [] if due_ms is None else [due_ms - self.now_ms()]
        pauses_ms += [] if ends_ms is None else [ends_ms - self.replica.monotonic_ms()]
        pause_s = max(min(pauses_ms) / 1000, TIMER_S)
        wake_ms = self.replica.wake_in_ms()  # a delayed message can be read from then on
        return now + (pause_s if wake_ms is None else min(pause_s, wake_ms / 1000))


class MemoryBroker(BrokerCalls):
    """Replaces a Broker actor."""

    def __init__(self, stage: Stage, info: ClusterInfo, gid: int, config: BrokerConfig) -> None:
        super().__init__()
        self.parts = Parts(MemoryReplica(stage, info, gid, config), StagedSharing)

    def status(self) -> ReplicaReport:
        """See ``Inspection.status``."""
        return msgspec.structs.replace(
            self._running().inspection.status(), pid=os.getpid(), node_id="in-memory"
        )

    def levels(self) -> LevelReport:
        """See ``RunningReplica.levels``."""
        return self._running().running.levels()


def _run_now(job: Job, done: Callable[[], None]) -> None:
    job.run()
    done()
