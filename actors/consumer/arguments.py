"""Checks of what callers pass to a consumer, made at the call, with the argument's name in the error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from escrowmq.actors.client.call_arguments import check_group_name
from escrowmq.actors.client.consumer_groups import INSTANCE_ID_MAX, TopicPartition
from escrowmq.replication.errors import ConfigError, InvalidMessage
from escrowmq.replication.limits import has_control_characters
from escrowmq.replication.model import ConsumerRecord

#: Longest wait of one poll: a caller that asks for more surely meant milliseconds.
POLL_S_MAX = 3600.0
#: Records of one ``poll_arrow``: more than a fetch of small ones. Each chunk has a fixed cost of 150 us, so
#: it pays from 200 records on (measured; 5,000 rows of 200 bytes: 0.11 us each, and 0.96 us in ``poll``).
ARROW_RECORDS = 10_000
#: A day: redelivery waits in memory; longer waits belong in the application's own store.
NACK_DELAY_S_MAX = 86_400.0
#: The pause of a nack without ``retry``, if none is given.
NACK_DELAY_S = 5.0


def check_group(group: object) -> None:
    """Checks a group's name: a non-empty str of at most 255 bytes without control characters, or None. Raises
    ConfigError."""
    if group is not None and has_control_characters(check_group_name(group)):
        raise ConfigError(f"group {group!r} has control characters in its name; choose a name without them")


def check_needs_group(group: object, subscribes: bool, handles: bool) -> None:
    """Checks that there is a group for arguments that only members can use. Raises ConfigError."""
    if group is None and subscribes:
        raise ConfigError("subscribing to topics needs group=...; without a group, call assign(...)")
    if group is None and handles:
        raise ConfigError("on_assign, on_revoke and on_lost are for members of a group: give group=...")


def check_instance(instance_id: object, group: str | None) -> None:
    """A static member's id: a str of 1 to 200 characters without control characters, or None."""
    if instance_id is None:
        return
    if group is None:
        raise ConfigError("instance_id names a member of a group: give group=...")
    if type(instance_id) is not str or not instance_id or len(instance_id) > INSTANCE_ID_MAX:
        text = f"instance_id must be a str of 1 to {INSTANCE_ID_MAX} characters, not {instance_id!r}"
        raise ConfigError(text)
    if has_control_characters(instance_id):
        raise ConfigError(f"instance_id {instance_id!r} has control characters; choose one without them")


def check_topics(topics: object) -> None:
    """Checks a sequence of topic names; rejects a bare str, which would subscribe to its letters."""
    if isinstance(topics, str) or not isinstance(topics, Sequence):
        raise InvalidMessage(f"topics must be a list of str, not {topics!r}")
    for topic in topics:
        if type(topic) is not str or not topic:
            raise InvalidMessage(f"topics must be non-empty str, not {topic!r}")


def check_partition(pair: Any) -> TopicPartition:
    """Returns the pair ``(topic, partition)`` if it is one. Raises InvalidMessage."""
    if isinstance(pair, tuple) and len(pair) == 2:
        topic, partition = pair
        if type(topic) is str and topic and type(partition) is int and partition >= 0:
            return topic, partition
    raise InvalidMessage(f"a partition is a pair (topic: str, number: int of 0 or more), not {pair!r}")


def check_offset(offset: object) -> None:
    """Checks an offset: an int of 0 or more. Raises InvalidMessage."""
    if type(offset) is not int or offset < 0:
        raise InvalidMessage(f"offset must be an int of 0 or more, not {offset!r}")


def check_time(ts: object) -> int:
    """Milliseconds since the epoch, from an int or a datetime with a time zone. Raises InvalidMessage."""
    if isinstance(ts, datetime):
        if ts.tzinfo is None:
            raise InvalidMessage("ts must be a datetime with a time zone, or ms since the epoch")
        return max(int(ts.timestamp() * 1000), 0)
    if type(ts) is not int or ts < 0:
        raise InvalidMessage(f"ts must be ms since the epoch as int, or a datetime, not {ts!r}")
    return ts


def check_poll(max_records: object, timeout_s: object) -> None:
    """Checks ``max_records`` (1 or more) and ``timeout_s`` (0 to an hour). Raises InvalidMessage."""
    if type(max_records) is not int or max_records < 1:
        raise InvalidMessage(f"max_records must be an int of 1 or more, not {max_records!r}")
    if not isinstance(timeout_s, int | float) or not 0 <= timeout_s <= POLL_S_MAX:
        raise InvalidMessage(f"timeout_s must be seconds from 0 to {POLL_S_MAX:g}, not {timeout_s!r}")


def check_arrow(deserializes: bool) -> Callable[[Sequence[Any]], Any]:
    """Checks that Arrow can be used; returns what makes a table of batches. Raises ConfigError."""
    if deserializes:
        raise ConfigError("poll_arrow returns values as bytes; use a consumer without value_deserializer")
    try:
        from escrowmq.actors.consumer.arrow_batches import table_of
    except ImportError as error:
        raise ConfigError(
            f"poll_arrow needs pyarrow and numpy: pip install 'escrowmq[arrow]' ({error})"
        ) from error
    return table_of


def check_delay(delay_s: object) -> None:
    """Checks ``delay_s`` of a nack (0 to a day). Raises InvalidMessage."""
    if not isinstance(delay_s, int | float) or not 0 <= delay_s <= NACK_DELAY_S_MAX:
        raise InvalidMessage(f"delay_s must be seconds from 0 to {NACK_DELAY_S_MAX:g}, not {delay_s!r}")


def check_not_taken(record: ConsumerRecord, taken: int) -> None:
    """Checks that no transaction has the record, prepared or committed, or others since it was read."""
    if record.offset < taken:
        raise InvalidMessage(
            f"offset {record.offset} of {record.topic}/{record.partition} is in a transaction with "
            "send_offsets that was prepared (nack before prepare(), or roll the transaction back), or poll "
            "has not returned it since this consumer took the partition over"
        )


def check_returned(record: ConsumerRecord, position: int | None) -> None:
    """Checks that this consumer has returned the record since its position was last set."""
    if position is None or record.offset >= position:
        raise InvalidMessage(
            f"offset {record.offset} of {record.topic}/{record.partition} was not returned by poll (or the "
            "consumer has sought before it since): there is nothing to deliver again"
        )
