"""Checks of what callers pass for a consumer group, for themselves, for a wait and for settings, at the call.

Whatever cannot be sent, such as text that is no UTF-8 and numbers beyond 64 bits, would otherwise fail far
inside, with an error that names no argument.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Final

from escrowmq.actors.client.consumer_groups import GROUP_NAME_BYTES_MAX
from escrowmq.replication.errors import ConfigError, InvalidMessage
from escrowmq.replication.format.internal_topics import is_reserved, owner_problem
from escrowmq.replication.format.settings import DELAY_MS_MAX
from escrowmq.replication.format.share_ops import BY_TABLE, REASON_BYTES_MAX

#: Who decides or changes something by hand, in the audit trail.
OPERATOR_CHARS_MAX: Final = 100
_NUMBER_MAX: Final = (1 << 63) - 1


def is_text(value: object) -> bool:
    """Whether it is a str that UTF-8 can encode: it has no surrogates."""
    try:
        return type(value) is str and value.encode() is not None
    except UnicodeEncodeError:
        return False


def group_problem(group: object) -> str | None:
    """Why no consumer group can have this name; None: one can."""
    if not is_text(group) or not 0 < len(str(group).encode()) <= GROUP_NAME_BYTES_MAX:
        return f"group must be a str of 1 to {GROUP_NAME_BYTES_MAX} bytes in UTF-8, not {group!r:.300}"
    return None


def check_group_name(group: object) -> str:
    """A consumer group's name. Raises ConfigError."""
    if (problem := group_problem(group)) is not None:
        raise ConfigError(problem)
    return str(group)


def check_by(by: object) -> str:
    """Who decides by hand. Raises ConfigError."""
    if not is_text(by) or not 0 < len(str(by)) <= OPERATOR_CHARS_MAX:
        raise ConfigError(
            f"by must name who does it, in 1 to {OPERATOR_CHARS_MAX} characters of UTF-8, not {by!r:.300}"
        )
    return str(by)


def check_wait(timeout_s: object) -> None:
    """For how long to wait; None: as configured. Raises InvalidMessage."""
    if timeout_s is None:
        return
    if not isinstance(timeout_s, int | float) or not 0 <= timeout_s <= threading.TIMEOUT_MAX:
        raise InvalidMessage(f"timeout_s must be seconds, such as 30.0, or None, not {timeout_s!r:.100}")


def unsendable(settings: Mapping[str, object]) -> str | None:
    """Why these settings cannot be sent; None: they can. What they mean is the broker's business."""
    for name, value in settings.items():
        if isinstance(value, int) and not -_NUMBER_MAX <= value <= _NUMBER_MAX:
            return f"{name} must be a whole number of at most {_NUMBER_MAX}; give a smaller one"
        if isinstance(value, str) and not is_text(value):
            return f"{name} must be text in UTF-8, not {value!r:.100}"
    return None


# ------------------------------------------------------------------------------------------------------------
# Checks of what callers say about messages that their group could not handle, made at the call.

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
