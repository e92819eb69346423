"""Partition indexes against a simple model, and snapshots against the state they were taken from."""

from __future__ import annotations

import random
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from escrowmq.replication.errors import CorruptLog, UnknownVersion
from escrowmq.replication.state.index import PartitionIndex
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.state.snapshot import adopt_runs, capture, encode, restore
from escrowmq.replication.state.stored_runs import encode_runs
from tests.support.fed_state import FedState, busy_state, dump
from tests.support.stored_bytes import run_file, stored

appends = st.lists(
    st.tuples(st.integers(1, 5), st.integers(1, 4), st.booleans(), st.integers(0, 9)), min_size=1, max_size=60
)


@settings(max_examples=200, deadline=None)
@given(appends, st.integers(0, 2**31))
def test_every_offset_is_found_where_it_was_put(steps: list[tuple[int, int, bool, int]], seed: int) -> None:
    """The model: a list with the position of every message. Sealing and storing change nothing."""
    rng, index, model = random.Random(seed), PartitionIndex(), []
    entry, pos = 10, 0
    for count, size, new_entry, action in steps:
        if new_entry:
            entry, pos = entry + 1, rng.randrange(50)
        base = index.append(entry, pos, size * count, count, entry)
        assert base == len(model)
        model.extend((entry, pos + i * size) for i in range(count))
        pos += size * count
        if action == 0 and (sealed := index.seal()) is not None:
            (((_, table)),) = stored({1: sealed})
            index.adopt(table)
        if action == 1 and (sealed := index.seal()) is not None:
            index.unseal(sealed)
    assert index.end == len(model)
    for offset, (entry, _) in enumerate(model):
        run = index.runs_from(offset, 1)[0]
        assert run.base <= offset < run.base + run.messages and run.log_index == entry
        every = index.runs_from(offset, len(model))
        few, bound = index.runs_from(offset, len(model), offset), offset  # any number will do
        sizes = [run.size for run in every]
        enough = next((n for n in range(len(sizes)) if sum(sizes[: n + 1]) > bound), len(sizes) - 1) + 1
        assert few == every[:enough]
    at = rng.randrange(10, 75)
    wanted = next((i for i, (e, _) in enumerate(model) if e >= at), len(model))
    found = index.offset_at_time(at)
    assert found == wanted
    index.forget_before(at)
    assert index.start == max((i + 1 for i, (e, _) in enumerate(model) if e < at), default=0)
    lowest = index.oldest_log_index()
    assert lowest is None or lowest >= at


def test_what_retention_drops_while_a_snapshot_is_written_does_not_come_back_when_that_fails() -> None:
    """Broker seed 431175: the disk was full, and the replica ended."""
    index = PartitionIndex()
    index.append(10, 0, 30, 3, 1)
    sealed = index.seal()
    assert sealed is not None
    index.append(11, 0, 20, 2, 2)
    index.trim(3)
    index.unseal(sealed)
    assert [(run.base, run.messages) for run in index.runs_from(3)] == [(3, 2)]
    assert index.runs_from(2) == [] and index.oldest_log_index() == 11


def restored(log: FedState) -> StateMachine:
    snapshot = capture(log.state, 1, ["one.runs"])
    other = StateMachine(0, 1)
    term, run_files = restore(other, "x.snap", b"".join(encode(snapshot)))
    assert (term, run_files) == (1, ["one.runs"])
    adopt_runs(other, stored(snapshot.tables))
    return other


def test_a_restored_state_equals_the_one_that_was_captured_and_behaves_alike_from_then_on() -> None:
    log = busy_state()
    before = dump(log.state)
    other = restored(log)
    assert {k: v for k, v in dump(other).items() if k != "counts"} == {
        k: v for k, v in before.items() if k != "counts"
    }
    assert other.transactions.app("app").open_by_topic == {"t": 1}
    twin = FedState()
    twin.state, twin.index, twin.now_ms = other, log.index, log.now_ms
    for follower in (log, twin):
        follower.commit(["open"])
    assert dump(log.state)["settled"] == dump(other)["settled"]
    assert log.state.topics.slots[1].index.end == other.topics.slots[1].index.end


def test_damage_anywhere_in_a_snapshot_is_seen() -> None:
    data = b"".join(encode(capture(busy_state().state, 1, [])))
    rng = random.Random(7)
    for _ in range(200):
        bad = bytearray(data)
        at = rng.randrange(len(bad))
        bad[at] ^= 1 << rng.randrange(8)
        with pytest.raises((CorruptLog, UnknownVersion)):
            restore(StateMachine(0, 1), "x.snap", bytes(bad))
    for cut in range(0, len(data), 17):
        with pytest.raises(CorruptLog):
            restore(StateMachine(0, 1), "x.snap", data[:cut])


def test_damage_anywhere_in_a_run_file_is_seen() -> None:
    columns = tuple(array("Q", [i, i + 1]) for i in range(6))
    data = b"".join(encode_runs({3: columns}))
    for at in range(len(data)):
        bad = bytearray(data)
        bad[at] ^= 4
        with pytest.raises((CorruptLog, UnknownVersion)):
            run_file(bad)
