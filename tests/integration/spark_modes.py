"""The ways to a session, for fixtures: tests of source and sink are the same under each of them."""

from __future__ import annotations

from typing import Any

import pytest

#: Without executors to start, so it is the one of every run; the others have theirs in `make test-long`.
MODES = [
    "local",
    pytest.param("raydp", marks=pytest.mark.long),
    pytest.param("standalone", marks=pytest.mark.long),
]


def two_cores(mode: str) -> dict[str, Any]:
    """Settings of a session in which two tasks run at a time, in two executors where there are any."""
    if mode == "local":
        return {"mode": mode, "cores": 2, "quick_start": True}
    return {"mode": mode, "executors": 2, "cores": 1, "memory": "512m", "quick_start": True}
