"""Checks of what callers pass for a consumer group, for themselves, for a wait and for settings, at the call.

Whatever cannot be sent, such as text that is no UTF-8 and numbers beyond 64 bits, would otherwise fail far
inside, with an error that names no argument.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Final

from escrowmq.actors.client.consumer_groups import GROUP_NAME_BYTES_MAX
from escrowmq.replication.errors import ConfigError, InvalidMessage

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
