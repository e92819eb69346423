"""Removes old rows of a fence while everything else runs: the product's own purge, by any live instance.

The wall clocks of the app's machines run ``SCALE`` times as fast as virtual time here, so that an hour, the
shortest time for which a row can be kept, is one second. In some of these worlds checks come late: then
open transactions are older than that, and their rows must still stay. A purge asks a leader for the open
transactions and gets times of the same clocks.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence

from escrowmq.feedback.database.fence import Fence
from escrowmq.replication.errors import Unavailable
from escrowmq.replication.format.codec import Op
from escrowmq.replication.model import OpenTransaction
from tests.sim.clients.desk import Desk
from tests.sim.clients.producers import Producer
from tests.sim.environment.database import ServerError, SimDatabase
from tests.sim.environment.fibres import Fibres

SHARE = 0.4  # share of schedules in which rows are removed
SCALE = 3600.0
#: Virtual seconds for which a row is kept: longer than the delay before a local transaction begins, and than
#: the difference between clocks. In SQLite a local transaction may also wait until others have written.
KEEP_S, KEEP_WHERE_ONE_WRITES_S = 6.0, 12.0
EVERY_S = 0.3
SLICES = (1, 3, 1000)
ASKING_S = 0.05
CHECK_AFTER_MS = (500, 10_000)


class Purging:
    """The purging of one world."""

    def __init__(self, desk: Desk, database: SimDatabase, fibres: Fibres) -> None:
        self._desk, self._fibres = desk, fibres
        self._rng = desk.world.stream("purging")
        self.works = self._rng.random() < SHARE
        self.check_after_ms = self._rng.choice(CHECK_AFTER_MS) if self.works else CHECK_AFTER_MS[0]
        self._keep_s = SCALE * (KEEP_S if database.locks_rows else KEEP_WHERE_ONE_WRITES_S)
        self._applied_s: dict[int, float] = {}  # the group's time of an entry -> when it was first applied
        self.over = False
        self.removed = 0

    def heard(self, now_ms: int) -> None:
        """An entry is applied for the first time."""
        if self.works:
            self._applied_s.setdefault(now_ms, self._desk.world.now)

    def begin(self, instances: Sequence[Producer]) -> None:
        """From now on, let a random instance purge from time to time, until ``over`` is set."""
        if self.works and not self.over:
            producer = self._rng.choice(instances)
            if producer.alive:
                self._fibres.start(producer.name, self._purge, producer)
            self._desk.later(self._rng.expovariate(1 / EVERY_S), self.begin, instances)

    def _purge(self, producer: Producer) -> None:
        """Purge as a periodic job does: if it fails, a later run tries again."""
        fence: Fence = producer.fence  # type: ignore[attr-defined]
        try:
            purged = fence.purge(self, keep_s=self._keep_s, slice_rows=self._rng.choice(SLICES), pause_s=0.0)
        except (Unavailable, ServerError, sqlite3.Error):
            return
        self.removed += purged.removed

    def list_transactions(self, *, app: str | None = None, limit: int = 1000) -> Iterable[OpenTransaction]:
        """See ``OpenTransactions``: the list of a replica that believes it leads."""
        self._fibres.wait(ASKING_S * self._rng.random())
        found = self._desk.any_leader()
        if found is None:
            raise Unavailable("nobody leads", 0.1)
        replica, broker = found
        if not replica.node.ready:
            raise Unavailable("nobody leads", 0.1)
        opened = [
            self._opened(name, tx_id, record.topic, record.prepared_ms)
            for name, tx_id, record in broker.replica.state.transactions.iterate_open()
            if name == app
        ]
        self._fibres.wait(ASKING_S * self._rng.random())
        return opened[:limit]

    def _opened(self, app: str, tx_id: str, topic: str, prepared_ms: int) -> OpenTransaction:
        their_ms = int(self._applied_s[prepared_ms] * SCALE * 1000)
        return OpenTransaction(app, tx_id, tx_id, topic, their_ms, 0, 0, False, 0, -1)


def listening(purging: Purging, heard: Callable[[int, int, int, Sequence[Op]], None]) -> Callable[..., None]:
    """A listener that passes each entry to the purge and then to ``heard``."""

    def both(gid: int, index: int, now_ms: int, entry: Sequence[Op]) -> None:
        purging.heard(now_ms)
        heard(gid, index, now_ms, entry)

    return both
