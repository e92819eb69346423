"""Several fetches of a range under way: in order, exact, and never more than was agreed, whatever is told."""

from __future__ import annotations

import itertools
import queue
import random
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from escrowmq.actors.calls import Done
from escrowmq.actors.reader import FETCH_WAIT_S, SILENCE_S, PartitionReader
from escrowmq.actors.topology import ClusterInfo
from escrowmq.replication.codec import decode_rows, encode_row
from escrowmq.replication.errors import ConfigError, Unavailable

Call = tuple[str, tuple[Any, ...], Done]


class Shelf:
    """One partition at three replicas, which may have cut their runs in different places."""

    def __init__(self, rng: random.Random, messages: int, alike: bool = True) -> None:
        self.rows = [
            encode_row(None, b"%d" % i + b"." * rng.randrange(60), None, None) for i in range(messages)
        ]
        cuts = [self._cut(rng, messages) for _ in range(1 if alike else 3)]
        self.runs = cuts * (3 // len(cuts))

    def _cut(self, rng: random.Random, messages: int) -> list[tuple[int, int, int, int]]:
        borders = sorted({0, messages, *(rng.randrange(1, messages) for _ in range(rng.randrange(messages)))})
        return [
            (low, high - low, 1, sum(map(len, self.rows[low:high])))
            for low, high in itertools.pairwise(borders)
        ]

    def fetch(self, rid: int, offset: int, until: int, max_bytes: int) -> tuple[Any, ...]:
        taken: list[tuple[int, int, int, int]] = []
        for run in self.runs[rid]:
            if run[0] + run[1] > offset and run[0] < until:
                if taken and sum(r[3] for r in taken) + run[3] > max_bytes:
                    break
                taken.append(run)
        rows = self.rows[taken[0][0] : taken[-1][0] + taken[-1][1]] if taken else []
        return ("t", 0, 0, 0, len(self.rows), taken, b"".join(rows))

    def ends(self, rid: int, offset: int, until: int, max_bytes: int, count: int) -> list[int]:
        found: list[int] = []
        while offset < until and len(found) < count:
            *_, runs, _ = self.fetch(rid, offset, until, max_bytes)
            offset = runs[-1][0] + runs[-1][1]
            found.append(offset)
        return found


class Wire:
    """Calls under way, answered when and as the test says; ``told`` decides what is said of ends."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf
        self.waiting: list[Call] = []
        self.most = 0
        self.told: Callable[[list[int]], list[int]] = list
        self.on_call: Callable[[], None] = lambda: None

    def call(self, gid: int, rid: int, method: str, args: tuple[Any, ...], done: Done) -> None:
        self.waiting.append((method, (rid, *args), done))
        self.most = max(self.most, len(self.fetches()))
        self.on_call()

    def close(self) -> None:
        self.waiting.clear()

    def fetches(self) -> list[tuple[int, int]]:
        """The ranges that are asked for and not answered."""
        return [args[1][0][2:] for method, args, _ in self.waiting if method == "fetch"]

    def answer(self, at: int, error: Exception | None = None) -> None:
        method, (rid, *args), done = self.waiting.pop(at)
        if error is not None:
            done(None, error)
        elif method == "fetch":
            ((_, _, offset, until),), max_bytes, _ = args
            done([self.shelf.fetch(rid, offset, until, max_bytes)], None)
        else:
            _, _, offset, until, max_bytes, count = args
            done((0, self.told(self.shelf.ends(rid, offset, until, max_bytes, count))), None)

    def answer_all(self, method: str) -> None:
        for at in reversed(range(len(self.waiting))):
            if self.waiting[at][0] == method:
                self.answer(at)


def reader_of(wire: Wire, start: int, end: int, **options: Any) -> PartitionReader:
    return PartitionReader(ClusterInfo("c", "test", 1, 3), "t", 0, start, end, calls=wire, **options)


def values_of(stretches: list[Any]) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    for runs, rows in stretches:
        decoded = decode_rows(rows, sum(run[1] for run in runs))
        found += [(runs[0][0] + i, bytes(row[1])) for i, row in enumerate(decoded)]
    return found


def expected(shelf: Shelf, start: int, end: int) -> list[tuple[int, bytes]]:
    return [(i, decode_rows(shelf.rows[i], 1)[0][1]) for i in range(start, end)]


def test_as_many_as_agreed_are_under_way_while_the_caller_works_and_come_in_order() -> None:
    shelf = Shelf(random.Random(1), 200)
    wire = Wire(shelf)
    wire.on_call = lambda: wire.answer(0)
    stretches = reader_of(wire, 3, 190, fetch_bytes=600, in_flight=3).stretches()
    found = [next(stretches)]
    wire.on_call = lambda: None
    found.append(next(stretches))  # here it learns where fetches end
    ends = [3, *shelf.ends(0, 3, 190, 600, 64)]
    assert [low for low, _ in wire.fetches()] == ends[2:5], "one more is under way than was before it knew"
    wire.on_call = lambda: wire.answer(len(wire.waiting) - 1)  # what is put from now on, at once
    for _ in range(3):
        wire.answer(len(wire.waiting) - 1)  # the last one first
    found += stretches
    assert values_of(found) == expected(shelf, 3, 190)
    assert wire.most == 3
    starts = [runs[0][0] for runs, _ in found]
    assert starts == ends[:-1], "no answer was cut: each fetch began where the one before was to end"


@pytest.mark.parametrize("seed", range(150))
def test_exact_whatever_is_told_and_in_whatever_order_it_comes(seed: int) -> None:
    rng = random.Random(seed)
    shelf = Shelf(rng, rng.randrange(2, 150), alike=rng.random() < 0.5)
    wire = Wire(shelf)
    wire.told = rng.choice(
        [list, lambda _: [], lambda ends: sorted(rng.sample(range(400), rng.randrange(9)))]
    )
    start = rng.randrange(len(shelf.rows))
    end = rng.randrange(start, len(shelf.rows) + 1)
    in_flight = rng.randrange(1, 6)

    def some() -> None:
        while wire.waiting and (rng.random() < 0.4 or len(wire.waiting) > rng.randrange(in_flight + 1)):
            trouble = Unavailable("starting", 0.0) if rng.random() < 0.1 else None
            wire.answer(rng.randrange(len(wire.waiting)), trouble)

    wire.on_call = some
    # A question that nobody answers is put to another replica after a time: here, after none.
    options = {"pause": lambda _s: None, "clock": iter_clock(), "timeout_s": 1e9}
    reader = reader_of(wire, start, end, fetch_bytes=rng.randrange(1, 2_000), in_flight=in_flight, **options)
    assert values_of(list(reader.stretches())) == expected(shelf, start, end), f"seed {seed}"
    assert in_flight > 1 or all(method == "fetch" for method, _, _ in wire.waiting)


class Impatient:
    """An inbox, and time, which goes on only while somebody waits for what is not there."""

    def __init__(self) -> None:
        self.now = 100.0
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        self._items.append(item)

    def get(self, timeout: float) -> Any:
        if self._items:
            return self._items.popleft()
        self.now += timeout
        raise queue.Empty

    def lose(self, answers: list[deque[Any]]) -> None:
        """What was under way never comes."""
        for kept in (self._items, *answers):
            kept.clear()


def test_a_replica_that_falls_silent_is_waited_for_once_and_not_for_every_fetch_under_way() -> None:
    shelf = Shelf(random.Random(2), 300)
    wire, inbox = Wire(shelf), Impatient()
    silent: set[int] = set()

    def unless_silent() -> None:
        if wire.waiting[-1][1][0] not in silent:
            wire.answer(len(wire.waiting) - 1)

    wire.on_call = unless_silent
    reader = reader_of(wire, 0, 300, fetch_bytes=400, clock=lambda: inbox.now, pause=lambda _s: None)
    reader._inbox = inbox  # type: ignore[assignment]
    stretches = reader.stretches()
    found = [next(stretches) for _ in range(3)]
    under_way = list(reader._ahead._pieces)
    assert len(under_way) == 3
    silent |= {piece.rid for piece in under_way}
    inbox.lose([piece.answers for piece in under_way])
    began = inbox.now
    found += stretches
    assert values_of(found) == expected(shelf, 0, 300)
    assert inbox.now - began < 1.5 * (FETCH_WAIT_S + SILENCE_S)


def iter_clock() -> Callable[[], float]:
    """Each look at it finds a second gone."""
    seconds = iter(range(10**9))
    return lambda: float(next(seconds))


def test_one_after_the_other_if_brokers_cannot_tell_where_answers_end() -> None:
    shelf = Shelf(random.Random(4), 100)
    wire = Wire(shelf)

    def refuse() -> None:
        method, _, _ = wire.waiting[0]
        wire.answer(0, AttributeError("fetch_ends") if method == "fetch_ends" else None)

    wire.on_call = refuse
    assert values_of(list(reader_of(wire, 0, 100, fetch_bytes=300).stretches())) == expected(shelf, 0, 100)
    assert wire.most == 1


def test_nothing_can_be_read_without_a_fetch_under_way() -> None:
    with pytest.raises(ConfigError, match="in_flight is 0"):
        reader_of(Wire(Shelf(random.Random(1), 3)), 0, 3, in_flight=0)
