"""What a group tells those who look for a stable cut through several groups.

A cut is stable if of every transaction all parts lie below it, or none. Nothing here is replicated: the
answer to CUT goes to its client alone. After a start from a snapshot, a decision may have been taken at any
entry before it, so the snapshot's own index counts as one: then the client asks once more.
"""

from __future__ import annotations

from collections.abc import Sequence

from escrowmq.replication.format.codec import Op
from escrowmq.replication.model import ResultCode
from escrowmq.replication.state.topics import TopicTable
from escrowmq.replication.state.transactions import TransactionTable


class StableCuts:
    """``decided_index``: of the newest entry here that committed a transaction over several groups, as their
    home. ``asked_ms``: when a cut was last asked for, in the group's time."""

    def __init__(self, topics: TopicTable, transactions: TransactionTable) -> None:
        # Not its ``across``: restoring a snapshot makes a new one.
        self._topics, self._transactions = topics, transactions
        self._seen = 0
        self.decided_index = 0
        self.asked_ms = -1

    def restored(self, index: int) -> None:
        """The state is that of a snapshot at ``index``."""
        self.decided_index, self._seen = index, self._transactions.across.added

    def committed(self, index: int) -> None:
        """Entry ``index`` has a COMMIT; call it after each."""
        if self._transactions.across.added != self._seen:
            self.decided_index, self._seen = index, self._transactions.across.added

    def cut(self, index: int, now_ms: int, op: Op) -> list[object]:
        """Apply CUT: a ``GroupCut``, or UNKNOWN_TOPIC with the names of topics that do not exist."""
        self.asked_ms = now_ms
        names: Sequence[str] = op.meta[0]
        unknown = [name for name in names if name not in self._topics.topics]
        if unknown:
            return [int(ResultCode.UNKNOWN_TOPIC), unknown]
        found = []
        for name in names:
            topic = self._topics.topics[name]
            flat: list[int] = []
            for number, partition in topic.partitions.items():
                flat += (number, partition.index.end)
            found.append([topic.info.topic_id, flat])
        return [0, [index, self.decided_index, self._transactions.across.decided, found]]
