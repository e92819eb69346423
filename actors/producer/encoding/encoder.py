"""From messages to rows and blocks: validation, partitions, digests, sizes.

Everything that is wrong with a caller's message is found here, in the caller's thread, before anything is
sent. A transaction's content must always encode to the same bytes and the same partitions, otherwise a
repeated id would look like another transaction. So its keyless messages go to the partition given by
``crc32c(tx_id)``, and nothing here depends on time, load or earlier calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import google_crc32c

from escrowmq.actors.producer.config import ProducerConfig
from escrowmq.actors.producer.encoding.blocks import Content, Encoded, PrepareBlock, digest_of
from escrowmq.actors.producer.encoding.delayed_messages import Later, takes_none, together
from escrowmq.replication.errors import InvalidMessage, MessageTooLarge, UnknownTopic
from escrowmq.replication.format.codec import encode_fields, encode_row
from escrowmq.replication.format.internal_topics import is_internal
from escrowmq.replication.format.operation import FRAME
from escrowmq.replication.limits import NAME_CHARS_MAX, has_control_characters
from escrowmq.replication.model import Message

crc32c: Callable[[bytes], int] = google_crc32c.value
#: What encoding may raise, for headers that were changed after they were checked and for lone surrogates.
CANNOT_ENCODE = (UnicodeEncodeError, TypeError, ValueError, OverflowError)


class TxPlan:
    """One transaction, ready to be prepared: its blocks by broker group, each group's in order of parts.

    The first of ``groups`` is the home group, where it is opened and decided first. ``single``: the only
    block if the transaction fits in one (then ``parts`` is not used).
    """

    __slots__ = (
        "given_id", "groups", "home_index", "home_topic", "newest_index", "parts", "query_id", "repeated",
        "single", "size", "tx_id",
    )  # fmt: skip

    def __init__(
        self,
        tx_id: str,
        query_id: str,
        home_topic: str,
        groups: Sequence[int],
        single: PrepareBlock | None,
        parts: dict[int, list[PrepareBlock]] | None,
        size: int,
        given_id: bool,
    ) -> None:
        self.tx_id, self.query_id, self.home_topic, self.groups = tx_id, query_id, home_topic, groups
        self.single, self.parts, self.size, self.given_id = single, parts, size, given_id
        #: Where home opened it, once prepared over several groups; None: home does not track its branches.
        self.home_index: int | None = None
        #: Of an id that the application gave, once prepared: whether it was open before this PREPARE, so that
        #: another run may have carried out its local transaction; and the log index of this PREPARE at home.
        self.repeated, self.newest_index = False, -1

    def note_opened(self) -> None:
        """After home's answer to ``single``: notes what it says about an id that the application gave."""
        if self.given_id and self.single is not None and self.single.opened_at:
            self.newest_index, self.repeated = self.single.newest_at[0], bool(self.single.repeated())


class Encoder:
    """Encodes for one producer. Thread-safe: it keeps nothing between calls.

    ``partitions(topic)`` raises UnknownTopic; it may ask a broker, but only for a topic not seen before.
    ``group_of(topic, partition)`` is the broker group of a partition, for topics known to ``partitions``.
    """

    #: What ``send_many`` does to values and rows, and tables to columns of rows; see ``ValueEncoder``.
    serialize: Callable[[Any], bytes] | None = None
    pack: Callable[[bytes], bytes] | None = None
    pack_column: Callable[[Any], Any] | None = None
    #: The time of a delayed message, as requests carry it; see ``DeliveryClock``.
    time_of: Callable[[Message], int] = staticmethod(takes_none)

    def __init__(
        self,
        config: ProducerConfig,
        partitions: Callable[[str], int],
        group_of: Callable[[str, int], int],
    ) -> None:
        self._config, self.partitions, self.group_of = config, partitions, group_of
        self._bytes_max = config.message_bytes_max

    def plain(self, message: Message) -> tuple[int | None, bytes]:
        """(partition, row) of a plain message; partition None: any, chosen where batches form."""
        if type(message) is not Message:
            check_message(message)
        topic, key, partition, value = message.topic, message.key, message.partition, message.value
        if type(value) is not bytes:
            raise _not_bytes(value)
        count = self.partitions(topic)
        if topic[0] == "_":
            check_not_internal(topic)
        if partition is not None:
            if partition >= count:
                raise UnknownTopic(topic, partition, count)
        elif key is not None:
            partition = crc32c(key) % count
        try:  # as in _row and encode_row; a call of a function takes a tenth of the time of this one
            row = encode_fields((key, value, message.headers or None, None))
        except CANNOT_ENCODE as error:
            raise _not_encoded(topic, error) from error
        if len(row) > self._bytes_max:
            raise MessageTooLarge(len(row), self._bytes_max)
        return partition, row

    def encode(
        self, messages: Sequence[Message], tx_id: str, later: list[Later] | None = None
    ) -> tuple[list[Encoded], int]:
        """A transaction's messages with their partitions and rows, and the total size in bytes. Delayed ones
        are added to ``later``, which has those that the transaction has already; None: there can be none."""
        encoded: list[Encoded] = []
        delayed: list[tuple[Message, int, bytes]] | None = None
        total = 0
        limit = self._config.message_bytes_max
        for message in messages:
            check_message(message)
            topic, partition, key = message.topic, message.partition, message.key
            count = self.partitions(topic)
            if topic[0] == "_":
                check_not_internal(topic)
            if partition is None:
                partition = crc32c(tx_id.encode() if key is None else key) % count
            elif partition >= count:
                raise UnknownTopic(topic, partition, count)
            row = _row(message, self._value_of(message), tx_id)
            if len(row) > limit:
                raise MessageTooLarge(len(row), limit)
            total += len(row)
            if message.delay_s is None and message.deliver_at is None:
                encoded.append((topic, partition, row))
            else:
                delayed = [] if delayed is None else delayed
                delayed.append((message, partition, row))
        if total > self._config.transaction_bytes_max:
            raise MessageTooLarge(total, self._config.transaction_bytes_max)
        if delayed:
            self._encode_later(delayed, later)
        return encoded, total

    def _encode_later(self, delayed: Sequence[tuple[Message, int, bytes]], later: list[Later] | None) -> None:
        """Adds all of them or, if one is refused, none."""
        time_of, start = (takes_none, 0) if later is None else (self.time_of, len(later))
        added = [
            Later(message.topic, partition, row, time_of(message), start + number)
            for number, (message, partition, row) in enumerate(delayed)
        ]
        if later is not None:
            later += added

    def _value_of(self, message: Message) -> Any:
        return message.value

    def pack_block(self, block: PrepareBlock) -> None:
        """Compresses the values of a block, if this producer does that."""

    def plan(
        self,
        tx_id: str,
        query_id: str,
        encoded: Sequence[Encoded],
        size: int,
        timeout_ms: int,
        given_id: bool,
        later: Sequence[Later] = (),
        home_group: int | None = None,
    ) -> TxPlan:
        """The blocks of one transaction, from :meth:`encode`. Its home is ``home_group``, or where its first
        message goes; one that is not delayed, if there is one."""
        home_topic = (encoded or later)[0][0]
        if len(encoded) == 1 and not later and home_group is None:  # by far the most frequent case
            row = encoded[0][2]
            home = self.group_of(home_topic, encoded[0][1])
            single = PrepareBlock(
                home_topic,
                -1,
                timeout_ms,
                0,
                (tx_id,),
                (query_id,),
                (crc32c(row),),
                encoded[0],
                size,
                given_id,
            )
            self.pack_block(single)
            return TxPlan(tx_id, query_id, home_topic, (home,), single, None, size, given_id)
        by_group: dict[int, list[Encoded | Later]] = {} if home_group is None else {home_group: []}
        for item in together(encoded, later):
            by_group.setdefault(self.group_of(item[0], item[1]), []).append(item)
        groups = tuple(by_group)
        parts: dict[int, list[PrepareBlock]] = {}
        for gid, items in by_group.items():
            home_group = -1 if gid == groups[0] else groups[0]
            parts[gid] = [
                part.block(home_topic, home_group, timeout_ms, number, (tx_id,), (query_id,), given_id)
                for number, part in enumerate(_parts(items, self._config.part_bytes, bool(later)))
            ]
        first = parts[groups[0]]
        announce(parts, groups)
        # The digest that the home group remembers with the id covers all of its content, in all groups.
        first[0].digests = (digest_of(encoded, later),)
        for blocks in parts.values():
            for block in blocks:  # last: parts and digests must not depend on what compression makes of them
                self.pack_block(block)
        whole = first[0] if len(groups) == len(first) == 1 else None
        return TxPlan(tx_id, query_id, home_topic, groups, whole, parts, size, given_id)


def announce(parts: dict[int, list[PrepareBlock]], groups: Sequence[int]) -> None:
    """Tells home its branches, and each group how many parts it will get."""
    others = tuple(sorted(groups[1:]))
    for gid, blocks in parts.items():
        for block in blocks:
            block.parts = len(blocks) if len(blocks) > 1 else 0
            block.participants = others if gid == groups[0] else ()


def as_messages(messages: Message | Iterable[Message]) -> list[Message]:
    """At least one message, as a list."""
    if isinstance(messages, Message):
        return [messages]
    try:
        listed = list(messages)
    except TypeError:
        raise InvalidMessage(f"expected messages, not {messages!r:.80}") from None
    if not listed:
        raise InvalidMessage("a transaction needs at least one message")
    return listed


def check_id(tx_id: str) -> str:
    """Returns a caller's transaction id; raises InvalidMessage if it is not allowed."""
    return _check_printable("tx_id", tx_id)


def check_query_id(query_id: str) -> str:
    """Returns a caller's query id; raises InvalidMessage if it is not allowed."""
    return _check_printable("query_id", query_id)


def check_app(app: str) -> str:
    """Returns an app's name; raises InvalidMessage if it is not allowed."""
    return _check_name("app", app)


def _check_printable(what: str, name: str) -> str:
    if has_control_characters(_check_name(what, name)):
        raise InvalidMessage(f"{what} {name!r:.80} has control characters; use an id without them")
    return name


def _check_name(what: str, name: str) -> str:
    if type(name) is not str or not 0 < len(name) <= NAME_CHARS_MAX:
        raise InvalidMessage(f"{what} must be a str of 1 to {NAME_CHARS_MAX} characters, not {name!r:.80}")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InvalidMessage(f"{what} {name!r:.80} is not valid Unicode: {error.reason}") from error
    return name


def check_not_internal(topic: str) -> None:
    """Raises InvalidMessage for a topic that only brokers write into: they refuse a message to it, and
    everything else in its request."""
    if is_internal(topic):
        raise InvalidMessage(f"only brokers write messages into topic {topic!r}; anyone may read it")


def check_message(message: Message) -> bool:
    """Raises InvalidMessage for what is no message."""
    if not isinstance(message, Message):
        raise InvalidMessage(f"expected an escrowmq.Message, not {type(message).__name__}")
    return True


def _row(message: Message, value: object, tx_id: str | None) -> bytes:
    if type(value) is not bytes:
        raise _not_bytes(value)
    try:
        return encode_row(message.key, value, message.headers, tx_id)
    except CANNOT_ENCODE as error:
        raise _not_encoded(message.topic, error) from error


def _not_bytes(value: object) -> InvalidMessage:
    return InvalidMessage(
        f"value must be bytes, not {type(value).__name__}; encode it first, or make a producer with "
        "value_serializer"
    )


def _not_encoded(topic: str, error: Exception) -> InvalidMessage:
    return InvalidMessage(f"message to {topic!r} cannot be encoded: {error}")


def _parts(items: Sequence[Encoded | Later], part_bytes: int, some_later: bool) -> Iterable[Content]:
    """Runs of messages of at most ``part_bytes`` (or a single message); nearly always just one run.
    ``some_later``: they may be delayed."""
    start = size = 0
    for at, item in enumerate(items):
        row = item[2]
        if size and size + len(row) > part_bytes:
            yield _part(items[start:at], some_later)
            start, size = at, 0
        size += len(row) + FRAME.size
    yield _part(items[start:] if start else items, some_later)


def _part(items: Sequence[Any], some_later: bool) -> Content:
    part = Content()
    if some_later:
        later = [one for one in items if isinstance(one, Later)]
        part.add([one for one in items if not isinstance(one, Later)], later)
    else:
        part.add(items)
    return part
