"""The orders of one topic: what is readable of them, and whether it is what is stored."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from escrowmq import Cluster, Consumer
from tests.support.waiting import wait_until

PARTITIONS = 2
PATIENCE_S = 120.0


class Orders:
    """A topic that this creates, and a consumer that reads all of it. ``readable``: so far."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._admin, self.topic = cluster.admin, topic
        self._admin.create_topic(topic, partitions=PARTITIONS)
        self._consumer: Consumer = cluster.consumer(
            group=f"{topic}-audit", topics=[topic], auto_offset_reset="earliest"
        )
        self._read: dict[tuple[int, int], str] = {}
        self._next: Counter[int] = Counter()

    def close(self) -> None:
        self._consumer.close()

    @property
    def ends(self) -> dict[int, int]:
        """Up to where each partition has been read."""
        return dict(self._next)

    @property
    def readable(self) -> list[str]:
        return list(self._read.values())

    def read(self) -> None:
        """All that is readable now: up to the ends of this moment, as services go on meanwhile."""
        ends = {p.partition: p.end for p in self._admin.describe_topic(self.topic).partitions}
        until = time.monotonic() + PATIENCE_S
        while any(self._next[partition] < end for partition, end in ends.items()):
            if time.monotonic() > until:
                raise TimeoutError(f"read up to {dict(self._next)} of {ends} in {PATIENCE_S:g} s")
            for record in self._consumer.poll(timeout_s=0.3):
                self._read[record.partition, record.offset] = record.value.decode()
                self._next[record.partition] = max(self._next[record.partition], record.offset + 1)

    def compare(self, stored_now: Callable[[], set[str]]) -> list[str]:
        """Whether the same is readable and stored, once all that is open now is settled."""
        self.read()
        stored, now_ms = stored_now(), int(time.time() * 1000)
        problems = [
            f"fence-split: {order} is readable, and not in the database"
            for order in {*self.readable} - stored
        ]
        wait_until(lambda: self._oldest_open_ms() > now_ms, PATIENCE_S, "decisions of what was open", 0.1)
        self.read()
        problems += [
            f"fence-split: {order} is in the database, and not readable"
            for order in stored - {*self.readable}
        ]
        return problems + [
            f"{order} is there {n} times" for order, n in Counter(self.readable).items() if n > 1
        ]

    def _oldest_open_ms(self) -> int:
        opened = self._admin.list_transactions(topic=self.topic)
        return min((tx.prepared_ms for tx in opened), default=1 << 62)
