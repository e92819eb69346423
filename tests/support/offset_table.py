"""What Spark's planner asks of a cluster, from a table: no brokers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class OffsetTable:
    """Topics with (log start, end) by partition; the message at offset n was stored at n seconds."""

    def __init__(
        self,
        table: Mapping[str, Sequence[tuple[int, int]]],
        cut: Mapping[tuple[str, int], int] | None = None,
    ) -> None:
        """``cut``: the stable cut, if one is asked for; ``cuts``: the topics of which it was."""
        self.table, self._cut = table, cut or {}
        self.cuts: list[Sequence[str]] = []

    def cut(self, topics: Sequence[str]) -> Mapping[tuple[str, int], int]:
        self.cuts.append(topics)
        return self._cut

    def topics(self) -> Mapping[str, int]:
        return {topic: len(partitions) for topic, partitions in self.table.items()}

    def offsets(self, wanted: Sequence[tuple[str, int, int]]) -> list[int]:
        found = []
        for topic, partition, moment in wanted:
            start, end = self.table[topic][partition]
            seconds = -(-moment // 1000)
            found.append({-2: start, -1: end}.get(moment, max(start, min(end, seconds))))
        return found
