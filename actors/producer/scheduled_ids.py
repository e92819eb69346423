"""The ids of a transaction's delayed messages, by message, for its result.

What is kept of a transaction until its result is made is a few numbers for each delayed message, not its row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from escrowmq.actors.client.schedule_ids import ScheduleId
from escrowmq.actors.producer.delayed_messages import Later
from escrowmq.replication.format.timer_ops import owner_of
from escrowmq.replication.model import Message

#: Topic, partition, time and ordinal of a message that has an id.
Named = tuple[str, int, int, int]


def named(later: Later) -> Named | None:
    """What the id of a delayed message is made of; None: with ``delay_s``, its time is known only once the
    transaction is committed."""
    return (later.topic, later.partition, later.time, later.ordinal) if later.time > 0 else None


def by_message(messages: Iterable[Message], later: Iterable[Later]) -> tuple[Named | None, ...]:
    """The same for each of a transaction's messages; None: it has no id. ``later``: the delayed ones of them,
    in order."""
    delayed = iter(later)
    return tuple(
        named(next(delayed)) if message.delay_s is not None or message.deliver_at is not None else None
        for message in messages
    )


def ids_of(app: str, tx_id: str, cluster_id: str, messages: Sequence[Named | None]) -> tuple[str | None, ...]:
    """The ids of a transaction's messages."""
    owner = owner_of(app, tx_id)
    return tuple(
        None if one is None else ScheduleId(*one[:3], owner, one[3]).text(cluster_id) for one in messages
    )
