"""The rows of an outbox, as values: a message's content, its place in the order, and its group. Pure.

Databases keep rows while the software is upgraded: no number of ``Row.state`` is ever reused, and a content
that was written once can be read for ever.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from escrowmq.replication.delivery_times import AT_ONCE, delivery_time, given_by
from escrowmq.replication.errors import InvalidMessage
from escrowmq.replication.model import Message

PENDING, DEAD = 1, 2
#: Of an error's text, no more than this is kept with the row.
ERROR_BYTES_MAX = 1024
_ORDER_KEY_BYTES = 16

_encode = msgspec.msgpack.Encoder().encode
#: Topic, partition or None, key or None, value, headers or None, delivery time (see delivery_times.py).
_Fields = tuple[str, int | None, bytes | None, bytes, dict[str, bytes] | None, int]
_decode = msgspec.msgpack.Decoder(_Fields).decode


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """One row. ``group``: 16 random bytes, the same for the messages of one ``send``; ``group_rows``: how
    many of them are in this shard. ``order_key``: messages that have the same one keep their order; None: it
    has none. ``next_ms``: not sent before, in ms since the epoch. ``batch``: its number while it is being
    sent, and ``placed`` its partition in that batch."""

    id: int
    group: bytes
    group_rows: int
    order_key: bytes | None
    content: bytes
    attempts: int
    next_ms: int
    batch: int | None = None
    placed: int | None = None
    size: int = 0  # bytes of a content that has not been read; 0: it has


def content_of(message: Message) -> bytes:
    """What is stored of a message. Raises InvalidMessage for a value that is not bytes."""
    if not isinstance(message, Message):
        raise InvalidMessage(f"expected an escrowmq.Message, not {type(message).__name__}")
    if type(message.value) is not bytes:
        raise InvalidMessage(
            f"the value of a message in an outbox must be bytes, not {type(message.value).__name__}; "
            "encode it first"
        )
    delayed = message.delay_s is not None or message.deliver_at is not None
    time_ms = delivery_time(message.delay_s, message.deliver_at) if delayed else AT_ONCE
    headers = dict(message.headers) or None
    try:
        return _encode((message.topic, message.partition, message.key, message.value, headers, time_ms))
    except UnicodeEncodeError as error:
        raise InvalidMessage(f"the topic or a header's name is no text that can be sent: {error}") from error


def message_of(content: bytes, placed: int | None = None) -> Message:
    """The message of a content. ``placed``: the partition that was chosen for it."""
    topic, partition, key, value, headers, time_ms = _decode(content)
    chosen = partition if placed is None else placed
    return Message(topic, value, key, headers, chosen, **given_by(time_ms))


def order_key_of(message: Message) -> bytes | None:
    """What keeps its order: the messages of one topic with the same key, or sent to the same partition."""
    if message.partition is not None:
        own = b"partition %d" % message.partition
    elif message.key is not None:
        own = b"key " + message.key
    else:
        return None
    topic = message.topic.encode()
    return hashlib.sha256(b"%d:%b%b" % (len(topic), topic, own)).digest()[:_ORDER_KEY_BYTES]


def shard_of(order_key: bytes | None, group: bytes, shards: int) -> int:
    """The shard of a message: what keeps its order is in one shard; what has none stays with its group."""
    return int.from_bytes((order_key or group)[:8], "big") % shards


def digest_of(messages: Iterable[tuple[str, int, bytes | None, bytes, Mapping[str, bytes]]]) -> bytes:
    """16 bytes that say what a batch contains: topic, partition, key, value and headers of each message, in
    order. A repetition of the batch has the same ones, whatever its transaction's id."""
    digest = hashlib.sha256()
    for topic, partition, key, value, headers in messages:
        row = _encode((topic, partition, key, value, sorted(headers.items())))
        digest.update(b"%d:" % len(row))
        digest.update(row)
    return digest.digest()[:16]


def digest_of_rows(rows: Sequence[OutboxRow]) -> bytes:
    """The same for rows of a batch, whose partitions are chosen."""
    found = []
    for row in rows:
        message = message_of(row.content, row.placed)
        assert message.partition is not None, row.id
        found.append((message.topic, message.partition, message.key, message.value, message.headers))
    return digest_of(found)
