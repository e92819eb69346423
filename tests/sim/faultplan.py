"""Which faults a schedule has, as data: drawn from the seed before anything runs.

A fault is a moment, a kind, and a seed of its own for everything else about it (victim, duration,
what exactly breaks). So a schedule can be run again with some of its faults left out, and those that
stay do the same as before as far as the world still allows it: that is what minimise.py works with.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.support.faults.dealing import pick

MEAN_PAUSE_S = 0.4  # between two faults
FIRST_FAULT_S = 0.8

#: How often each kind is drawn, relative to the others. The names are what reports and coverage count.
WEIGHTS: dict[str, int] = {
    "kill": 10,
    "power-cut": 14,
    "crash-at-effect": 10,
    "cut-link": 14,
    "partition": 22,
    "storm": 4,
    "pause": 8,
    "clock-wall": 2,
    "clock-ahead": 2,
    "disk-full": 4,
    "eio": 3,
    "failed-fsync": 4,
    "slow-fsync": 2,
    "flip-log": 3,
    "flip-state": 2,
    "flip-vote": 1,
    "empty-disk": 3,
    "hand-over": 3,
    "roll": 4,
    "snapshot": 4,
    "retention": 3,
    "at-vote": 6,
    "at-election": 6,
    "at-cut": 2,
}
KINDS = tuple(WEIGHTS)


@dataclass(frozen=True, slots=True)
class Fault:
    """One line of the plan. ``number`` is its name in ``--only-faults``."""

    number: int
    at_s: float  # virtual seconds from the start
    kind: str
    seed: int


def draw_faults(seed: int, chaos_s: float) -> list[Fault]:
    """The plan of a seed; with a shorter chaos, the beginning of the same plan."""
    rng = random.Random(f"faults-{seed}")
    faults: list[Fault] = []
    at = FIRST_FAULT_S
    while at < chaos_s:
        faults.append(Fault(len(faults), at, pick(rng, WEIGHTS), rng.getrandbits(32)))
        at += rng.expovariate(1 / MEAN_PAUSE_S)
    return faults
