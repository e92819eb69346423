"""Uses filters on ``topic``, ``partition``, ``offset`` and ``timestamp`` to shorten a plan.

Filters on the first three columns are applied exactly, so Spark need not check the rows again. A filter on
time is converted to offsets with the brokers' index, and Spark applies it as well. Filters are identified by
the names of their classes, so this module does not need Spark. A filter that is not understood is returned to
Spark and never dropped.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
#: (positive, column, values): the column's value must be one of them, or none of them.
_Member = tuple[bool, str, frozenset[Any]]
_TYPES: dict[str, type] = {"topic": str, "partition": int, "offset": int}


@dataclass(frozen=True, slots=True)
class Restriction:
    """Conditions on rows: offsets in ``[offset_min, offset_end)``, likewise partitions, and times in ms."""

    members: tuple[_Member, ...] = ()
    partition_min: int | None = None
    partition_end: int | None = None
    offset_min: int | None = None
    offset_end: int | None = None
    time_min_ms: int | None = None
    time_end_ms: int | None = None

    def allows(self, topic: str, partition: int) -> bool:
        """Whether the partition can have rows that satisfy the conditions."""
        if self.partition_min is not None and partition < self.partition_min:
            return False
        if self.partition_end is not None and partition >= self.partition_end:
            return False
        here = {"topic": topic, "partition": partition}
        return all((here[column] in values) is positive for positive, column, values in self.members)

    def narrow(self, start: int, end: int) -> tuple[int, int]:
        """The part of the offsets ``[start, end)`` that can satisfy the conditions."""
        if self.offset_min is not None:
            start = max(start, self.offset_min)
        if self.offset_end is not None:
            end = min(end, self.offset_end)
        return start, end


EVERYTHING = Restriction()


def push(filters: Iterable[Any]) -> tuple[Restriction, list[Any]]:
    """``(restriction, those of the filters that Spark still has to apply)``."""
    only, left = EVERYTHING, []
    for filter_ in filters:
        narrower, exact = _apply(only, filter_)
        only = narrower or only
        if narrower is None or not exact:
            left.append(filter_)
    return only, left


def _apply(only: Restriction, filter_: Any) -> tuple[Restriction | None, bool]:
    """(narrower restriction or None, whether it is equivalent to the filter)."""
    kind, positive = type(filter_).__name__, True
    if kind == "Not":
        filter_, positive = filter_.child, False
        kind = type(filter_).__name__
    if len(filter_.attribute) != 1:
        return None, False
    (column,) = filter_.attribute
    if kind == "IsNotNull" and positive and column in (*_TYPES, "timestamp"):
        return only, True  # these are never null
    value: Any = getattr(filter_, "value", None)
    if kind in ("EqualTo", "EqualNullSafe"):
        kind, value = "In", (value,)
    if column in ("topic", "partition") and kind == "In":
        if not all(type(v) is _TYPES[column] for v in value):
            return None, False
        return replace(only, members=(*only.members, (positive, column, frozenset(value)))), True
    if not positive:
        return None, False
    if column in ("partition", "offset"):
        return _integers(only, column, kind, value)
    if column == "timestamp":
        return _times(only, kind, value), False
    return None, False


def _integers(only: Restriction, column: str, kind: str, value: Any) -> tuple[Restriction | None, bool]:
    if kind == "In":
        if not value or not all(type(v) is int for v in value):
            return None, False
        return _between(only, column, min(value), max(value) + 1), len(value) == 1
    if type(value) is not int or kind not in _LOWER | _UPPER:
        return None, False
    if kind in _LOWER:
        return _between(only, column, value + _LOWER[kind], None), True
    return _between(only, column, None, value + _UPPER[kind]), True


#: Comparison -> number to add to its operand to get the first value, or the (exclusive) end.
_LOWER = {"GreaterThan": 1, "GreaterThanOrEqual": 0}
_UPPER = {"LessThan": 0, "LessThanOrEqual": 1}


def _times(only: Restriction, kind: str, value: Any) -> Restriction | None:
    if kind == "In":
        if not value or not all(map(_is_moment, value)):
            return None
        return _between(only, "time", _floor_ms(min(value)), _floor_ms(max(value)) + 1)
    if not _is_moment(value) or kind not in _LOWER | _UPPER:
        return None
    # Rounded outwards to whole milliseconds; Spark compares exactly afterwards.
    if kind in _LOWER:
        return _between(only, "time", _floor_ms(value), None)
    return _between(only, "time", None, _floor_ms(value) + 1)


def _between(only: Restriction, column: str, low: int | None, end: int | None) -> Restriction:
    unit = "_ms" if column == "time" else ""
    lower, upper = f"{column}_min{unit}", f"{column}_end{unit}"
    old_low, old_end = getattr(only, lower), getattr(only, upper)
    lows = [n for n in (low, old_low) if n is not None]
    ends = [n for n in (end, old_end) if n is not None]
    changes = {lower: max(lows) if lows else None, upper: min(ends) if ends else None}
    return replace(only, **changes)  # type: ignore[arg-type]


def _is_moment(value: Any) -> bool:
    return isinstance(value, datetime) and value.tzinfo is not None  # else its time zone is not known


def _floor_ms(moment: datetime) -> int:
    return (moment - _EPOCH) // _MS
