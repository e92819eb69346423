"""Handing over leadership: before a planned stop, and when the leader's own disk does not recover or has no
room.

It takes milliseconds instead of an election time-out. Meanwhile the leader takes no proposals, so
that the chosen follower can catch up; once that follower holds the whole log it is told to campaign
immediately (Raft thesis, section 3.10). If the handover does not succeed in time, proposals flow again.

A leader whose disk hangs still sends heartbeats, so no follower would replace it, while nothing it accepts
can be applied. It hands over to a follower that holds its log. So does a leader that needs an entry which is
damaged in its log and could not be mended: it tries each follower in turn, with growing pauses, and continues
to lead until one of them has taken over. Stepping down could cost the group its only leader.

The same holds for a leader whose disk lacks room. It refuses new work, so nothing waits for its disk, and
only the lack itself shows. It asks each peer for a moment; one that lacks room declines for longer than that,
so the lead does not wander among full disks, and any other handover still succeeds.
"""

from __future__ import annotations

from collections.abc import Callable

from escrowmq.replication.format.wire import RaftMessage
from escrowmq.replication.raft.members import Circle
from escrowmq.replication.raft.pysync import Core
from escrowmq.replication.raft.replicator import Replicator
from escrowmq.replication.raft.types import Log, RaftConfig


class Handover:
    """At most one handover at a time."""

    def __init__(
        self,
        core: Core,
        journal: Log,
        replicator: Replicator,
        connected: set[str],
        circle: Circle,
        config: RaftConfig,
        send: Callable[[str, RaftMessage], bool],
    ) -> None:
        self._core, self._journal, self._replicator = core, journal, replicator
        self._connected, self._circle, self._config, self._send = connected, circle, config, send
        self._durable, self._durable_since = 0, 0.0
        self._damaged_since: float | None = None
        self._damage_pause_s = config.damage_stall_s
        self._asked: list[str] = []  # followers asked to take over since the damage was met
        self._lacking_since: float | None = None
        self._room_pause_s = config.disk_stall_s
        self._to: str | None = None
        self._deadline: float | None = None
        self._began = 0.0

    @property
    def under_way(self) -> bool:
        return self._deadline is not None

    def begin(self, to: str | None, now: float) -> None:
        """Hand over to ``to``, or to the most advanced follower; does nothing if a handover is under way."""
        if self._deadline is None:
            self._to, self._began, self._deadline = to, now, now + self._config.transfer_timeout_s

    def end(self) -> None:
        self._deadline = None

    def tick(self, now: float, *, lacks_room: bool) -> None:
        """Give up when time is up, or when nobody who could take over is connected; otherwise tell a peer
        that holds our whole log to campaign immediately. While this replica leads. ``lacks_room``: its disk
        does."""
        journal = self._journal
        if journal.durable_index == journal.last_index:
            self._durable, self._durable_since = journal.last_index, now
        else:
            self._watch_disk(now)
        if journal.damaged or self._damaged_since is not None:
            self._watch_damage(now)
        if lacks_room or self._lacking_since is not None:
            self._watch_room(now, lacks_room)
        if self._deadline is None:
            return
        able = self._able() if self._to is None else self._able() & {self._to}
        if now >= self._deadline or not able:
            self.end()
            return
        ready = self._replicator.holding(self._journal.last_index, able)
        if ready:  # one that has much to apply declines: then it is the next one's turn
            turn = int((now - self._began) / self._config.election_min_s)
            self._send(ready[turn % len(ready)], {"type": "timeout_now", "term": self._core.term})

    def _able(self) -> set[str]:
        """Peers that could lead: connected voters."""
        return self._connected.intersection(self._circle.voters)

    def begin_watching(self, now: float) -> None:
        """This replica leads from now on; nothing was watched before."""
        self._durable, self._durable_since = self._journal.durable_index, now
        self._damaged_since, self._damage_pause_s, self._asked = None, self._config.damage_stall_s, []
        self._lacking_since, self._room_pause_s = None, self._config.disk_stall_s

    def _watch_disk(self, now: float) -> None:
        durable = self._journal.durable_index
        if durable != self._durable:
            self._durable, self._durable_since = durable, now
        elif now - self._durable_since >= self._config.disk_stall_s:
            self._durable_since = now
            self.begin(None, now)

    def _watch_room(self, now: float, lacks_room: bool) -> None:
        if not lacks_room:
            self._lacking_since, self._room_pause_s = None, self._config.disk_stall_s
        elif self._lacking_since is None:
            self._lacking_since = now
        elif now - self._lacking_since >= self._room_pause_s and self._deadline is None:
            self._lacking_since = now
            self._room_pause_s = min(2 * self._room_pause_s, self._config.damage_again_s)
            self.begin(None, now)
            # Each peer's turn once: one that lacks room declines for that long (readiness.py).
            once_s = self._config.election_min_s * len(self._able())
            self._deadline = now + min(once_s, self._config.transfer_timeout_s)

    def _watch_damage(self, now: float) -> None:
        """Watch for damage in an entry that this leader must apply next, or send next."""
        if not self._needs_damaged():
            self._damaged_since, self._damage_pause_s, self._asked = None, self._config.damage_stall_s, []
        elif self._damaged_since is None:
            self._damaged_since = now
        elif now - self._damaged_since >= self._damage_pause_s and self._deadline is None:
            left = self._able().difference(self._asked)
            if not left:
                self._asked, left = [], self._able()
            best = self._replicator.most_advanced(left)
            if best is not None:
                self._asked.append(best[0])
                self.begin(best[0], now)
            self._damaged_since = now
            self._damage_pause_s = min(2 * self._damage_pause_s, self._config.damage_again_s)

    def _needs_damaged(self) -> bool:
        index, most = self._journal.damaged_after(0), 20
        while index is not None and most:
            if index == self._core.applied_index + 1 or self._replicator.waits_for(index):
                return True
            index, most = self._journal.damaged_after(index), most - 1
        return False
