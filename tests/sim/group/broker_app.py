"""One broker replica in the simulator: the real state machine, admission, checkpoints and retention."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from escrowmq.actors.consumer.fetcher import NO_END
from escrowmq.replication.format.codec import decode_rows
from escrowmq.replication.host.due_checks import lock_due
from escrowmq.replication.host.running_replica import TIMER_S
from escrowmq.replication.model import NO_ID
from escrowmq.replication.raft.node import RaftNode
from escrowmq.replication.replica.agenda import AT_ONCE, Duty
from escrowmq.replication.replica.checkpoints import STATE_PARTS, Checkpoints, Job, snapshot_name
from escrowmq.replication.replica.fetching import FetchResult
from escrowmq.replication.replica.replica import Limits, Replica
from escrowmq.replication.replica.run_merging import FAN_IN
from escrowmq.replication.state.machine import Result, StateMachine
from tests.history.events import identify
from tests.sim.checks.contents import everything
from tests.sim.clients.searching import Searching
from tests.sim.clients.workload import Cluster, ReplicaContext

BLOCK_ENTRIES = 8  # log indexes of a block in which delayed messages are counted
DIGEST_EVERY = 32  # entries; the digest walks the whole state
RETENTION_INTERVAL_MS = 1_500
RETENTION_PAUSE_MS = 300


def number_of(name: str) -> int:
    """The replica's number in its group, from ``r2`` or, with several groups, ``g1r2``."""
    return int(name.rpartition("r")[2])


class _Telling:
    """The Raft node, which also tells the checker every entry for which a client got an answer."""

    def __init__(self, raft: RaftNode, app: BrokerApplication) -> None:
        self._raft, self._app = raft, app

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raft, name)

    @property
    def ready(self) -> bool:  # asked in every tick, where __getattr__ would be slow
        return self._raft.ready

    def propose(self, command: bytes, done: Callable[[Any, bool | None], None]) -> None:
        term = self._raft.term

        def told(result: Any, applied: bool | None) -> None:
            if applied and self._app.cluster is not None:
                self._app.cluster.acknowledged(self._app.applied_index, term, command)
            done(result, applied)

        self._raft.propose(command, told)


class BrokerApplication:
    """One replica from start to crash, over the simulated disk."""

    def __init__(
        self,
        context: ReplicaContext,
        on_entry: Callable[[int, bytes, Sequence[Result]], None],
        gid: int = 0,
        groups: int = 1,
    ) -> None:
        self.context, self._on_entry = context, on_entry
        self.cluster: Cluster | None = None
        #: What the process has beside its replica: the bounds of its tables are checked, too.
        self.beside: list[Any] = []
        self.group_service: Any = None  # of recreated/members.py, made when a member first calls this process
        self.now_s = 0.0
        self.checkpoints = Checkpoints(context.disk, delay_bytes=200 * number_of(context.name), fan_in=FAN_IN)
        state, _ = self.checkpoints.recover(lambda: _empty_state(gid, groups), doubtful=context.doubtful)
        self.replica = Replica(
            state=state,
            journal=context.journal,
            checkpoints=self.checkpoints,
            limits=Limits(
                entries_in_flight=4,
                queue_bytes_max=20_000,
                copy_bytes=context.rng.choice((0, 40)),
                carry_ahead_ms=0,  # so that carrying meets releases and cancellations
                retention_interval_ms=RETENTION_INTERVAL_MS,
                retention_pause_ms=RETENTION_PAUSE_MS,
                slice_visits=1,  # so that much happens between the first and the last partition
            ),
            start_job=self._start_job,
            number_of=number_of,
            monotonic=context.clock,
        )
        self._timer = self.replica.agenda.add(Duty("timer", self._on_timer))
        self.searching = Searching(context.disk, self.replica, context.name)
        context.journal.on_roll = lambda first: self.checkpoints.want(first - 1)

    @property
    def applied_index(self) -> int:
        return max(1, self.replica.state.applied_index)

    def attach(self, raft: RaftNode) -> None:
        self.replica.attach(_Telling(raft, self), raft.clocks)
        raft.clocks.tell = lambda: int(self.context.wall_clock() * 1000)

    def apply(self, index: int, term: int, command: bytes) -> Any:
        results = self.replica.apply(index, term, command)
        self._on_entry(index, command, results)
        return results

    def after_tick(self, now_s: float) -> None:
        self.now_s = now_s
        now_ms = int(now_s * 1000)
        self.replica.pump(now_ms)

    def _on_timer(self, clock_s: float) -> float:
        self.replica.on_timer(int(self.now_s * 1000))
        return clock_s + TIMER_S

    def timer_s(self) -> float:
        """When something is due, on the process's clock."""
        return min(duty.due for duty in self.replica.agenda.duties)

    def _start_job(self, job: Job, done: Callable[[], None]) -> None:
        def write() -> None:
            job.run()
            done()

        self.context.later(self.context.rng.random() * 0.3, write)

    def digest(self, force: bool = False) -> bytes | None:
        state = self.replica.state
        if state.applied_index % DIGEST_EVERY and not force:
            return None
        return hashlib.sha1(repr(everything(state)).encode()).digest()

    def repair_files(self, last: int) -> list[str] | None:
        """The newest snapshot at or before entry ``last``, and all files that snapshots name; None if there
        is none."""
        fitting = [index for index in self.checkpoints.indexes if index <= last]
        if not fitting:
            return []  # the whole log will do
        parts = [name for name in self.context.disk.names() if name.endswith(STATE_PARTS)]
        return [*parts, snapshot_name(fitting[-1])]

    def want_checkpoint(self) -> None:
        self.checkpoints.wanted_at = self.applied_index

    def want_retention(self) -> None:
        self.replica._next_retention_ms = 0
        self._timer.due = AT_ONCE

    # -------------------------------------------------------------- what clients ask of a replica

    def fetch(
        self, topic: str, number: int, offset: int, max_bytes: int = 1 << 30, topic_id: int = NO_ID
    ) -> FetchResult | None:
        """A reader's result at this replica; None if the replica found damage and has ended. ``topic_id``: of
        the topic that is meant; ``NO_ID``: any of that name."""
        named = () if topic_id == NO_ID else (NO_END, topic_id)
        request = (topic, number, offset, *named)
        results = self.context.guarded(lambda: self.replica.fetch([request], max_bytes))
        if not results:
            return None
        self.searching.after(results[0])
        return results[0]

    def lock_due(self, app: str, topic: str, most: int, lease_s: float, owner: str) -> list[tuple[Any, ...]]:
        """The answer to a feedback actor; nothing unless this replica is a ready leader."""
        raft = self.replica.raft
        if raft is None or not raft.ready:
            return []
        return lock_due(self.replica.state, app, topic, most, lease_s, owner, self.now_ms())

    def release(self, app: str, tx_ids: Sequence[str], owner: str, waits_ms: Sequence[int]) -> None:
        self.replica.state.due.release(app, tx_ids, owner, self.now_ms(), waits_ms)

    def now_ms(self) -> int:
        return self.replica.group_ms(int(self.now_s * 1000))


def _empty_state(gid: int, groups: int) -> StateMachine:
    state = StateMachine(gid, groups)
    state.timers.counts.block_entries = BLOCK_ENTRIES
    return state


def ids_of(result: FetchResult, offset: int) -> list[tuple[int, str]]:
    """(offset, id) of the fetched messages, from ``offset`` on, since a client trims the first run."""
    records: list[tuple[int, str]] = []
    at = 0
    for base, count, _, size in result[5]:
        rows = decode_rows(result[6][at : at + size], count)
        records += [(base + n, identify(row[1])) for n, row in enumerate(rows) if base + n >= offset]
        at += size
    return records
