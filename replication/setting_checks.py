"""Checks of settings, shared by all configuration: a nonsensical number is refused where it is set."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from escrowmq.replication.errors import ConfigError


def check_positive(owner: object, *names: str) -> None:
    """Raises ConfigError unless each of these attributes is a number above 0."""
    for name in names:
        value = getattr(owner, name)
        if not _is_number(value) or value <= 0:
            raise ConfigError(f"{name} must be a number above 0, not {value!r}")


def check_not_negative(owner: object, *names: str) -> None:
    """Raises ConfigError unless each of these attributes is a number of 0 or more."""
    for name in names:
        value = getattr(owner, name)
        if not _is_number(value) or value < 0:
            raise ConfigError(f"{name} must be a number of 0 or more, not {value!r}")


def check_all_positive(settings: Any) -> None:
    """``check_positive`` for every field of a dataclass, except nested dataclasses, which check their own."""
    names = [item.name for item in fields(settings)]
    check_positive(settings, *(name for name in names if not is_dataclass(getattr(settings, name))))


def _is_number(value: object) -> bool:
    """NaN is none: it is neither above a bound nor below it, and no time-out of it ever ends."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value
