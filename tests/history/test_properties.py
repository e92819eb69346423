"""Random histories: correct ones pass, and any one message dropped, doubled, swapped or moved is found."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.history.checker import check
from tests.history.events import Event
from tests.history.model import PARTITIONS, Model
from tests.history.scale import history, measure

SEEDS = st.integers(0, 1 << 32)


def unread(seed: int, steps: int) -> Model:
    """A model whose messages are read only at the end, so that a corruption shows only there."""
    model = Model(seed)
    model._poll = model._read_cut = lambda: None  # type: ignore[method-assign]
    return model.run(steps)


def found_after(model: Model) -> set[str]:
    model.read_finally()
    return set(check(model.events, expect_resolved=False).found)


@settings(deadline=None)
@given(SEEDS, st.integers(1, 200))
def test_a_correct_history_passes(seed: int, steps: int) -> None:
    model = Model(seed).run(steps)
    model.read_finally()
    report = check(model.events)
    assert report.ok, report.summary()


def places(model: Model) -> list[tuple[int, int]]:
    return [(number, at) for number, log in enumerate(model.logs) for at in range(len(log))]


@settings(deadline=None)
@given(SEEDS, st.data())
def test_a_dropped_message_is_found(seed: int, data: st.DataObject) -> None:
    model = unread(seed, 60)
    certain = [(n, at) for n, at in places(model) if model.logs[n][at] in model.acknowledged]
    assume(certain)
    number, at = data.draw(st.sampled_from(certain))
    model.logs[number].pop(at)
    # The offsets in the answers to sends no longer fit.
    assert found_after(model) & {"lost-write", "torn", "wrong-place"}


@settings(deadline=None)
@given(SEEDS, st.data())
def test_a_doubled_message_is_found(seed: int, data: st.DataObject) -> None:
    model = unread(seed, 60)
    assume(places(model))
    number, at = data.draw(st.sampled_from(places(model)))
    model.logs[data.draw(st.integers(0, PARTITIONS - 1))].append(model.logs[number][at])
    # committed-twice: if its transaction had no other message there
    assert found_after(model) & {"duplicate", "committed-twice"}


@settings(deadline=None)
@given(SEEDS, st.data())
def test_two_swapped_messages_of_one_sender_are_found(seed: int, data: st.DataObject) -> None:
    model = unread(seed, 80)
    pairs = [
        (number, a, b)
        for number, log in enumerate(model.logs)
        for b in range(len(log))
        for a in range(b)
        if model.owner[log[a]] == model.owner[log[b]]
    ]
    assume(pairs)
    number, a, b = data.draw(st.sampled_from(pairs))
    log = model.logs[number]
    log[a], log[b] = log[b], log[a]
    assert found_after(model) & {"nonmonotonic-send", "wrong-place"}


@settings(deadline=None)
@given(SEEDS, st.data())
def test_a_message_in_another_partition_is_found(seed: int, data: st.DataObject) -> None:
    model = unread(seed, 60)
    assume(places(model))
    number, at = data.draw(st.sampled_from(places(model)))
    model.logs[(number + 1) % PARTITIONS].append(model.logs[number].pop(at))
    assert "wrong-place" in found_after(model)


@settings(deadline=None)
@given(SEEDS)
def test_a_message_of_a_rolled_back_transaction_is_found(seed: int) -> None:
    model = unread(seed, 60)
    sent = {m.id: m for e in model.events if e.kind == "prepare" for m in e.fields["messages"]}
    gone = [m for id, m in sent.items() if model.told.get(model.owner[id]) == "ROLLBACK"]
    assume(gone)
    model.logs[gone[0].partition].append(gone[0].id)
    assert "G1a" in found_after(model)


@settings(deadline=None)
@given(SEEDS, st.data())
def test_a_place_that_changes_between_two_reads_is_found(seed: int, data: st.DataObject) -> None:
    model = unread(seed, 60)
    full = [number for number, log in enumerate(model.logs) if len(log) > 1]
    assume(full)
    model.read_finally("first")
    log = model.logs[data.draw(st.sampled_from(full))]
    at = data.draw(st.integers(0, len(log) - 2))
    log[at], log[at + 1] = log[at + 1], log[at]
    assert "inconsistent-offsets" in found_after(model)


def test_time_is_proportional_to_the_events() -> None:
    """Compares times instead of limiting them, since machines differ: a quadratic pass would take 100 times
    as long."""
    short, long = measure(10_000), measure(100_000)
    print(f"10,000 events {short:.2f} s, 100,000 events {long:.2f} s: {long / short:.1f} times")
    assert long < 40 * short


def test_memory_does_not_grow_with_what_is_read_again() -> None:
    def peak(rounds: int) -> int:
        events = history(4_000)
        finals = events[-PARTITIONS:]

        def all_events() -> Iterator[Event]:
            yield from events
            for _ in range(rounds):
                yield from finals

        tracemalloc.start()
        assert check(all_events()).ok
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    once, often = peak(1), peak(50)
    assert often < 1.3 * once, (once, often)
