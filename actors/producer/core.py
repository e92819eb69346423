"""The part of a producer that both interfaces (blocking and asyncio) share.

Caller threads put encoded work into an inbox; the router's thread sorts it into the groups' batchers and lets
the channels send it. Bytes that are queued or under way are counted and bounded (``BufferBound``): beyond
that bound, callers wait. Nothing here blocks the router's thread or runs user code in it.
"""

from __future__ import annotations

import heapq
import itertools
import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from importlib import metadata
from typing import Any, TypeVar

from escrowmq.actors.client.background import Background, Threads
from escrowmq.actors.client.catalog import TopicCatalog
from escrowmq.actors.client.client_loop import ClientLoop
from escrowmq.actors.client.closing import FORKED, tell_after_fork
from escrowmq.actors.client.failures import Failure, FailureKind
from escrowmq.actors.client.replica_calls import ReplicaCalls
from escrowmq.actors.client.router import Router
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.actors.client.values import Serialize
from escrowmq.actors.client.wakeup import Waiter
from escrowmq.actors.producer.batcher import BuiltRequest, GroupBatcher
from escrowmq.actors.producer.claiming import Claimed, claim
from escrowmq.actors.producer.config import Counted, ProducerConfig, ProducerStatistics
from escrowmq.actors.producer.encoding.blocks import Block, DecisionBlock, DoneBlock, PrepareBlock
from escrowmq.actors.producer.encoding.delayed_messages import DeliveryClock
from escrowmq.actors.producer.encoding.encoder import Encoder, check_app
from escrowmq.actors.producer.encoding.many import Piece, Run
from escrowmq.actors.producer.encoding.value_packer import ValueEncoder, ValuePacker
from escrowmq.actors.producer.fence_name import FenceName
from escrowmq.actors.producer.plain.delayed_stream import DelayedBatch, DelayedStream
from escrowmq.actors.producer.plain.partition_stream import ROWS_MAX, PartitionStream
from escrowmq.actors.producer.plain.record_batch import RecordBatch, SendFuture
from escrowmq.replication.errors import Closed, Overloaded
from escrowmq.replication.format.timer_ops import owner_of

T = TypeVar("T")

# ------------------------------------------------------------------------------------------------------------
# How much a producer accepts: a number of bytes at most, and only as much as is answered in time.
#
# A bound in bytes alone does not bound time: 32 MiB are a second for a fast group, and a minute for one that
# a thousand clients share; a caller that would wait a minute is better told at once. So the producer measures
# how long what is answered now has waited since it was accepted. Pure: times are passed in.

#: Lower bound, whatever is measured: some requests' worth of small messages.
BYTES_MIN = 16 << 10


class BufferBound:
    """Bytes that may be buffered and under way. Used by one thread; ``limit`` may be read by any.

    The bound changes once per round trip: only an answer to what was accepted after the last change shows the
    effect of that change. Waits above the target lower it, to at most what is buffered now. Shorter waits
    raise it, but not sooner than a quarter of the target after the last change: while a buffer is still
    filling, waits are short whatever its bound. It is also raised, more gently, for waits just below the
    target: where calls are the cost, more bytes in each do not wait longer.
    """

    def __init__(self, bytes_max: int, target_s: float) -> None:
        self.limit = self._max = bytes_max
        self._min = min(BYTES_MIN, bytes_max)
        self._target_s = target_s
        self._changed = float("-inf")

    def answered(self, taken_on: float, now: float, buffered: int) -> None:
        """What was accepted at ``taken_on`` has its answer; ``buffered`` bytes are there, including it."""
        waited = now - taken_on
        if taken_on < self._changed or (self.limit == self._max and waited <= self._target_s):
            return
        if waited > self._target_s:
            self.limit = max(self._min, int(min(self.limit, buffered) * self._target_s / waited))
            self._changed = now
        elif now - self._changed >= self._target_s / 4:
            factor = 2 if waited < self._target_s / 2 else 1.25
            self.limit = min(self._max, int(factor * self.limit))
            self._changed = now


# ------------------------------------------------------------------------------------------------------------
# Transaction ids and producer instance ids.
#
# FMQ's form: ``clientVersion-clientIP-clientStart-pid-connectionNo-transactionNo``. The part before the last
# dash names one producer object in one process and is never used again, so a counter after it is unique
# without any coordination; a client keeps no state across crashes.

_connections = itertools.count(1)
_process_lock = threading.Lock()
_process_start: tuple[int, int] | None = None  # pid, ms: a forked child must not use its parent's


def _start_ms() -> int:
    global _process_start
    with _process_lock:
        if _process_start is None or _process_start[0] != os.getpid():
            _process_start = (os.getpid(), int(time.time() * 1000))
        return _process_start[1]


def client_version() -> str:
    """Version of the installed package; 0.0.0 if only its files were copied (a Ray runtime environment)."""
    try:
        return metadata.version("escrowmq")
    except metadata.PackageNotFoundError:
        return "0.0.0"


def local_ip() -> str:
    """This machine's address as others see it; sends no packet. 127.0.0.1 without any network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # TEST-NET-1: only looks up the route
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def instance_id(version: str, ip: str | None = None) -> str:
    """Name of one producer object: ``version-ip-start-pid-connection``; a new one at every call."""
    return f"{version}-{ip or local_ip()}-{_start_ms()}-{os.getpid()}-{next(_connections)}"


def transaction_ids(instance: str) -> Iterator[str]:
    """``instance-1``, ``instance-2``, ... for any number of threads.

    Made of C iterators only (two threads may not advance a generator at the same time).
    """
    return map((instance + "-").__add__, map(str, itertools.count(1)))


# ------------------------------------------------------------------------------------------------------------
# Which local transactions run in this process now; checks of the broker are answered from this.
#
# A transaction counts from before its PREPARE is sent until its decision is answered or it is left to the
# check. So one that is prepared and undecided counts as long as the application holds it. Can be queried from
# any thread.


class RunningTransactions:
    """Two tables, for speed. An id that the producer generated is used once, so a plain set holds those.

    An id that the application gave comes from outside, perhaps twice at once: the second user is refused.
    """

    __slots__ = ("_given", "_lock", "made")

    def __init__(self) -> None:
        #: Ids that the producer generated, and all those of ``send_transactions``.
        self.made: set[str] = set()
        self._given: set[str] = set()
        self._lock = threading.Lock()

    def begin_given(self, tx_id: str) -> bool:
        """A transaction with this id, given by the application, begins; False: one is already running, and
        this one must not run."""
        with self._lock:
            if tx_id in self._given:
                return False
            self._given.add(tx_id)
            return True

    def end_given(self, tx_id: str) -> None:
        """The transaction is over."""
        self._given.discard(tx_id)

    def end_all_given(self, tx_ids: Iterable[str]) -> None:
        """These transactions are over."""
        with self._lock:
            self._given.difference_update(tx_ids)

    def taken_of(self, tx_ids: Collection[str], *, begin: bool) -> set[str]:
        """Those of these ids that are running already. ``begin``: the others begin, as in ``begin_given``."""
        with self._lock:
            taken = self._given.intersection(tx_ids)
            if begin:
                self._given.update(tx_ids)
        return taken

    def holds_given(self, tx_id: str) -> bool:
        """Whether a transaction with this id, given by the application, is running."""
        return tx_id in self._given

    def __contains__(self, tx_id: object) -> bool:
        return tx_id in self.made or tx_id in self._given

    def __len__(self) -> int:
        return len(self.made) + len(self._given)


_CLOSED = "this producer was closed; create a new one"
#: Topics of which a producer keeps where their keyless messages gather.
STICKY_MAX = 20_000


class ProducerCore:
    """One producer's queues, ids and connection to the brokers. Thread-safe except where stated otherwise."""

    #: Finds out the table whose rows decide; None: there is none that has a name.
    fence_name: FenceName | None = None
    #: Its name, under which transactions are prepared; empty: none, or not known.
    fence = b""

    def __init__(
        self,
        info: ClusterInfo,
        app: str,
        config: ProducerConfig,
        calls: ReplicaCalls | None = None,
        clock: Callable[[], float] = time.monotonic,
        turns: ClientLoop | None = None,
        *,
        answers_checks: bool = True,
        instance: str | None = None,
        background: Background | None = None,
        serialize: Serialize | None = None,
    ) -> None:
        """``turns``: turns that the caller runs, in place of a thread of this producer. ``answers_checks``:
        it can be asked whether a local transaction runs, so it owns its open transactions. ``instance``: its
        name; by default a new one. ``background``: what runs it, with its own clock. ``serialize``: makes
        bytes of values."""
        background = background or Threads(clock)
        self.app, self.config, self.info, self.clock = check_app(app), config, info, background.clock
        self.instance = instance or instance_id(client_version())
        self.ids = transaction_ids(self.instance)
        self.running = RunningTransactions()
        self.router = turns or Router(
            info, config.channel, calls, name="escrowmq-producer", background=background
        )
        self.catalog = TopicCatalog(self.router, config.delivery_timeout_s, clock=self.clock)
        topics = self.catalog.partitions, self.router.placement.group_of
        self.encoder: Encoder = Encoder(config, *topics)
        #: Compresses values; None: this producer does not.
        self.packer: ValuePacker | None = None
        how = config.packing
        if how is not None or serialize is not None:
            if how is not None:
                self.packer = ValuePacker(how)
            self.encoder = ValueEncoder(config, *topics, serialize, self.packer)
        self.delays = DeliveryClock(background.wall_s)
        self.encoder.time_of = self.delays.time_of
        owner = self.instance if answers_checks else ""
        self._counted = Counted()
        self._batchers = [
            GroupBatcher(self.app, config, owner, self._counted, self.router.placement)
            for _ in range(info.groups)
        ]
        #: The name that this producer has claimed; None: it has none.
        self.claimed: Claimed | None = None
        self._lock = threading.Lock()
        self._room: threading.Condition = background.condition(self._lock)
        self._blocked = 0
        self.buffered = 0
        self._bound = BufferBound(config.buffer_bytes, config.buffer_s + config.linger_ms / 1000)
        self._closed = self._ended = False
        self._why = _CLOSED
        self._parcels: list[RecordBatch] = []
        self._open: dict[str, dict[int, RecordBatch]] = {}  # those of them that still take messages
        self._open_later: dict[tuple[str, int], DelayedBatch] = {}
        self._blocks: list[tuple[int, Block]] = []
        self._inbox_bytes = 0
        # Whether the router's thread will look at the inbox by itself before a linger is over. Waking it for
        # every message would cost more (a thread switch, 10 us) than everything else about a message.
        self._looks_soon_for_messages = False
        self._full_bytes, self._buffer_bytes = config.full_bytes, config.buffer_bytes
        # So many blocks for a group, among those in the inbox, wake it: see GroupBatcher.missing.
        self._blocks_missing: list[float] = [1] * info.groups
        self._blocks_here = [0] * info.groups
        self._sticky: dict[str, int] = {}
        self._flushes: list[Waiter] = []
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._timer_numbers = itertools.count()
        self.router.attach(self)
        tell_after_fork(self)

    def claim(self, name: str) -> None:
        """Becomes the only producer of ``name``; see ``claiming.claim``. Must be called before anything is
        sent."""
        self.take(claim(self.router, name, self.instance, self.config.delivery_timeout_s, self.clock))

    def take(self, claimed: Claimed) -> None:
        """What is sent from now on is sent under this claim, which all groups have."""
        self.claimed = claimed
        for batcher in self._batchers:
            batcher.send_under(claimed.name, claimed.epoch)

    def fenced_by(self, learn: Callable[[], bytes]) -> None:
        """``learn``: see ``TxStatusQuerier.learn_fence``. From now on, transactions with a local one wait
        until the name is known."""
        self.fence_name = FenceName(learn, self._use_fence)

    def _use_fence(self, name: bytes) -> None:
        self.fence = name
        for batcher in self._batchers:
            batcher.send_fenced(name)

    # ------------------------------------------------------------ callers' side

    def send(self, topic: str, partition: int | None, row: bytes) -> SendFuture | None:
        """Queues a plain message if there is room for it now; None if not.

        ``partition`` None: that in which messages without a key gather at present.
        """
        # Once per message: what other senders call is written out here.
        size = len(row)
        with self._lock:
            if self._closed:
                raise Closed(self._why)
            buffered = self.buffered
            if buffered + size > self._buffer_bytes or buffered >= self._bound.limit:
                return None
            if partition is None and (partition := self._sticky.get(topic)) is None:
                partition = self.gathers(topic)
            of_topic = self._open.get(topic)
            parcel = None if of_topic is None else of_topic.get(partition)
            if parcel is None or parcel.size >= self._full_bytes or len(parcel.rows) >= ROWS_MAX:
                parcel = self._new_parcel(topic, partition)
            rows = parcel.rows
            future = SendFuture(parcel, len(rows))
            rows.append(row)
            parcel.size += size
            self.buffered = buffered + size
            waiting = self._inbox_bytes = self._inbox_bytes + size
        if waiting >= self._full_bytes or not self._looks_soon_for_messages:
            self.router.wakeup.set()
        return future

    def send_later(self, topic: str, partition: int | None, row: bytes, time_ms: int) -> SendFuture | None:
        """As ``send``, for a delayed message. ``time_ms``: when it can be read, as requests carry it."""
        size = len(row)
        with self._lock:
            if not self._has_room(size):
                return None
            key = topic, self.gathers(topic) if partition is None else partition
            parcel = self._open_later.get(key)
            if parcel is None or parcel.size >= self._full_bytes or len(parcel.rows) >= ROWS_MAX:
                parcel = self._open_later[key] = DelayedBatch(*key)
                self._parcels.append(parcel)
            future = SendFuture(parcel, len(parcel.rows))
            parcel.rows.append(row)
            parcel.times.append(time_ms)
            parcel.size += size
            self._count_in(size)
        self._wake_if_due()
        return future

    def hand_over(self, topic: str, piece: Piece, size: int) -> list[RecordBatch] | None:
        """Queues encoded messages of ``size`` bytes if there is room now; None if not. One parcel for each
        run."""
        with self._lock:
            if not self._has_room(size):
                return None
            parcels = [self._parcel_of(topic, run) for run in piece]
            self._parcels += parcels
            self._count_in(size)
        self._wake_if_due()
        return parcels

    def _has_room(self, size: int) -> bool:
        if self._closed:
            raise Closed(self._why)
        return not self._full(size)

    def _count_in(self, size: int) -> None:
        self.buffered += size
        self._inbox_bytes += size

    def _wake_if_due(self) -> None:
        if not self._looks_soon_for_messages or self._inbox_bytes >= self._full_bytes:
            self.router.wakeup.set()

    def gathers(self, topic: str) -> int:
        """The partition in which messages without a key gather at present."""
        if len(self._sticky) >= STICKY_MAX and topic not in self._sticky:
            self._sticky.clear()  # all topics begin again at their first partition
        return self._sticky.setdefault(topic, 0)

    def _parcel_of(self, topic: str, run: Run) -> RecordBatch:
        partition = run.partition
        if partition is None:
            partition = self.gathers(topic)
            if run.size >= self._full_bytes // 2:  # about a batch: the next one goes elsewhere
                self._turn_sticky(topic, partition)
        if run.times is not None:
            later = DelayedBatch(topic, partition)
            later.fill(run.rows, run.sizes, run.size, run.times)
            self._open_later.pop((topic, partition), None)
            return later
        parcel = RecordBatch(topic, partition)
        parcel.rows, parcel.sizes, parcel.size = run.rows, run.sizes, run.size
        of_topic = self._open.get(topic)
        if of_topic is not None:
            of_topic.pop(partition, None)  # what is sent from now on comes after these
        return parcel

    def _new_parcel(self, topic: str, partition: int) -> RecordBatch:
        parcel = self._open.setdefault(topic, {})[partition] = RecordBatch(topic, partition)
        self._parcels.append(parcel)
        return parcel

    def try_reserve(self, size: int) -> bool:
        """Counts ``size`` bytes as queued if there is room; give them back with :meth:`release`."""
        with self._lock:
            if self._closed:
                raise Closed(self._why)
            if self._full(size):
                return False
            self.buffered += size
            return True

    def _full(self, size: int) -> bool:
        # The adaptive bound only has to have some room left, so that something large gets its turn as well.
        return self.buffered + size > self._buffer_bytes or self.buffered >= self._bound.limit

    def wait_for_room(self, size: int, deadline: float) -> None:
        """Blocks until ``size`` bytes might fit. Raises Overloaded at the deadline, Closed when closed."""
        with self._room:
            self._blocked += 1
            try:
                while self._full(size) and not self._closed:
                    left = deadline - self.clock()
                    if left <= 0:
                        raise self.overloaded()
                    self._room.wait(min(left, threading.TIMEOUT_MAX))
            finally:
                self._blocked -= 1

    def when_room(self, size: int, attempt: Callable[[], T | None]) -> T:
        """Repeats ``attempt``, which needs ``size`` bytes of room, until it returns something; waits for up
        to ``buffer_wait_s``."""
        deadline = self.clock() + self.config.buffer_wait_s
        while not (done := attempt()):
            self.wait_for_room(size, deadline)
        return done

    def overloaded(self) -> Overloaded:
        """The error for a buffer that stays full."""
        waited, limit = self.config.buffer_wait_s, self._bound.limit
        return Overloaded(f"the producer's buffer of {limit} bytes was full for {waited:g} s", 1.0)

    def reserve(self, size: int) -> None:
        """:meth:`try_reserve`, waiting up to ``buffer_wait_s``."""
        if not self.try_reserve(size):
            self.when_room(size, partial(self.try_reserve, size))

    def release(self, size: int) -> None:
        """Gives reserved bytes back."""
        with self._lock:
            self.buffered -= size
            if self._blocked:
                self._room.notify_all()

    def enqueue(self, gid: int, block: Block) -> None:
        """Queues transactions for a group; ``block.done`` receives the outcome. Callable from any thread.

        Still accepted while the producer closes, so that what was prepared can be decided.
        """
        block.deadline = self.clock() + self.config.delivery_timeout_s
        with self._lock:
            taken = not self._ended
            if taken:
                self._blocks.append((gid, block))
                here = self._blocks_here[gid] = self._blocks_here[gid] + 1
        if not taken:
            block.done(Failure(FailureKind.CLOSED, _CLOSED))
        elif here >= self._blocks_missing[gid]:
            self.router.wakeup.set()

    def call_later(self, delay_s: float, work: Callable[[], None]) -> None:
        """Runs ``work`` in the router's thread after a delay. Callable only from that thread."""
        heapq.heappush(self._timers, (self.clock() + delay_s, next(self._timer_numbers), work))

    def timeout_s(self, block: PrepareBlock) -> float:
        """Time to the first check of a block's transactions."""
        known = self.catalog.fresh(block.home_topic, self.clock())
        return (block.timeout_ms or (known.transaction_timeout_ms if known else 0)) / 1000

    def check_open(self) -> None:
        """Raises Closed if the producer was closed."""
        if self._closed:
            raise Closed(self._why)

    def statistics(self) -> ProducerStatistics:
        """See :meth:`Producer.statistics`. Takes no lock."""
        counted, channels = self._counted, self.router.channels
        half, most = counted.latencies.quantiles(self.clock(), 0.5, 0.99)
        return ProducerStatistics(
            app=self.app,
            messages=counted.messages,
            message_bytes=counted.message_bytes,
            messages_failed=counted.messages_failed,
            transactions_prepared=counted.prepared,
            transactions_committed=counted.committed,
            transactions_rolled_back=counted.rolled_back,
            requests=counted.requests,
            requests_repeated=counted.repeated,
            request_bytes=counted.request_bytes,
            retries=sum(channel.retries for channel in channels),
            requests_in_flight=sum(channel.in_flight for channel in channels),
            buffered_bytes=self.buffered,
            buffer_bytes_max=self._bound.limit,
            latency_p50_s=half,
            latency_p99_s=most,
            values_compressed=0 if self.packer is None else self.packer.values,
            bytes_saved=0 if self.packer is None else self.packer.bytes_saved,
        )

    # ------------------------------------------------------------ closing

    def flush(self, timeout_s: float) -> bool:
        """Sends everything now, without linger, and waits for the answers; False at the time-out."""
        waiter = Waiter()
        try:
            self.router.post(lambda: self._flushes.append(waiter))
        except Closed:
            return True
        return waiter.wait(timeout_s)

    def close(self, timeout_s: float) -> None:
        """Refuses new work, flushes, stops the thread. What is then still open is left to the check."""
        with self._room:
            if self._closed:
                return
            self._closed = True
            self._room.notify_all()
        self.flush(timeout_s)
        self.router.close()

    def forked(self) -> None:
        """See :class:`~escrowmq.actors.client.closing.Forkable`."""
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._closed, self._why = True, f"this producer cannot be used: {FORKED}"

    @property
    def closed(self) -> bool:
        """Whether new work is refused."""
        return self._closed

    # ------------------------------------------------------------ the router's thread

    def pump(self, now: float) -> float:
        """See :class:`escrowmq.actors.client.client_loop.Source`."""
        while self._timers and self._timers[0][0] <= now:
            heapq.heappop(self._timers)[2]()
        self._sort_inbox(now)
        wake = self._timers[0][0] if self._timers else float("inf")
        hurry = bool(self._flushes)
        missing: list[float] = []
        for channel, batcher in zip(self.router.channels, self._batchers, strict=True):
            wake = min(wake, batcher.pump(channel, now, hurry, self._done))
            missing.append(batcher.missing(channel.in_flight == 0, now))
        if hurry and self._all_idle():
            flushes, self._flushes = self._flushes, []
            for waiter in flushes:
                waiter.done(None)
        return self._look_again(now, wake, missing)

    def waited_for(self) -> bool:
        """See :class:`escrowmq.actors.client.client_loop.Waited`: something must be tried again."""
        return bool(self._timers) or any(batcher.waits_for_time for batcher in self._batchers)

    def _look_again(self, now: float, wake: float, missing: list[float]) -> float:
        self._looks_soon_for_messages = wake <= now + self.config.linger_ms / 1000
        self._blocks_missing = missing
        # Both are set before this look: a caller that filled the inbox without waking us is seen here.
        return now if self._parcels or self._blocks else wake

    def _done(
        self, batcher: GroupBatcher, built: BuiltRequest, outcome: Any, repeated: bool, sendings: int
    ) -> None:
        taken_on = built.deadline - self.config.delivery_timeout_s
        now = self.clock()
        self._bound.answered(taken_on, now, self.buffered)
        counted = self._counted
        counted.requests += 1
        counted.request_bytes += built.size
        counted.repeated += repeated
        if (latency_s := now - taken_on) < float("inf"):
            counted.latencies.observe(latency_s, now)
        batcher.answered(built, outcome, repeated, sendings)

    def _sort_inbox(self, now: float) -> None:
        if not self._parcels and not self._blocks:
            return
        with self._lock:
            parcels, self._parcels = self._parcels, []
            self._open = {}
            self._open_later = {}
            blocks, self._blocks = self._blocks, []
            self._blocks_here = [0] * len(self._blocks_here)
            self._inbox_bytes = 0
        for gid, block in blocks:
            if isinstance(block, PrepareBlock):
                self._batchers[gid].prepare(block, now)
            elif isinstance(block, DecisionBlock):
                self._batchers[gid].decide(block, now)
            elif isinstance(block, DoneBlock):
                self._batchers[gid].tell_done(block, now)
            else:
                self._batchers[gid].inquire(block, now)
        group_of = self.encoder.group_of
        for parcel in parcels:
            topic, partition = parcel.topic, parcel.partition
            gid = group_of(topic, partition)
            stream = self._batchers[gid].stream(topic, partition, parcel.later)
            if stream is None:
                stream = self._new_stream(gid, topic, partition, parcel.later)
            stream.add(parcel, now)

    def _new_stream(self, gid: int, topic: str, partition: int, later: bool) -> PartitionStream:
        make: Callable[..., PartitionStream] = PartitionStream
        if later:
            owner = owner_of(self.instance)
            make = partial(DelayedStream, owner=owner, cluster_id=self.info.cluster_id)
        name, epoch = (self.instance, 0) if self.claimed is None else self.claimed[:2]
        stream = make(
            topic,
            partition,
            name,
            self.config.delivery_timeout_s,
            released=self.release,
            refused=self.catalog.forget,
            taken=self._turn_sticky,
            heard=self._batchers[gid].heard,
            counted=self._counted,
            claimed=epoch,
        )
        self._batchers[gid].add_stream(stream)
        return stream

    def _turn_sticky(self, topic: str, partition: int) -> None:
        """A batch of the partition that gathers keyless messages was sent: switches to the next partition."""
        if self._sticky.get(topic) == partition:
            info = self.catalog.known(topic)
            self._sticky[topic] = (partition + 1) % info.partitions if info else 0

    def _all_idle(self) -> bool:
        return (
            not self._parcels
            and not self._blocks
            and all(batcher.idle() for batcher in self._batchers)
            and all(channel.in_flight == 0 for channel in self.router.channels)
        )

    def stopped(self, detail: str) -> None:
        """See :class:`escrowmq.actors.client.client_loop.Source`."""
        with self._room:
            self._closed = self._ended = True
            self._room.notify_all()
        self._sort_inbox(self.clock())
        failure = Failure(FailureKind.CLOSED, detail)
        for batcher in self._batchers:
            batcher.end_all(failure)
        while self._timers:  # what was to be tried again: it is told now that it cannot be
            heapq.heappop(self._timers)[2]()
        flushes, self._flushes = self._flushes, []
        for waiter in flushes:
            waiter.done(None)
