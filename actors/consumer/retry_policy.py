"""What a consumer does with a message that could not be handled: the argument ``retry``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from escrowmq.replication.errors import ConfigError

#: Values of ``RetryPolicy.order``.
CONCURRENT: Final = "concurrent"
ORDERED: Final = "ordered"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """What ``nack`` of a consumer does.

    ``order="concurrent"``: the message leaves its partition and comes again later, as a copy in the group's
    topic of retries, while those behind it go on. ``order="ordered"``: its partition waits, and ``poll``
    returns it again, and then all behind it. How often and after which pauses a message comes again is a
    setting of the group (``admin.set_group``); at the end it becomes a dead letter. Raises ConfigError.
    """

    order: str

    def __post_init__(self) -> None:
        if self.order not in (CONCURRENT, ORDERED):
            raise ConfigError(f"order must be {CONCURRENT!r} or {ORDERED!r}, not {self.order!r}")


def check_retry(retry: object, group: str | None) -> None:
    """Raises ConfigError unless it is a policy of a member of a group, or None."""
    if retry is None:
        return
    if not isinstance(retry, RetryPolicy):
        raise ConfigError(f"retry must be a RetryPolicy, such as RetryPolicy(order='ordered'), not {retry!r}")
    if group is None:
        raise ConfigError("retry is for members of a group: give group=...")
