"""PostgreSQL's notifications for a relay: a connection that listens, through psycopg or psycopg2.

Only a hint: who is not told looks all the same, after a longer pause. A connection may listen in vain, as
through a pooler that gives each transaction another server connection. So it is tried first, with a
notification that another connection sends.
"""

from __future__ import annotations

import logging
import os
import select
from collections.abc import Callable
from typing import Any

from escrowmq.feedback.database.links import Database, Link
from escrowmq.feedback.database.outbox_statements import OutboxStatements

log = logging.getLogger(__name__)

#: How long the notification of the trial may take, and how long until the next trial after a failed one.
TRIAL_S, AGAIN_S = 3.0, 60.0
#: A wait on the connection is not longer, so that a connection that is cut is noticed.
WAIT_S = 30.0


class Notices:
    """Runs in a thread of its own. ``told``: called at each notification, and when listening begins;
    ``clock``: seconds."""

    def __init__(
        self,
        database: Database,
        statements: OutboxStatements,
        told: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self._database, self._statements, self._told, self._clock = database, statements, told, clock
        self._ended = False
        self._read, self._write = os.pipe()
        #: Whether notifications arrive.
        self.works = False

    def run(self) -> None:
        """Until ``end``."""
        try:
            while not self._ended:
                try:
                    self._listen()
                except Exception as error:  # whatever the database raises: it is tried again
                    log.info("outbox: no notifications of PostgreSQL: %s", error)
                self.works = False
                self._told()
                self._wait(self._read, AGAIN_S)
        finally:
            os.close(self._read)

    def end(self) -> None:
        """Stop listening; ``run`` returns soon."""
        if not self._ended:
            self._ended = True
            os.close(self._write)  # the other end can be read now, for ever

    def _listen(self) -> None:
        """Returns if it cannot, or is to end."""
        with self._database.checking() as link:
            connection = driver_connection(link)
            if connection is None:
                log.info("outbox: this driver has no notifications; the relay looks for rows by itself")
                return
            link.run(f"LISTEN {self._statements.channel}")
            link.commit()
            with self._database.checking() as other:
                other.rows(self._statements.notify)
                other.commit()
            until = self._clock() + TRIAL_S
            while not self._ended:
                self._wait(connection.fileno(), WAIT_S if self.works else TRIAL_S)
                if drained(connection):
                    self.works = True
                    self._told()
                elif self.works:  # in silence: is it cut?
                    link.rows("SELECT 1")
                    link.commit()
                    self._told()  # what came with the answer is not told again
                elif self._clock() > until:
                    log.info("outbox: notifications of PostgreSQL do not arrive, perhaps because of a pooler")
                    return

    def _wait(self, descriptor: int, timeout_s: float) -> None:
        select.select([descriptor, self._read], [], [], min(timeout_s, AGAIN_S))


def driver_connection(link: Link) -> Any:
    """The driver's own connection, if it is one that can listen. It no longer counts for a pool."""
    connection: Any = getattr(link, "connection", None)
    if hasattr(connection, "detach"):  # SQLAlchemy's
        pooled, connection = connection, connection.connection.driver_connection
        pooled.detach()
    elif hasattr(connection, "settings_dict"):  # Django's
        connection = connection.connection
    can = hasattr(connection, "fileno") and (hasattr(connection, "pgconn") or hasattr(connection, "poll"))
    return connection if can else None


def drained(connection: Any) -> int:
    """How many notifications have arrived. Raises if the connection is cut."""
    if hasattr(connection, "pgconn"):  # psycopg 3; its own generator would hold the connection's lock
        connection.pgconn.consume_input()
        count = 0
        while connection.pgconn.notifies() is not None:
            count += 1
        return count
    connection.poll()  # psycopg2
    count = len(connection.notifies)
    connection.notifies.clear()
    return count
