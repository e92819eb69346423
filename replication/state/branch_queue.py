"""Branches that have come due: open transactions whose home is another group, which has to be asked.

Queued by home group, so that a home without a leader delays no other. Like the queues of due checks they are
derived, kept by the leader only, and hold bare ids; an id is looked up in the table of open transactions when
its turn comes.
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
        """The branch has come due."""
        queue = self._homes.get(home)
        if queue is None:
            queue = self._homes[home] = deque()
        queue.append((app, tx_id))

    def homes(self) -> list[int]:
        """Home groups of branches that are due. In one step: other threads read it too."""
        return list(self._homes)

    def take(self, home: int, limit: int, table: TransactionTable) -> list[tuple[str, str, OpenTx]]:
        """Remove up to ``limit`` ids of this home group; those still open as (app, tx_id, record)."""
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
        """Remove all of them; returned by app."""
        homes, self._homes = self._homes, {}
        found: dict[str, list[str]] = {}
        for queue in homes.values():
            for app, tx_id in queue:
                found.setdefault(app, []).append(tx_id)
        return found
