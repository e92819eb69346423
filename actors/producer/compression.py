"""How values are compressed: common to a producer's settings, Spark's options and Ray Data's arguments."""

from __future__ import annotations

from dataclasses import dataclass

from escrowmq.replication.errors import ConfigError
from escrowmq.replication.format.packing import METHODS

#: Smaller values are not compressed by default: below a kilobyte too little is saved.
LEAST_BYTES = 1 << 10
#: Of zstd.
LEVEL_MAX = 22


@dataclass(frozen=True, slots=True)
class Compression:
    """``method``: a key of ``packing.METHODS``. ``level``: of zstd, 1 to 22; None: 1. ``least``: bytes of the
    smallest value that is compressed."""

    method: str
    level: int | None = None
    least: int = LEAST_BYTES


def compression_of(method: str | None, level: int | None, least: int = LEAST_BYTES) -> Compression | None:
    """The settings ``compression``, ``compression_level`` and ``compress_from``; None: nothing is compressed.

    Raises ConfigError, also for a level without a method that has levels.
    """
    if method not in (None, *METHODS):
        names = ", ".join(map(repr, METHODS))
        raise ConfigError(f"compression must be {names} or None, not {method!r}")
    if level is not None and method != "zstd":
        raise ConfigError("compression_level is for compression='zstd' only")
    if level is not None and (type(level) is not int or not 1 <= level <= LEVEL_MAX):
        raise ConfigError(f"compression_level must be 1 to {LEVEL_MAX}, not {level!r}")
    return None if method is None else Compression(method, level, least)
