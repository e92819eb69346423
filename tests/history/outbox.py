"""Whether the rows of an outbox and the messages in the log agree. Pure.

The database's side is told row by row: when its transaction began and when it was committed, and what a
person has done with it since. Order is promised where one transaction began after the other was committed;
two that overlapped may come in either order.

Rows of the same content cannot be told apart in the log, so these are counted.

``outbox-lost``: a committed row's message is not readable; ``outbox-duplicate``: it is readable twice, or
without a committed row, or although a person has dropped the row; ``outbox-reordered``: two messages of a key
are in a partition in another order than their transactions; ``outbox-stopped``: a shard has stopped although
the database had lost nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

#: The time of a commit that was never made. A transaction of which nobody knows is committed at an unknown
#: time: see ``Row.unsure``.
NEVER = math.inf
LOST, DUPLICATE, REORDERED, STOPPED = "outbox-lost", "outbox-duplicate", "outbox-reordered", "outbox-stopped"
#: Every kind of anomaly of an outbox, and its meaning.
MEANING = {
    LOST: "a row was committed in the application's database, and its message is not readable",
    DUPLICATE: "a message is readable twice, or its transaction was rolled back, or the row was dropped",
    REORDERED: "two messages of a key are readable in another order than that of their transactions",
    STOPPED: "a shard stopped as if its database had been restored from a backup, and it was not",
}


@dataclass(slots=True)
class Row:
    """What the application and people did with one row. Times may be of any clock that all rows share.

    ``unsure``: nobody knows whether its transaction was committed, or whether a person's drop was carried
    out; ``dropped``: a person gave it up; ``may_miss``: something else has taken it away, e.g. its topic was
    deleted, or the database lost it; ``may_repeat``: a person has sent it knowing that it may be there
    already; ``unordered``: it was refused for good, or given out of turn. ``content``: of a row that others
    are equal to, in place of ``value`` in the log.
    """

    value: str
    key: Hashable | None
    began: float
    committed: float = NEVER
    unsure: bool = False
    dropped: bool = False
    may_miss: bool = False
    may_repeat: bool = False
    unordered: bool = False
    content: str = ""


class Seen(NamedTuple):
    """A readable message. ``place``: its partition."""

    value: str
    place: Hashable
    offset: int


def anomalies(rows: Iterable[Row], log: Iterable[Seen]) -> list[str]:
    """What is wrong, in one line each."""
    rows = list(rows)
    known = {row.value: row for row in rows if not row.content}
    seen = sorted(log, key=lambda one: (str(one.place), one.offset))
    counted = Counter(one.value for one in seen)
    equal = [row for row in rows if row.content]
    found = _of_equal_rows(equal, counted)
    for content in {row.content for row in equal}:
        del counted[content]
    found += [
        f"{LOST}: {row.value}"
        for row in known.values()
        if row.committed < NEVER and not counted[row.value]
        if not (row.unsure or row.dropped or row.may_miss)
    ]
    for value, count in counted.items():
        row = known.get(value)
        if row is None or (row.committed == NEVER and not row.unsure):
            found.append(f"{DUPLICATE}: {value} is readable, and no row was committed")
        elif row.dropped and not row.unsure and not row.may_repeat:
            found.append(f"{DUPLICATE}: {value} is readable, and its row was dropped")
        elif count > 1 and not row.may_repeat:
            found.append(f"{DUPLICATE}: {value} is readable {count} times")
    return found + _reordered(known, seen)


def _of_equal_rows(rows: Sequence[Row], counted: Counter[str]) -> list[str]:
    """Too few or too many messages of a content that several rows have."""
    found = []
    for content in sorted({row.content for row in rows}):
        own = [row for row in rows if row.content == content]
        sure = [row for row in own if row.committed < NEVER and not row.unsure and not row.dropped]
        least = sum(not row.may_miss for row in sure)
        most = len(sure) + sum(row.unsure for row in own)
        if counted[content] < least:
            found.append(f"{LOST}: {content}, of {least} rows, is readable {counted[content]} times")
        elif counted[content] > most and not any(row.may_repeat for row in own):
            found.append(f"{DUPLICATE}: {content}, of {most} rows, is readable {counted[content]} times")
    return found


def _reordered(known: dict[str, Row], seen: Sequence[Seen]) -> list[str]:
    """Of each key in each partition: a message behind one whose transaction began after its own commit."""
    newest: dict[tuple[Hashable, Hashable], Row] = {}
    found, passed = [], set[str]()
    for value, place, _ in seen:
        row = known.get(value)
        if row is None or row.key is None or row.unordered or value in passed:
            continue
        passed.add(value)  # a repetition is out of order, and is a duplicate
        ahead = newest.get((row.key, place))
        if ahead is not None and row.committed < ahead.began:
            found.append(f"{REORDERED}: {value} comes after {ahead.value}, of key {row.key!r}")
        if ahead is None or row.began > ahead.began:
            newest[row.key, place] = row
    return found
