"""Several fetches of a range under way: in order, exact, and never more than configured, whatever happens."""

from __future__ import annotations

import gc
import random
import weakref
from typing import Any

import pytest

from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.actors.consumer.reader import ENDS_PATIENCE_S, FETCH_WAIT_S, SILENCE, PartitionReader
from escrowmq.replication.errors import Closed, ConfigError, OffsetOutOfRange, Unavailable
from tests.support.shelf import Shelf, World, values_of


def test_as_many_as_agreed_are_under_way_and_each_begins_where_the_one_before_ends() -> None:
    shelf = Shelf(random.Random(1), 200)
    world = World(shelf)
    found = list(world.reader(3, 190, fetch_bytes=600, in_flight=3).stretches())
    assert values_of(found) == shelf.values(3, 190)
    ends = shelf.told(0, 3, 190, 600, 64)
    assert [runs[0][0] for runs, _ in found] == [3, *ends[:-1]], "no answer was cut, or came in two parts"
    assert world.most == 3
    assert sum(count for (method, _), count in world.asked.items() if method == "fetch") == len(ends)
    assert sum(count for (method, _), count in world.asked.items() if method == "fetch_ends") <= 4


@pytest.mark.parametrize("in_flight", [1, 3])
def test_while_the_caller_works_they_come(in_flight: int) -> None:
    world = World(Shelf(random.Random(1), 200))
    world.fate = lambda method, rid: 0.03
    for _ in world.reader(0, 200, fetch_bytes=600, in_flight=in_flight).stretches():
        world.pass_time(0.01)
    fetches = sum(count for (method, _), count in world.asked.items() if method == "fetch")
    assert (world.now < 0.02 * fetches) == (in_flight == 3), "three that take 30 ms are three in 30 ms"


@pytest.mark.parametrize("seed", range(200))
def test_exact_whatever_happens_on_the_way(seed: int) -> None:
    """Replicas with different runs that lag, lose data to retention, refuse, are slow or silent; ends that
    are predicted wrongly, or not at all.
    """
    rng = random.Random(seed)
    replicas = rng.randrange(1, 4)
    shelf = Shelf(rng, rng.randrange(2, 150), replicas, alike=rng.random() < 0.5)
    world, messages = World(shelf), len(shelf.rows)
    shelf.ends = [rng.choice([messages, messages, rng.randrange(messages)]) for _ in range(replicas)]
    removed = rng.choice([0, 0, 0, rng.randrange(messages)])
    start = rng.randrange(messages)
    end = rng.randrange(start, messages + 1)
    whole_since: list[float] = []  # the first: when all replicas have all of the range

    def fate(method: str, rid: int) -> float | Exception | None:
        if rng.random() < 0.1:
            shelf.ends = [max(reached, rng.randrange(messages + 1)) for reached in shelf.ends]
        if min(shelf.ends) >= end:
            whole_since.append(world.now)
        if rng.random() < 0.02:
            shelf.start = max(shelf.start, removed)
        if rng.random() < 0.05:
            return None
        return Unavailable("starting", 0.1) if rng.random() < 0.05 else rng.choice([0.0, 0.001, 0.02, 0.6])

    world.fate = fate
    world.tell = rng.choice([list, lambda _: [], lambda _: [rng.randrange(-5, 300) for _ in range(9)]])
    leader = rng.choice([None, rng.randrange(replicas)])
    options = {"fetch_bytes": rng.randrange(1, 2_000), "in_flight": rng.randrange(1, 6), "leader": leader}
    found: list[tuple[int, bytes]] = []
    try:
        for stretch in world.reader(start, end, **options).stretches():
            found += values_of([stretch])
            world.pass_time(rng.choice([0.0, 0.01, 0.3, 2.0]))
    except OffsetOutOfRange as error:
        at = start + len(found)
        assert error.offset == at, f"seed {seed}"
        assert at < shelf.start or not whole_since or world.now - whole_since[0] < 10, (
            f"seed {seed}: it is there"
        )
    except Unavailable:
        assert not whole_since or world.now - whole_since[0] < 10, f"seed {seed}: all replicas have it"
    else:
        assert len(found) == end - start, f"seed {seed}"
    assert found == shelf.values(start, start + len(found)), f"seed {seed}"


@pytest.mark.parametrize("how", ["silent", "refuses"])
@pytest.mark.parametrize("seed", range(6))
def test_a_follower_that_dies_is_noticed_once_and_the_other_one_goes_on(how: str, seed: int) -> None:
    shelf = Shelf(random.Random(2), 600)
    world = World(shelf)
    random.seed(seed)  # the follower to begin with is drawn at random
    reader = world.reader(0, 600, fetch_bytes=200, leader=1)
    stretches = reader.stretches()
    found = [next(stretches) for _ in range(3)]
    assert set(world.asked) <= {(method, rid) for method in ("fetch", "fetch_ends") for rid in (0, 2)}
    dead = next(rid for method, rid in world.asked)
    error = None if how == "silent" else Unavailable("leaves for repair", 1.0)
    world.fate = lambda method, rid: error if rid == dead else 0.001
    world.asked.clear()
    began = world.now
    found += stretches
    assert values_of(found) == shelf.values(0, 600)
    assert world.asked["fetch", 1] == 0, "the leader has other work"
    assert world.asked["fetch", dead] <= 3 and world.asked["fetch", 2 - dead] > 30
    assert len(world.pauses) == 1
    longest_s = 1.5 * (FETCH_WAIT_S + SILENCE.first_s if how == "silent" else 1.0)
    assert world.now - began < longest_s + 0.3, "not once for each that was under way"


def test_one_after_the_other_if_brokers_cannot_tell_where_answers_end() -> None:
    shelf = Shelf(random.Random(4), 100)
    world = World(shelf)
    world.fate = lambda method, rid: AttributeError(method) if method == "fetch_ends" else 0.001
    assert values_of(list(world.reader(0, 100, fetch_bytes=300).stretches())) == shelf.values(0, 100)
    assert world.most == 1


def test_a_question_for_ends_that_is_never_answered_is_put_again() -> None:
    shelf = Shelf(random.Random(4), 600)
    world = World(shelf)
    world.fate = lambda method, rid: None if method == "fetch_ends" and world.now < 0.01 else 0.001
    for _ in world.reader(0, 600, fetch_bytes=200).stretches():
        world.pass_time(ENDS_PATIENCE_S / 20)
    assert world.most == 3


class _Blob(bytearray):
    """Bytes that can be referenced weakly."""


def test_what_was_not_read_is_free_when_the_reader_is_closed() -> None:
    shelf = Shelf(random.Random(5), 300)
    world, alive = World(shelf), []
    fetch = shelf.fetch

    def watched(*args: Any) -> tuple[Any, ...]:
        *head, blob = fetch(*args)
        alive.append(weakref.ref(kept := _Blob(blob)))
        return (*head, kept)

    shelf.fetch = watched  # type: ignore[method-assign]
    gc.disable()  # as in a task
    try:
        reader = world.reader(0, 300, fetch_bytes=300)
        stretches = reader.stretches()
        next(stretches), next(stretches)
        world.pass_time(1.0)
        assert sum(blob() is not None for blob in alive) >= 3
        reader.close()
        with pytest.raises(Closed, match="t/0"):
            next(stretches)
        del stretches
        assert [blob() for blob in alive if blob() is not None] == []
        unclosed = world.reader(0, 300, fetch_bytes=300)
        next(unclosed.stretches())
        world.pass_time(1.0)
        del unclosed
        assert [blob() for blob in alive if blob() is not None] == [], "no cycle keeps it"
    finally:
        gc.enable()


def test_a_reader_that_is_closed_says_so_unless_it_has_come_to_its_end() -> None:
    shelf = Shelf(random.Random(6), 50)
    world = World(shelf)
    whole = world.reader(0, 50)
    stretches = whole.stretches()
    found = [next(stretches)]
    whole.close()
    assert values_of(found) == shelf.values(0, 50) and list(stretches) == []
    with pytest.raises(Closed):
        next(whole.stretches())
    empty = world.reader(7, 7)
    empty.close()
    assert list(empty.stretches()) == []


def test_nothing_can_be_read_without_a_fetch_under_way() -> None:
    with pytest.raises(ConfigError, match="in_flight is 0"):
        PartitionReader(
            ClusterInfo("c", "test", 1, 3), "t", 0, 0, 3, calls=World(Shelf(random.Random(1), 3)), in_flight=0
        )
