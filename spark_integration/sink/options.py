"""Options of the sink: names and meanings. Text in, a frozen value or a ConfigError out.

Spark passes a few of its own beside ours (the checkpoint's place, the query's name); any other name is
refused, since a mistyped option would be ignored silently.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from escrowmq.replication.errors import ConfigError
from escrowmq.spark_integration.option_values import ray_address

#: Every option, its meaning and its default.
OPTIONS = {
    "topic": "topic of all rows; without it, column 'topic' says each row's topic",
    "checkpointLocation": "streaming: where Spark and the sink note the query's progress (required)",
    "epoch": "in foreachBatch: the number that Spark gives the batch; with it, the write happens once",
    "sinkName": "in foreachBatch: tells this write from others of the same query (default: the topic)",
    "maxMessageBytes": "a larger message is an error (default 1048576, at most 4194304)",
    "transactionTimeoutMs": "undecided for so long, the sink's querier is asked (default 60000)",
    "escrowmq.address": "address of the Ray cluster (default: the one Spark was started on)",
    "escrowmq.namespace": "Ray namespace of the EscrowMQ cluster (default: escrowmq)",
}
#: Given by Spark, or harmless: names of the query, and the source's options that have no meaning here.
_OTHERS = frozenset(("queryname", "includeheaders"))
_BY_LOWER_CASE = {name.lower(): name for name in OPTIONS}

MESSAGE_BYTES_MAX = 1 << 20
#: Half of the largest request that a broker takes, since a message travels in one.
MESSAGE_BYTES_LIMIT = 4 << 20
#: Longer than most epochs, so that a check finds something to tell.
TRANSACTION_TIMEOUT_MS = 60_000


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """All options of one write, checked. ``checkpoint``: "" for a plain batch write. ``epoch`` and ``name``
    are those of a write in foreachBatch; else None and ""."""

    address: str
    namespace: str
    topic: str | None
    checkpoint: str
    message_bytes_max: int
    transaction_timeout_ms: int
    epoch: int | None = None
    name: str = ""


def parse_sink_options(
    given: Mapping[str, str],
    *,
    streaming: bool,
    default_address: str = "",
    default_namespace: str = "escrowmq",
) -> SinkOptions:
    """Check what the user wrote (names in any case). Raises ConfigError that names the option."""
    options: dict[str, str] = {}
    for name, value in given.items():
        known = _BY_LOWER_CASE.get(name.lower())
        if known is not None:
            options[known] = value.strip()
        elif name.lower() == "path":
            raise ConfigError("the escrowmq sink writes to a topic, not to a path: give option 'topic'")
        elif name.lower() not in _OTHERS:
            raise ConfigError(
                f"unknown option {name!r} of the escrowmq sink; known are: {', '.join(OPTIONS)}"
            )
    checkpoint = options.get("checkpointLocation", "")
    epoch, name = _epoch(options, streaming)
    if (streaming or epoch is not None) and not checkpoint:
        raise ConfigError(
            "option 'checkpointLocation' is missing: give it with .option('checkpointLocation', ...) on "
            "writeStream, since the sink keeps there what it must know after a crash (the session's "
            "spark.sql.streaming.checkpointLocation does not reach it); in foreachBatch, give the query's"
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
    )


def _epoch(options: Mapping[str, str], streaming: bool) -> tuple[int | None, str]:
    """Number and name of a write in foreachBatch."""
    given = [name for name in ("epoch", "sinkName") if name in options]
    if not given:
        return None, ""
    if streaming or "epoch" not in options:
        raise ConfigError(
            f"option {given[0]!r} is for writes in foreachBatch: frame.write...option('epoch', batch_id)"
            ".option('checkpointLocation', <that of the query>)"
        )
    if not options["epoch"].isdecimal():
        raise ConfigError(f"option 'epoch' must be the number of the batch, not {options['epoch']!r}")
    name = options.get("sinkName") or options.get("topic", "")
    if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}", name) or name.endswith(".json"):
        raise ConfigError(
            f"option 'sinkName' must be up to 100 letters, digits, '.', '_' or '-', not {name!r}; it tells "
            "the writes of one batch apart, and is the topic unless given"
        )
    return int(options["epoch"]), name


def _number(options: Mapping[str, str], name: str, default: int, limit: int) -> int:
    text = options.get(name)
    if text is None:
        return default
    if not text.isdecimal() or not 1 <= int(text) <= limit:
        raise ConfigError(f"option {name!r} must be a whole number from 1 to {limit}, not {text!r}")
    return int(text)
