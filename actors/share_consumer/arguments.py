"""Checks of what callers pass to a share consumer, made at the call, with the argument's name in the text."""

from __future__ import annotations

from escrowmq.actors.share_consumer.config import LEASE_S_MAX, LEASE_S_MIN
from escrowmq.replication.errors import ConfigError, InvalidMessage, MessageTooLarge
from escrowmq.replication.format.internal_topics import owner_problem
from escrowmq.replication.model import ConsumerRecord

#: Threads of one ``run``: as many as a process can have at all.
THREADS_MAX = 10_000
#: Result of an ack: a reply is a message, and messages are of about this size by default.
RESULT_BYTES_MAX = 1 << 20


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


def replies_to(record: ConsumerRecord, result: object) -> str | None:
    """The app that is told about the record; None: nobody wants to hear, or nobody of that name can. Raises
    InvalidMessage, MessageTooLarge."""
    if type(result) is not bytes:
        raise InvalidMessage(f"result must be bytes, not {type(result).__name__}; encode it first")
    if len(result) > RESULT_BYTES_MAX:
        raise MessageTooLarge(len(result), RESULT_BYTES_MAX)
    app = record.reply_to
    return None if app is None or owner_problem("app", app) is not None else app
