"""Checks of what callers pass to ``read`` and ``write``, before anything runs. Each ConfigError names the
argument."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from escrowmq.replication.errors import ConfigError

#: The columns of a dataset, in their order.
COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers", "tx_id")
_WORDS = ("earliest", "latest")
#: Longest transaction time-out, as for other transactions of jobs: 11 days.
TIMEOUT_S_MAX = 1e6


@dataclass(frozen=True, slots=True)
class ColumnNames:
    """Which columns of the dataset make a message."""

    value: str
    key: str | None
    headers: str | None
    partition: str | None

    def given(self) -> dict[str, str]:
        """Part of a message -> column, for those that are given."""
        parts = ("value", "key", "headers", "partition")
        return {part: name for part in parts if (name := getattr(self, part)) is not None}


def check_topic(topic: object) -> None:
    """Checks a topic's name. Whether it exists, only the cluster knows."""
    if type(topic) is not str or not topic:
        raise ConfigError(f"topic must be a non-empty str, not {topic!r}")


def check_bound(name: str, given: Any, absent: str) -> None:
    """Checks ``start``, ``end`` or ``at``. ``absent``: what a partition stands at that a mapping lacks."""
    if isinstance(given, str) and given in _WORDS:
        return
    if isinstance(given, datetime):
        if given.tzinfo is None:
            raise ConfigError(f"{name} must be a datetime with a time zone, not {given!r}")
        return
    if isinstance(given, Mapping):
        for partition, offset in given.items():
            if not (_is_count(partition) and _is_count(offset)):
                raise ConfigError(
                    f"{name} must map partitions to offsets, both int of 0 or more, not {partition!r} to "
                    f"{offset!r}; partitions that it does not name are at the {absent} offset"
                )
        return
    raise ConfigError(
        f"{name} must be 'earliest', 'latest', a datetime, or a mapping of partitions to offsets, not "
        f"{given!r}"
    )


def check_partitions(partitions: Any) -> None:
    """Checks a list of different partition numbers, or None."""
    if partitions is None:
        return
    if isinstance(partitions, str | bytes) or not isinstance(partitions, Sequence | range):
        raise ConfigError(f"partitions must be a list of numbers, not {partitions!r}")
    if not partitions or not all(map(_is_count, partitions)) or len(set(partitions)) < len(partitions):
        raise ConfigError(f"partitions must be different numbers of 0 or more, not {list(partitions)!r:.200}")


def check_columns(columns: Any) -> tuple[str, ...]:
    """The wanted columns, in the order given; all of them by default."""
    if columns is None:
        return COLUMNS
    if isinstance(columns, str | bytes) or not isinstance(columns, Sequence) or not columns:
        raise ConfigError(f"columns must be a list of names, not {columns!r}; there are {', '.join(COLUMNS)}")
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown or len(set(columns)) < len(columns):
        what = f"no columns {unknown!r:.200}" if unknown else f"{list(columns)!r:.200} with one twice"
        raise ConfigError(f"columns: there are {', '.join(COLUMNS)}, and {what}")
    return tuple(columns)


def check_count(name: str, count: Any, most: int | None = None) -> None:
    """Checks a whole number of at least 1, or None."""
    if count is None:
        return
    if not _is_count(count) or count < 1 or (most is not None and count > most):
        upto = "or more" if most is None else f"to {most}"
        raise ConfigError(f"{name} must be a whole number, 1 {upto}, not {count!r}")


def check_timeout(seconds: Any) -> int:
    """A transaction time-out in milliseconds."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 1 <= seconds <= TIMEOUT_S_MAX:
        raise ConfigError(
            f"transaction_timeout_s must be seconds from 1 to {TIMEOUT_S_MAX:g}, not {seconds!r}"
        )
    return int(seconds * 1000)


def check_column_names(**given: Any) -> ColumnNames:
    """The names of the columns that make a message."""
    for name, column in given.items():
        if (column is None and name != "value") or (type(column) is str and column):
            continue
        raise ConfigError(f"{name} must be the name of a column, not {column!r}")
    return ColumnNames(**given)


def check_dataset(dataset: Any) -> None:
    """Checks that it is a dataset of Ray Data, all of whose blocks must succeed."""
    from ray.data import Dataset

    if not isinstance(dataset, Dataset):
        raise ConfigError(f"write needs a ray.data.Dataset, not {dataset!r:.200}")
    if dataset.context.max_errored_blocks:
        raise ConfigError(
            f"the dataset's DataContext has max_errored_blocks={dataset.context.max_errored_blocks}: rows of "
            "failed blocks would be left out silently; set it to 0 to write all rows or none"
        )


def _is_count(number: object) -> bool:
    return type(number) is int and number >= 0
