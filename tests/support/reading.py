"""What anybody could read: the answers of ``fetch`` as rows, whichever home of replicas gave them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from escrowmq.replication.format.codec import Row, decode_rows
from escrowmq.replication.model import ResultCode
from escrowmq.replication.replica.fetching import FetchRequest, FetchResult

#: ``fetch`` of a replica or of its service, with a time to wait or without.
Fetch = Callable[[Sequence[FetchRequest], int], Sequence[FetchResult]]


def rows_in(runs: Sequence[tuple[int, ...]], blob: bytes | memoryview) -> list[tuple[int, Row]]:
    """(offset, row) of what one partition's answer holds."""
    offsets = [base + i for base, count, *_ in runs for i in range(count)]
    return list(zip(offsets, decode_rows(bytes(blob), len(offsets)), strict=True))


def everything(fetch: Fetch, topic: str, partition: int, max_bytes: int = 1 << 24) -> list[tuple[int, Row]]:
    """(offset, row) of a partition from its start to its end."""
    found: list[tuple[int, Row]] = []
    ((_, _, _, offset, end, _, _),) = fetch([(topic, partition, 0)], 1)
    while offset < end:
        ((_, _, code, _, end, runs, blob),) = fetch([(topic, partition, offset)], max_bytes)
        assert code == ResultCode.OK, code
        found += [(at, row) for at, row in rows_in(runs, blob) if at >= offset]
        offset = runs[-1][0] + runs[-1][1]
    return found


def named(rows: Sequence[tuple[int, Row]]) -> list[str]:
    """Each row's transaction, or its value if it has none."""
    return [row[3] or row[1].decode() for _, row in rows]


def at(member: Any) -> Fetch:
    """``fetch`` of a member of a ``BrokerGroup``, without waiting."""
    return lambda requests, max_bytes: member.parts.reads.fetch(requests, max_bytes, 0.0)
