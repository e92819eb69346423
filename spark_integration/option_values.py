"""Parses the texts of options: numbers, sizes, durations, JSON. Each ConfigError names the option."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from escrowmq.cluster.address import AUTO, parse_address
from escrowmq.replication.errors import ConfigError

_SIZE_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
#: Spark's own units of time (JavaUtils.timeStringAs). A bare number is milliseconds, as in the Kafka source.
_TIME_UNITS_S = {
    "": 1e-3,
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}


def ray_address(address: str) -> str:
    """The checked address of a Ray cluster. It must be explicit: Spark's processes cannot search for one."""
    if not address:
        raise ConfigError(
            "option 'escrowmq.address' is missing: give the address of the Ray cluster (host:port), or "
            "register the source with escrowmq.spark.register(spark, address=...)"
        )
    if address == AUTO:
        raise ConfigError("option 'escrowmq.address' must be host:port: Spark's processes cannot find it")
    try:
        parse_address(address)
    except ConfigError as error:
        raise ConfigError(f"option 'escrowmq.address': {error}") from error
    return address


def json_object(option: str, text: str, also: str = "") -> dict[str, Any]:
    """A JSON object. ``also``: for the error, what would be allowed besides."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"option {option!r} must be {also}a JSON object, not {text!r}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"option {option!r} must be {also}a JSON object, not {text!r}")
    return value


def integer(option: str, text: str, minimum: int) -> int:
    """A whole number of at least ``minimum``."""
    try:
        number = int(text)
    except ValueError:
        raise ConfigError(f"option {option!r} must be a whole number, not {text!r}") from None
    if number < minimum:
        raise ConfigError(f"option {option!r} must be at least {minimum}, not {number}")
    return number


def positive(options: Mapping[str, str], name: str) -> int | None:
    """A whole number of at least 1, or None if the option is not given."""
    return integer(name, options[name], minimum=1) if name in options else None


def boolean(options: Mapping[str, str], name: str, default: bool) -> bool:
    """``true`` or ``false`` in any case."""
    text = options.get(name)
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise ConfigError(f"option {name!r} must be 'true' or 'false', not {text!r}")
    return text.lower() == "true"


def size_bytes(options: Mapping[str, str], name: str) -> int | None:
    """``67108864``, ``64m``, ``1g``: bytes, at least 1; None if the option is not given."""
    if name not in options:
        return None
    found = re.fullmatch(r"([0-9]{1,18})\s*([kmgt]?)(?:i?b)?", options[name].lower())
    if found is None or int(found.group(1)) < 1:
        raise ConfigError(f"option {name!r} must be bytes as in 67108864 or 64m, not {options[name]!r}")
    return int(found.group(1)) << _SIZE_UNITS[found.group(2)]


def duration_s(options: Mapping[str, str], name: str, default_s: float) -> float:
    """``15m``, ``90s``, ``500ms``, or a number of milliseconds; in seconds."""
    if name not in options:
        return default_s
    found = re.fullmatch(r"([0-9]{1,15})\s*([a-z]*)", options[name].lower())
    if found is None or found.group(2) not in _TIME_UNITS_S:
        raise ConfigError(f"option {name!r} must be a time as in 15m, 90s or 500ms, not {options[name]!r}")
    return int(found.group(1)) * _TIME_UNITS_S[found.group(2)]


def one_of(options: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    """One of a few words, in any case; the first is the default. Returned as ``allowed`` spells it."""
    text = options.get(name, allowed[0])
    for word in allowed:
        if text.lower() == word.lower():
            return word
    raise ConfigError(f"option {name!r} must be one of {', '.join(allowed)}, not {text!r}")
