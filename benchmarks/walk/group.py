"""A cluster of one group in this process, without Ray: three replicas with real files and real TCP.

Compared with production, it lacks the life of the Broker actor and Ray's calls. Instead, each replica has a
thread pool that runs the broker's calls, and one thread passes answers to the clients. Every call is
assigned to a role by the name of its thread (``role_of``). All imports of the modules under measurement are
in this file.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import escrowmq
from escrowmq.actors.broker.broker_calls import BrokerCalls
from escrowmq.actors.broker.config import BrokerConfig
from escrowmq.actors.broker.parts import Parts
from escrowmq.actors.client.replica_calls import SUPERVISOR_RID, OnAnswer
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.actors.consumer.config import ConsumerConfig
from escrowmq.actors.consumer.consumer import Consumer
from escrowmq.actors.producer.config import ProducerConfig
from escrowmq.actors.producer.producer import Producer
from escrowmq.feedback.answering.answering import Answering
from escrowmq.feedback.answering.query_pool import QueryPool
from escrowmq.feedback.answering.shard_link import AskedCheck, GroupTopic, Respondent
from escrowmq.feedback.asking.shard import FeedbackShard
from escrowmq.feedback.config import AnswererConfig, FeedbackConfig, LeaderTiming
from escrowmq.feedback.states import TransactionState, TxStatusQuerier
from escrowmq.replication.errors import Unavailable
from escrowmq.replication.format import ops
from escrowmq.replication.host import driver, running_replica
from escrowmq.replication.host.repair import NoPeers
from escrowmq.replication.host.replica_process import ReplicaProcess
from escrowmq.replication.host.replica_setup import ReplicaSetup
from escrowmq.replication.log.datadir import Identity
from escrowmq.replication.model import Message
from escrowmq.replication.raft import elections

__all__ = ["FOLDERS", "LEFT_OUT", "OF_THE_CLOCK", "WATCHES", "Group", "Message", "Producer", "asked_back"]

#: The folders whose functions are counted.
FOLDERS = [Path(escrowmq.__file__).parent / name for name in ("actors", "feedback", "replication")]
#: Functions started by a clock and not by a message: regular ticks and timers. A repeat with one of them is
#: discarded.
OF_THE_CLOCK = frozenset({"Driver._regular_tick", "Replica.on_timer", "Handover.tick"})
#: Also started by a clock, but so short that they are left out of the counts.
LEFT_OUT = frozenset({"TcpTransport._keep_dialing", "Backoff.pause_s"})
#: Kinds of threads that look at something from time to time; left out as well.
WATCHES = frozenset({"level", "room", "upkeep"})
#: Ticks, timers, heartbeats, probes and long polls are made rare, so that most repeats contain none of them.
SELDOM_S = 0.5
BROKER = BrokerConfig(heartbeat_s=0.4, election_min_s=1.5, election_max_s=2.0)
CONSUMER = ConsumerConfig(auto_offset_reset="earliest", fetch_wait_s=5.0)
SELDOM = LeaderTiming(probe_every_s=10.0)
FEEDBACK = FeedbackConfig(lock_wait_s=30.0, tick_s=10.0, poll_wait_s=30.0, leader=SELDOM)
ANSWERER = AnswererConfig(poll_wait_s=30.0)
#: An election takes two to four seconds with these settings, and several times longer on a busy machine.
ELECTION_PATIENCE_S = 60.0
REPLICAS = 3
CALLS_AT_A_TIME = 8
APP = "walk"
T = TypeVar("T")


class Group:
    """Three running replicas, and the ``ReplicaCalls`` and ``Brokers`` of their clients."""

    def __init__(self, folder: Path) -> None:
        """Start the replicas and wait for a leader. Raises Unavailable if none is elected in time."""
        self.info = ClusterInfo("walk", "walk", 1, REPLICAS)
        #: Called with (replica, method) for every answered call of feedback.
        self.answered: Callable[[int, str], None] = lambda rid, method: None
        self._usual = driver.TICK_S, running_replica.TIMER_S, elections.WATCH_S
        driver.TICK_S = running_replica.TIMER_S = elections.WATCH_S = SELDOM_S
        self._pools = [ThreadPoolExecutor(CALLS_AT_A_TIME, f"call-{rid}") for rid in range(REPLICAS)]
        self._handing = ThreadPoolExecutor(1, "client-answers")
        self._hosts = [ReplicaProcess(self._setup(folder, rid)) for rid in range(REPLICAS)]
        self._parts: list[Parts] = []
        self._brokers: list[BrokerCalls] = []
        for host in self._hosts:
            self._parts.append(Parts(host.open(60.0)))
            self._brokers.append(_Broker(self._parts[-1]))
        self.leader()

    def _setup(self, folder: Path, rid: int) -> ReplicaSetup:
        return ReplicaSetup(
            config=BROKER,
            identity=Identity("walk", 0, rid),
            groups=1,
            founders=REPLICAS,
            data_dir=folder / f"r{rid}",
            listen_host="127.0.0.1",
            secret=b"w" * 32,
            resolve=self._address,
            source=_NoHistory(),
        )

    def _address(self, peer: str) -> tuple[str, int] | None:
        opened = self._parts[int(peer) : int(peer) + 1]
        return opened[0].running.address if opened else None

    def leader(self) -> int:
        """The number of the ready leader; waits for one."""
        deadline = time.monotonic() + ELECTION_PATIENCE_S
        while time.monotonic() < deadline:
            for rid, parts in enumerate(self._parts):
                if parts.running.whoami()[0]:
                    return rid
            time.sleep(0.05)
        raise Unavailable(f"no leader was elected in {ELECTION_PATIENCE_S:g} s", 1.0)

    def role_of(self, thread: str) -> str:
        """The role of a thread: "client", "feedback", "leader", "follower 1" or "follower 2"."""
        kind, _, rest = thread.partition("-")
        if kind == "feedback":
            return kind
        if kind not in ("call", "raft", "fsync", "resolve"):
            return "client"
        rid, leader = int(rest.split("_")[0]), self.leader()
        return "leader" if rid == leader else f"follower {1 + rid - (rid > leader)}"

    def topic(self, name: str) -> None:
        """Create a topic with one partition."""
        answer = self._brokers[self.leader()].submit(ops.create_topic(name, {"partitions": 1}))
        assert answer[0] == "ok", answer

    def producer(self) -> Producer:
        return Producer(self.info, app=APP, config=ProducerConfig(), calls=self)

    def consumer(self) -> Consumer:
        return Consumer(self.info, config=CONSUMER, calls=self)

    # -------------------------------------------------------------- calls, as Ray would carry them

    def call(self, gid: int, rid: int, method: str, args: tuple[Any, ...], done: OnAnswer) -> None:
        """See ``ReplicaCalls``."""

        def finished(answer: Future[Any]) -> None:
            error = answer.exception()
            self._handing.submit(done, None if error else answer.result(), error)

        if rid == SUPERVISOR_RID:  # there is none, and it is asked on a slow machine only
            self._handing.submit(done, None, Unavailable("no supervisor"))
            return
        bound = getattr(self._brokers[rid], method)
        self._pools[rid].submit(bound, *args).add_done_callback(finished)

    async def ask(self, gid: int, rid: int, method: str, *args: Any) -> Any:
        """As ``call``, for coroutines; see ``Brokers``."""
        bound = getattr(self._brokers[rid], method)
        answer = await asyncio.get_running_loop().run_in_executor(self._pools[rid], bound, *args)
        self.answered(rid, method)
        return answer

    def close(self) -> None:
        """See ``ReplicaCalls``: a client ends, but the replicas continue."""

    def stop(self) -> None:
        """End the replicas."""
        for host in self._hosts:
            host.close()
        for pool in (*self._pools, self._handing):
            pool.shutdown(wait=False)
        driver.TICK_S, running_replica.TIMER_S, elections.WATCH_S = self._usual


class _Broker(BrokerCalls):
    """The calls of a broker whose replica runs."""

    def __init__(self, parts: Parts) -> None:
        super().__init__()
        self.parts = parts


class _NoHistory(NoPeers):
    """A history source for a new group."""

    def founded(self, peer: str) -> bool | None:
        return False


class _Calls:
    """``Brokers`` of feedback, over the group."""

    def __init__(self, group: Group) -> None:
        self.call = group.ask


class _Port:
    """The feedback process as the producer sees it; its event loop runs in another thread."""

    def __init__(self, feedback: FeedbackShard, loop: asyncio.AbstractEventLoop) -> None:
        self._feedback, self._loop = feedback, loop

    async def poll(
        self, instance: str, room: int, working: Sequence[AskedCheck], wait_s: float, fence: bytes
    ) -> tuple[str, Any]:
        return await self._there(self._feedback.poll(APP, instance, room, working, wait_s, fence))

    async def answer(
        self, instance: str, answers: Sequence[tuple[GroupTopic, str, str, str, int]]
    ) -> tuple[str, Any]:
        async def there() -> tuple[str, Any]:
            return self._feedback.answer(APP, instance, answers)

        return await self._there(there())

    async def leave(self, instance: str, idle: bool = False) -> None:
        async def there() -> None:
            self._feedback.leave(APP, instance, idle)

        await self._there(there())

    async def _there(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))


class _Committed(TxStatusQuerier):
    """An application whose local transactions have all been committed."""

    def query_status(self, tx_id: str, query_id: str) -> TransactionState:
        return TransactionState.COMMITTED


@contextmanager
def asked_back(group: Group, topic: str) -> Iterator[None]:
    """In this context, the app's open transactions are checked and committed.

    The feedback actor's part runs in thread "feedback", the producer's answerer in "client-checks".
    """
    feedback_loop, client_loop = asyncio.new_event_loop(), asyncio.new_event_loop()
    threads = [
        threading.Thread(target=loop.run_forever, name=name, daemon=True)
        for loop, name in ((feedback_loop, "feedback"), (client_loop, "client-checks"))
    ]
    for thread in threads:
        thread.start()

    async def start() -> FeedbackShard:
        made = FeedbackShard(0, 1, 1, REPLICAS, _Calls(group), FEEDBACK, random.Random(1))
        made.start()
        return made

    feedback = asyncio.run_coroutine_threadsafe(start(), feedback_loop).result(10)
    pool = QueryPool(_Committed(), ANSWERER)

    async def connect(_: int) -> _Port:
        return _Port(feedback, feedback_loop)

    respondent = Respondent("walk-producer", connect, pool, lambda tx_id: False, ANSWERER, random.Random(2))

    async def shards() -> int:
        return 1

    answering = Answering(APP, shards, respondent)

    async def answer() -> asyncio.Task[None]:
        return asyncio.create_task(answering.run())

    async def leave(task: asyncio.Task[None]) -> None:
        task.cancel()
        await asyncio.wait([task])

    task = asyncio.run_coroutine_threadsafe(answer(), client_loop).result(10)
    try:
        yield
    finally:
        asyncio.run_coroutine_threadsafe(leave(task), client_loop).result(10)
        pool.close()
        asyncio.run_coroutine_threadsafe(feedback.close(), feedback_loop).result(10)
        for loop, thread in zip((feedback_loop, client_loop), threads, strict=True):
            loop.call_soon_threadsafe(loop.stop)
            thread.join(10)
            loop.close()
