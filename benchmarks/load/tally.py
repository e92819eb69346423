"""Records what clients were told and how long it took: counters, latency classes, a ledger per message."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, defaultdict
from typing import Any

import escrowmq
from benchmarks.load.ledger import ACCEPTED, NOT_SENT, REFUSED, SENT, UNKNOWN
from escrowmq.actors.client.ray_calls import RayCalls
from escrowmq.actors.client.replica_calls import OnAnswer
from escrowmq.actors.client.topology import ClusterInfo

LATENCY_STEPS = 1.05  # ratio between consecutive latency classes
#: Kinds of times: from offering to the answer, as applications see it; and as parts of that, the delay until
#: the own event loop started it, and each call to the leader and back (a transaction needs two).
PLAIN, TRANSACTION, START, CALL = "message", "transaction", "start", "call"
Times = dict[str, Counter[int]]
ROOM = 1 << 18  # number of messages by which a client's ledger grows


class Tally:
    """Counters of one process since the last ``take``, and the ledgers. Thread-safe."""

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
    """Ray calls that are also timed."""

    def __init__(self, info: ClusterInfo, tally: Tally) -> None:
        super().__init__(info)
        self._tally = tally

    def call(self, gid: int, rid: int, method: str, args: tuple[Any, ...], done: OnAnswer) -> None:
        sent = time.perf_counter()

        def timed(answer: Any, error: BaseException | None) -> None:
            self._tally.took(f"{CALL} {method}", time.perf_counter() - sent)
            done(answer, error)

        super().call(gid, rid, method, args, timed)


def _class_of(seconds: float) -> int:
    """The class of a latency; classes start at 0.1 ms, and each is 5 % wider than the one before."""
    return max(0, int(math.log(max(seconds, 1e-4) / 1e-4, LATENCY_STEPS)))


def quantile_ms(classes: Counter[int], q: float) -> float:
    """The upper end, in ms, of the class that contains the quantile."""
    total = sum(classes.values())
    if not total:
        return float("nan")
    passed = 0
    for number in sorted(classes):
        passed += classes[number]
        if passed >= q * total:
            break
    return float(0.1 * LATENCY_STEPS ** (number + 1))


assert NOT_SENT == 0  # ``bytes(ROOM)`` fills a ledger with it
