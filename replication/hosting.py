"""A replica hosted by a process: data directory, driver thread, start, repair, and end.

The shell around the pure parts. It alone has a wall clock, threads, and the right to end the process.
What callers may ask of a running replica is in service.py.
"""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from escrowmq.replication.checkpoints import CheckpointJob, Checkpoints
from escrowmq.replication.datadir import DataDir, Identity
from escrowmq.replication.disk import RealDisk
from escrowmq.replication.driver import Driver
from escrowmq.replication.errors import CorruptLog, Unavailable
from escrowmq.replication.handshake import PeerIdentity
from escrowmq.replication.journal import SegmentJournal
from escrowmq.replication.parking import ParkingLot
from escrowmq.replication.raft import PeerLink, RaftConfig, RaftNode
from escrowmq.replication.repair import (
    NoPeers,
    PeerSource,
    copy_from_leader,
    has_history,
    must_copy,
)
from escrowmq.replication.replica import Limits, Replica
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.tls import TlsFiles

Status = tuple[Any, ...]
Resolve = Callable[[str], tuple[str, int] | None]
NOT_STARTED: Status = ("not_leader", None, 0)
WANTS_COPY, LEARNER, PORT_FILE = "wants-copy", "learner", "raft-port"
BEHIND, DAMAGED = "behind", "damaged"  # why a copy is wanted
BEHIND_PATIENCE_S = 5.0  # several elections
TIMER_S = 0.1


def _exit_process(error: BaseException) -> None:
    """Nothing may be written after a failed fsync, not even by exit handlers."""
    os._exit(70)


def read_port(content: bytes) -> int:
    """The port that a file names; 0 (any) if it names none, since nothing depends on it."""
    text = content.decode("ascii", errors="replace").strip()
    return int(text) if text.isdecimal() and len(text) <= 5 and int(text) < 1 << 16 else 0


def politely(items: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """All of them, letting the replica's own thread in between: else it waits 5 ms for every turn."""
    for number, item in enumerate(items):
        if number % 256 == 255:
            time.sleep(0)
        yield item


class ServiceConfig(Protocol):
    """What of the broker's configuration is used here (``actors.config.BrokerConfig`` has the reasons)."""

    @property
    def segment_bytes(self) -> int: ...
    @property
    def queue_bytes(self) -> int: ...
    @property
    def request_bytes_max(self) -> int: ...
    @property
    def open_transactions_max(self) -> int: ...
    @property
    def copy_bytes_max(self) -> int: ...
    @property
    def election_min_s(self) -> float: ...
    @property
    def election_max_s(self) -> float: ...
    @property
    def heartbeat_s(self) -> float: ...
    @property
    def disk_reserve_bytes(self) -> int: ...
    @property
    def fetch_threads(self) -> int: ...
    @property
    def feedback_threads(self) -> int: ...


class ReplicaHost:
    """One replica, running. Build it, ``start()``, call the rest from any thread, ``stop()``."""

    def __init__(
        self,
        config: ServiceConfig,
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
        self._founded = has_history(self._disk)
        self._peers = [str(r) for r in range(replicas) if r != self.rid]
        self._listen_host, self._secret, self._resolve, self._tls = listen_host, secret, resolve, tls
        self._source: PeerSource = source or NoPeers()
        self._fatal = fatal
        self._started = self._learner = False
        self._last_applied = 0
        self._next_timer = 0.0
        self._monotonic = monotonic

    # -------------------------------------------------------------- life

    def founded(self) -> bool:
        """Whether this replica holds any history. May be asked before ``start`` has returned."""
        return self.journal.last_index > 1 if self._started else self._founded

    def start(self, patience_s: float = 60.0) -> None:
        """Repair if need be, recover, and take part. Blocks; run it beside the calls that peers make.

        Raises what makes this replica unfit: CorruptLog (after a repair failed), Unavailable (no peer
        to repair from), and the disk's errors.
        """
        wanted = self._read_mark(WANTS_COPY) if self._peers else None
        if wanted == BEHIND:
            self._catch_up(patience_s)
        elif wanted is not None or (
            self._peers and not self._founded and must_copy(self._peers, self._source, time.sleep, patience_s)
        ):
            self._copy(patience_s, lost_log=True)
        try:
            self._open()
        except CorruptLog as error:
            if not self._peers:
                raise
            self._report(f"{error}; this replica leaves the group until it has a copy of the leader's log")
            self._copy(patience_s, lost_log=True)
            self._open()
        self._write_mark(WANTS_COPY, None)
        self.driver.start()
        self.node = self.driver.node
        assert self.driver.address is not None
        self._write_mark(PORT_FILE, str(self.driver.address[1]))
        self._started = True

    def _catch_up(self, patience_s: float) -> None:
        """Take the leader's log, or else go on with the own one, which is sound, only old.

        Without that vote a group of which a majority is behind could never elect a leader again.
        """
        try:
            self._copy(min(patience_s, BEHIND_PATIENCE_S), lost_log=False)
        except Unavailable as error:
            self._report(f"{error}; going on without, so that one can be elected")

    def _copy(self, patience_s: float, *, lost_log: bool) -> None:
        """Take the leader's log. With its own log lost, this replica is a learner from then on (rejoin.py):
        it may have promised what it no longer knows. That is remembered on disk until it has caught up.
        """
        if lost_log:
            self._write_mark(LEARNER, "1")
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
        path = self._mark_path(PORT_FILE)
        port = read_port(path.read_bytes()) if path.exists() else 0
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
        self._learner = self._read_mark(LEARNER) is not None
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
                self._write_mark(LEARNER, None)
            if self.driver.node.too_far_behind:
                self._write_mark(WANTS_COPY, BEHIND)
                self._end(Unavailable("the leader's log starts after ours ends: copying its log", 1.0))
        applied = self.replica.state.applied_index
        if applied != self._last_applied:
            self._last_applied = applied
            self._fetch_lot.news()
        self.replica.pump(now_ms)

    def _end(self, error: BaseException) -> None:
        """This replica cannot go on: the process ends and is started anew by whoever watches it."""
        self._report(f"replica {self.rid} of group {self.gid} ends: {error}")
        if isinstance(error, CorruptLog) or isinstance(error.__cause__, CorruptLog):
            self._write_mark(WANTS_COPY, DAMAGED)  # found while reading; the next start repairs it
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

    def _mark_path(self, name: str) -> Path:
        return self._data_dir.path / name

    def _read_mark(self, name: str) -> str | None:
        path = self._mark_path(name)
        return path.read_text().strip() if path.exists() else None

    def _write_mark(self, name: str, text: str | None) -> None:
        if text is None:
            self._mark_path(name).unlink(missing_ok=True)
        else:
            self._data_dir.disk.write_atomic(name, [text.encode()])

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
            self.driver.submit(done)

        threading.Thread(target=work, name="checkpoint", daemon=True).start()

    def _check_started(self) -> None:
        if not self._started:
            raise Unavailable(f"replica {self.rid} of group {self.gid} is starting", 0.2)

    def _led(self, read: Callable[[], Any]) -> Status:
        """``("ok", read())`` in the driver's thread if this replica is the ready leader."""

        if not self._started:
            return NOT_STARTED

        def guarded() -> Status:
            if not self.node.ready:
                return self.replica.not_leader()
            return ("ok", read())

        status: Status = self.driver.call(guarded)
        return status
