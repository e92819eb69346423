"""What the parts of a producer share about delayed messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from escrowmq.replication.errors import InvalidMessage, TooManyScheduled
from escrowmq.replication.model import Message

#: Suggested pause for a caller that found the limit of waiting messages reached.
LIMIT_RETRY_AFTER_S = 5.0


#: A transaction's message that is readable at its commit; see ``blocks.Placed``.
Now = tuple[str, int, bytes]


class Later(NamedTuple):
    """A transaction's message that is not readable at once. ``time``: see ``delivery_time``; ``ordinal``:
    which of its transaction's delayed messages it is."""

    topic: str
    partition: int
    row: bytes
    time: int
    ordinal: int


def any_delayed(messages: Iterable[object]) -> bool:
    """Whether one of these is a delayed message. They may be something else than messages."""
    for message in messages:
        if isinstance(message, Message) and (message.delay_s is not None or message.deliver_at is not None):
            return True
    return False


def together(now: Sequence[Now], later: Sequence[Later]) -> list[Now | Later]:
    """A transaction's messages: first those that are readable at its commit."""
    return [*now, *later]


def takes_none(message: Message) -> int:
    """In place of ``DelayGate.time_of``, where nothing can be delayed."""
    raise InvalidMessage(f"a message to {message.topic!r} cannot be delayed here; send it without a delay")


def too_many_scheduled(limit: Any) -> TooManyScheduled:
    """The error for a broker group with as many waiting messages as it takes."""
    text = f"{limit} messages wait for their time in this broker group, its limit (broker.timers_max)"
    return TooManyScheduled(text, LIMIT_RETRY_AFTER_S)
