"""Options of a run of the demo, and its constants with their reasons."""

from __future__ import annotations

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
