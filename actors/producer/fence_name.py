"""Under which table's name a producer prepares: that of the fence that answers its checks.

A transaction without a name is one that any producer of the app may be asked about, also one of another
database, whose fence finds no row there and says ROLLBACK. So the name is known before the first PREPARE, and
while it cannot be read nothing is prepared; its local transaction could not enter the fence either. Only
groups below the level of names get none, during an upgrade.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from escrowmq.actors.client.client_loop import ClientLoop
from escrowmq.actors.client.router import result_of
from escrowmq.replication.calling.answers import LevelReport
from escrowmq.replication.errors import Unavailable
from escrowmq.replication.format.codec import LEVEL_OF_FENCES

#: How long a transaction waits for the name: a pool of connections waits up to 30 s for a free one, and more
#: than this means that the database does not answer.
NAME_WAIT_S = 30.0
#: How long the first one waits for the level in a cluster whose software knows it, and when it is asked for
#: again while an upgrade is under way. See ``delay_gate``.
LEVEL_WAIT_S, LEVEL_PAUSE_S, LEVEL_AGAIN_S = 10.0, 0.1, 5.0


class FenceName:
    """See the module's text. Thread-safe."""

    def __init__(
        self,
        router: ClientLoop,
        timeout_s: float,
        clock: Callable[[], float],
        learn: Callable[[], bytes],
        use: Callable[[bytes], None],
    ) -> None:
        """``learn``: see ``TxStatusQuerier.learn_fence``. ``use`` is called once, with the name, when all
        groups take it."""
        self._router, self._timeout_s, self._clock = router, timeout_s, clock
        self._learn, self._use = learn, use
        self._lock = threading.Lock()
        self._attempt: Future[None] | None = None
        self._asked_at: float | None = None
        self._ready = False

    @property
    def ready(self) -> bool:
        """Whether a transaction may be prepared now, without waiting."""
        asked_at = self._asked_at
        return self._ready or (asked_at is not None and self._clock() - asked_at < LEVEL_AGAIN_S)

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
            attempt.result(NAME_WAIT_S)
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
        name = self._learn()
        if not name:  # it answers from no table that has a name
            self._ready = True
        elif self._have_level():
            self._use(name)
            self._ready = True
        else:
            self._asked_at = self._clock()

    def _have_level(self) -> bool:
        """Whether all groups take names: group 0 reaches a level last, and it never falls."""
        until = time.monotonic() + (LEVEL_WAIT_S if self._asked_at is None else 0.0)
        while True:
            asked = self._router.leader_call(0, "levels", timeout_s=self._timeout_s)
            report = result_of(asked, self._timeout_s)
            known, applied = report if isinstance(report, LevelReport) else (0, 0)
            if applied >= LEVEL_OF_FENCES:
                return True
            if known < LEVEL_OF_FENCES or time.monotonic() >= until:
                return False
            time.sleep(LEVEL_PAUSE_S)


def too_late() -> Unavailable:
    """The database does not tell the name."""
    return Unavailable(
        "the fence's table has not told its name in time: its database does not answer, or its pool has no "
        "free connection. Nothing was prepared",
        1.0,
    )
