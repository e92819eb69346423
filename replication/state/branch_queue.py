"""Branches that have come due: open transactions whose home is another group, which is to be asked.

By home group, so that one without a leader holds up no other. As the queues of due checks: derived, the
leader's only, bare ids; the table of open transactions is asked when an id's turn comes.
"""

from __future__ import annotations

from collections import deque

from escrowmq.replication.state.open_table import OpenTx
from escrowmq.replication.state.transactions import TransactionTable


class BranchQueue:
    """Due branches, oldest first."""

    __slots__ = ("_homes",)

    def __init__(self) -> None:
        self._homes: dict[int, deque[tuple[str, str]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._homes.values()))

    def add(self, home: int, app: str, tx_id: str) -> None:
        """It has come due."""
        queue = self._homes.get(home)
        if queue is None:
            queue = self._homes[home] = deque()
        queue.append((app, tx_id))

    def homes(self) -> list[int]:
        """Home groups of branches that are due. In one step: other threads look, too."""
        return list(self._homes)

    def take(self, home: int, limit: int, table: TransactionTable) -> list[tuple[str, str, OpenTx]]:
        """Up to ``limit`` of this home group that are still open, out of the queue: (app, tx_id, record)."""
        queue = self._homes.get(home)
        taken: list[tuple[str, str, OpenTx]] = []
        while queue and len(taken) < limit:
            app, tx_id = queue.popleft()
            record = table.look(app).open.get(tx_id)
            if record is not None and record.home_group == home:
                taken.append((app, tx_id, record))
        if not queue:
            self._homes.pop(home, None)
        return taken

    def drain(self) -> dict[str, list[str]]:
        """All of them, out of the queue, by app."""
        homes, self._homes = self._homes, {}
        found: dict[str, list[str]] = {}
        for queue in homes.values():
            for app, tx_id in queue:
                found.setdefault(app, []).append(tx_id)
        return found
