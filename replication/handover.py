"""Handing leadership over before a planned stop: milliseconds instead of an election time-out.

While it lasts the leader takes no proposals, so that the chosen follower can catch up; once it holds
the whole log it is told to campaign at once (Raft thesis, section 3.10). If that does not come about
in time, proposals flow again.
"""

from __future__ import annotations

from collections.abc import Callable

from escrowmq.replication.journal import SegmentJournal
from escrowmq.replication.pysync import Core
from escrowmq.replication.replicator import Replicator


class Handover:
    """At most one at a time."""

    def __init__(
        self,
        core: Core,
        journal: SegmentJournal,
        replicator: Replicator,
        connected: set[str],
        timeout_s: float,
    ) -> None:
        self._core, self._journal, self._replicator = core, journal, replicator
        self._connected, self._timeout_s = connected, timeout_s
        self._to: str | None = None
        self._deadline: float | None = None

    @property
    def under_way(self) -> bool:
        return self._deadline is not None

    def begin(self, to: str | None, now: float) -> None:
        """Towards ``to``, or whoever is furthest; nothing happens if one is under way."""
        if self._deadline is None:
            self._to, self._deadline = to, now + self._timeout_s

    def end(self) -> None:
        self._deadline = None

    def tick(self, now: float, notify: Callable[[str], None]) -> None:
        """As leader: give up when the time is over; ``notify(peer)`` tells it to take over."""
        if self._deadline is None:
            return
        if now >= self._deadline or not self._connected:
            self.end()
            return
        best = self._replicator.most_advanced(self._connected if self._to is None else {self._to})
        if best is not None and best[1] == self._journal.last_index:
            notify(best[0])
