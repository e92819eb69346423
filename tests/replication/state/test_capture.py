"""A snapshot is the state after one entry, however many entries are applied while it is captured."""

from __future__ import annotations

import random
from typing import Any

import pytest

from escrowmq.replication.format import ops
from escrowmq.replication.format.codec import encode_row
from escrowmq.replication.state.snapshot import Capture, Snapshot, adopt, capture, encode, release
from escrowmq.replication.state.stored_runs import RunTable
from tests.support.fed_state import FedState, dump
from tests.support.stored_bytes import stored

TOPICS = [f"t{n}" for n in range(6)]
SEEDS = 12


def something(rng: random.Random, log: FedState) -> None:
    """Applies one entry of any kind."""
    rows = [encode_row(b"k", b"v" * rng.randrange(9), None, None)] * rng.randint(1, 3)
    topic, partition = rng.choice(TOPICS), rng.randrange(2)
    kind = rng.randrange(12)
    if kind == 0:
        log.add(ops.create_topic(topic, {"partitions": 2}))
    elif kind == 1:
        log.add(ops.delete_topic(topic))
    elif kind == 2:
        log.add(ops.retain(log.index - rng.randrange(12)))
    elif kind == 3:
        log.add(ops.trim(topic, {partition: rng.randrange(30)}))
    elif kind < 7:
        log.add(ops.group_offsets(rng.choice("abc"), topic, {partition: rng.randrange(99)}))
    elif kind == 7:
        log.prepare([f"tx{log.index}"])
    elif kind == 8 and (table := log.state.transactions.look("app")).open:
        log.commit([rng.choice(list(table.open))])
    else:
        log.add(*(ops.message(topic, partition, "p", 0, -1, rows) for _ in range(rng.randint(1, 3))))


def settle(log: FedState, snapshot: Snapshot) -> None:
    """Does what follows the job: stored runs replace those on the heap."""
    release(log.state, snapshot)
    for slot, table in stored(snapshot.tables):
        adopt(log.state, slot, table)


def lists(snapshot: Snapshot) -> dict[int, list[list[int]]]:
    return {slot: [list(column) for column in columns] for slot, columns in snapshot.tables.items()}


def differences(seed: int) -> list[str]:
    """Two states of the same entries: one is captured at once, the other step by step while entries are
    applied and readers look."""
    rng = random.Random(seed)
    at_once, sliced = FedState(), FedState()
    found: list[str] = []
    for _ in range(4):
        for _ in range(rng.randrange(60)):
            _both(rng, at_once, sliced)
        expected, taken = capture(at_once.state, 3, ["x"]), Capture(sliced.state, 3, ["x"])
        bytes_then = b"".join(encode(expected)), lists(expected)
        while not taken.step(rng.randrange(3)):
            _both(rng, at_once, sliced)
            assert all(p.index.start <= p.index.end for p in sliced.state.topics.slots.values())
        for _ in range(rng.randrange(9)):
            _both(rng, at_once, sliced)
        if (b"".join(encode(taken.snapshot)), lists(taken.snapshot)) != bytes_then:
            found.append(f"snapshot at {expected.index}")
        for log, snapshot in ((at_once, expected), (sliced, taken.snapshot)):
            settle(log, snapshot)
        if (one := contents(at_once)) != (other := contents(sliced)):
            found.append(f"state: {[key for key in one if one[key] != other[key]]}")
    return found


def contents(log: FedState) -> dict[str, Any]:
    return dump(log.state)


def _both(rng: random.Random, *logs: FedState) -> None:
    seed = rng.random()
    for log in logs:
        something(random.Random(seed), log)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_snapshot_captured_over_many_entries_is_that_of_the_first_one(seed: int) -> None:
    assert differences(seed) == []


# ------------------------------------------------------------------ RETAIN


@pytest.mark.parametrize("seed", range(SEEDS))
def test_retention_says_the_same_whenever_somebody_looks(seed: int) -> None:
    """One state is looked at after each entry, the other only at the end."""
    rng = random.Random(seed)
    watched, left_alone = FedState(), FedState()
    for _ in range(150):
        _both(rng, watched, left_alone)
        assert all(p.index.start <= p.index.end for p in watched.state.topics.slots.values())
    assert contents(watched) == contents(left_alone)


def test_a_reader_that_looks_after_a_later_retain_leaves_the_snapshot_as_it_was() -> None:
    log = FedState()
    rows = [encode_row(None, b"v", None, None)]
    for _ in range(3):
        log.add(ops.message("t", 0, "p", 0, -1, rows))
    taken = Capture(log.state, 1, [])
    log.add(ops.retain(log.index))
    index = log.state.topics.topics["t"].partitions[0].index
    assert index.start == 2, "as every replica says after this entry"
    while not taken.step(1):
        pass
    assert list(taken.snapshot.bounds[:5]) == [1, 0, 0, 3, log.now_ms - 1_000]
    assert list(taken.snapshot.tables[1][0]) == [0, 1, 2]


# ------------------------------------------------------------------ what it takes


def test_retain_looks_at_no_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many partitions and runs there are: the thread that applies it sends heartbeats."""
    log = FedState()
    log.add(*(ops.create_topic(f"many{n}", {"partitions": 50}) for n in range(20)))
    log.add(*(ops.message(f"many{n}", 7, "p", 0, -1, [b"x"]) for n in range(20)))
    looked: list[object] = []
    for method in ("lowest_from", "end_of_below", "fitting"):
        monkeypatch.setattr(RunTable, method, lambda self, *args: looked.append(self))
    log.add(ops.retain(log.index))
    assert looked == [] and log.state.first_index == log.index - 1


def test_beginning_a_snapshot_visits_no_partition() -> None:
    log = FedState()
    log.add(*(ops.create_topic(f"many{n}", {"partitions": 50}) for n in range(20)))
    taken = Capture(log.state, 1, [])
    assert len(taken.snapshot.bounds) == 0
    assert not taken.step(1_000) and len(taken.snapshot.bounds) == 5_000
    assert taken.step(1_000) and len(taken.snapshot.bounds) == 5 * 1_002
