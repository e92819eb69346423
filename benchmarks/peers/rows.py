"""The rows of the table: what each measures, and which rows of two systems are compared.

A row has the same name in every load program. A system without a row has nothing to compare, and says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

PLAIN_256, PLAIN_1K, READING = "plain-256", "plain-1024", "reading"
#: The same with columns, which only EscrowMQ has.
TABLE_256, TABLE_1K, READING_TABLES = "table-256", "table-1024", "reading-tables"
#: In batches of 64 by the application, for RocketMQ: the clients of the others make batches by themselves.
BATCH_256, BATCH_1K = "plain-batch-256", "plain-batch-1024"
LONE_PLAIN, LONE_TX = "lone-plain", "lone-tx"
TX_64, TX_64_ONE_WAY = "tx-64", "tx-64-one-way"
#: The most that a peer reaches, if that is not with 64 in flight.
TX_256 = "tx-256"
#: Messages of transactions with 100 each, 8 in flight.
TX_OF_100 = "tx-of-100"
TX_TASKS, TX_BULK = "tx-tasks-1024", "tx-bulk-1024"

Unit = Literal["per_s", "visible_per_s", "p50_ms"]


@dataclass(frozen=True, slots=True)
class Figure:
    """What one row of one system gave in one round. With an ``error``, nothing else of it counts."""

    items: int = 0
    seconds: float = 0.0
    p50_ms: float | None = None
    #: Messages that a consumer could read when the load ended; None: all that were acknowledged.
    visible: int | None = None
    #: The same after ``waited_s`` more seconds.
    visible_later: int | None = None
    waited_s: float | None = None
    #: The share of the machine that other work took meanwhile.
    others: float = 0.0
    error: str | None = None

    def value(self, unit: Unit) -> float | None:
        """The figure in this unit, or None if the row has none."""
        if self.error is not None:
            return None
        if unit == "p50_ms":
            return self.p50_ms
        items = self.visible if unit == "visible_per_s" and self.visible is not None else self.items
        return items / self.seconds if self.seconds > 0 else None

    def plain(self) -> dict[str, Any]:
        """As JSON takes it, without what is not set."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Figure:
        """Raise ValueError if a load program sent something else than a figure."""
        unknown = set(values) - set(cls.__slots__)
        if unknown:
            raise ValueError(f"not a figure: {dict(values)} has {sorted(unknown)}")
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One line of the table. Of ``theirs`` the first row counts that the peer has."""

    title: str
    ours: str
    theirs: tuple[str, ...]
    unit: Unit = "per_s"


COMPARISONS = (
    Comparison("plain messages of 256 B", PLAIN_256, (PLAIN_256,)),
    Comparison("messages of 256 B, EscrowMQ from Arrow tables", TABLE_256, (PLAIN_256,)),
    Comparison("plain messages of 1 KB", PLAIN_1K, (PLAIN_1K,)),
    Comparison("messages of 1 KB, EscrowMQ from Arrow tables", TABLE_1K, (PLAIN_1K,)),
    Comparison("256 B, the other in its own batches of 64", PLAIN_256, (BATCH_256,)),
    Comparison("1 KB, the other in its own batches of 64", PLAIN_1K, (BATCH_1K,)),
    Comparison("one consumer, messages of 256 B", READING, (READING,)),
    Comparison("one consumer, EscrowMQ into Arrow tables", READING_TABLES, (READING,)),
    Comparison("a lone plain message", LONE_PLAIN, (LONE_PLAIN,), "p50_ms"),
    Comparison("a lone transaction", LONE_TX, (LONE_TX,), "p50_ms"),
    Comparison("transactions, 64 in flight", TX_64, (TX_64,)),
    Comparison("the same, visible when the load ended", TX_64, (TX_64,), "visible_per_s"),
    Comparison("the same, EscrowMQ with one-way commit", TX_64_ONE_WAY, (TX_64,)),
    Comparison("messages of transactions with 100 each", TX_OF_100, (TX_OF_100,)),
    Comparison("most transactions, EscrowMQ from 1,024 tasks", TX_TASKS, (TX_256, TX_64)),
    Comparison("most transactions, EscrowMQ in bulk", TX_BULK, (TX_256, TX_64)),
)


def pairing(theirs: tuple[str, ...]) -> list[tuple[str, list[str]]]:
    """Row of the peer -> rows of ours that are compared with it, in the order of the table."""
    found: dict[str, list[str]] = {}
    for line in COMPARISONS:
        row = next((row for row in line.theirs if row in theirs), None)
        if row is not None:
            ours = found.setdefault(row, [])
            if line.ours not in ours:
                ours.append(line.ours)
    return list(found.items())
