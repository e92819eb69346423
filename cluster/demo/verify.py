"""Checks message by message: exactly once if its order is in the database, otherwise not at all.

Pure: takes the records that a consumer read and the rows of the database, and returns violations as texts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from escrowmq.cluster.demo.options import LINEITEMS, ORDERS
from escrowmq.cluster.demo.tpch import LINEITEM_COLUMNS, ORDER_COLUMNS, decode
from escrowmq.replication.model import ConsumerRecord

#: Enough to see what is wrong; a run that fails could have thousands.
PROBLEMS_MAX = 20

_COLUMNS = {ORDERS: ORDER_COLUMNS, LINEITEMS: LINEITEM_COLUMNS}
#: Columns that identify a row: order key; order key and line number.
_KEYS = {ORDERS: (0,), LINEITEMS: (0, 3)}


def find_problems(
    records: Iterable[ConsumerRecord],
    tables: Mapping[str, Iterable[tuple[Any, ...]]],
    ends: Mapping[tuple[str, int], int],
) -> list[str]:
    """The violations, at most PROBLEMS_MAX of them.

    ``tables`` maps each topic to the rows that the database holds for it; ``ends`` maps (topic, partition)
    to its end offset.
    """
    problems: list[str] = []
    expected = {
        topic: {tuple(row[i] for i in _KEYS[topic]): row for row in rows} for topic, rows in tables.items()
    }
    seen: dict[str, set[tuple[Any, ...]]] = {topic: set() for topic in expected}
    next_offset: dict[tuple[str, int], int] = defaultdict(int)
    tx_of_order: dict[int, str | None] = {}
    for record in records:
        place = f"{record.topic}/{record.partition}@{record.offset}"
        which = (record.topic, record.partition)
        if record.offset != next_offset[which]:
            problems.append(f"{place}: offset {next_offset[which]} was expected next")
        next_offset[which] = record.offset + 1
        row = decode(_COLUMNS[record.topic], record.value)
        key = tuple(row[i] for i in _KEYS[record.topic])
        if key in seen[record.topic]:
            problems.append(f"{place}: {key} is a duplicate")
        seen[record.topic].add(key)
        wanted = expected[record.topic].get(key)
        if wanted is None:
            problems.append(f"{place}: {key} is readable but not in the database")
        elif wanted != row:
            problems.append(f"{place}: {key} differs from the database")
        if tx_of_order.setdefault(row[0], record.tx_id) != record.tx_id or record.tx_id is None:
            problems.append(f"{place}: order {row[0]} is spread over several transactions")
        if len(problems) >= PROBLEMS_MAX:
            return problems
    for topic, rows in expected.items():
        problems += [
            f"{topic}: {key} is in the database but not readable" for key in rows.keys() - seen[topic]
        ]
    problems += [
        f"{topic}/{partition}: read up to {next_offset[topic, partition]} of {end}"
        for (topic, partition), end in ends.items()
        if next_offset[topic, partition] != end
    ]
    return problems[:PROBLEMS_MAX]
