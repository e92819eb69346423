"""Where a read starts and ends, as the user specifies it: a word, offsets, or times. Pure.

By default, a stream starts at ``latest``, as in the Kafka source, and has no end; a batch reads everything.
``planning.py`` determines what an offset or a time means in a given log.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from escrowmq.replication.errors import ConfigError
from escrowmq.spark_integration.option_values import integer, json_object

EARLIEST, LATEST = -2, -1
_WORDS = {"earliest": EARLIEST, "latest": LATEST}
#: topic -> partition -> offset (-2: earliest, -1: latest, as in the Kafka source) or time in ms.
Table = Mapping[str, Mapping[int, int]]


class BoundKind(enum.Enum):
    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSETS = "offsets"
    TIMESTAMP = "timestamp"
    TIMESTAMPS = "timestamps"


@dataclass(frozen=True, slots=True)
class Bound:
    """Where reading starts or ends. ``option``: the option that set it, for errors.

    ``table``: offsets or times by partition. ``strict``: a time later than all messages is an error and does
    not mean the end.
    """

    kind: BoundKind
    option: str
    table: Table = field(default_factory=dict)
    timestamp_ms: int = 0
    strict: bool = False


def parse_bound(
    options: Mapping[str, str], end: str, default: int, allowed: tuple[int, ...], strict: bool
) -> Bound:
    """The bound that ``options`` set for ``end`` ("starting" or "ending").

    ``allowed``: which of EARLIEST and LATEST are allowed, as a word or in JSON; ``default`` is one of them.
    """
    names = [f"{end}Timestamp", f"{end}OffsetsByTimestamp", f"{end}Offsets"]
    given = [name for name in names if name in options]
    if len(given) > 1:
        raise ConfigError(f"give only one of the options {', '.join(map(repr, given))}")
    if not given:
        return Bound(_kind(default), names[2])
    (name,) = given
    text = options[name]
    if name == names[0]:
        moment = integer(name, text, minimum=0)
        return Bound(BoundKind.TIMESTAMP, name, timestamp_ms=moment, strict=strict)
    if name == names[1]:
        times = _table(name, text, lambda value: _time(name, value))
        return Bound(BoundKind.TIMESTAMPS, name, table=times, strict=strict)
    number = _WORDS.get(text.lower())
    if number is not None:
        if number not in allowed:
            raise ConfigError(
                f"option {name!r} cannot be {text.lower()!r} in a batch read: nothing would be read"
            )
        return Bound(_kind(number), name)
    words = " or ".join(repr(word) for word, number in _WORDS.items() if number in allowed)
    table = _table(name, text, lambda value: _offset(name, value, allowed), also=f"{words} or ")
    return Bound(BoundKind.OFFSETS, name, table=table)


def _kind(number: int) -> BoundKind:
    return BoundKind.EARLIEST if number == EARLIEST else BoundKind.LATEST


def _table(option: str, text: str, value_of: Any, also: str = "") -> dict[str, dict[int, int]]:
    table: dict[str, dict[int, int]] = {}
    for topic, partitions in json_object(option, text, also=also).items():
        if not isinstance(partitions, dict):
            raise ConfigError(f"option {option!r}: the value of {topic!r} must map partitions to numbers")
        table[topic] = {integer(option, key, minimum=0): value_of(value) for key, value in partitions.items()}
    return table


def _offset(option: str, value: Any, allowed: tuple[int, ...]) -> int:
    if type(value) is not int or not (value >= 0 or value in allowed):
        meanings = " or ".join(f"{number} for {word}" for word, number in _WORDS.items() if number in allowed)
        raise ConfigError(f"option {option!r}: an offset must be >= 0, or {meanings}, not {value!r}")
    return value


def _time(option: str, value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ConfigError(f"option {option!r}: a time must be ms since the epoch, not {value!r}")
    return value
