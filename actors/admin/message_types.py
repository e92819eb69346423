"""What operators are shown about single messages: frozen values, as in types.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from escrowmq.actors.admin.types import TransactionDescription


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message that can be read, as it is stored, unpacked. ``timestamp``: since when it can be read, by the
    broker's clock, in ms since the epoch. ``tx_id`` is None for plain messages."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes
    headers: Mapping[str, bytes]
    tx_id: str | None


@dataclass(frozen=True, slots=True)
class FoundMessages:
    """What a search found, by partition and offset. ``after``: give it to the next call for what follows;
    None: there was nothing more when the call began.

    ``after`` does not mean that more will be found, only that not everything was looked through.
    """

    messages: tuple[StoredMessage, ...]
    after: str | None = None


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """What a consumer group has done with a message.

    ``kind`` "stream": ``state`` is "passed" (its committed place lies behind the message) or "ahead" (it has
    not come to it, or has not committed since); ``place``: the next offset that it reads from this partition.
    ``kind`` "share": "waiting" (not finished, and no consumer has it), "leased" (consumer ``member`` has it,
    until ``due_ms`` unless it extends its lease), "done" (also of a message from before the place at which
    the group began, and of one that failed in a group with ``dead_letters="drop"``), or "finished" (done,
    retrying or dead; there was not enough time to see which: ask again).

    Both kinds: "retrying" (it failed, and is to be delivered as ``attempt``, from ``due_ms`` on; None: its
    partition waits for it, and only the consumer knows how long), "dead" (the
    group gave up after ``attempt`` deliveries; its dead letter is kept), "dropped" (an operator dropped the
    dead letter), "redriven" (an operator sent it into the topic ``to``, with transaction ``tx_id``, which
    copies there have as theirs; both "": it is not known any more), "settled" (dropped or redriven, which of
    them is not known any more). ``reason``: of the last failure.
    """

    group: str
    kind: str
    state: str
    place: int | None = None
    attempt: int | None = None
    due_ms: int | None = None
    reason: str = ""
    member: str = ""
    to: str = ""
    tx_id: str = ""


@dataclass(frozen=True, slots=True)
class MessageTrace:
    """The life of one message. Times are in ms since the epoch, by the broker's clock.

    ``how`` it became readable: "sent" (a plain message), "committed" (its transaction was), "released" (a
    delayed message came due); None: the log entry that did it is gone, or a broker wrote the message itself,
    as it does retries and dead letters. ``readable_ms``: when. ``entry``: that entry's index in the log of
    broker group ``broker_group``. ``stored_ms``: when its bytes were stored, earlier than that for
    transactions and delayed messages; None: not known.

    ``app``, ``decided_by``: of the COMMIT; "producer", "feedback" (a check), "operator:<name>",
    "policy:<which>" or "home:<group>" (the broker group that decides a transaction over several). None: no
    COMMIT made it readable. ``transaction``: what is still known of its transaction.
    """

    message: StoredMessage
    broker_group: int
    how: str | None
    readable_ms: int
    entry: int | None
    stored_ms: int | None
    app: str | None
    decided_by: str | None
    transaction: TransactionDescription | None
    groups: tuple[GroupProgress, ...]
