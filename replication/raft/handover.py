"""Handing leadership over: before a planned stop, and when the leader's own disk does not come back.

It takes milliseconds instead of an election time-out. While it lasts the leader takes no proposals, so
that the chosen follower can catch up; once that one holds the whole log it is told to campaign at once
(Raft thesis, section 3.10). If it does not come about in time, proposals flow again.

A leader whose disk hangs or is full still sends heartbeats, so no follower would replace it, while
nothing it takes can be applied. It hands over to a follower that holds its log.
"""

from __future__ import annotations

from collections.abc import Callable

from escrowmq.replication.format.wire import RaftMessage
from escrowmq.replication.raft.pysync import LEADER, Core
from escrowmq.replication.raft.replicator import Replicator
from escrowmq.replication.raft.types import Log, RaftConfig


class Handover:
    """At most one at a time."""

    def __init__(
        self,
        core: Core,
        journal: Log,
        replicator: Replicator,
        connected: set[str],
        config: RaftConfig,
        send: Callable[[str, RaftMessage], bool],
    ) -> None:
        self._core, self._journal, self._replicator = core, journal, replicator
        self._connected, self._config, self._send = connected, config, send
        self._durable, self._durable_since = 0, 0.0
        self._to: str | None = None
        self._deadline: float | None = None

    @property
    def under_way(self) -> bool:
        return self._deadline is not None

    def begin(self, to: str | None, now: float) -> None:
        """Hand over to ``to``, or to the most advanced follower; does nothing if a handover is under way."""
        if self._deadline is None:
            self._to, self._deadline = to, now + self._config.transfer_timeout_s

    def end(self) -> None:
        self._deadline = None

    def tick(self, now: float) -> None:
        """Give up when the time is over; else tell a peer that holds our whole log to campaign at once."""
        self._watch_disk(now)
        if self._deadline is None:
            return
        if now >= self._deadline or not self._connected:
            self.end()
            return
        best = self._replicator.most_advanced(self._connected if self._to is None else {self._to})
        if best is not None and best[1] == self._journal.last_index:
            self._send(best[0], {"type": "timeout_now", "term": self._core.term()})

    def _watch_disk(self, now: float) -> None:
        durable = self._journal.durable_index
        if durable != self._durable or durable == self._journal.last_index or self._core.role() != LEADER:
            self._durable, self._durable_since = durable, now
        elif now - self._durable_since >= self._config.disk_stall_s:
            self._durable_since = now
            self.begin(None, now)
