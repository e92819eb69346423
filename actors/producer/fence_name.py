"""Under which table's name a producer prepares: that of the fence that answers its checks.

A transaction without a name is one that any producer of the app may be asked about, also one of another
database, whose fence finds no row there and says ROLLBACK. So the name is known before the first PREPARE, and
while it cannot be read nothing is prepared; its local transaction could not enter the fence either.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

from escrowmq.replication.errors import Unavailable

#: How long a transaction waits for the name: a pool of connections waits up to 30 s for a free one, and more
#: than this means that the database does not answer.
NAME_WAIT_S = 30.0


class FenceName:
    """See the module's text. Thread-safe."""

    def __init__(
        self, learn: Callable[[], bytes], use: Callable[[bytes], None], wait_s: float = NAME_WAIT_S
    ) -> None:
        """``learn``: see ``TxStatusQuerier.learn_fence``. ``use`` is called once, with the name."""
        self._learn, self._use, self.wait_s = learn, use, wait_s
        self._lock = threading.Lock()
        self._attempt: Future[None] | None = None
        #: Whether a transaction may be prepared now, without waiting.
        self.ready = False

    def attempt(self) -> Future[None]:
        """Find it out, in a thread of its own: in the caller's there may be a running event loop, or the one
        connection of the pool. All who come meanwhile share the attempt. The future raises what the database
        raises, Unavailable or Closed; nothing was prepared then."""
        with self._lock:
            if self._attempt is None:
                self._attempt = Future()
                threading.Thread(
                    target=self._run, args=(self._attempt,), name="escrowmq-fence", daemon=True
                ).start()
            return self._attempt

    def check(self) -> None:
        """Wait for it."""
        if self.ready:
            return
        attempt = self.attempt()
        try:
            attempt.result(self.wait_s)
        except TimeoutError as error:
            if attempt.done():  # the database's own
                raise
            raise too_late() from error

    def _run(self, attempt: Future[None]) -> None:
        error: BaseException | None = None
        try:
            self._find_out()
        except BaseException as found:
            error = found
        with self._lock:
            self._attempt = None
        if error is None:
            attempt.set_result(None)
        else:
            attempt.set_exception(error)

    def _find_out(self) -> None:
        if name := self._learn():  # otherwise it answers from no table that has a name
            self._use(name)
        self.ready = True


def too_late() -> Unavailable:
    """The database does not tell the name."""
    return Unavailable(
        "the fence's table has not told its name in time: its database does not answer, or its pool has no "
        "free connection. Nothing was prepared",
        1.0,
    )
