"""Lets what needs a later format level pass once the cluster takes it: delayed messages, for example.

A broker group below format level 8 refuses a whole request that holds a delayed message, with everything
else in it. So a producer asks before it sends its first one. It asks the leader of group 0, which reaches a
level last, as for compression (value_packer.py); a level never falls, so nobody asks again once it is
reached.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from escrowmq.actors.client.client_loop import ClientLoop
from escrowmq.actors.client.router import result_of
from escrowmq.replication.calling.answers import LevelReport
from escrowmq.replication.delivery_times import check_not_too_far, delivery_time
from escrowmq.replication.errors import NotSupported
from escrowmq.replication.format.offset_ops import LEVEL_OF_OFFSETS
from escrowmq.replication.format.timer_ops import LEVEL_OF_TIMERS
from escrowmq.replication.model import Message

#: How long the first delayed message waits for the level in a cluster whose software knows it: a new cluster
#: reaches it after a second or two.
LEVEL_WAIT_S, LEVEL_PAUSE_S = 10.0, 0.1


class DelayGate:
    """See the module's text. Thread-safe."""

    def __init__(
        self,
        router: ClientLoop,
        timeout_s: float,
        wall_clock: Callable[[], float] = time.time,
        pause: Callable[[float], None] = time.sleep,
        *,
        level: int = LEVEL_OF_TIMERS,
        what: str = "delayed messages need",
    ) -> None:
        self._router, self._timeout_s, self._wall_clock, self._pause = router, timeout_s, wall_clock, pause
        self._waited, self._level, self._what = False, level, what
        #: Whether the cluster is known to have the level.
        self.ready = False

    def check(self) -> None:
        """Returns if the cluster takes delayed messages; asks and waits if that is not known yet.

        Raises NotSupported, Unavailable or Closed; nothing was sent then.
        """
        if self.ready:
            return
        until = time.monotonic() + (0.0 if self._waited else LEVEL_WAIT_S)
        while True:
            asked = self._router.leader_call(0, "levels", timeout_s=self._timeout_s)
            report = result_of(asked, self._timeout_s)
            known, applied = report if isinstance(report, LevelReport) else (0, 0)
            if applied >= self._level:
                self.ready = True
                return
            if known < self._level or time.monotonic() >= until:
                break
            self._pause(LEVEL_PAUSE_S)
        self._waited = True  # an upgrade is under way: those who come now are told at once
        raise NotSupported(
            f"{self._what} format level {self._level}, and the cluster is at {applied}; upgrade every "
            "replica first"
        )

    def time_of(self, message: Message) -> int:
        """The time of a delayed message as requests carry it; see :meth:`check`. Raises InvalidMessage."""
        return self.time(message.delay_s, message.deliver_at)

    def time(self, delay_s: object, deliver_at: object) -> int:
        """The same for what a caller gives; one of the two is not None."""
        if not self.ready:
            self.check()
        time_ms = delivery_time(delay_s, deliver_at)
        return time_ms if time_ms <= 0 else check_not_too_far(time_ms, self._wall_clock() * 1000)


def level_9(router: ClientLoop, timeout_s: float) -> DelayGate:
    """For transactions that move offsets, or that have no local transaction."""
    return DelayGate(
        router, timeout_s, level=LEVEL_OF_OFFSETS, what="offsets in transactions, and local=False, need"
    )
