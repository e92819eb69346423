"""How many messages wait: what a snapshot holds stays as it was while the counts change."""

from __future__ import annotations

import random

import pytest

from escrowmq.replication.format.codec import pack
from escrowmq.replication.state import snapshot
from escrowmq.replication.state.timers import TimerCounts


@pytest.mark.parametrize("copied", [True, False])
def test_what_is_frozen_does_not_change(monkeypatch: pytest.MonkeyPatch, copied: bool) -> None:
    if not copied:  # planted
        monkeypatch.setattr(TimerCounts, "_changing", lambda self, block: self._blocks.setdefault(block, {}))
    rng, counts, kept = random.Random(3), TimerCounts(), []
    for step in range(300):
        slot, block = rng.randrange(5), rng.randrange(4)
        if rng.random() < 0.5 and counts.has(slot, block):
            waiting, size = counts._blocks[block][slot]
            counts.add(slot, block, -waiting, -size)
        elif rng.random() < 0.05:
            counts.forget([slot])
        else:
            counts.add(slot, block, 1, 10)
        if step % 20 == 0:
            kept.append((counts.freeze(), counts.flat(), counts.total))
        flat = counts.flat()
        assert counts.total == sum(flat[2::4])
        sizes: dict[int, int] = {}
        for block, size in zip(flat[1::4], flat[3::4], strict=True):
            first = block * counts.block_entries
            sizes[first] = sizes.get(first, 0) + size
        assert dict(counts.sizes()) == sizes
    right = [
        [n for part in frozen.parts() for n in part] == flat and frozen.total == total
        for frozen, flat, total in kept
    ]
    assert all(right) is copied


@pytest.mark.parametrize("pairs", [0, 1, 3, 4, 5, 20_000])
def test_a_snapshot_has_the_bytes_of_one_list(pairs: int) -> None:
    counts = TimerCounts()
    for n in range(pairs):
        counts.add(n % 7, n // 7, n + 1, n * 100_000)
    rests: list[int] = []
    parts = snapshot._packed_counts(counts.freeze(), lambda: rests.append(1))
    assert b"".join(parts) == pack(counts.flat())
    assert bool(rests) is (pairs > 10_000)
