"""The thread that scrubs and repairs waits where it must, and never loops without a pause."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from escrowmq.replication.errors import Overloaded
from escrowmq.replication.host import maintenance
from escrowmq.replication.host.maintenance import Maintenance


class Busy:
    """A mender and a scrubber whose replica's loop has too many calls waiting."""

    period_s = 0.0

    def __init__(self) -> None:
        self.tried = 0

    def round(self) -> float | None:
        self.tried += 1
        raise Overloaded("calls wait", 0.1)

    def step(self) -> float:
        return self.round() or 0.0


@pytest.mark.parametrize("damaged", [False, True])
def test_a_busy_loop_is_tried_again_after_a_pause(damaged: bool) -> None:
    ended: list[BaseException] = []
    busy: Any = Busy()
    before = set(threading.enumerate())
    running = Maintenance("upkeep", ended.append)
    running.start(busy, busy)
    if damaged:
        running.wake()
    began = time.monotonic()
    time.sleep(0.3)
    assert running.stop(5.0) and not ended
    most = 2 + (time.monotonic() - began) / maintenance.AGAIN_S  # a busy machine sleeps longer
    assert 1 <= busy.tried <= most, "the thread turned without a pause, just when the replica had most to do"
    assert not any(thread.name == "upkeep" for thread in set(threading.enumerate()) - before)
