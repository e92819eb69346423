"""Whether a cluster has something yet, such as share groups and retries: a new one has it after some seconds.

A broker group below the format level refuses what it does not know, and the error of that tells the user to
upgrade. A cluster that was started a moment ago needs only patience. Group 0 is asked, which reaches a level
last; a level never falls.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from escrowmq.actors.client.client_loop import ClientLoop
from escrowmq.actors.client.router import result_of
from escrowmq.replication.calling.answers import LevelReport
from escrowmq.replication.errors import NotSupported
from escrowmq.replication.format.share_ops import LEVEL_OF_SHARES

#: How long to wait in a cluster whose software knows the level.
LEVEL_WAIT_S, LEVEL_PAUSE_S = 15.0, 0.1


def await_level(
    router: ClientLoop,
    timeout_s: float,
    pause: Callable[[float], None] = time.sleep,
    *,
    level: int = LEVEL_OF_SHARES,
    what: str = "share groups and retries",
) -> None:
    """Returns when the cluster has ``what``, which needs ``level``. Raises NotSupported if a replica runs
    older software, or if an upgrade takes longer; Unavailable, Closed."""
    until = time.monotonic() + LEVEL_WAIT_S
    while True:
        report = result_of(router.leader_call(0, "levels", timeout_s=timeout_s), timeout_s)
        known, applied = report if isinstance(report, LevelReport) else (0, 0)
        if applied >= level:
            return
        if known < level or time.monotonic() >= until:
            raise NotSupported(
                f"{what} need format level {level}, and the cluster is at {applied}; upgrade every replica "
                "first"
            )
        pause(LEVEL_PAUSE_S)
