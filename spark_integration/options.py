"""Options of the ``escrowmq`` data source: names and meanings, with Kafka's names where it has one.

Pure: text in, a frozen value or a ConfigError out, so that a typing mistake is reported before anything
is read. An option that is not known is refused too: a mistyped ``startingOffset`` would otherwise
silently read everything. What needs the cluster (does the topic exist?) is ``planning.py``'s business.
"""

from __future__ import annotations

import enum
import json
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from escrowmq.cluster.address import AUTO, parse_address
from escrowmq.replication.errors import ConfigError

EARLIEST, LATEST = -2, -1
#: topic -> partition -> offset; -2 and -1 stand for earliest and latest, as in Kafka's source.
OffsetTable = Mapping[str, Mapping[int, int]]

#: Every option, its meaning and its default: what the guide prints and what is allowed.
OPTIONS = {
    "subscribe": "topics, separated by commas",
    "subscribePattern": "regular expression that a topic's whole name must match",
    "assign": 'partitions, as JSON: {"orders": [0, 1]}',
    "startingOffsets": 'earliest (default), or JSON for every partition: {"orders": {"0": 23, "1": -2}}',
    "endingOffsets": 'latest (default), or JSON, exclusive: {"orders": {"0": 50, "1": -1}}',
    "startingTimestamp": "ms since the epoch: read from the first message stored then or later",
    "endingTimestamp": "ms since the epoch: read up to the first message stored then or later, without it",
    "minPartitions": "at least so many Spark partitions, by cutting offset ranges",
    "maxRecordsPerPartition": "at most so many records in one Spark partition",
    "includeHeaders": "true: a column with the headers (default: false)",
    "failOnDataLoss": "false: records that retention has removed are skipped (default: true, an error)",
    "escrowmq.address": "address of the Ray cluster (default: the one Spark was started on)",
    "escrowmq.namespace": "Ray namespace of the EscrowMQ cluster (default: escrowmq)",
}
_BY_LOWER_CASE = {name.lower(): name for name in OPTIONS}
_SUBSCRIPTIONS = ("subscribe", "subscribePattern", "assign")


class BoundKind(enum.Enum):
    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSETS = "offsets"
    TIMESTAMP = "timestamp"


@dataclass(frozen=True, slots=True)
class Bound:
    """Where reading starts or ends. ``option`` is the option it came from, for errors."""

    kind: BoundKind
    option: str
    offsets: OffsetTable = field(default_factory=dict)
    timestamp_ms: int = 0


@dataclass(frozen=True, slots=True)
class Subscription:
    """Which partitions are read: exactly one of the three is set."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """All options of one read, checked."""

    address: str
    namespace: str
    subscription: Subscription
    starting: Bound
    ending: Bound
    min_partitions: int | None
    max_records_per_partition: int | None
    include_headers: bool
    fail_on_data_loss: bool


def parse_options(
    given: Mapping[str, str], *, default_address: str = "", default_namespace: str = "escrowmq"
) -> SourceOptions:
    """Check what the user wrote (names in any case). Raises ConfigError that names the option."""
    options: dict[str, str] = {}
    for name, value in given.items():
        known = _BY_LOWER_CASE.get(name.lower())
        if known is None:
            raise ConfigError(
                f"unknown option {name!r} of the escrowmq source; known are: {', '.join(OPTIONS)}"
            )
        options[known] = value.strip()
    address = options.get("escrowmq.address") or default_address
    if not address:
        raise ConfigError(
            "option 'escrowmq.address' is missing: give the address of the Ray cluster (host:port), or "
            "register the source with escrowmq.spark.register(spark, address=...)"
        )
    if address == AUTO:
        raise ConfigError("option 'escrowmq.address' must be host:port: Spark's processes cannot guess it")
    try:
        parse_address(address)
    except ConfigError as error:
        raise ConfigError(f"option 'escrowmq.address': {error}") from error
    return SourceOptions(
        address=address,
        namespace=options.get("escrowmq.namespace") or default_namespace,
        subscription=_subscription(options),
        starting=_bound(options, "starting", EARLIEST),
        ending=_bound(options, "ending", LATEST),
        min_partitions=_positive(options, "minPartitions"),
        max_records_per_partition=_positive(options, "maxRecordsPerPartition"),
        include_headers=_boolean(options, "includeHeaders", False),
        fail_on_data_loss=_boolean(options, "failOnDataLoss", True),
    )


def _subscription(options: Mapping[str, str]) -> Subscription:
    named = [name for name in _SUBSCRIPTIONS if name in options]
    if len(named) != 1:
        found = " and ".join(map(repr, named)) or "none"
        raise ConfigError(f"exactly one of the options {', '.join(_SUBSCRIPTIONS)} is needed, found {found}")
    name, value = named[0], options[named[0]]
    if name == "subscribe":
        topics = tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))
        if not topics:
            raise ConfigError(f"option 'subscribe' names no topic: {value!r}")
        return Subscription(topics=topics)
    if name == "subscribePattern":
        try:
            with warnings.catch_warnings(action="ignore"):  # Python may read "[[" otherwise some day
                re.compile(value)
        except (re.error, OverflowError, RecursionError) as error:
            raise ConfigError(
                f"option 'subscribePattern' is no regular expression: {value!r} ({error})"
            ) from error
        if not value:
            raise ConfigError("option 'subscribePattern' is empty")
        return Subscription(pattern=value)
    table = _json_object(name, value)
    assigned: dict[str, tuple[int, ...]] = {}
    for topic, partitions in table.items():
        if not isinstance(partitions, list) or not partitions or not all(map(_is_partition, partitions)):
            raise ConfigError(
                f"option 'assign': partitions of {topic!r} must be a list of numbers, as in "
                f'{{"orders": [0, 1]}}, not {partitions!r}'
            )
        assigned[topic] = tuple(sorted(set(partitions)))
    if not assigned:
        raise ConfigError("option 'assign' names no topic")
    return Subscription(assigned=assigned)


def _bound(options: Mapping[str, str], end: str, default: int) -> Bound:
    offsets_option, timestamp_option = f"{end}Offsets", f"{end}Timestamp"
    if timestamp_option in options:
        if offsets_option in options:
            raise ConfigError(f"give only one of the options {offsets_option!r} and {timestamp_option!r}")
        moment = _integer(timestamp_option, options[timestamp_option], minimum=0)
        return Bound(BoundKind.TIMESTAMP, timestamp_option, timestamp_ms=moment)
    word = "earliest" if default == EARLIEST else "latest"
    other = "latest" if default == EARLIEST else "earliest"
    text = options.get(offsets_option, word)
    if text.lower() == word:
        return Bound(BoundKind(word), offsets_option)
    if text.lower() == other:
        raise ConfigError(
            f"option {offsets_option!r} cannot be {other!r} in a batch read: nothing would be read"
        )
    table: dict[str, dict[int, int]] = {}
    for topic, partitions in _json_object(offsets_option, text, also=f"{word!r} or ").items():
        if not isinstance(partitions, dict):
            raise ConfigError(f"option {offsets_option!r}: {topic!r} must map partitions to offsets")
        table[topic] = {
            _integer(offsets_option, key, minimum=0): _offset(offsets_option, value, default)
            for key, value in partitions.items()
        }
    return Bound(BoundKind.OFFSETS, offsets_option, offsets=table)


def _offset(option: str, value: Any, allowed_word: int) -> int:
    if type(value) is not int or not (value >= 0 or value == allowed_word):
        meaning = "earliest" if allowed_word == EARLIEST else "latest"
        raise ConfigError(
            f"option {option!r}: an offset is >= 0, or {allowed_word} for {meaning}, not {value!r}"
        )
    return value


def _json_object(option: str, text: str, also: str = "") -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"option {option!r} must be {also}a JSON object, not {text!r}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"option {option!r} must be {also}a JSON object, not {text!r}")
    return value


def _is_partition(value: Any) -> bool:
    return type(value) is int and value >= 0


def _integer(option: str, text: str, minimum: int) -> int:
    try:
        number = int(text)
    except ValueError:
        raise ConfigError(f"option {option!r} must be a whole number, not {text!r}") from None
    if number < minimum:
        raise ConfigError(f"option {option!r} must be at least {minimum}, not {number}")
    return number


def _positive(options: Mapping[str, str], name: str) -> int | None:
    return _integer(name, options[name], minimum=1) if name in options else None


def _boolean(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name)
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise ConfigError(f"option {name!r} must be 'true' or 'false', not {text!r}")
    return text.lower() == "true"
