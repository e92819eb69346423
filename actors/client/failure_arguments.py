"""Checks of what callers say about messages that their group could not handle, made at the call."""

from __future__ import annotations

from collections.abc import Callable

from escrowmq.replication.errors import ConfigError, InvalidMessage
from escrowmq.replication.format.internal_topics import is_reserved, owner_problem
from escrowmq.replication.format.share_ops import BY_TABLE, REASON_BYTES_MAX
from escrowmq.replication.format.share_settings import DELAY_MS_MAX

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
    """A group with retries reads its own by itself, and nobody else's. Raises ConfigError."""
    for topic in topics if isinstance(topics, list | tuple) else ():
        if is_reserved(topic):
            raise ConfigError(
                f"topic {topic!r} is the broker's own; name the topics that messages are sent to"
            )


def delay_in_ms(delay_s: object) -> int:
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


def reason_of(failure: BaseException) -> str:
    """What a handler's exception is stored as."""
    return reason_text(_told(lambda: f"{type(failure).__name__}: {failure}", failure))


def shown(failure: Exception) -> str:
    """``repr`` of what the application's code has raised."""
    return _told(lambda: repr(failure), failure)


def _told(text: Callable[[], str], failure: BaseException) -> str:
    """The class alone if the exception's own code fails, too: its message must come again all the same."""
    try:
        return text()
    except Exception:
        return f"{type(failure).__name__} (it cannot be shown: its own code raises)"


def check_reason(reason: object) -> str | None:
    """A part of the reasons that are asked for; None: any. Raises ConfigError."""
    if reason is not None and type(reason) is not str:
        raise ConfigError(f"reason must be a str that the reasons contain, not {reason!r}")
    return reason
