"""Client processes that offer work at a given rate, whatever becomes of it: an open loop.

Each process has several producers; each producer is one client of the broker, with its own calls. What is
refused is not offered again: a client that comes back when told to is kinder than these. The parent
sets the rate and collects counters through a pipe, and in the end the ledger of every producer.
"""

from __future__ import annotations

import asyncio
import math
import multiprocessing
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import escrowmq
from benchmarks.load.ledger import ACCEPTED, NOT_SENT, REFUSED, SENT, UNKNOWN, value_of
from escrowmq.actors.calls import Done, RayCalls
from escrowmq.actors.producer import Producer
from escrowmq.actors.topology import ClusterInfo

STEP_S = 0.005
LATENCY_STEPS = 1.05  # width of a class of latencies
#: What takes how long, from offering to the answer, as applications see it; and of that: how late the own
#: event loop began with it, and each call to the leader and back (a transaction needs two).
PLAIN, TRANSACTION, START, CALL = "message", "transaction", "start", "call"
Times = dict[str, Counter[int]]
ROOM = 1 << 18  # messages a client's ledger grows by


@dataclass(frozen=True)
class ClientPlan:
    """What one process is told at its start."""

    address: str
    namespace: str
    topic: str
    first_client: int
    producers: int
    transactional: bool
    message_bytes: int
    buffer_bytes: int
    buffer_wait_s: float


class Tally:
    """Counters of one process since the last look, and the ledgers. Any thread."""

    def __init__(self, first_client: int, producers: int, kind: str) -> None:
        self.first_client, self.kind = first_client, kind
        self.ledgers = [bytearray() for _ in range(producers)]
        self.numbers = [0] * producers
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._times: Times = defaultdict(Counter)

    def next_number(self, producer: int) -> int:
        number = self.numbers[producer]
        self.numbers[producer] = number + 1
        ledger = self.ledgers[producer]
        if number >= len(ledger):
            ledger.extend(bytes(ROOM))
        ledger[number] = SENT
        return number

    def accepted(self, producer: int, number: int, seconds: float) -> None:
        self.ledgers[producer][number] = ACCEPTED
        with self._lock:
            self._counts["accepted"] += 1
            self._times[self.kind][_class_of(seconds)] += 1

    def took(self, what: str, seconds: float) -> None:
        with self._lock:
            self._times[what][_class_of(seconds)] += 1

    def failed(self, producer: int, number: int, error: BaseException) -> None:
        refused = isinstance(error, escrowmq.Overloaded)
        self.ledgers[producer][number] = REFUSED if refused else UNKNOWN
        with self._lock:
            if refused and getattr(error, "retry_after_s", 0) > 0:
                self._counts["refused"] += 1
            elif refused:
                self._counts["refused without a hint"] += 1
            else:
                self._counts[f"error {type(error).__name__}"] += 1

    def offered(self, count: int) -> None:
        with self._lock:
            self._counts["offered"] += count

    def take(self) -> tuple[Counter[str], Times]:
        with self._lock:
            counts, self._counts = self._counts, Counter()
            times, self._times = dict(self._times), defaultdict(Counter)
        return counts, times


class TimedCalls(RayCalls):
    """Ray calls as ever, each of them timed."""

    def __init__(self, info: ClusterInfo, tally: Tally) -> None:
        super().__init__(info)
        self._tally = tally

    def call(self, gid: int, rid: int, method: str, args: tuple[Any, ...], done: Done) -> None:
        sent = time.perf_counter()

        def timed(answer: Any, error: BaseException | None) -> None:
            self._tally.took(f"{CALL} {method}", time.perf_counter() - sent)
            done(answer, error)

        super().call(gid, rid, method, args, timed)


def _class_of(seconds: float) -> int:
    """Number of the class of a latency: each is 5 % wider than the one before, from 0.1 ms on."""
    return max(0, int(math.log(max(seconds, 1e-4) / 1e-4, LATENCY_STEPS)))


def quantile_ms(classes: Counter[int], q: float) -> float:
    """The upper end of the class in which the quantile lies."""
    total = sum(classes.values())
    if not total:
        return float("nan")
    passed = 0
    for number in sorted(classes):
        passed += classes[number]
        if passed >= q * total:
            break
    return float(0.1 * LATENCY_STEPS ** (number + 1))


def run_clients(plan: ClientPlan, pipe: Connection) -> None:
    """The process: orders come through the pipe, ``("rate", per_s)``, ``("look",)``, ``("end",)``."""
    with escrowmq.connect(plan.address, plan.namespace) as cluster:
        config = escrowmq.ProducerConfig(
            buffer_bytes=plan.buffer_bytes,
            transaction_bytes_max=min(plan.buffer_bytes, 16 << 20),
            message_bytes_max=min(plan.buffer_bytes, 1 << 20),
            buffer_wait_s=plan.buffer_wait_s,
        )
        tally = Tally(plan.first_client, plan.producers, TRANSACTION if plan.transactional else PLAIN)
        producers = [
            Producer(
                cluster.info,
                app=f"load-{plan.first_client + n}",
                config=config,
                calls=TimedCalls(cluster.info, tally),
            )
            for n in range(plan.producers)
        ]
        rate = [0.0]
        ended = threading.Event()
        work = _transactions if plan.transactional else _plain
        thread = threading.Thread(target=work, args=(plan, producers, tally, rate, ended), daemon=True)
        thread.start()
        pipe.send("ready")
        while True:
            order, *rest = pipe.recv()
            if order == "rate":
                rate[0] = rest[0]
            elif order == "look":
                pipe.send(tally.take())
            else:
                break
        rate[0] = 0.0
        ended.set()
        thread.join()
        for producer in producers:
            producer.close()
        time.sleep(0.2)  # the last callbacks
        ledgers = {
            plan.first_client + n: bytes(ledger[: tally.numbers[n]]) for n, ledger in enumerate(tally.ledgers)
        }
        pipe.send((tally.take(), ledgers))


class _Pace:
    """How many are due now, at a rate that may change; what was missed for long is not caught up."""

    def __init__(self) -> None:
        self._last, self._owed = time.perf_counter(), 0.0

    def due(self, rate: float) -> int:
        now = time.perf_counter()
        self._owed = min(self._owed + (now - self._last) * rate, rate * 0.25 + 1)
        self._last = now
        count = int(self._owed)
        self._owed -= count
        return count


def _plain(
    plan: ClientPlan, producers: list[Any], tally: Tally, rate: list[float], ended: threading.Event
) -> None:
    pace, turn = _Pace(), 0
    while not ended.wait(STEP_S):
        due = pace.due(rate[0])
        for _ in range(due):
            turn = (turn + 1) % len(producers)
            number = tally.next_number(turn)
            message = escrowmq.Message(
                plan.topic, value_of(plan.first_client + turn, number, plan.message_bytes)
            )
            _send(producers[turn], message, tally, turn, number)
        tally.offered(due)


def _send(producer: Any, message: Any, tally: Tally, turn: int, number: int) -> None:
    sent = time.perf_counter()
    try:
        future = producer.send(message)
    except escrowmq.EscrowMQError as error:
        tally.failed(turn, number, error)
        return

    def done(future: Any) -> None:
        error = future.exception()
        if error is None:
            tally.accepted(turn, number, time.perf_counter() - sent)
        else:
            tally.failed(turn, number, error)

    future.add_done_callback(done)


def _transactions(
    plan: ClientPlan, producers: list[Any], tally: Tally, rate: list[float], ended: threading.Event
) -> None:
    async def one(turn: int, number: int, sent: float) -> None:
        tally.took(START, time.perf_counter() - sent)
        value = value_of(plan.first_client + turn, number, plan.message_bytes)
        try:
            await producers[turn].aio.send_message_in_transaction(
                escrowmq.Message(plan.topic, value), lambda tx: escrowmq.TransactionState.COMMITTED
            )
        except escrowmq.EscrowMQError as error:
            tally.failed(turn, number, error)
        else:
            tally.accepted(turn, number, time.perf_counter() - sent)

    async def offer() -> None:
        pace, turn = _Pace(), 0
        running: set[asyncio.Task[None]] = set()
        while not ended.is_set():
            due, now = pace.due(rate[0]), time.perf_counter()
            for _ in range(due):
                turn = (turn + 1) % len(producers)
                task = asyncio.create_task(one(turn, tally.next_number(turn), now))
                running.add(task)
                task.add_done_callback(running.discard)
            tally.offered(due)
            await asyncio.sleep(STEP_S)
        await asyncio.gather(*running)

    asyncio.run(offer())


class ClientProcess:
    """The parent's end of one process."""

    def __init__(self, plan: ClientPlan) -> None:
        context = multiprocessing.get_context("spawn")
        self.plan = plan
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=run_clients, args=(plan, theirs), daemon=True)
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def wait_ready(self, timeout_s: float = 120.0) -> None:
        if not self._pipe.poll(timeout_s) or self._pipe.recv() != "ready":
            raise TimeoutError("a client process does not start")

    def set_rate(self, per_s: float) -> None:
        self._pipe.send(("rate", per_s))

    def look(self) -> tuple[Counter[str], Times]:
        self._pipe.send(("look",))
        counts, times = self._answer(60.0)
        return counts, times

    def end(self) -> tuple[tuple[Counter[str], Times], dict[int, bytes]]:
        self._pipe.send(("end",))
        last, ledgers = self._answer(180.0)
        self._process.join(30.0)
        return last, ledgers

    def kill(self) -> None:
        if self._process.is_alive():
            self._process.kill()

    def _answer(self, timeout_s: float) -> Any:
        if not self._pipe.poll(timeout_s):
            raise TimeoutError("a client process does not answer")
        return self._pipe.recv()


assert NOT_SENT == 0  # what ``bytes(ROOM)`` fills a ledger with
