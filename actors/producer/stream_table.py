"""The streams of one producer in one broker group, of the partitions that it has used last.

A stream weighs a few kilobytes, and a service may send to short-lived topics for years. So streams that are
idle, and were used longest ago, are dropped. One that begins again must be another one for the broker, which
may still remember the first: under the same epoch, its first batch would get the answer to an earlier batch,
and be lost. So all streams that begin after a drop have a higher epoch than any stream that was dropped: one
number takes the place of all of them. Late copies of what a dropped stream has sent are refused as always.
"""

from __future__ import annotations

from typing import Final

from escrowmq.actors.producer.partition_stream import PartitionStream

#: Streams of a broker group that a producer keeps, beside those that are not idle.
STREAMS_MAX: Final = 20_000
#: Topic, partition, ``later``.
Key = tuple[str, int, bool]


class StreamTable:
    """Streams by topic, partition and ``later``. Used by one thread (the router's)."""

    def __init__(self, streams_max: int = STREAMS_MAX) -> None:
        self._half = self._turn_at = max(streams_max // 2, 1)
        # What was not used since the last turn is older, and dropped at the next one if it is idle.
        self._young: dict[Key, PartitionStream] = {}
        self._older: dict[Key, PartitionStream] = {}
        self._next_epoch = 0

    def __len__(self) -> int:
        return len(self._young) + len(self._older)

    def get(self, key: Key) -> PartitionStream | None:
        """The stream, which counts as used now; None: there is none, or no longer."""
        stream = self._young.get(key)
        if stream is None and (stream := self._older.pop(key, None)) is not None:
            self._keep(key, stream)
        return stream

    def add(self, key: Key, stream: PartitionStream) -> None:
        """Takes a new stream, which has sent nothing."""
        stream.begin_at(self._next_epoch)
        self._keep(key, stream)

    def _keep(self, key: Key, stream: PartitionStream) -> None:
        if len(self._young) >= self._turn_at:
            self._turn()
        self._young[key] = stream

    def _turn(self) -> None:
        busy: dict[Key, PartitionStream] = {}
        for key, stream in self._older.items():
            if stream.idle:
                self._next_epoch = max(self._next_epoch, stream.epoch + 1)
            else:
                busy[key] = stream
        self._older, self._young = self._young, busy
        # Not at each new stream while thousands are busy: a turn looks at all of them.
        self._turn_at = max(self._half, 2 * len(busy))
