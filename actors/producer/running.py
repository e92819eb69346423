"""Which local transactions run in this process now: what a check of the broker is answered from.

A transaction counts from before its PREPARE is sent until its decision is answered or it is left to the
check, so one that is prepared and not decided counts as long as the application holds it. Whoever asks may be
any thread.
"""

from __future__ import annotations

import threading


class RunningHere:
    """Two tables, for speed. Ids that the producer has made are running once, so a plain set holds them.

    An id of the application's own comes from outside, perhaps twice at once: who takes it second is told so.
    """

    __slots__ = ("_given", "_lock", "made")

    def __init__(self) -> None:
        #: Ids that the producer has made, and all of ``send_transactions``.
        self.made: set[str] = set()
        self._given: set[str] = set()
        self._lock = threading.Lock()

    def begin_given(self, tx_id: str) -> bool:
        """A transaction under this id of the application's own begins; False: one runs already, and this one
        must not."""
        with self._lock:
            if tx_id in self._given:
                return False
            self._given.add(tx_id)
            return True

    def end_given(self, tx_id: str) -> None:
        """It is over."""
        self._given.discard(tx_id)

    def holds_given(self, tx_id: str) -> bool:
        """Whether one under this id of the application's own runs."""
        return tx_id in self._given

    def __contains__(self, tx_id: object) -> bool:
        return tx_id in self.made or tx_id in self._given

    def __len__(self) -> int:
        return len(self.made) + len(self._given)
