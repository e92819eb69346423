"""A purge that never rests, in a world of seconds: what the product keeps for an hour is kept for ``KEPT_S``.

The product refuses to keep rows for less than an hour, and takes clocks that differ by up to an hour. Here
the purge's own clock is ahead by what is missing, and clocks differ by up to ``CLOCKS_DIFFER_S``. The
proportions are the product's: no service stands still for as long as a row is kept, and no clock is further
behind than clocks may differ.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from escrowmq import Cluster, EscrowMQError
from escrowmq.feedback.database import statements
from escrowmq.integrations import Fence, Inbox

KEPT_S, CLOCKS_DIFFER_S = 30.0, 15.0
HOUR_S = 3600.0
PAUSE_S = 0.5
END_S = 60.0


class Purging:
    """Purges one app's rows of the fence, and one group's of the inbox. ``removed``: their number
    so far; ``failed``: passes that a kill cut short."""

    def __init__(self, cluster: Cluster, engine: sa.Engine, app: str, group: str) -> None:
        self._admin = cluster.admin
        self._tables = Fence(engine, app=app, clock=_ahead), Inbox(engine, group=group, clock=_ahead)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="purging", daemon=True)
        self.removed = self.failed = 0

    def _run(self) -> None:
        while not self._stop.wait(PAUSE_S):
            for table in self._tables:
                try:
                    purged = table.purge(self._admin, keep_s=HOUR_S, slice_rows=50, pause_s=0.01)
                    self.removed += purged.removed
                except (EscrowMQError, sa.exc.SQLAlchemyError):  # no leader, or no database, just now
                    self.failed += 1

    @contextmanager
    def running(self) -> Iterator[None]:
        """For as long as the block lasts."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(statements, "CLOCKS_DIFFER_MS", int(CLOCKS_DIFFER_S * 1000))
            self._thread.start()
            try:
                yield
            finally:
                self._stop.set()
                self._thread.join(END_S)


def _ahead() -> float:
    """The purge's own clock."""
    return time.time() + HOUR_S - KEPT_S
