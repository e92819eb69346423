"""The columns that a query may write, checked when the query is planned, before anything runs.

Pure: takes names and types as Spark prints them; a ConfigError names the column. The columns are those of
Spark's Kafka sink. Columns of the source that have no meaning for a sink are ignored silently, so that topics
can be copied; any other column is refused, since its content would be lost.
"""

from __future__ import annotations

from collections.abc import Sequence

from escrowmq.replication.errors import ConfigError

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
