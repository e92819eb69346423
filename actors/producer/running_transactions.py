"""Which local transactions run in this process now; checks of the broker are answered from this.

A transaction counts from before its PREPARE is sent until its decision is answered or it is left to the
check. So one that is prepared and undecided counts as long as the application holds it. Can be queried from
any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable


class RunningTransactions:
    """Two tables, for speed. An id that the producer generated is used once, so a plain set holds those.

    An id that the application gave comes from outside, perhaps twice at once: the second user is refused.
    """

    __slots__ = ("_given", "_lock", "made")

    def __init__(self) -> None:
        #: Ids that the producer generated, and all those of ``send_transactions``.
        self.made: set[str] = set()
        self._given: set[str] = set()
        self._lock = threading.Lock()

    def begin_given(self, tx_id: str) -> bool:
        """A transaction with this id, given by the application, begins; False: one is already running, and
        this one must not run."""
        with self._lock:
            if tx_id in self._given:
                return False
            self._given.add(tx_id)
            return True

    def end_given(self, tx_id: str) -> None:
        """The transaction is over."""
        self._given.discard(tx_id)

    def end_all_given(self, tx_ids: Iterable[str]) -> None:
        """These transactions are over."""
        with self._lock:
            self._given.difference_update(tx_ids)

    def taken_of(self, tx_ids: Collection[str], *, begin: bool) -> set[str]:
        """Those of these ids that are running already. ``begin``: the others begin, as in ``begin_given``."""
        with self._lock:
            taken = self._given.intersection(tx_ids)
            if begin:
                self._given.update(tx_ids)
        return taken

    def holds_given(self, tx_id: str) -> bool:
        """Whether a transaction with this id, given by the application, is running."""
        return tx_id in self._given

    def __contains__(self, tx_id: object) -> bool:
        return tx_id in self.made or tx_id in self._given

    def __len__(self) -> int:
        return len(self.made) + len(self._given)
