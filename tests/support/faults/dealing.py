"""Kinds of faults from a seed: pure functions of the generator that is passed in.

Cards say how often a kind comes, relative to the others. ``deal`` is for runs of some dozens of expensive
trials, in which every kind has its turn; ``pick`` for runs of thousands, where chance sees to that.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import TypeVar

K = TypeVar("K")


def deal(rng: random.Random, cards: Mapping[K, int]) -> Iterator[K]:
    """Kinds from one shuffled deck after the other, without end; one of each comes first in every deck."""
    if not cards:
        raise ValueError("no kinds of faults to draw from")
    while True:
        first = list(cards)
        rest = [kind for kind, count in cards.items() for _ in range(count - 1)]
        rng.shuffle(first)
        rng.shuffle(rest)
        yield from first
        yield from rest


def pick(rng: random.Random, cards: Mapping[K, int]) -> K:
    """One kind, whatever was drawn before."""
    (kind,) = rng.choices(list(cards), list(cards.values()))
    return kind
