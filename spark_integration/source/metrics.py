"""Computes a streaming query's lag, by partition, from the progress that Spark reports.

Spark has no custom metrics for Python sources. But each progress contains the end of the batch and, from
``reportLatestOffset``, the end of the log at that time; the lag is the difference.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from escrowmq.spark_integration.source.stream_planning import INITIAL


def lag(progress: Any) -> dict[str, dict[int, int]]:
    """Number of messages that the query had yet to read when ``progress`` was made, by topic and partition.

    ``progress``: ``query.lastProgress`` or a listener's ``event.progress``. If several sources of the query
    read a partition, the larger lag counts. Empty if there is no progress yet. A progress does not name the
    format of a source, so sources are recognized by the form of their offsets, which is also that of Kafka
    sources.
    """
    behind: dict[str, dict[int, int]] = {}
    for source in [] if progress is None else _get(progress, "sources"):
        ends, heads = _table(_get(source, "endOffset")), _table(_get(source, "latestOffset"))
        for topic, partitions in heads.items():
            for partition, head in partitions.items():
                waiting = max(0, head - ends.get(topic, {}).get(partition, 0))
                here = behind.setdefault(topic, {})
                here[int(partition)] = max(waiting, here.get(int(partition), 0))
    return behind


def _table(offset: Any) -> dict[str, dict[str, int]]:
    """Parse offsets, which Spark gives as JSON, as a table, or as None; {} for offsets of other sources."""
    table = json.loads(offset) if isinstance(offset, str) and offset.startswith("{") else offset
    if not isinstance(table, Mapping):
        return {}
    return {
        topic: dict(partitions)
        for topic, partitions in table.items()
        if topic != INITIAL
        and isinstance(partitions, Mapping)
        and all(str(p).isdigit() and isinstance(offset, int) for p, offset in partitions.items())
    }


def _get(thing: Any, name: str) -> Any:
    return thing.get(name) if isinstance(thing, Mapping) else getattr(thing, name)
