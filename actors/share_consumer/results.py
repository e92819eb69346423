"""Results of operations, as lists of one or two elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def outcome(result: Sequence[Any]) -> tuple[int, Any]:
    """The code, and the information that comes with it, if there is any."""
    return result[0], result[1] if len(result) > 1 else None
