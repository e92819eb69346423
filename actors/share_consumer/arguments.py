"""Checks of what callers pass to a share consumer, made at the call, with the argument's name in the text."""

from __future__ import annotations

from escrowmq.actors.share_consumer.config import LEASE_S_MAX, LEASE_S_MIN
from escrowmq.replication.errors import ConfigError, InvalidMessage
from escrowmq.replication.format.internal_topics import is_reserved, owner_problem
from escrowmq.replication.format.share_ops import BY_TABLE, REASON_BYTES_MAX
from escrowmq.replication.format.share_settings import DELAY_MS_MAX

#: Threads of one ``run``: as many as a process can have at all.
THREADS_MAX = 10_000
#: A reason that nobody gave.
NO_REASON = "no reason given"


def check_group(group: object) -> str:
    """The name of a group that can have retries and dead letters. Raises ConfigError."""
    if type(group) is not str:
        raise ConfigError(f"group must be a str, not {group!r}")
    if (problem := owner_problem("group", group)) is not None:
        raise ConfigError(problem)
    return group


def check_not_internal(topics: object) -> None:
    """A share group reads its own retries by itself, and nobody else's. Raises ConfigError."""
    for topic in topics if isinstance(topics, list | tuple) else ():
        if is_reserved(topic):
            raise ConfigError(
                f"topic {topic!r} is the broker's own; name the topics that messages are sent to"
            )


def delay_ms(delay_s: object) -> int:
    """The delay of a nack as requests have it; None: by the group's table. Raises InvalidMessage."""
    if delay_s is None:
        return BY_TABLE
    if (
        isinstance(delay_s, bool)
        or not isinstance(delay_s, int | float)
        or not 0 <= delay_s <= DELAY_MS_MAX / 1000
    ):
        raise InvalidMessage(f"delay_s must be seconds from 0 to ten years, or None, not {delay_s!r}")
    return round(delay_s * 1000)


def reason_text(reason: object) -> str:
    """A reason as it is stored: cut to 1 KiB of UTF-8, and never empty. Raises InvalidMessage."""
    if not isinstance(reason, str):
        raise InvalidMessage(f"reason must be a str, not {type(reason).__name__}")
    cut = reason.encode(errors="replace")[:REASON_BYTES_MAX]
    return cut.decode(errors="ignore").strip() or NO_REASON


def check_lease(lease_s: object) -> float:
    """The length of a lease. Raises InvalidMessage."""
    if (
        isinstance(lease_s, bool)
        or not isinstance(lease_s, int | float)
        or not LEASE_S_MIN <= lease_s <= LEASE_S_MAX
    ):
        raise InvalidMessage(f"lease_s must be {LEASE_S_MIN:g} to {LEASE_S_MAX:g} seconds, not {lease_s!r}")
    return float(lease_s)


def check_threads(threads: object, name: str = "threads") -> int:
    """How many messages are handled at a time. Raises ConfigError."""
    if type(threads) is not int or not 1 <= threads <= THREADS_MAX:
        raise ConfigError(f"{name} must be 1 to {THREADS_MAX}, not {threads!r}")
    return threads
