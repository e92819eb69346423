"""How many messages wait: what a snapshot holds stays as it was while the counts change."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from escrowmq.replication.format.codec import pack
from escrowmq.replication.state.snapshot import capture, encode
from escrowmq.replication.state.timers import TimerCounts
from tests.support.fed_state import FedState


def test_what_is_frozen_does_not_change() -> None:
    rng, counts, kept, added = random.Random(3), TimerCounts(), [], Counter[tuple[int, int]]()
    for step in range(300):
        slot, block = rng.randrange(5), rng.randrange(4)
        if rng.random() < 0.5 and counts.has(slot, block):
            waiting = added.pop((slot, block))
            counts.add(slot, block, -waiting, -10 * waiting)
        elif rng.random() < 0.05:
            counts.forget([slot])
            added = Counter({at: n for at, n in added.items() if at[0] != slot})
        else:
            counts.add(slot, block, 1, 10)
            added[slot, block] += 1
        if step % 20 == 0:
            kept.append((counts.freeze(), counts.flat(), counts.total))
        flat = counts.flat()
        assert counts.total == sum(flat[2::4])
        sizes: dict[int, int] = {}
        for block, size in zip(flat[1::4], flat[3::4], strict=True):
            first = block * counts.block_entries
            sizes[first] = sizes.get(first, 0) + size
        assert dict(counts.sizes()) == sizes
    for frozen, then, total in kept:
        assert ([n for part in frozen.parts() for n in part], frozen.total) == (then, total)


@pytest.mark.parametrize("pairs", [0, 1, 3, 4, 5, 20_000])
def test_a_snapshot_has_the_bytes_of_one_list(pairs: int) -> None:
    counts = TimerCounts()
    for n in range(pairs):
        counts.add(n % 7, n // 7, n + 1, n * 100_000)
    data, rests = encoded(counts)
    assert pack(counts.flat()) in data
    assert (rests > encoded(TimerCounts())[1]) is (pairs > 10_000)


def encoded(counts: TimerCounts) -> tuple[bytes, int]:
    """A snapshot with these counts, and how often its writer rested."""
    log, rests = FedState(), list[int]()
    log.state.timers.counts = counts
    return b"".join(encode(capture(log.state, 1, ()), lambda: rests.append(1))), len(rests)
