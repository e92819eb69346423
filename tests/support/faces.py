"""Time in tests of the public face, which run against a real cluster and against one in memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from escrowmq import Cluster
from escrowmq.testing import InMemoryCluster


def let_pass(face: Cluster, seconds: float) -> None:
    """So much time passes: by the clock on the wall, or by that of the cluster in memory."""
    if isinstance(face, InMemoryCluster):
        face.clock.advance(seconds)
    else:
        time.sleep(seconds)


def until(face: Cluster, condition: Callable[[], Any], within_s: float = 20.0) -> None:
    """Let time pass until the condition holds."""
    deadline, passed = time.monotonic() + within_s, 0.0
    while not condition():
        assert passed < within_s and time.monotonic() < deadline, f"not within {within_s} s"
        let_pass(face, 0.05)
        passed += 0.05
