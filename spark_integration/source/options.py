"""The options of the ``escrowmq`` data source, with the names of Spark's Kafka source where it has them.

Pure: parses texts into an immutable value or raises ConfigError, so that a typing mistake is reported before
anything is read. An unknown option is refused, too: a mistyped ``startingOffset`` would otherwise silently
read everything. Checks that need the cluster (does the topic exist?) are in ``planning.py``.
"""

from __future__ import annotations

import enum
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from escrowmq.replication.errors import ConfigError
from escrowmq.spark_integration.decode.records import COLUMNS
from escrowmq.spark_integration.decode.value_schema import check_value_schema
from escrowmq.spark_integration.decode.values import MODES
from escrowmq.spark_integration.option_values import (
    boolean,
    duration_s,
    integer,
    json_object,
    one_of,
    positive,
    ray_address,
    size_bytes,
)

# ------------------------------------------------------------------------------------------------------------
# Where a read starts and ends, as the user specifies it: a word, offsets, or times. Pure.
#
# By default, a stream starts at ``latest``, as in the Kafka source, and has no end; a batch reads everything.
# ``planning.py`` determines what an offset or a time means in a given log.

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


#: Every option with its meaning and default; the documentation prints this table.
OPTIONS = {
    "subscribe": "topics, separated by commas",
    "subscribePattern": "regular expression that a topic's whole name must match",
    "assign": 'partitions, as JSON: {"orders": [0, 1]}',
    "startingOffsets": 'earliest, latest, or JSON for every partition: {"orders": {"0": 23, "1": -2}}',
    "startingTimestamp": "ms since the epoch: read from the first message stored then or later",
    "startingOffsetsByTimestamp": 'the same by partition: {"orders": {"0": 1700000000000}}',
    "startingOffsetsByTimestampStrategy": "latest or error: what to do if no message is that new",
    "endingOffsets": 'latest, or JSON, exclusive: {"orders": {"0": 50, "1": -1}}',
    "endingTimestamp": "ms since the epoch: read only messages stored before this time",
    "endingOffsetsByTimestamp": "the same by partition",
    "maxOffsetsPerTrigger": "maximum number of messages in one micro-batch",
    "maxBytesPerTrigger": "approximate maximum number of bytes in one micro-batch (64m)",
    "minOffsetsPerTrigger": "delay a micro-batch until there are at least this many messages",
    "maxTriggerDelay": "longest wait for minOffsetsPerTrigger (15m)",
    "minPartitions": "minimum number of Spark partitions; offset ranges are split to reach it",
    "maxRecordsPerPartition": "maximum number of records in one Spark partition",
    "failOnDataLoss": "false: lost messages are skipped with a warning (default: true, an error)",
    "includeHeaders": "true: add a column with the headers (default: false)",
    "pushFilters": "true: filters shorten the plan; only for a DataFrame queried once (default: false)",
    "isolation": "committed (default) or cut: a read ends at a stable cut, with all of a transaction or none",
    "columns": "columns to deliver, separated by commas (default: all)",
    "valueFormat": "binary (default), json, msgpack or arrow: how values are decoded in the reader",
    "valueSchema": "columns of a decoded value, as DDL: id BIGINT, price DOUBLE",
    "valueMode": "PERMISSIVE (default), DROPMALFORMED or FAILFAST: treatment of malformed values",
    "escrowmq.address": "address of the Ray cluster (default: the one that Spark was started on)",
    "escrowmq.namespace": "Ray namespace of the EscrowMQ cluster (default: escrowmq)",
}
_BY_LOWER_CASE = {name.lower(): name for name in OPTIONS}
_SUBSCRIPTIONS = ("subscribe", "subscribePattern", "assign")
_STREAMING = ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
_ENDING = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")

ISOLATIONS = ("committed", "cut")
#: Options that may be given beside a stable cut, because they say nothing about the end.
_NO_END = (("endingOffsets", "latest"), ("pushFilters", "false"))
VALUE_FORMATS = ("binary", "json", "msgpack", "arrow")
#: As in the Kafka source: long enough to collect messages, short enough that the query does not seem to hang.
MAX_TRIGGER_DELAY_S = 15 * 60.0


class Use(enum.Enum):
    """What the options are for; some are allowed only for batches or only for streams."""

    SCHEMA = "schema"  # not known yet: only common rules are checked
    BATCH = "batch"
    STREAM = "stream"


@dataclass(frozen=True, slots=True)
class Subscription:
    """The partitions to read; exactly one of the three fields is set."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def names(self) -> list[str] | None:
        """The topics in ascending order; None for a pattern."""
        return None if self.pattern is not None else sorted({*self.topics, *self.assigned})


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Limits of one micro-batch. ``any``: whether there is any limit."""

    max_offsets: int | None = None
    max_bytes: int | None = None
    min_offsets: int | None = None
    max_trigger_delay_s: float = MAX_TRIGGER_DELAY_S

    @property
    def any(self) -> bool:
        return (self.max_offsets or self.max_bytes or self.min_offsets) is not None


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """All options of one read, checked. ``value_schema``: None if ``.schema()`` gives it.
    ``at_a_cut``: what is read ends at a stable cut through all broker groups."""

    address: str
    namespace: str
    subscription: Subscription
    starting: Bound
    ending: Bound
    limits: BatchLimits
    min_partitions: int | None
    max_records_per_partition: int | None
    fail_on_data_loss: bool
    push_filters: bool
    at_a_cut: bool
    columns: tuple[str, ...]
    value_format: str
    value_schema: str | None
    value_mode: str


def parse_options(
    given: Mapping[str, str],
    use: Use = Use.BATCH,
    *,
    default_address: str = "",
    default_namespace: str = "escrowmq",
) -> SourceOptions:
    """Parse the given options (names in any case). Raises ConfigError, which names the option."""
    options = _known(given)
    for name in _ENDING if use is Use.STREAM else ():
        if name in options:
            raise ConfigError(f"option {name!r} is for batch reads: a streaming query has no end")
    push_filters = boolean(options, "pushFilters", False)
    if push_filters and use is Use.STREAM:
        raise ConfigError("option 'pushFilters' is for batch reads: Spark has no filters for Python streams")
    strict = one_of(options, "startingOffsetsByTimestampStrategy", ("latest", "error")) == "error"
    both, batch = (EARLIEST, LATEST), use is Use.BATCH
    starting = parse_bound(
        options,
        "starting",
        LATEST if use is Use.STREAM else EARLIEST,
        (EARLIEST,) if batch else both,
        strict,
    )
    ending = parse_bound(options, "ending", LATEST, (LATEST,), strict=False)
    value_format = one_of(options, "valueFormat", VALUE_FORMATS)
    if value_format == "binary" and (extra := {"valueSchema", "valueMode"} & options.keys()):
        raise ConfigError(f"option {min(extra)!r} needs option 'valueFormat': json, msgpack or arrow")
    if value_schema := options.get("valueSchema"):
        check_value_schema(value_schema, value_format)
    return SourceOptions(
        address=ray_address(options.get("escrowmq.address") or default_address),
        namespace=options.get("escrowmq.namespace") or default_namespace,
        subscription=_subscription(options),
        starting=starting,
        ending=ending,
        limits=_limits(options, use),
        min_partitions=positive(options, "minPartitions"),
        max_records_per_partition=positive(options, "maxRecordsPerPartition"),
        fail_on_data_loss=boolean(options, "failOnDataLoss", True),
        push_filters=push_filters,
        at_a_cut=_at_a_cut(options),
        columns=_columns(options),
        value_format=value_format,
        value_schema=value_schema or None,
        value_mode=one_of(options, "valueMode", MODES),
    )


def _known(given: Mapping[str, str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for name, value in given.items():
        known = _BY_LOWER_CASE.get(name.lower())
        if known is None:
            raise ConfigError(
                f"unknown option {name!r} of the escrowmq source; the options are: {', '.join(OPTIONS)}"
            )
        options[known] = value.strip()
    return options


def _at_a_cut(options: Mapping[str, str]) -> bool:
    if one_of(options, "isolation", ISOLATIONS) != "cut":
        return False
    for name in (*_ENDING, "maxOffsetsPerTrigger", "maxBytesPerTrigger", "pushFilters"):
        if name in options and (name, options[name]) not in _NO_END:
            raise ConfigError(
                f"option {name!r} cannot be given with 'isolation' = 'cut': the cut says where a read ends"
            )
    return True


def _limits(options: Mapping[str, str], use: Use) -> BatchLimits:
    limits = BatchLimits(
        positive(options, "maxOffsetsPerTrigger"),
        size_bytes(options, "maxBytesPerTrigger"),
        positive(options, "minOffsetsPerTrigger"),
        duration_s(options, "maxTriggerDelay", MAX_TRIGGER_DELAY_S),
    )
    if limits.min_offsets and limits.max_offsets and limits.min_offsets > limits.max_offsets:
        raise ConfigError("option 'minOffsetsPerTrigger' must not be more than 'maxOffsetsPerTrigger'")
    for name in _STREAMING if use is Use.BATCH else ():
        if name in options:
            raise ConfigError(
                f"option {name!r} is for streaming queries: a batch reads everything at once; limit it with "
                "endingOffsets, or its Spark partitions with maxRecordsPerPartition"
            )
    return limits


def _columns(options: Mapping[str, str]) -> tuple[str, ...]:
    include_headers = boolean(options, "includeHeaders", False)
    if "columns" not in options:
        return tuple(name for name in COLUMNS if include_headers or name != "headers")
    by_lower_case = {name.lower(): name for name in COLUMNS}
    wanted = [part.strip() for part in options["columns"].split(",")]
    unknown = [name for name in wanted if name.lower() not in by_lower_case]
    if unknown or len({name.lower() for name in wanted}) < len(wanted):
        raise ConfigError(
            f"option 'columns' must name some of {', '.join(COLUMNS)}, each once, not {options['columns']!r}"
        )
    return tuple(by_lower_case[name.lower()] for name in wanted)


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
        _check_pattern(value)
        return Subscription(pattern=value)
    return Subscription(assigned=_assigned(json_object(name, value)))


def _check_pattern(value: str) -> None:
    try:
        with warnings.catch_warnings(action="ignore"):  # the FutureWarning about "[["
            re.compile(value)
    except (re.error, OverflowError, RecursionError) as error:
        raise ConfigError(
            f"option 'subscribePattern' is not a valid regular expression: {value!r} ({error})"
        ) from error
    if not value:
        raise ConfigError("option 'subscribePattern' is empty")


def _assigned(table: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
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
    return assigned


def _is_partition(value: Any) -> bool:
    return type(value) is int and value >= 0
