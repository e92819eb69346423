"""Arguments of several calls of ``Admin``: what is wrong is said before anything is asked or done."""

from __future__ import annotations

from typing import Any

from escrowmq.replication.errors import ConfigError

#: Longest name of an operator in the audit trail.
OPERATOR_CHARS_MAX = 100


def check_group(group: Any) -> str:
    """A consumer group's name; there need be no such group."""
    try:
        if type(group) is str and group.encode():
            return group
    except UnicodeEncodeError:
        pass
    raise ConfigError(f"group must be the name of a consumer group, a str, not {group!r}")


def check_operator(by: Any) -> str:
    """Who does it, for the audit trail."""
    if type(by) is not str or not 0 < len(by) <= OPERATOR_CHARS_MAX:
        raise ConfigError(f"by must name who does it in 1 to {OPERATOR_CHARS_MAX} characters, not {by!r}")
    return by


def check_reason(reason: Any) -> str | None:
    """A part of a reason; None: any."""
    if reason is not None and type(reason) is not str:
        raise ConfigError(f"reason must be a str that the reasons contain, not {reason!r}")
    return reason
