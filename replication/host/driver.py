"""The real world around a RaftNode: a thread with an event loop, one that waits for the disk, and one that
removes segments. (Small group commits on a quick disk run in the loop's thread: ``SyncChoice``.)

Everything that touches the node runs in the loop's thread. The loop sends first while the disk
syncs: one fdatasync covers all entries that arrived during the previous one (group
commit). Work is coalesced: however many messages, proposals and calls arrive in one turn of the
loop, they are followed by one tick and one ``after_tick``.

A failed fdatasync, a violated invariant, or an apply that raises ends the process through
``fatal``: after that neither the kernel's nor the state's content can be trusted. A full disk does not:
entries stay queued, and are retried until there is room.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from escrowmq.replication.errors import Closed, Overloaded, Superseded, Unavailable
from escrowmq.replication.format.wire import RaftMessage
from escrowmq.replication.log.peer_marks import Incarnation, Incarnations
from escrowmq.replication.log.syncjob import SyncJob
from escrowmq.replication.metrics import LATENCY_S, Histogram
from escrowmq.replication.net.client_listener import ClientListener
from escrowmq.replication.net.handshake import About, PeerIdentity
from escrowmq.replication.net.tcp import LinkCounters, Resolve, TcpTransport
from escrowmq.replication.net.tls import TlsFiles, TlsIdentity
from escrowmq.replication.raft.node import PeerLink, RaftNode

if TYPE_CHECKING:
    from escrowmq.replication.log.journal import SegmentJournal

# ------------------------------------------------------------------ where a sync runs
# Where a group commit runs: in the replica's own thread, or in the one that waits for the disk.
#
# Handing a small write to another thread and back takes four waits of threads: as much time as a good disk
# needs for it. But a disk that hangs would hold up heartbeats, and with them the leadership, so the write
# stays in the replica's thread only while it is small and the disk has lately been quick. After one that
# was slow, the other thread does all for a minute: so a bad disk costs at most one election a minute. A
# snapshot that is written beside it, or a large file that is removed, makes a good disk slow: then, too,
# the other thread works.


#: Larger writes gain more from work that goes on meanwhile than they lose by the hand-over.
INLINE_BYTES_MAX = 8 << 10
#: A sync of at most this time costs less than it costs to wait for another thread.
QUICK_S = 0.002
#: So many quick ones in a row are needed.
QUICK_RUN = 16
#: A tenth of the shortest time after which followers campaign; a longer one shows that this disk can hang.
SLOW_S = 0.03
AVOID_S = 60.0
#: The kernel goes on with what a snapshot has written when that is done.
SETTLE_S = 5.0


class SyncChoice:
    """Decides, from the last syncs. Used while no sync is under way."""

    def __init__(self) -> None:
        self._quick = self._others = 0
        self._avoid_until = float("-inf")

    def inline(self, size: int | None, now: float) -> bool:
        """Whether to sync ``size`` bytes in the replica's thread; None: more than an append to an open
        file."""
        return (
            size is not None
            and size <= INLINE_BYTES_MAX
            and self._quick >= QUICK_RUN
            and not self._others
            and now >= self._avoid_until
        )

    def other_work_begins(self) -> None:
        """A snapshot is about to be written, or a segment to be removed. In the replica's thread."""
        self._others += 1

    def other_work_ended(self, now: float) -> None:
        """One of those has ended. In the replica's thread."""
        self._others -= 1
        self._avoid_until = max(self._avoid_until, now + SETTLE_S)

    def took(self, seconds: float, now: float) -> None:
        """A sync has ended, wherever it ran."""
        self._quick = self._quick + 1 if seconds <= QUICK_S else 0
        if seconds > SLOW_S:
            self._avoid_until = now + AVOID_S


# ------------------------------------------------------------------ driver


log = logging.getLogger(__name__)

#: Regular ticks: fine enough for heartbeats of 50 ms, 0.1 % of a core when idle.
TICK_S = 0.02
#: uvloop rounds to milliseconds: rung too early, an alarm would be set again at once.
ROUNDING_S = 0.0005
#: Limit of calls from other threads that wait for the loop; beyond it, Overloaded.
CALLS_MAX = 100_000
DISK_FULL_RETRY_S = 0.2

T = TypeVar("T")


class BuildNode(Protocol):
    """Makes the node in the loop's thread, over the driver's links and clock."""

    def __call__(self, link: PeerLink, clock: Callable[[], float]) -> RaftNode: ...


class Driver:
    """Runs one node. ``start``, then ``submit``/``call`` from any thread, ``stop`` at the end."""

    def __init__(
        self,
        build: BuildNode,
        journal: SegmentJournal,
        *,
        identity: PeerIdentity,
        peers: frozenset[str],
        listen_host: str,
        listen_port: int,
        secret: bytes,
        resolve: Resolve,
        fatal: Callable[[BaseException], None],
        after_tick: Callable[[], float] = lambda: float("inf"),
        use_uvloop: bool = True,
        tls: TlsFiles | None = None,
        marks: Incarnations | None = None,
    ) -> None:
        """``fatal(error)`` must end the process; ``after_tick`` runs in the loop after every tick; it
        returns when it wants the next one at the latest, on the node's clock; infinity: it does not care.
        ``marks``: the incarnations of the peers (None: kept in memory).

        Raises ConfigError for ``tls`` files that cannot be used.
        """
        certificate = None if tls is None else TlsIdentity(tls)
        self.address: tuple[str, int] | None = None
        self.disk_full = False
        #: How late the regular tick was, and how long the disk took; each is counted by its own thread.
        self.stall_s, self.fsync_s = Histogram(LATENCY_S), Histogram(LATENCY_S)
        self._tick_at: float | None = None
        self._build, self._journal, self._fatal, self._after_tick = build, journal, fatal, after_tick
        self._listen, self._use_uvloop = (listen_host, listen_port), use_uvloop
        self._helpers = ThreadPoolExecutor(2, thread_name_prefix=f"resolve-{identity.replica}")
        self.marks = Incarnations() if marks is None else marks
        self.transport = TcpTransport(
            identity,
            peers,
            secret,
            resolve,
            self,
            self._helpers,
            gate=self.marks,
            tls=certificate,
        )
        self._name = f"replica {identity.replica} of group {identity.group}"
        self._node: RaftNode | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._calls: deque[Callable[[], None]] = deque()
        self._woken = self._tick_queued = self._syncing = self._failed = self._stopped = False
        self._alarm: asyncio.TimerHandle | None = None  # the tick at that time, before the regular one
        self._alarm_at = float("inf")
        self.sync_choice = SyncChoice()
        self._jobs: queue.SimpleQueue[SyncJob | None] = queue.SimpleQueue()
        self._removals: queue.SimpleQueue[SyncJob | None] = queue.SimpleQueue()
        self._done: asyncio.Event | None = None
        #: Of clients' own connections; None: no client has asked for one yet.
        self.door: ClientListener | None = None
        self._door_starts: asyncio.Future[None] | None = None
        name = identity.replica
        self._thread = threading.Thread(target=self._run, name=f"raft-{name}", daemon=True)
        self._disk_threads = [
            threading.Thread(target=self._work, args=work, name=f"{kind}-{name}", daemon=True)
            for kind, *work in (
                ("fsync", self._jobs, self._run_timed, self._synced),
                ("unlink", self._removals, SyncJob.run, self._removed),
            )
        ]
        self._started: Future[tuple[str, int]] = Future()

    # -------------------------------------------------------------- any thread
    def start(self, timeout_s: float = 30.0) -> tuple[str, int]:
        """Bind and run; returns the address. Raises what building the node raised, or Unavailable if the
        address cannot be bound or the node is not built in time; ``stop`` then releases everything."""
        self._thread.start()
        try:
            return self._started.result(timeout_s)
        except TimeoutError as error:
            raise Unavailable(f"the replica's thread has not started within {timeout_s:g} s", 5.0) from error

    def submit(self, fn: Callable[[], None]) -> None:
        """Run ``fn`` in the loop's thread, before the next tick. Raises Overloaded, or Closed after stop."""
        if self._stopped or self._failed:
            raise Closed("the replica has stopped")
        if len(self._calls) >= CALLS_MAX:
            raise Overloaded("too many calls wait for the replica's loop", 0.1)
        self._calls.append(fn)
        if not self._woken:
            self._woken = True
            assert self._loop is not None
            try:
                self._loop.call_soon_threadsafe(self._run_calls)
            except RuntimeError as error:  # the loop was closed in between
                raise Closed("the replica has stopped") from error

    def call(self, fn: Callable[[], T], timeout_s: float = 10.0) -> T:
        """Run ``fn`` in the loop's thread; returns or raises what it does."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(fn())
            except BaseException as error:
                future.set_exception(error)

        self.submit(run)
        return future.result(timeout_s)

    def serve(self, door: ClientListener) -> None:
        """Let clients connect to ``door`` soon, on the address of this replica's links, until it stops. Once
        only; any thread. What its requests violate ends the process, as everything in the loop. Raises as
        ``submit``."""
        door.begin = partial(self._guarded, door.begin)

        def start() -> None:
            self.door = door
            self._door_starts = asyncio.ensure_future(door.start(self._listen[0]))

        self.submit(start)

    @property
    def running(self) -> bool:
        """Whether one of its threads may still touch the node or the disk."""
        return any(thread.is_alive() for thread in (self._thread, *self._disk_threads))

    @property
    def node(self) -> RaftNode:
        """The node; any thread may read its read-only properties."""
        assert self._node is not None, "the driver has not been started"
        return self._node

    @property
    def counters(self) -> LinkCounters:
        return self.transport.counters

    def stop(self, timeout_s: float = 10.0) -> None:
        """Hand over leadership if a peer can take it, settle every proposal, sync, close the links."""
        if self._loop is not None and self._thread.is_alive() and not self._stopped:
            self._stopped = True
            shut_down = self._shut_down()
            try:
                asyncio.run_coroutine_threadsafe(shut_down, self._loop)
            except RuntimeError:  # a start that failed has closed the loop already
                shut_down.close()
        deadline = time.monotonic() + timeout_s
        for thread in (self._thread, *self._disk_threads):
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))
        self._helpers.shutdown(wait=False, cancel_futures=True)

    # -------------------------------------------------------------- loop thread
    def _run(self) -> None:
        loop = _new_loop(self._use_uvloop)
        self._loop = loop
        asyncio.set_event_loop(loop)
        failure: BaseException | None = None
        try:
            loop.run_until_complete(self._main())
        except BaseException as error:
            if self._started.done():
                self._die(error)
            else:
                failure = error
        finally:
            self._jobs.put(None)
            self._removals.put(None)
            loop.close()
        if failure is not None:  # reported last: when the start has failed, nothing of it is left here
            self._started.set_exception(failure)

    async def _main(self) -> None:
        self._done = asyncio.Event()
        self._node = self._build(self.transport, time.monotonic)
        try:
            self.address = await self.transport.start(*self._listen)
        except OSError as error:
            raise Unavailable("cannot listen on {}:{}: {}".format(*self._listen, error), 5.0) from error
        for thread in self._disk_threads:
            thread.start()
        self._regular_tick()
        self._started.set_result(self.address)
        await self._done.wait()
        if self.door is not None:
            self.door.stop()
        await self.transport.stop()

    async def _shut_down(self) -> None:
        node, deadline = self.node, time.monotonic() + 2 * self.node.config.transfer_timeout_s
        if not self._failed:
            node.transfer_leadership()
            await self._until(lambda: not node.transferring, deadline)
        node.close()
        await self._until(lambda: not self._syncing or self._failed, deadline)
        assert self._done is not None
        self._done.set()

    async def _until(self, condition: Callable[[], bool], deadline: float) -> None:
        for _ in range(10_000):
            if condition() or time.monotonic() >= deadline:
                return
            await asyncio.sleep(0.005)

    def kick(self) -> None:
        """One tick at the end of this turn of the loop."""
        if not self._tick_queued and self._loop is not None:
            self._tick_queued = True
            self._loop.call_soon(self._tick)

    def _run_calls(self) -> None:
        self._woken = False
        calls = self._calls
        for _ in range(len(calls)):
            self._guarded(calls.popleft())
        self.kick()

    def _regular_tick(self) -> None:
        assert self._loop is not None
        now = self._loop.time()
        if self._tick_at is not None:
            self.stall_s.observe(max(now - self._tick_at, 0.0))
        self._tick_at = now + TICK_S
        self._loop.call_later(TICK_S, self._regular_tick)
        self.kick()

    def _tick(self) -> None:
        """Follows every message, so what has nothing to do is not called."""
        self._tick_queued = False
        if self._failed:
            return
        node, journal = self._node, self._journal
        assert node is not None
        try:
            more_to_apply = node.tick()
            due = self._after_tick()
            if node.has_unsent:
                node.flush()
            if journal.has_unsynced and not self._syncing:
                self._begin_sync()
            if journal.has_unremoved:
                self._begin_removal()
            if more_to_apply:
                self.kick()
            notice_at = node.replicator.notify_at
            if notice_at is not None and notice_at < due:
                due = notice_at
            if due < self._alarm_at:
                self._set_alarm(due)
        except BaseException as error:
            self._die(error)

    def _set_alarm(self, due: float) -> None:
        """Tick at that time, unless there is a regular tick before anyway."""
        assert self._loop is not None
        within_s = due - self._loop.time()  # may lag behind the clock, and so do the loop's timers
        if within_s < TICK_S:
            if self._alarm is not None:
                self._alarm.cancel()
            delay_s = max(0.0, within_s) + ROUNDING_S
            self._alarm, self._alarm_at = self._loop.call_later(delay_s, self._ring), due

    def _ring(self) -> None:
        self._alarm, self._alarm_at = None, float("inf")
        self.kick()

    # -------------------------------------------------------------- links
    def link_up(self, peer: str, about: About) -> None:
        self._guarded(lambda: self.node.connected(peer))
        self.kick()

    def link_down(self, peer: str) -> None:
        self._guarded(lambda: self.node.disconnected(peer))
        self.kick()

    def received(self, peer: str, message: RaftMessage) -> None:
        if self._failed:  # the process ends, and answers nobody meanwhile
            return
        node = self._node
        assert node is not None
        try:
            node.deliver(peer, message)
        except BaseException as error:
            self._die(error)
        self.kick()

    def superseded(self, by: Incarnation) -> None:
        self._die(Superseded(self._name, by.number))

    def broken(self, error: BaseException) -> None:
        self._die(error)

    def drop_link(self, peer: str) -> None:
        """Close the link to ``peer`` if its process was replaced since the link came up. In the loop's
        thread."""
        self.transport.drop_superseded(peer)

    def follow(self, peers: frozenset[str]) -> None:
        """Keep links with these peers. In the loop's thread."""
        self.transport.follow(peers)

    def peer_moved(self, peer: str, incarnation: Incarnation) -> Incarnation | None:
        """``peer`` now runs elsewhere, as ``incarnation``: record that, durable on return, and close a link
        to an earlier one. Returns what is recorded now. Any thread; raises Closed, TimeoutError."""

        def note() -> Incarnation | None:
            self.marks.learn([(peer, *incarnation)])
            self.drop_link(peer)
            return self.marks.of(peer)

        return self.call(note)

    # -------------------------------------------------------------- disk
    def _begin_sync(self) -> None:
        job = self._journal.begin_sync()
        if job is None:
            return
        self._syncing = True
        if self.sync_choice.inline(job.append_bytes(), time.monotonic()):
            assert self._loop is not None
            self._loop.call_soon(self._sync_inline, job)  # after the loop has sent what this turn has written
        else:
            self._jobs.put(job)

    def _sync_inline(self, job: SyncJob) -> None:
        try:
            self._run_timed(job)
        except BaseException as error:
            self._die(error)
            return
        self._guarded(self._synced, job)

    def _run_timed(self, job: SyncJob) -> None:
        """Run a group commit. One is under way at a time, so its thread alone counts."""
        began = time.monotonic()
        job.run()
        now = time.monotonic()
        self.fsync_s.observe(now - began)
        self.sync_choice.took(now - began, now)

    def _begin_removal(self) -> None:
        if (job := self._journal.begin_removal()) is not None:
            self.sync_choice.other_work_begins()
            self._removals.put(job)

    def _removed(self, job: SyncJob) -> None:
        self._journal.end_removal(job)
        self.sync_choice.other_work_ended(time.monotonic())
        self._begin_removal()

    def _work(
        self,
        jobs: queue.SimpleQueue[SyncJob | None],
        run: Callable[[SyncJob], None],
        done: Callable[[SyncJob], None],
    ) -> None:
        """A disk thread: run jobs one after the other."""
        assert self._loop is not None
        while (job := jobs.get()) is not None:
            try:
                run(job)
            except BaseException as error:
                self._die(error)
                return
            try:
                self._loop.call_soon_threadsafe(self._guarded, done, job)
            except RuntimeError:  # the loop was closed: no caller waits for this
                return

    def _synced(self, job: SyncJob) -> None:
        node = self._node
        assert node is not None
        self._journal.end_sync(job)
        node.after_sync()
        if job.disk_full and not self.disk_full:
            log.error("the disk is full: entries wait, and new ones are refused, until there is room")
        self.disk_full = job.disk_full
        node.readiness.disk_full = job.disk_full
        if job.disk_full:
            assert self._loop is not None
            self._loop.call_later(DISK_FULL_RETRY_S, self._sync_again)
        else:
            self._sync_again()

    def _sync_again(self) -> None:
        self._syncing = False
        self.kick()

    # -------------------------------------------------------------- failing
    def _guarded(self, fn: Callable[..., None], *args: Any) -> None:
        if self._failed:
            return
        try:
            fn(*args)
        except BaseException as error:
            self._die(error)

    def _die(self, error: BaseException) -> None:
        if self._failed:
            return
        self._failed = True
        log.critical("this replica cannot continue and ends: %s", error, exc_info=error)
        self._fatal(error)


def _new_loop(use_uvloop: bool) -> asyncio.AbstractEventLoop:
    if use_uvloop:
        try:
            import uvloop
        except ImportError:
            log.warning("uvloop is not installed; the replica runs on asyncio and needs a fifth more CPU")
        else:
            return uvloop.new_event_loop()
    return asyncio.new_event_loop()
