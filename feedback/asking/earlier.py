"""Producers of an earlier version, which start feedback of one app and topic for themselves.

Their checks and answers do not name a PREPARE: this remembers under which one each check was
handed out. They prepare without an owner, so any producer of their app may be asked, as in their version.
They are not asked about transactions that have an owner: the owner polls elsewhere, and would be considered
gone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from escrowmq.feedback.asking.one_pair import OnePair
from escrowmq.replication.model import TransactionState

#: Checks remembered at a time: several times what producers hold.
HANDED_MAX = 20_000


class EarlierProducers:
    """One pair's feedback with their version's interface. One event loop."""

    def __init__(self, pair: OnePair) -> None:
        self._pair = pair
        self._index: OrderedDict[tuple[int, str], int] = OrderedDict()

    async def poll(
        self, instance: str, room: int, working: Sequence[tuple[int, str]], wait_s: float
    ) -> tuple[str, Any]:
        """Hands out (group, transaction id, query id, checks so far, seconds to answer)."""
        known = [
            (gid, tx_id, self._index[gid, tx_id]) for gid, tx_id in working if (gid, tx_id) in self._index
        ]
        status, value = await self._pair.poll(instance, room, known, wait_s)
        if status != "ok":
            return status, value
        for gid, tx_id, *_, index in value:
            self._index[gid, tx_id] = index
            self._index.move_to_end((gid, tx_id))
        while len(self._index) > HANDED_MAX:
            self._index.popitem(last=False)
        return status, [row[:5] for row in value]

    def answer(self, instance: str, answers: Sequence[tuple[int, str, str, str]]) -> tuple[str, Any]:
        """Answers (group, transaction, state, trouble). A commit holds under any PREPARE; for any other
        answer to a check that was not handed out here, the check is repeated."""
        known = [
            (gid, tx_id, state, trouble, self._index.get((gid, tx_id), 0))
            for gid, tx_id, state, trouble in answers
            if (gid, tx_id) in self._index or state == TransactionState.COMMITTED.value
        ]
        return self._pair.answer(instance, known)
