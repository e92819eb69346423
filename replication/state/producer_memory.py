"""Which batches of plain messages were stored: per producer and partition, in bounded memory.

A batch has a number, so one that is sent again is stored only once and gets the same answer. The memory is
bounded: a producer that was silent while many others sent is forgotten, and then looks like a new one. From
level 3 on the first batch of a producer tells what its client had heard of before it was first sent: the
time of an entry of this group. Everything forgotten was stored at or before ``forgotten_ms``, and no batch is
stored before what its client had heard of. So the first batch of an unknown producer may be a copy of
a forgotten one if its client had heard of nothing later, and is refused; any other was certainly never
stored.
"""

from __future__ import annotations

from escrowmq.replication.state.dedup import TwoGenerations

#: Batches per producer and partition whose offsets are remembered; clients keep at most this many
#: unacknowledged, as in Kafka's idempotent producer.
SEQUENCES_KEPT = 5
#: Epoch, next sequence, ((sequence, base offset, time), ...).
Known = tuple[int, int, tuple[tuple[int, int, int], ...]]


class ProducerMemory(TwoGenerations[tuple[str, int], Known]):
    """By producer and slot of the partition.

    ``turned_ms``: when producers were last forgotten; -1: not since level 3. ``forgotten_ms``: the turn
    before that one. Not kept below level 3: batches do not tell what was heard, and snapshots do not hold it.
    """

    __slots__ = ("forgotten_ms", "turned_ms")

    def __init__(self, generation: int) -> None:
        super().__init__(generation)
        self.forgotten_ms = self.turned_ms = -1

    def is_stale(self, heard_ms: int) -> bool:
        """Whether a client that had heard of nothing later may have sent something that is now forgotten."""
        return heard_ms <= self.forgotten_ms != -1

    def note_turn(self, now_ms: int) -> None:
        """What was stored up to the previous turn is now forgotten."""
        self.forgotten_ms, self.turned_ms = self.turned_ms, now_ms
