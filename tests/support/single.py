"""A group of one replica without Raft: entries are durable and applied as soon as they are proposed.

For tests of what a leader decides; Raft itself has its own tests and the simulator.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from escrowmq.replication.log.disk import Disk, RealDisk
from escrowmq.replication.log.journal import SegmentJournal
from escrowmq.replication.raft.replicator import LeadCheck
from escrowmq.replication.replica.checkpoints import Checkpoints, Job
from escrowmq.replication.replica.releases import PrefetchedBodies
from escrowmq.replication.replica.replica import Limits, Replica
from escrowmq.replication.replica.validation import parse_request
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.state.timers import BLOCK_ENTRIES
from tests.support.reading import everything, named
from tests.support.requests import TOPIC, Submitting


class SingleNode:
    """Stands where the Raft node stands."""

    def __init__(self, journal: SegmentJournal, replica: Replica) -> None:
        self.journal, self.replica = journal, replica
        self.ready = self.is_leader = True
        self.leader_id: str | None = "0"
        self.term = 1
        self.held: list[tuple[bytes, Callable[[Any, bool | None], None]]] | None = None

    def propose(self, command: bytes, done: Callable[[Any, bool | None], None]) -> None:
        if self.held is not None:
            self.held.append((command, done))
            return
        index = self.journal.last_index + 1
        self.journal.add(command, index, self.term)
        self.journal.sync()
        done(self.replica.apply(index, self.term, self.journal.read(index)), True)

    def check_lead(self) -> LeadCheck:
        return LeadCheck(self.term, 0)

    def leads_since(self, check: LeadCheck) -> bool:
        return self.ready and check.term == self.term

    def release(self) -> None:
        held, self.held = self.held or [], None
        for command, done in held:
            self.propose(command, done)


class Single(Submitting):
    """A replica over real files in a directory, or over any disk; ``submit`` answers at once."""

    def __init__(
        self,
        where: Path | Disk,
        *,
        segment_bytes: int = 1 << 20,
        delay_bytes: int = 0,
        limits: Limits | None = None,
        gid: int = 0,
        groups: int = 1,
        bodies: Callable[[StateMachine, SegmentJournal], PrefetchedBodies] | None = None,
        block_entries: int = BLOCK_ENTRIES,
    ) -> None:
        """``bodies``: makes whoever reads bodies of old messages; None: they are read where they are
        needed. ``block_entries``: of each block in which delayed messages are counted."""

        def empty() -> StateMachine:
            state = StateMachine(gid, groups)
            state.timers.counts.block_entries = block_entries
            return state

        #: The clock of this machine that nobody sets; None: it goes as ``now_ms``.
        self.monotonic_ms: int | None = None
        disk = RealDisk(where) if isinstance(where, Path) else where
        self.checkpoints = Checkpoints(disk, segment_bytes=segment_bytes, delay_bytes=delay_bytes)
        self.journal = SegmentJournal(
            disk, segment_bytes=segment_bytes, on_roll=lambda first: self.checkpoints.want(first - 1)
        )
        state, _ = self.checkpoints.recover(empty)
        self.replica = Replica(
            state=state,
            journal=self.journal,
            checkpoints=self.checkpoints,
            limits=limits or Limits(),
            start_job=self._run,
            monotonic=lambda: (self.now_ms if self.monotonic_ms is None else self.monotonic_ms) / 1000,
            bodies=bodies(state, self.journal) if bodies else None,
        )
        self.node = SingleNode(self.journal, self.replica)
        self.replica.attach(self.node)
        self.redone = 0
        if not len(self.journal):
            self.journal.add(b"\x01", 1, 1)
            self.journal.sync()
        for index in range(state.applied_index + 1, self.journal.last_index + 1):
            command = self.journal.read(index)
            self.replica.apply(index, self.journal.term_at(index) or 0, command if command[0] == 0 else b"")
            self.redone += 1
        self.now_ms = max(1_000_000, state.now_ms)

    def _run(self, job: Job, done: Callable[[], None]) -> None:
        job.run()
        done()

    def send(self, *frames: bytes, now_ms: int | None = None) -> list[tuple[Any, ...]]:
        """Queue requests, one per frame group, then propose; the list fills as they are answered.

        ``now_ms``: a millisecond after the request before, if not given.
        """
        answers: list[tuple[Any, ...]] = []
        for frame in frames:
            self.replica.submit(frame, parse_request(frame), answers.append)
        self.now_ms = self.now_ms + 1 if now_ms is None else now_ms
        self.replica.pump(self.now_ms)
        return answers

    def submit(self, *frames: bytes) -> list[Any]:
        """One request; its results."""
        (answer,) = self.send(b"".join(frames))
        assert answer[0] == "ok", answer
        results: list[Any] = answer[1]
        return results

    def fail_over(self) -> None:
        """Another leads from now on, as far as this replica can stand for it: what a leader only remembers
        is gone (leases, decisions under way)."""
        self.node.ready = False
        self.replica.pump(self.now_ms)
        self.state.due.rebuild()
        self.node.ready, self.node.term = True, self.node.term + 1

    @property
    def state(self) -> StateMachine:
        return self.replica.state

    def texts(self, partition: int = 0) -> list[str]:
        """What is readable of that partition of ``t``: see ``named``."""
        return named(everything(self.replica.fetch, TOPIC, partition))

    def close(self) -> None:
        self.journal.close()
