"""The rows of an outbox, as values: a message's content, its place in the order, and its group. Pure.

Databases keep rows while the software is upgraded: no number of ``Row.state`` is ever reused, and a content
that was written once can be read for ever.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from escrowmq.replication.delivery_times import AT_ONCE, delivery_time, given_by
from escrowmq.replication.errors import InvalidMessage
from escrowmq.replication.model import Message

PENDING, DEAD = 1, 2
#: ``next_ms`` of a row whose batch has a digest that covers the rows themselves. Rows that an earlier version
#: has marked have 0 or more there, and keep the digest under which they may have been sent.
MARKED = -1
#: Of an error's text, no more than this is kept with the row.
ERROR_BYTES_MAX = 1024
#: A larger content is not read: no message can be so large, and a relay would need the memory.
CONTENT_BYTES_MAX = 64 << 20
_ORDER_KEY_BYTES = 16

_encode = msgspec.msgpack.Encoder().encode
#: Topic, partition or None, key or None, value, headers or None, delivery time (see delivery_times.py).
_Fields = tuple[str, int | None, bytes | None, bytes, dict[str, bytes] | None, int]
_decode = msgspec.msgpack.Decoder(_Fields).decode


class UnreadableContent(Exception):
    """This version cannot read a row's content: a later one has written it, or it is damaged."""


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
    """The message of a content. ``placed``: the partition that was chosen for it. Raises
    UnreadableContent."""
    try:
        topic, partition, key, value, headers, time_ms = _decode(content)
        chosen = partition if placed is None else placed
        return Message(topic, value, key, headers, chosen, **given_by(time_ms))
    except (msgspec.MsgspecError, InvalidMessage, ValueError) as error:
        raise UnreadableContent(
            f"the row's content cannot be read: it is damaged, or of a later version of EscrowMQ ({error}); "
            "upgrade the relay and retry the row, or drop it"
        ) from error


def row_bytes(message: Message, content: bytes) -> int:
    """Of a message of this content, at least so many bytes count for the broker's limits: key, value and
    headers, but not topic, partition and time. The id of the batch's transaction comes to that."""
    return max(len(content) - len(_encode((message.topic, message.partition, 1 << 63))), 0)


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


def digest_of_rows(rows: Sequence[OutboxRow]) -> bytes:
    """16 bytes that stand for the rows of a batch, in order: a repetition of the batch has the same ones,
    whatever its transaction's id.

    A row is known by its number and by the random bytes of its group: in a database that was restored, a new
    row may have the number and the content of one that was sent. It must not be taken for that one. Contents
    are not in it: what they add is nothing, and a row that was damaged since is still one that was sent.
    """
    if any(row.next_ms != MARKED for row in rows):
        try:
            return _digest_of_contents(rows)
        except UnreadableContent:
            return b"?" * 16  # what the broker may have is not known: it does not fit, and a person decides
    digest = hashlib.sha256()
    for row in rows:
        packed = _encode((row.batch, row.id, row.group, row.placed))
        digest.update(b"%d:" % len(packed))
        digest.update(packed)
    return digest.digest()[:16]


def _digest_of_contents(rows: Sequence[OutboxRow]) -> bytes:
    """As earlier versions made it: topic, partition, key, value and headers of each message."""
    digest = hashlib.sha256()
    for row in rows:
        one = message_of(row.content, row.placed)
        packed = _encode((one.topic, one.partition, one.key, one.value, sorted(one.headers.items())))
        digest.update(b"%d:" % len(packed))
        digest.update(packed)
    return digest.digest()[:16]
