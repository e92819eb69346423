"""Which local transactions run in this process now: what a check of the broker is answered from.

A transaction counts from before its PREPARE is sent until its decision is answered or it is left to the
check, so one that is prepared and not decided counts as long as the application holds it. Whoever asks may be
any thread.
"""

from __future__ import annotations

import threading


class RunningHere:
    """Two tables, for speed. Ids that the producer has made are running once, so a plain set holds them.

    An id of the application's own may be running twice, while one of the two is being told that the other has
    it; so those are counted.
    """

    __slots__ = ("_given", "_lock", "made")

    def __init__(self) -> None:
        #: Ids that the producer has made, and all of ``send_transactions``.
        self.made: set[str] = set()
        self._given: dict[str, int] = {}
        self._lock = threading.Lock()

    def begin_given(self, tx_id: str) -> None:
        """Another transaction under this id of the application's own."""
        with self._lock:
            self._given[tx_id] = self._given.get(tx_id, 0) + 1

    def end_given(self, tx_id: str) -> None:
        """One of them is over."""
        with self._lock:
            left = self._given.get(tx_id, 0) - 1
            if left > 0:
                self._given[tx_id] = left
            else:
                self._given.pop(tx_id, None)

    def __contains__(self, tx_id: object) -> bool:
        return tx_id in self.made or tx_id in self._given

    def __len__(self) -> int:
        return len(self.made) + len(self._given)
