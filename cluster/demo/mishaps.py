"""The failures that the demo injects ("mishaps"), planned from a seed: the same seed gives the same plan."""

from __future__ import annotations

import enum
import random
from collections.abc import Sequence
from dataclasses import dataclass


class Mishap(enum.Enum):
    """What goes wrong in one order's transaction. The value is its name in the demo's final table."""

    FAILS = "local transaction fails"
    STOPS_BEFORE_LOCAL = "producer stops before its local commit"
    STOPS_AFTER_LOCAL = "producer stops after its local commit"
    UNSURE = "producer unsure, answers UNKNOWN at first"


#: Shares of all orders: enough that each kind occurs even at scale 0.001 (1,500 orders), and few enough that
#: checks resolve them in seconds.
SHARES = {
    Mishap.FAILS: 0.02,
    Mishap.STOPS_BEFORE_LOCAL: 0.005,
    Mishap.STOPS_AFTER_LOCAL: 0.005,
    Mishap.UNSURE: 0.004,
}


@dataclass(frozen=True, slots=True)
class MishapPlan:
    """``orders``: mishap by order key. ``…_killed_at``: the share of orders done at which to kill."""

    orders: dict[int, Mishap]
    producer_killed_at: float
    leader_killed_at: float


def plan_mishaps(seed: int, keys: Sequence[int]) -> MishapPlan:
    """The plan for these orders; the same in every process."""
    rng = random.Random(seed)
    producer_at, leader_at = rng.uniform(0.25, 0.4), rng.uniform(0.5, 0.7)
    kinds = list(SHARES)
    drawn = rng.choices([*kinds, None], [*SHARES.values(), 1 - sum(SHARES.values())], k=len(keys))
    orders = {key: mishap for key, mishap in zip(keys, drawn, strict=True) if mishap is not None}
    for mishap, key in zip(kinds, rng.sample(list(keys), min(len(kinds), len(keys))), strict=False):
        orders[key] = mishap  # each kind occurs at any scale
    return MishapPlan(orders, producer_at, leader_at)
