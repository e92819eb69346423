"""A replica hosted by a process: data directory, driver thread, start, repair, and end.

The shell around the pure parts. It alone has a wall clock, threads, and the right to end the process.
What callers may ask of a running replica is in requests.py.
"""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from escrowmq.replication.errors import Closed, CorruptLog, DiskFull, Overloaded, ReadFailed, Unavailable
from escrowmq.replication.host.driver import Driver
from escrowmq.replication.host.parking import ParkingLot
from escrowmq.replication.host.repair import (
    NoPeers,
    PeerSource,
    check_log,
    copy_from_leader,
    has_history,
    must_copy,
)
from escrowmq.replication.host.replica_setup import HostConfig
from escrowmq.replication.log.datadir import DataDir, Identity
from escrowmq.replication.log.disk import RealDisk
from escrowmq.replication.log.journal import SegmentJournal
from escrowmq.replication.log.marks import BEHIND, DAMAGED, LEARNER, PORT_FILE, WANTS_COPY, Marks
from escrowmq.replication.net.handshake import PeerIdentity
from escrowmq.replication.net.tls import TlsFiles
from escrowmq.replication.raft.node import PeerLink, RaftConfig, RaftNode
from escrowmq.replication.replica.checkpoints import CheckpointJob, Checkpoints
from escrowmq.replication.replica.replica import Limits, Replica
from escrowmq.replication.state.machine import StateMachine

Status = tuple[Any, ...]
Resolve = Callable[[str], tuple[str, int] | None]
NOT_STARTED: Status = ("not_leader", None, 0)
BEHIND_PATIENCE_S = 5.0  # several elections
TIMER_S = 0.1
#: What the log holds here is not what was written: this replica needs a copy of the leader's.
UNSOUND = (CorruptLog, ReadFailed)


def _exit_process(error: BaseException) -> None:
    """Nothing may be written after a failed fsync, not even by exit handlers."""
    os._exit(70)


def politely(items: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """All of them, letting the replica's own thread in between: else it waits 5 ms for every turn."""
    for number, item in enumerate(items):
        if number % 256 == 255:
            time.sleep(0)
        yield item


class ReplicaHost:
    """One replica, running. Build it, ``start()``, call the rest from any thread, ``stop()``."""

    def __init__(
        self,
        config: HostConfig,
        identity: Identity,
        *,
        groups: int,
        replicas: int,
        data_dir: Path,
        listen_host: str,
        secret: bytes,
        resolve: Resolve,
        wall_clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        report: Callable[[str], None] = lambda text: None,
        source: PeerSource | None = None,
        fatal: Callable[[BaseException], None] = _exit_process,
        tls: TlsFiles | None = None,
    ) -> None:
        """``source``: how to read the other replicas when this one needs a copy of the log.
        ``resolve(peer)``: where the replica of that number listens (None: not known now); may be slow.

        Raises DataDirLocked, DataDirMismatch, UnknownVersion or CorruptLog for a directory that must not
        be served.
        """
        self.config, self.identity, self.groups = config, identity, groups
        self.gid, self.rid = identity.group, identity.replica
        self._wall_clock, self._report = wall_clock, report
        self._fetch_lot = ParkingLot(max(1, config.fetch_threads // 2), monotonic)
        self._due_lot = ParkingLot(max(1, config.feedback_threads // 2), monotonic)
        self._data_dir = DataDir(data_dir, identity)
        self._disk = RealDisk(data_dir / "log")
        self._marks = Marks(self._data_dir.disk)
        self._founded = has_history(self._disk)
        self._peers = [str(r) for r in range(replicas) if r != self.rid]
        self._listen_host, self._secret, self._resolve, self._tls = listen_host, secret, resolve, tls
        self._source: PeerSource = source or NoPeers()
        self._fatal = fatal
        self._started = self._learner = False
        self._ending = threading.Lock()
        self._last_applied = 0
        self._next_timer = 0.0
        self._monotonic = monotonic

    # -------------------------------------------------------------- life

    def founded(self) -> bool:
        """Whether this replica holds any history. May be asked before ``start`` has returned."""
        return self.journal.last_index > 1 if self._started else self._founded

    def start(self, patience_s: float = 60.0) -> None:
        """Repair if need be, recover, and take part. Blocks; run it beside the calls that peers make.

        Raises what makes this replica unfit: CorruptLog or ReadFailed (after a repair failed), Unavailable
        (no peer to repair from), and the disk's errors. It may be called again after that.
        """
        wanted = self._marks.read(WANTS_COPY) if self._peers else None
        if wanted == BEHIND:
            self._catch_up(patience_s)
        elif wanted is not None or (
            self._peers and not self._founded and must_copy(self._peers, self._source, time.sleep, patience_s)
        ):
            self._copy(patience_s, lost_log=True)
        try:
            self._open()
        except UNSOUND as error:
            if not self._peers:
                raise
            self._report(f"{error}; this replica leaves the group until it has a copy of the leader's log")
            self._copy(patience_s, lost_log=True)
            self._open()
        self._marks.remove(WANTS_COPY)
        try:
            self.driver.start()
            self.node = self.driver.node
            self._remember_port()
        except BaseException as error:
            self._give_up(error)
            raise
        self._started = True

    def _remember_port(self) -> None:
        assert self.driver.address is not None
        try:
            self._marks.write(PORT_FILE, str(self.driver.address[1]))
        except DiskFull as error:  # a matter of convenience: peers ask where this replica listens
            self._report(f"{error}; the next start may listen on another port")

    def _give_up(self, error: BaseException) -> None:
        """The driver may run, and another start would put a second node over the same files: one that does
        not stop takes the process with it."""
        self.driver.stop()
        if self.driver.running:
            self._end(error)

    def _catch_up(self, patience_s: float) -> None:
        """Take the leader's log, or else go on with the own one, which is sound, only old.

        Without that vote a group of which a majority is behind could never elect a leader again. One that
        turns out not to be sound comes back as a learner.
        """
        try:
            check_log(self._disk)
        except UNSOUND as error:
            self._report(f"{error}; this replica was behind, and leaves the group until it has a copy")
            self._copy(patience_s, lost_log=True)
            return
        try:
            self._copy(min(patience_s, BEHIND_PATIENCE_S), lost_log=False)
        except Unavailable as error:
            self._report(f"{error}; going on without, so that one can be elected")

    def _copy(self, patience_s: float, *, lost_log: bool) -> None:
        """Take the leader's log. With its own log lost, this replica is a learner from then on (rejoin.py):
        it may have promised what it no longer knows. That is remembered on disk until it has caught up.
        """
        if lost_log:
            self._marks.write(LEARNER, "1")
        copy_from_leader(self._disk, self._peers, self._source, time.sleep, patience_s, self._report)

    def _open(self) -> None:
        config = self.config
        self.checkpoints = Checkpoints(self._disk, self._report, segment_bytes=config.segment_bytes)
        self.journal = SegmentJournal(
            self._disk,
            segment_bytes=config.segment_bytes,
            on_roll=lambda first: self.checkpoints.want(first - 1),
        )
        state, _ = self.checkpoints.recover(lambda: StateMachine(self.gid, self.groups))
        self.recovered_index = state.applied_index
        self.replica = Replica(
            state=state,
            journal=self.journal,
            checkpoints=self.checkpoints,
            limits=Limits(
                open_transactions_max=config.open_transactions_max,
                queue_bytes_max=config.queue_bytes,
                copy_bytes=config.copy_bytes_max,
            ),
            start_job=self._start_job,
            on_due=self._due_lot.news,
        )
        self.driver = Driver(
            self._build_node,
            self.journal,
            identity=PeerIdentity(self.identity.cluster_id, self.gid, str(self.rid)),
            peers=frozenset(self._peers),
            listen_host=self._listen_host,
            listen_port=self._listen_port(),
            secret=self._secret,
            resolve=self._resolve,
            fatal=self._end,
            after_tick=self._after_tick,
            tls=self._tls,
        )

    def _listen_port(self) -> int:
        """The port of last time, so that peers find this replica at once; any other if it is taken now
        (peers ask where it listens before they dial, so nothing depends on it)."""
        port = self._marks.port()
        with socket.socket(socket.AF_INET6 if ":" in self._listen_host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((self._listen_host, port))
            except OSError as error:
                self._report(f"port {port} is taken ({error}); listening on another")
                return 0
        return port

    def _build_node(self, link: PeerLink, clock: Callable[[], float]) -> RaftNode:
        config = self.config
        self._learner = self._marks.read(LEARNER) is not None
        node = RaftNode(
            str(self.rid),
            self._peers,
            self.journal,
            link,
            self.replica.apply,
            clock=clock,
            rng=random.Random(),
            config=RaftConfig(
                election_min_s=config.election_min_s,
                election_max_s=config.election_max_s,
                heartbeat_s=config.heartbeat_s,
            ),
            applied_index=max(1, self.recovered_index),
            no_vote_until_caught_up=self._learner,
        )
        self.replica.attach(node)
        return node

    def _after_tick(self) -> None:
        """In the driver's thread, after every tick."""
        now_ms = self._now_ms()
        now = self._monotonic()
        if now >= self._next_timer:
            self._next_timer = now + TIMER_S
            self.replica.on_timer(now_ms)
            if self._learner and not self.driver.node.rejoining:
                self._learner = False
                self._marks.remove(LEARNER)
            if self.driver.node.too_far_behind:
                self._marks.write(WANTS_COPY, BEHIND)
                self._end(Unavailable("the leader's log starts after ours ends: copying its log", 1.0))
        applied = self.replica.state.applied_index
        if applied != self._last_applied:
            self._last_applied = applied
            self._fetch_lot.news()
        self.replica.pump(now_ms)

    def _end(self, error: BaseException) -> None:
        """This replica cannot go on: the process ends and is started anew by whoever watches it."""
        self._report(f"replica {self.rid} of group {self.gid} ends: {error}")
        try:
            if isinstance(error, UNSOUND) or isinstance(error.__cause__, UNSOUND):
                with self._ending:  # several threads may find the same damage
                    self._marks.write(WANTS_COPY, DAMAGED)  # the next start repairs it
        finally:  # also on a disk that takes no mark: whatever reads that place again ends the next process
            self._fatal(error)

    def stop(self) -> None:
        """Hand leadership over, sync, close. Calls after it are answered as by a follower."""
        self._started = False
        self._fetch_lot.close()
        self._due_lot.close()
        if hasattr(self, "driver"):
            self.driver.stop()
            self.journal.close()
        self._data_dir.close()

    # -------------------------------------------------------------- helpers

    def _now_ms(self) -> int:
        return self.replica.group_ms(int(self._wall_clock() * 1000))

    def _start_job(self, job: CheckpointJob, done: Callable[[], None]) -> None:
        def work() -> None:
            try:
                job.run()
            except Exception as error:  # a failed fsync above all
                self._end(error)
                return
            self._have_done(done)

        threading.Thread(target=work, name="checkpoint", daemon=True).start()

    def _check_started(self) -> None:
        if not self._started:
            raise Unavailable(f"replica {self.rid} of group {self.gid} is starting", 0.2)

    def _have_done(self, fn: Callable[[], None]) -> None:
        """``fn`` in the driver's thread, however many calls wait there; if that has ended, nobody minds."""
        while True:
            try:
                return self.driver.submit(fn)
            except Overloaded as error:
                time.sleep(error.retry_after_s)
            except Closed:
                return None

    def _led(self, read: Callable[[], Any]) -> Status:
        """``("ok", read())`` in the driver's thread if this replica is the ready leader.

        Raises Unavailable when that thread does not come to it in time.
        """
        if not self._started:
            return NOT_STARTED

        def guarded() -> Status:
            if not self.node.ready:
                return self.replica.not_leader()
            return ("ok", read())

        try:
            status: Status = self.driver.call(guarded)
        except TimeoutError as error:
            raise Unavailable(f"replica {self.rid} of group {self.gid} does not answer", 1.0) from error
        return status
