"""The options of the sink: names, meanings, and how their texts are parsed into an immutable value.

Spark adds a few options of its own (the checkpoint's location, the query's name). Any other unknown name is
refused, since a mistyped option would otherwise be ignored silently.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from escrowmq.actors.producer.config import LEAST_BYTES, LEVEL_MAX, Compression, compression_of
from escrowmq.replication.errors import ConfigError
from escrowmq.spark_integration.option_values import ray_address

#: Every option, its meaning and its default.
OPTIONS = {
    "topic": "topic of all rows; without it, column 'topic' has each row's topic",
    "checkpointLocation": "streaming: where Spark and the sink store the query's progress (required)",
    "epoch": "in foreachBatch: the batch's number from Spark; with it, the write happens exactly once",
    "sinkName": "in foreachBatch: tells this write from others of the same query (default: the topic)",
    "maxMessageBytes": "a larger message is an error (default 1048576, at most 4194304)",
    "transactionTimeoutMs": "time after which the sink's querier is asked to decide (default 60000)",
    "compression": "zstd or lz4: compress values as producers do (default: none)",
    "compressionLevel": "of zstd, 1 to 22 (default 1)",
    "compressFrom": "bytes of the smallest value that is compressed (default 1024)",
    "escrowmq.address": "address of the Ray cluster (default: the one that Spark was started on)",
    "escrowmq.namespace": "Ray namespace of the EscrowMQ cluster (default: escrowmq)",
}
#: Ignored names: the query's name, which Spark passes, and an option of the source that has no meaning here.
_OTHERS = frozenset(("queryname", "includeheaders"))
_BY_LOWER_CASE = {name.lower(): name for name in OPTIONS}

MESSAGE_BYTES_MAX = 1 << 20
#: Half of the largest request that a broker accepts, since a message has to fit in one request.
MESSAGE_BYTES_LIMIT = 4 << 20
#: Longer than most epochs, so that the querier can usually answer a check.
TRANSACTION_TIMEOUT_MS = 60_000


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """All options of one write, checked.

    ``checkpoint``: "" for a plain batch write. ``epoch``, ``name``: of a write in foreachBatch, else None
    and "".
    """

    address: str
    namespace: str
    topic: str | None
    checkpoint: str
    message_bytes_max: int
    transaction_timeout_ms: int
    epoch: int | None = None
    name: str = ""
    compression: Compression | None = None


def parse_sink_options(
    given: Mapping[str, str],
    *,
    streaming: bool,
    default_address: str = "",
    default_namespace: str = "escrowmq",
) -> SinkOptions:
    """Parse the given options (names in any case). Raises ConfigError, which names the option."""
    options: dict[str, str] = {}
    for name, value in given.items():
        known = _BY_LOWER_CASE.get(name.lower())
        if known is not None:
            options[known] = value.strip()
        elif name.lower() == "path":
            raise ConfigError("the escrowmq sink writes to a topic, not to a path; give option 'topic'")
        elif name.lower() not in _OTHERS:
            raise ConfigError(
                f"unknown option {name!r} of the escrowmq sink; the options are: {', '.join(OPTIONS)}"
            )
    checkpoint = options.get("checkpointLocation", "")
    epoch, name = _epoch(options, streaming)
    if (streaming or epoch is not None) and not checkpoint:
        raise ConfigError(
            "option 'checkpointLocation' is missing; set it with .option('checkpointLocation', ...) on "
            "writeStream, since the sink stores there what it needs after a crash (the session's "
            "spark.sql.streaming.checkpointLocation is not passed to it); in foreachBatch, give the query's"
        )
    return SinkOptions(
        address=ray_address(options.get("escrowmq.address") or default_address),
        namespace=options.get("escrowmq.namespace") or default_namespace,
        topic=options.get("topic") or None,
        checkpoint=checkpoint if streaming or epoch is not None else "",
        message_bytes_max=_number(options, "maxMessageBytes", MESSAGE_BYTES_MAX, MESSAGE_BYTES_LIMIT),
        transaction_timeout_ms=_number(options, "transactionTimeoutMs", TRANSACTION_TIMEOUT_MS, 10**9),
        epoch=epoch,
        name=name,
        compression=_compression(options),
    )


def _compression(options: Mapping[str, str]) -> Compression | None:
    method, level = options.get("compression", "none").lower(), None
    if "compressionLevel" in options:
        level = _number(options, "compressionLevel", 1, LEVEL_MAX)
    least = _number(options, "compressFrom", LEAST_BYTES, MESSAGE_BYTES_LIMIT)
    try:
        return compression_of(None if method == "none" else method, level, least)
    except ConfigError as error:
        raise ConfigError(f"option 'compression' or 'compressionLevel': {error}") from error


def _epoch(options: Mapping[str, str], streaming: bool) -> tuple[int | None, str]:
    """Epoch and name of a write in foreachBatch; None and "" for any other write."""
    given = [name for name in ("epoch", "sinkName") if name in options]
    if not given:
        return None, ""
    if streaming or "epoch" not in options:
        raise ConfigError(
            f"option {given[0]!r} is for writes in foreachBatch: frame.write...option('epoch', batch_id)"
            ".option('checkpointLocation', <the query's>)"
        )
    if not options["epoch"].isdecimal():
        raise ConfigError(f"option 'epoch' must be the number of the batch, not {options['epoch']!r}")
    name = options.get("sinkName") or options.get("topic", "")
    if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}", name) or name.endswith(".json"):
        raise ConfigError(
            f"option 'sinkName' must be up to 100 letters, digits, '.', '_' or '-', not {name!r}; it tells "
            "the writes of one batch apart, and defaults to the topic"
        )
    return int(options["epoch"]), name


def _number(options: Mapping[str, str], name: str, default: int, limit: int) -> int:
    text = options.get(name)
    if text is None:
        return default
    if not text.isdecimal() or not 1 <= int(text) <= limit:
        raise ConfigError(f"option {name!r} must be a whole number from 1 to {limit}, not {text!r}")
    return int(text)


# ------------------------------------------------------------------------------------------------------------
# The columns that a query may write, checked when the query is planned, before anything runs.
#
# Pure: takes names and types as Spark prints them; a ConfigError names the column. The columns are those of
# Spark's Kafka sink. Columns of the source that have no meaning for a sink are ignored silently, so that
# topics can be copied; any other column is refused, since its content would be lost.

#: Column -> the types it may have, as ``DataType.simpleString`` prints them.
ALLOWED = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "topic": ("string",),
    "partition": ("int",),
}
#: Columns of the source that describe where a message was stored, not its content.
IGNORED = frozenset(("offset", "timestamp", "timestamptype", "tx_id"))
_HOW = "The sink writes: value (required), key, headers, topic, partition"


def check_columns(columns: Sequence[tuple[str, str]], topic: str | None) -> None:
    """``columns``: name and type of each. ``topic``: the option, if given. Raises ConfigError."""
    types: dict[str, str] = {}
    for name, kind in columns:
        if name in types:
            raise ConfigError(f"column {name!r} occurs twice in the columns to write. {_HOW}")
        types[name] = kind
        if name.lower() in IGNORED:
            continue
        if name not in ALLOWED:
            near = f" (did you mean {name.lower()!r}?)" if name.lower() in ALLOWED else ""
            raise ConfigError(
                f"column {name!r} cannot be written{near}; leave it out, or put it into the value, as in "
                f"to_json(struct(*)) AS value. {_HOW}"
            )
        if _plain(kind) not in ALLOWED[name]:
            raise ConfigError(
                f"column {name!r} has type {kind}; it must be {' or '.join(ALLOWED[name])}. Convert it, "
                f"as in {_conversion(name)}"
            )
    if "value" not in types:
        found = ", ".join(types) or "none"
        raise ConfigError(f"column 'value' is missing among the columns to write ({found}). {_HOW}")
    if topic is None and "topic" not in types:
        raise ConfigError("no topic; set option 'topic', or add a column 'topic' with each row's topic")


def _plain(kind: str) -> str:
    """The type in lower case, with strings of any collation or length as "string"."""
    lowered = kind.lower()
    return "string" if lowered.startswith(("string", "varchar", "char(")) else lowered


def _conversion(name: str) -> str:
    if name == "partition":
        return "CAST(partition AS INT)"
    if name == "headers":
        return "array(struct('name' AS key, CAST('text' AS BINARY) AS value))"
    return f"CAST({name} AS STRING)" if name != "value" else "to_json(struct(*)) AS value"
