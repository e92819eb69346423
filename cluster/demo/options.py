"""Options of a run of the demo, and its constants with their reasons."""

from __future__ import annotations

import enum
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from escrowmq.replication.errors import ConfigError

APP = "demo-shop"
ORDERS, LINEITEMS = "orders", "lineitems"
PARTITIONS = 4

#: Time until an undecided transaction's first check. The default (6 s) suits services; here a person is
#: waiting.
TRANSACTION_TIMEOUT_S = 3.0
#: Checks should resolve all undecided transactions in seconds; after this time the demo has failed.
RESOLVE_DEADLINE_S = 90.0
#: If no order is done for this long, fail-over included, the demo has failed.
STALL_DEADLINE_S = 60.0
#: Ray restarts the killed broker in 2 to 4 s; the broker then catches up from its own log and its leader.
AGREE_DEADLINE_S = 45.0


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """Options of one run. A bad value raises ConfigError, which names it."""

    scale: float = 0.01
    seed: int = 7
    replicas: int = 3
    producers: int = 3
    threads: int = 16
    spark: bool = True
    keep: bool = False
    directory: Path | None = None
    picture: Path | None = None
    screen: Path | None = None

    def __post_init__(self) -> None:
        limits = {
            "scale": (0.001, 0.1),
            "seed": (0, 2**31),
            "replicas": (3, 7),
            "producers": (2, 8),
            "threads": (1, 64),
        }
        for name, (low, high) in limits.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                raise ConfigError(
                    f"demo option {name!r} must lie between {low:g} and {high:g}, not {value!r}"
                )
        if self.directory is not None and self.directory.exists() and any(self.directory.iterdir()):
            raise ConfigError(f"demo option 'directory' must be new or empty: {self.directory} is not")
        for name, file in (("picture", self.picture), ("screen", self.screen)):
            if file is not None and not file.absolute().parent.is_dir():
                raise ConfigError(f"demo option {name!r}: there is no folder {file.absolute().parent}")
        if self.replicas % 2 == 0:
            raise ConfigError(
                f"demo option 'replicas' must be odd: {self.replicas} tolerate no more losses than one fewer"
            )


# ------------------------------------------------------------------------------------------------------------
# The failures that the demo injects ("mishaps"), planned from a seed: the same seed gives the same plan.


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
