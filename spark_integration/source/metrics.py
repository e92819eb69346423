"""How far a streaming query is behind, by partition, from the progress that Spark reports.

Spark gives Python sources no metrics of their own. But each progress holds where the batch ended and, from
``reportLatestOffset``, where the log ended then; lag is the difference.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from escrowmq.spark_integration.source.stream_planning import INITIAL


def lag(progress: Any) -> dict[str, dict[int, int]]:
    """Messages that the query has yet to read, by topic and partition, when ``progress`` was made.

    ``progress`` is ``query.lastProgress`` or a listener's ``event.progress``. A partition that several
    sources of the query read counts with its larger lag. Empty if there is no progress yet. Spark names no
    format in a progress, so sources are known by the form of their offsets, which Kafka's share.
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
    """Spark gives offsets as JSON, as a table, or as None; those of other sources have other forms."""
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
