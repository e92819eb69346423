"""The command that does a part of a run again: what a failure prints, to be pasted into a shell."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def command(module: str, **given: Any) -> str:
    """``python -m module --option value ...``."""
    return f"python -m {module}{options(**given)}"


def options(**given: Any) -> str:
    """`` --option value`` of each: None and False are left out, True is a flag, a list repeats its option."""
    parts = [""]
    for name, value in given.items():
        flag = f"--{name.replace('_', '-')}"
        values = value if isinstance(value, list) else [] if value is None or value is False else [value]
        parts += [flag if one is True else f"{flag} {one}" for one in values]
    return " ".join(parts)


def listed(values: Iterable[object]) -> str:
    """Values with commas, as one option takes them; "none" if there are none."""
    return ",".join(map(str, values)) or "none"
