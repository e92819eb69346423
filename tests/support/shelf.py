"""A partition at several replicas behind a network that obeys a test, in virtual time; for range readers."""

from __future__ import annotations

import itertools
import queue
import random
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from escrowmq.actors.client.replica_calls import OnAnswer
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.actors.consumer.reader import PartitionReader
from escrowmq.replication.calling.answers import FetchEnds, MembersReport
from escrowmq.replication.format.codec import decode_rows, encode_row
from escrowmq.replication.model import ResultCode

Run = tuple[int, int, int, int]


class Shelf:
    """``messages`` rows; each replica has cut its runs in places of its own unless they are ``alike``."""

    def __init__(self, rng: random.Random, messages: int, replicas: int = 3, alike: bool = True) -> None:
        self.rows = [
            encode_row(None, b"%d" % i + b"." * rng.randrange(60), None, None) for i in range(messages)
        ]
        cuts = [self._cut(rng, messages) for _ in range(1 if alike else replicas)]
        self.runs = cuts * (replicas // len(cuts))
        self.start = 0
        #: How far each replica has got.
        self.ends = [messages] * replicas

    def _cut(self, rng: random.Random, messages: int) -> list[Run]:
        borders = sorted({0, messages, *(rng.randrange(1, messages) for _ in range(rng.randrange(messages)))})
        pairs = itertools.pairwise(borders)
        return [(low, high - low, 1, sum(map(len, self.rows[low:high]))) for low, high in pairs]

    def fetch(self, rid: int, offset: int, until: int, max_bytes: int) -> tuple[Any, ...]:
        end = self.ends[rid]
        if not self.start <= offset <= end:
            return ("t", 0, int(ResultCode.OUT_OF_RANGE), self.start, end, [], b"")
        taken: list[Run] = []
        for run in self.runs[rid]:
            if offset < run[0] + run[1] <= end and run[0] < until:
                if taken and sum(r[3] for r in taken) + run[3] > max_bytes:
                    break
                taken.append(run)
        rows = self.rows[taken[0][0] : taken[-1][0] + taken[-1][1]] if taken else []
        return ("t", 0, 0, self.start, end, taken, b"".join(rows))

    def told(self, rid: int, offset: int, until: int, max_bytes: int, count: int) -> list[int]:
        """Where fetches end, as ``fetch_ends`` answers."""
        found: list[int] = []
        while offset < until and len(found) < count:
            *_, runs, _ = self.fetch(rid, offset, until, max_bytes)
            if not runs:
                break
            offset = runs[-1][0] + runs[-1][1]
            found.append(offset)
        return found

    def values(self, start: int, end: int) -> list[tuple[int, bytes]]:
        return [(i, decode_rows(self.rows[i], 1)[0][1]) for i in range(start, end)]


class World:
    """Calls under way, and time, which goes on while somebody waits.

    ``fate(method, rid)``: after how many seconds a call is answered, None for never, or with which error;
    ``tell`` decides what is told of ends.
    """

    def __init__(self, shelf: Shelf) -> None:
        self.shelf, self.now, self.closed = shelf, 0.0, False
        self.fate: Callable[[str, int], float | Exception | None] = lambda method, rid: 0.001
        self.tell: Callable[[list[int]], list[int]] = list
        self.asked: Counter[tuple[str, int]] = Counter()
        self.pauses: list[float] = []
        #: Fetches without an answer now, and the most there ever were.
        self.open, self.most = 0, 0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def call(self, gid: int, rid: int, method: str, args: tuple[Any, ...], done: OnAnswer) -> None:
        self.asked[method, rid] += 1
        self.open += method == "fetch"
        self.most = max(self.most, self.open)
        fate = self.fate(method, rid)
        if fate is not None:
            delay_s = 0.001 if isinstance(fate, Exception) else fate
            error = fate if isinstance(fate, Exception) else None
            answer = (
                self.now + delay_s,
                next(self._numbers),
                lambda: self._answer(rid, method, args, done, error),
            )
            self._due.append(answer)
            self._due.sort(key=lambda due: due[:2])

    def _answer(
        self, rid: int, method: str, args: tuple[Any, ...], done: OnAnswer, error: Exception | None
    ) -> None:
        self.open -= method == "fetch"
        if error is not None:
            done(None, error)
        elif method == "fetch":
            ((_, _, offset, until),), max_bytes, _ = args
            done([self.shelf.fetch(rid, offset, until, max_bytes)], None)
        elif method.startswith("members"):
            replicas = list(range(len(self.shelf.runs)))
            done(MembersReport(version=1, voters=replicas, highest=replicas[-1]), None)
        else:
            done(FetchEnds(0, self.tell(self.shelf.told(rid, *args[2:]))), None)

    def close(self) -> None:
        self.closed = True

    def pass_time(self, seconds: float) -> None:
        """With all that is answered meanwhile."""
        until = self.now + seconds
        while self._due and self._due[0][0] <= until:
            self.now, _, answer = self._due.pop(0)
            answer()
        self.now = until

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.pass_time(seconds)

    def reader(self, start: int, end: int, **options: Any) -> PartitionReader:
        """One whose inbox waits in virtual time."""
        info = ClusterInfo("c", "test", 1, len(self.shelf.runs))
        options = {"calls": self, "clock": lambda: self.now, "pause": self.pause, **options}
        reader = PartitionReader(info, "t", 0, start, end, **options)
        reader._inbox = _Inbox(self)  # type: ignore[assignment]
        return reader

    def next_due(self, timeout: float) -> None:
        """To the next answer, or to the end of the time."""
        left_s = self._due[0][0] - self.now if self._due else timeout
        self.pass_time(min(max(left_s, 0.0), timeout))


class _Inbox:
    def __init__(self, world: World) -> None:
        self._world = world
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        self._items.append(item)

    def empty(self) -> bool:
        return not self._items

    def get(self, timeout: float = 0.0) -> Any:
        if not self._items:
            self._world.next_due(timeout)
        if not self._items:
            raise queue.Empty
        return self._items.popleft()


def values_of(stretches: list[Any]) -> list[tuple[int, bytes]]:
    """``(offset, value)`` of every message."""
    found: list[tuple[int, bytes]] = []
    for runs, rows in stretches:
        decoded = decode_rows(rows, sum(run[1] for run in runs))
        found += [(runs[0][0] + i, bytes(row[1])) for i, row in enumerate(decoded)]
    return found
