"""The topic that a query writes to, as anybody can read it; and what must hold of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from escrowmq.actors.client.router import Router
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.actors.consumer.offsets import EARLIEST, LATEST, OffsetReader
from escrowmq.actors.consumer.reader import PartitionReader, RowBlock
from escrowmq.replication.format.codec import decode_rows

ANSWER_S = 60.0


@dataclass(frozen=True, slots=True)
class Written:
    """One message of the target."""

    key: bytes | None
    value: str
    tx_id: str | None
    partition: int
    offset: int


class Target:
    """Reads a topic through a router of its own."""

    def __init__(self, info: ClusterInfo, topic: str, partitions: int) -> None:
        self.info, self.topic, self.partitions = info, topic, partitions
        self.router = Router(info, name="target")
        self._offsets = OffsetReader(self.router)

    def close(self) -> None:
        self.router.close()

    def ends(self) -> list[int]:
        """Where each partition ends: one call to each group's leader, so one moment per group."""
        found = self._offsets.offsets([(self.topic, p, LATEST) for p in range(self.partitions)], ANSWER_S)
        return [offset for offset in found if isinstance(offset, int)]

    def rows(self) -> list[Written]:
        """All messages, by partition and offset."""
        return [
            Written(row[0], row[1].decode(), row[3], partition, block.base_offset + i)
            for partition, block in self._blocks()
            for i, row in enumerate(decode_rows(block.rows, block.messages))
        ]

    def stored_bytes(self) -> int:
        """What the messages take in the log."""
        return sum(len(block.rows) for _, block in self._blocks())

    def _blocks(self) -> Iterator[tuple[int, RowBlock]]:
        starts = self._offsets.offsets([(self.topic, p, EARLIEST) for p in range(self.partitions)], ANSWER_S)
        for partition, (start, end) in enumerate(zip(starts, self.ends(), strict=True)):
            assert isinstance(start, int)
            gid = self.router.placement.group_of(self.topic, partition)
            with PartitionReader(self.info, self.topic, partition, start, end, group=gid) as reader:
                for block in reader:
                    yield partition, block

    def open_transactions(self, app_prefix: str = "spark-") -> list[str]:
        """Ids of open transactions of sinks that write here."""
        found = []
        for gid in range(self.info.groups):
            call = self.router.leader_call(gid, "transactions", None, None, self.topic, 100_000)
            rows = call.result(ANSWER_S).rows()
            found += [row.tx_id for row in rows if row.app.startswith(app_prefix)]
        return found


def problems_of(rows: Iterable[Written], epochs: Mapping[str, Iterable[str]]) -> list[str]:
    """What is wrong with the target; ``epochs``: the values that one epoch each must have written.

    Every value exactly once; all values of an epoch under one id, and nothing else under that id.
    """
    rows = list(rows)
    problems = []
    counts = Counter(row.value for row in rows)
    expected = {value: name for name, values in epochs.items() for value in values}
    twice = [value for value, count in counts.items() if count > 1]
    lost = [value for value in expected if value not in counts]
    foreign = [value for value in counts if value not in expected]
    for what, values in (("more than once", twice), ("lost", lost), ("never sent", foreign)):
        if values:
            problems.append(f"{len(values)} rows {what}, for instance {sorted(values)[:3]}")
    by_id: dict[str | None, set[str]] = defaultdict(set)
    for row in rows:
        by_id[row.tx_id].add(expected.get(row.value, "?"))
    for tx_id, names in by_id.items():
        if len(names) > 1 or tx_id is None:
            problems.append(f"{tx_id!r} holds rows of {sorted(names)[:5]}")
    ids_of: dict[str, set[str | None]] = defaultdict(set)
    for row in rows:
        ids_of[expected.get(row.value, "?")].add(row.tx_id)
    problems += [
        f"{name} is spread over {sorted(map(str, ids))}" for name, ids in ids_of.items() if len(ids) > 1
    ]
    return problems
