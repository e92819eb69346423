"""The settings of a consumer group as operators give them: names, units, and what is wrong with a value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from escrowmq.replication.errors import ConfigError
from escrowmq.replication.format.share_settings import Value, group_settings_problem

#: What ``Admin.set_group`` takes. The kind is not among them: the group's first use decides it.
NAMES = ("max_attempts", "delays_s", "lease_s", "max_age_s", "dead_letters")
NO_LIMIT = -1


def values_of(settings: Mapping[str, Any]) -> dict[str, Value]:
    """The values for the log; all times in ms. Raises ConfigError."""
    unknown = sorted(settings.keys() - set(NAMES))
    if unknown:
        raise ConfigError(f"unknown group setting {unknown[0]!r}; known: {', '.join(NAMES)}")
    values: dict[str, Value] = {}
    for name, value in settings.items():
        if name == "delays_s":
            if isinstance(value, str | bytes) or not isinstance(value, Sequence):
                raise ConfigError(f"delays_s must be a list of seconds, not {value!r}")
            values["delays_ms"] = [_ms(name, delay) for delay in value]
        elif name == "max_age_s" and value is None:
            values["max_age_ms"] = NO_LIMIT
        elif name in ("lease_s", "max_age_s"):
            values[name[:-1] + "ms"] = _ms(name, value)
        else:
            if type(value) not in (int, str):
                raise ConfigError(f"{name} must be a number or a word, not {value!r}")
            values[name] = value
    if (problem := group_settings_problem(values)) is not None:
        raise ConfigError(_in_seconds(problem))
    return values


def _ms(name: str, seconds: Any) -> int:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < 1e12:
        raise ConfigError(f"{name} must be a number of seconds, from 0 to ten years, not {seconds!r}")
    return round(seconds * 1000)


def _in_seconds(problem: str) -> str:
    for name in ("delays", "lease", "max_age"):
        problem = problem.replace(f"{name}_ms", f"{name}_s (in ms)")
    return f"delays_s: {problem}" if problem.startswith("a delay") else problem
