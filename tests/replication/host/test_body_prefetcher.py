"""Bodies of old messages are read before they are needed, and never in the replica's thread."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from escrowmq.actors.broker.config import BrokerConfig
from escrowmq.replication.errors import DamagedEntry
from escrowmq.replication.format import timer_ops
from escrowmq.replication.format.codec import encode_row
from escrowmq.replication.host.body_prefetcher import IDLE_S, BodyPrefetcher
from escrowmq.replication.replica.replica import Limits
from tests.support.broker_group import BrokerGroup, texts
from tests.support.requests import message
from tests.support.single import Single
from tests.support.waiting import wait_until

OWNER, BODY = 7, 500
FAR_MS = 100_000


def scheduled(times: list[int], first: int = 0, owner: int = OWNER) -> bytes:
    """Their values are their ordinals."""
    rows = [
        encode_row(None, f"{first + n}:".ljust(BODY, "x").encode(), None, None) for n in range(len(times))
    ]
    return timer_ops.scheduled("t", 0, "p", 0, -1, times, rows, owner, first, -1, 0)


class World:
    """A leader with small segments; its read-ahead, whose steps the test makes; what was read from the log,
    and by whom: "ahead", or the replica."""

    def __init__(self, path: Path, ahead_bytes: int = 16 << 20) -> None:
        self.leads, self.reader = True, "replica"
        self.reads: list[tuple[str, int]] = []
        self.broken: set[int] = set()
        self.defect = False  # in the thread that reads ahead

        def made(state: Any, journal: Any) -> BodyPrefetcher:
            read = journal.read_range

            def read_range(index: int, pos: int, size: int) -> bytes:
                if self.defect and threading.current_thread() is not threading.main_thread():
                    raise RuntimeError("a defect")
                if index < journal.segment_start(journal.last_index):
                    self.reads.append((self.reader, index))
                if index in self.broken:
                    raise DamagedEntry(f"entry {index}")
                found: bytes = read(index, pos, size)
                return found

            journal.read_range = read_range
            self.ahead = BodyPrefetcher(
                state.timers,
                journal,
                leads=lambda: self.leads,
                now_ms=lambda: self.single.now_ms,
                ahead_bytes=ahead_bytes,
            )
            return self.ahead

        self.single = Single(path, segment_bytes=4_000, bodies=made, limits=Limits(carry_ahead_ms=100))
        self.single.topic(partitions=2)

    def step(self) -> float:
        self.reader = "ahead"
        pause_s = self.ahead.step()
        self.reader = "replica"
        return pause_s

    def read_all(self) -> None:
        while self.step() == 0.0:
            pass

    def fill(self, count: int = 12) -> None:
        for _ in range(count):
            self.single.submit(message("t", 1, [b"x" * 900]))

    def counted(self) -> Counter[str]:
        counts = Counter(who for who, _ in self.reads if who != "consumer")
        self.reads.clear()
        return counts

    def values(self) -> list[int]:
        self.reader = "consumer"
        found = [int(text.split(":")[0]) for text in self.single.texts()]
        self.reader = "replica"
        return found

    def pass_to(self, now_ms: int) -> None:
        self.single.send(now_ms=now_ms)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.single.close()


def test_what_is_due_soon_is_read_ahead_and_the_replica_reads_nothing(world: World) -> None:
    at = world.single.now_ms + FAR_MS
    for n in range(20):
        world.single.submit(scheduled([at + n, at + 1_000 + n], 2 * n))
    world.fill()
    assert world.step() > 0 and world.counted() == {}, "far from due"
    world.pass_to(at - 900)
    world.read_all()
    assert world.counted() == {"ahead": 40} and world.ahead.held_bytes > 40 * BODY
    world.read_all()
    assert world.counted() == {}, "once"
    world.pass_to(at + 30)
    assert sorted(world.values()) == list(range(0, 40, 2))
    world.pass_to(at + 1_030)
    assert world.values() == [*range(0, 40, 2), *range(1, 40, 2)] and world.counted() == {}
    world.step()
    assert world.ahead.held_bytes == 0, "what is released is forgotten"


def test_what_lies_in_the_newest_segment_is_not_read_ahead(world: World) -> None:
    at = world.single.now_ms + 500
    world.single.submit(scheduled([at]))
    assert world.step() == IDLE_S and world.counted() == {}
    world.pass_to(at)
    assert world.values() == [0] and world.counted() == {}, "it is referred to"


def test_what_was_not_read_ahead_is_waited_for_and_the_thread_is_asked(world: World) -> None:
    at = world.single.now_ms + FAR_MS
    for n in range(5):
        world.single.submit(scheduled([at + n], n))
    world.fill()
    world.pass_to(at + 100)
    for _ in range(10):
        world.pass_to(world.single.now_ms + 5)
        assert world.values() == [] and world.counted() == {}, "nobody has read it"
    world.read_all()
    assert world.counted() == {"ahead": 5}
    world.pass_to(world.single.now_ms + 5)
    assert world.values() == [0, 1, 2, 3, 4] and world.counted() == {}


def test_the_first_ones_are_released_while_the_others_are_being_read(world: World) -> None:
    at = world.single.now_ms + FAR_MS
    for n in range(6):
        world.single.submit(scheduled([at + n], n))
    world.fill()
    world.pass_to(at - 1_999)
    world.read_all()
    assert world.counted() == {"ahead": 2}
    world.pass_to(at + 100)
    assert world.values() == [], "the others may come at any moment"
    world.pass_to(at + 105)
    assert world.values() == [0, 1]
    world.pass_to(at + 110)
    world.read_all()
    world.pass_to(at + 115)
    assert world.values() == [0, 1, 2, 3, 4, 5] and world.counted() == {"ahead": 4}


def test_all_copies_of_a_key_are_released_together(tmp_path: Path) -> None:
    """The cursor passes all of them."""
    world = World(tmp_path, ahead_bytes=3 * (BODY + 40))
    at = world.single.now_ms + FAR_MS
    world.single.submit(scheduled([at - 1, at]))
    world.single.submit(scheduled([at - 1, at]))
    world.fill()
    world.pass_to(at - 10)
    world.read_all()
    assert world.counted() == {"ahead": 3}
    for now_ms in (at + 5, at + 10):
        world.pass_to(now_ms)
    assert world.values() == [0, 0], "of the other key one body is missing"
    for _ in range(3):
        world.read_all()
        world.pass_to(world.single.now_ms + 5)
    assert world.values() == [0, 0, 1, 1] and world.counted()["replica"] == 0
    world.single.close()


def test_so_many_bytes_are_held_and_more_are_read_when_these_are_released(tmp_path: Path) -> None:
    world = World(tmp_path, ahead_bytes=10 * (BODY + 40))
    at = world.single.now_ms + FAR_MS
    for n in range(40):
        world.single.submit(scheduled([at + n], n))
    world.fill()
    world.pass_to(at - 100)
    world.read_all()
    assert world.counted() == {"ahead": 10} and world.ahead.held_bytes <= 10 * (BODY + 40)
    for _ in range(20):
        world.pass_to(world.single.now_ms + 20)
        world.read_all()
    assert world.values() == list(range(40)) and set(world.counted()) == {"ahead"}
    world.single.close()


def test_a_body_that_cannot_be_read_is_left_to_the_replica(world: World) -> None:
    at = world.single.now_ms + FAR_MS
    world.single.submit(scheduled([at]))
    index = world.single.journal.last_index
    world.fill()
    world.broken.add(index)
    world.pass_to(at - 10)
    world.read_all()
    with pytest.raises(DamagedEntry):
        world.pass_to(at + 10)
    assert world.counted() == {"ahead": 1, "replica": 1}


def test_a_new_leader_begins_with_nothing(world: World) -> None:
    at = world.single.now_ms + FAR_MS
    world.single.submit(scheduled([at, at + 1]))
    world.fill()
    world.pass_to(at - 10)
    world.read_all()
    assert world.ahead.held_bytes > 0
    world.leads = False
    assert world.step() == IDLE_S and world.ahead.held_bytes == 0
    world.leads = True
    world.read_all()
    world.pass_to(at + 10)
    assert world.values() == [0, 1] and world.counted() == {"ahead": 4}


def test_carrying_waits_for_bodies_too(world: World) -> None:
    single, carrying = world.single, world.single.replica.admission.carrying
    at = single.now_ms + FAR_MS
    for n in range(5):
        single.submit(scheduled([at + n], n))
    world.fill()
    carrying.begin(single.journal.segment_start(single.journal.last_index))
    for _ in range(5):
        world.pass_to(single.now_ms + 60)
    assert carrying.carried == 0 and world.counted() == {}
    world.step()
    world.pass_to(single.now_ms + 60)
    assert carrying.carried == 5 and world.counted() == {"ahead": 5}
    world.read_all()
    world.pass_to(at + 10)
    assert world.values() == [0, 1, 2, 3, 4] and world.counted() == {}, "they lie in the newest segment"


@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_read_when_everything_comes_once_and_in_order(tmp_path: Path, seed: int) -> None:
    """Copies of a key, cancelled ones, passes of carrying, fail-overs, steps at any moment."""
    draw = random.Random(seed)
    world = World(tmp_path, ahead_bytes=draw.choice((2_000, 6_000, 1 << 20)))
    single, ordinals, expected = world.single, 0, set[int]()
    begin = single.now_ms
    due: dict[int, int] = {}
    for _ in range(60):
        what = draw.random()
        if what < 0.4:
            times = sorted(begin + draw.randrange(50, 3_000) for _ in range(draw.randint(1, 4)))
            times = [max(time_ms, single.now_ms + 10) for time_ms in times]
            single.submit(scheduled(times, ordinals))
            due |= {ordinals + n: time_ms for n, time_ms in enumerate(times)}
            expected |= set(range(ordinals, ordinals + len(times)))
            ordinals += len(times)
        elif what < 0.5 and due:
            ordinal = draw.choice(list(due))
            ((code, *_),) = single.submit(timer_ops.cancel("t", 0, [(due[ordinal], OWNER, ordinal)], 0))
            if code == 0:
                expected.discard(ordinal)
        elif what < 0.6:
            world.fill(draw.randint(1, 6))
        elif what < 0.65:
            single.fail_over()
        elif what < 0.7:
            single.replica.admission.carrying.begin(single.journal.segment_start(single.journal.last_index))
        elif what < 0.85:
            world.step()
        else:
            world.pass_to(single.now_ms + draw.randrange(1, 200))
    for _ in range(400):
        world.pass_to(max(single.now_ms + 10, begin + 3_000))
        world.step()
    assert single.state.timers.counts.total == 0
    assert sorted(world.values()) == sorted(expected)
    assert [due[n] for n in world.values()] == sorted(due[n] for n in world.values())
    assert world.counted()["replica"] == 0
    single.close()


def test_brokers_read_old_messages_in_another_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = BrokerConfig(segment_bytes=64 << 10)
    with BrokerGroup(tmp_path, config, replicas=1) as group:
        group.topic(partitions=2)
        leader = group.leader().parts.running
        journal, read, by = leader.journal, leader.journal.read_range, Counter[str]()

        def read_range(index: int, pos: int, size: int) -> bytes:
            if index < journal.segment_start(journal.last_index):
                by[threading.current_thread().name] += 1
            return read(index, pos, size)

        monkeypatch.setattr(journal, "read_range", read_range)
        at = leader.now_ms() + 1_500
        for n in range(10):
            group.submit(scheduled([at + n], n))
        for _ in range(100):
            group.submit(message("t", 1, [b"x" * 1_900]))
        wait_until(lambda: not leader.replica.state.timers.counts.total, what="they are readable")
        assert [int(text.split(":")[0]) for text in texts(group.leader(), 10)] == list(range(10))
        assert by["read-ahead-0"] >= 10 and not any(name.startswith("raft-") for name in by), by


def test_if_the_thread_fails_the_replica_reads_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path)
    at = world.single.now_ms + FAR_MS
    world.single.submit(scheduled([at]))
    world.fill()
    world.defect = True
    world.pass_to(at - 10)
    world.ahead.start()
    wait_until(lambda: world.ahead.has(1, 1), what="it has given up")
    assert world.ahead.stop() and "read in the replica's thread" in caplog.text
    world.pass_to(at + 10)
    assert world.values() == [0] and world.counted() == {"replica": 1}
    world.single.close()
