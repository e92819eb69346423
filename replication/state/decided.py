"""Decisions of this group that branches in other groups have not carried out yet.

A transaction over several groups is decided in its home group. The ordinary memory of settled transactions is
bounded by number, so a branch that asked too late would be told "unknown" for ever. So such a decision stays
here until every branch group has carried it out (TX_DONE), and only then moves to the ordinary memory. For
PREPAREs, decisions and readers it counts as settled.

A transaction is identified by (id, home index), not by the id alone: an id may be prepared again after it was
forgotten. The home index is the log index at which home opened the record.

``undone`` (by branch group, oldest first) is derived from the table and not replicated; the cost of reading
it does not depend on how many decisions wait.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

#: Open transactions over several groups plus decisions that wait for their branches, in one home group: a
#: branch group without a leader must not fill home's memory. Checked when a transaction is prepared, never
#: when it is decided. 1,000,000 take about 300 MB.
ACROSS_MAX = 1_000_000
#: How many decisions of each branch group ``oldest_ms`` reads: a tenth of a millisecond.
OLDEST_AMONG = 1_000

TxKey = tuple[str, str]  # app, tx_id


class Decided(NamedTuple):
    """``waiting``: branch groups that have not carried it out. ``digest``: as in the memory of settled
    transactions; ``given``: to which of these memories it moves. ``decided_ms``: time of the deciding
    entry."""

    outcome: int
    digest: int
    home_index: int
    waiting: tuple[int, ...]
    decided_ms: int
    given: bool = False


class Undone(NamedTuple):
    """A decision that must be sent to a branch group."""

    app: str
    tx_id: str
    outcome: int
    home_index: int


class AcrossGroups:
    """Counts of all apps' transactions over several groups whose home is here, and the branches to be
    told.

    The decisions themselves are with their apps (``AppTransactions.decided``). ``branches`` is the opposite
    case: open transactions whose home is another group.
    """

    __slots__ = ("added", "branches", "decided", "opened", "undone")

    def __init__(self) -> None:
        self.branches = 0
        self.opened = 0  # open transactions that have branches
        self.decided = 0  # decisions that wait
        self.added = 0  # how often one was added, since this process began
        self.undone: dict[int, dict[TxKey, Decided]] = {}

    def has_room(self, count: int) -> bool:
        """Whether ``count`` more may be opened."""
        return self.opened + self.decided + count <= ACROSS_MAX

    def add(self, app: str, tx_id: str, decided: Decided) -> None:
        """A decision that waits."""
        self.decided += 1
        self.added += 1
        for group in decided.waiting:
            self.undone.setdefault(group, {})[app, tx_id] = decided

    def told(self, app: str, tx_id: str, group: int) -> None:
        """The branch group has carried it out."""
        left = self.undone[group]
        del left[app, tx_id]
        if not left:
            del self.undone[group]

    # -------------------------------------------------------------- what the leader tells branches

    def next_undone(self, group: int, limit: int, until_ms: int) -> list[Undone]:
        """Decisions up to ``until_ms`` that this branch group has not carried out; reads at most
        ``limit``."""
        found: list[Undone] = []
        for (app, tx_id), decided in islice(self.undone.get(group, {}).items(), limit):
            if decided.decided_ms > until_ms:
                break
            found.append(Undone(app, tx_id, decided.outcome, decided.home_index))
        return found

    def oldest_ms(self) -> int:
        """Time of the oldest waiting decision, for display; 0: none waits.

        Rows are in order of decision, except for those that were put behind. So up to OLDEST_AMONG of each
        group are read: with more, the answer may be later than the truth.
        """
        times = [
            decided.decided_ms
            for left in self.undone.values()
            for decided in islice(left.values(), OLDEST_AMONG)
        ]
        return min(times, default=0)

    def put_behind(self, group: int, keys: Iterable[TxKey]) -> None:
        """Tell these after all others: the branch group could not carry them out now."""
        left = self.undone.get(group, {})
        for key in keys:
            decided = left.pop(key, None)
            if decided is not None:
                left[key] = decided
