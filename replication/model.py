"""Values that every layer shares: messages, records, results, transaction states.

Frozen and small. Nothing here does I/O; validation happens in ``Message`` itself, so that a wrong
type is reported where the caller wrote it and never after a network hop.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import Field, asdict, dataclass, field, fields, make_dataclass
from datetime import datetime
from typing import Any, ClassVar, TypeVar

import msgspec

from escrowmq.replication.delivery_times import delivery_time
from escrowmq.replication.errors import InvalidMessage
from escrowmq.replication.message_headers import REPLY_TO, TAG, headers_with, text_of, with_own

T = TypeVar("T")
StructT = TypeVar("StructT", bound=msgspec.Struct)


class TransactionState(enum.Enum):
    """What became of a transaction."""

    PREPARE = "PREPARE"
    COMMITTED = "COMMITTED"
    ROLLBACK = "ROLLBACK"
    UNKNOWN = "UNKNOWN"


class ResultCode(enum.IntEnum):
    """Result of one operation (or of one transaction inside an operation), as applied on every replica.

    Clients of other versions know these numbers, so none is ever reused. 12 is used up: it was reserved for
    an out-of-date member of a consumer group, and was never sent.
    """

    OK = 0
    PARTIAL = 1  # info = list of [position, code, info] for those that are not OK
    DUPLICATE = 2  # already done with the same outcome; callers treat it as success
    UNKNOWN_TOPIC = 3
    BAD_PARTITION = 4
    TX_CONFLICT = 5  # info = name of the recorded TransactionState
    UNKNOWN_TX = 6
    TOO_MANY_OPEN = 7
    OUT_OF_SEQUENCE = 8  # info = the sequence number expected next
    FENCED = 9
    TOPIC_EXISTS = 10
    MALFORMED = 11
    TOO_LARGE = 13
    RETRY = 14  # refused together with others of its entry; nothing was done: send again
    STALE = (
        15  # of PREPARE: so long under way that its id may be forgotten; nothing was done: see ``heard_ms``
    )
    TOO_MANY_IDS = 16  # of PREPARE: no more ids given by applications can be remembered; info = the limit
    NOT_PREPARED = 17  # of a COMMIT not by the producer: parts are not prepared, or that was not checked
    OTHER_TOPIC = 18  # the name now belongs to another topic than the one meant; info ends with its id
    UNKNOWN_TIMER = 19  # of CANCEL: never scheduled, or already readable, or about to be
    OUT_OF_RANGE = 20  # the offset is before the log's start or after its end
    TOO_MANY_SCHEDULED = 21  # no more messages can wait for their time in this group; info = the limit
    LEASE_LOST = 22  # of NACK: another member of the share group has the message
    GROUP_KIND = 23  # the consumer group is of another kind; info = its kind
    UNKNOWN_SHARE = 24  # the share group has not begun to read that partition
    TOO_MANY_SHARES = 25  # no more partitions of share groups, or no more final ranges; info = the limit
    OFFSETS_MOVED = 26  # the group is elsewhere; info = group, topic, partition (-1: another topic), offset
    OFFSETS_PENDING = 27  # an open transaction will move these; info = group, topic, partition
    OUT_OF_STEP = 30  # of a numbered PREPARE: not the next number, or another digest; info = the last number
    CLAIM_OPEN = 31  # of a numbered PREPARE: another one of the claim is open; info = its app and id
    TOO_MANY_CLAIMS = 32  # of CLAIM: no more names can be kept; info = the limit


def _by_position(kind: type[T]) -> type[T]:
    """Have a dataclass with slots pickled as the list of its values, between processes of two versions. A
    later version adds fields only at the end, and with defaults: whoever does not know a field leaves it out,
    and whoever misses it has its default. The generated methods leave it without a value. They also look at
    the fields each time, which costs 8 us, and a listing of all topics has ten thousand."""
    known = fields(kind)  # type: ignore[arg-type]
    slots = [kind.__dict__[item.name] for item in known]
    read, write = [slot.__get__ for slot in slots], [slot.__set__ for slot in slots]
    defaults = [item.default for item in known]

    def give(self: Any) -> list[Any]:
        return [get(self) for get in read]

    def take(self: Any, values: Sequence[Any]) -> None:
        if len(values) < len(write):
            values = [*values, *defaults[len(values) :]]
        for put, value in zip(write, values, strict=False):
            put(self, value)

    kind.__getstate__ = give  # type: ignore[method-assign]
    kind.__setstate__ = take  # type: ignore[attr-defined]
    return kind


@_by_position
@dataclass(frozen=True, slots=True, init=False)
class Message:
    """A message to send.

    ``value`` is bytes, or whatever the producer's ``value_serializer`` takes; it is checked when the message
    is sent. ``key`` is bytes or None; ``headers`` maps str to bytes. ``partition`` overrides the choice by
    key (``crc32c(key) % partitions``; without a key, sticky round robin).

    With ``delay_s`` or ``deliver_at`` the message cannot be read before that: so many seconds after it was
    stored or, in a transaction, after the commit; or a time, as a datetime with a time zone, or in ms since
    the epoch. A time that is past means at once.

    ``tag``: a word by which consumers can select messages. ``reply_to``: the app that is told what becomes of
    the message in share groups, see ``Cluster.replies``. Both are headers (``escrowmq-tag``,
    ``escrowmq-reply-to``). ``keys``: business keys by which ``admin.find`` finds the message; they become the
    header ``keys``.
    """

    topic: str
    value: Any = b""
    key: bytes | None = None
    headers: Mapping[str, bytes] = field(default_factory=dict)
    partition: int | None = None
    delay_s: float | None = None
    deliver_at: datetime | int | None = None

    # By hand, since there is one for each message: the generated one takes 0.7 us, this one 0.4.
    def __init__(
        self,
        topic: str,
        value: Any = b"",
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        partition: int | None = None,
        *,
        delay_s: float | None = None,
        deliver_at: datetime | int | None = None,
        tag: str | None = None,
        reply_to: str | None = None,
        keys: Sequence[str] = (),
    ) -> None:
        if type(topic) is not str or not topic:
            raise InvalidMessage(f"topic must be a non-empty str, not {topic!r}")
        if key is not None and type(key) is not bytes:
            raise InvalidMessage(f"key must be bytes or None, not {type(key).__name__}; encode it first")
        if headers:
            if type(headers) is not dict and not isinstance(headers, Mapping):
                raise InvalidMessage(f"headers must map str to bytes, not be {type(headers).__name__}")
            for name, content in headers.items():
                if type(name) is not str:
                    raise InvalidMessage(f"header name must be str, not {type(name).__name__}")
                if type(content) is not bytes:
                    raise InvalidMessage(f"header {name!r} must be bytes, not {type(content).__name__}")
        if partition is not None and (type(partition) is not int or partition < 0):
            raise InvalidMessage(f"partition must be a non-negative int or None, not {partition!r}")
        if delay_s is not None or deliver_at is not None:
            delivery_time(delay_s, deliver_at)
        if tag is not None or reply_to is not None:
            headers = with_own(headers, tag, reply_to)
        if keys:
            headers = headers_with(keys, headers)
        _set_topic(self, topic)
        _set_value(self, value)
        _set_key(self, key)
        _set_headers(self, {} if headers is None else headers)
        _set_partition(self, partition)
        _set_delay_s(self, delay_s)
        _set_deliver_at(self, deliver_at)

    @property
    def tag(self) -> str | None:
        """Its tag, or None."""
        return text_of(self.headers, TAG)

    @property
    def reply_to(self) -> str | None:
        """The app that is told what becomes of it, or None."""
        return text_of(self.headers, REPLY_TO)


(
    _set_topic, _set_value, _set_key, _set_headers, _set_partition, _set_delay_s, _set_deliver_at,
) = [Message.__dict__[item.name].__set__ for item in fields(Message)]  # fmt: skip


@_by_position
@dataclass(frozen=True, slots=True, init=False)
class RecordMetadata:
    """Where a plain message was stored. ``timestamp`` is the broker's, in ms since the epoch.

    A delayed message has no offset before it can be read: ``offset`` is -1, ``deliver_at`` is the time from
    which on it can be read, in ms since the epoch, and ``schedule_id`` is for ``Producer.cancel``.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    deliver_at: int | None = None
    schedule_id: str | None = None

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        timestamp: int,
        deliver_at: int | None = None,
        schedule_id: str | None = None,
    ) -> None:
        _put_topic(self, topic)  # as for Message
        _put_partition(self, partition)
        _put_offset(self, offset)
        _put_timestamp(self, timestamp)
        _put_deliver_at(self, deliver_at)
        _put_schedule_id(self, schedule_id)


(
    _put_topic, _put_partition, _put_offset, _put_timestamp, _put_deliver_at, _put_schedule_id,
) = [RecordMetadata.__dict__[item.name].__set__ for item in fields(RecordMetadata)]  # fmt: skip


def like_dataclass(kind: type[StructT]) -> type[StructT]:
    """Have ``dataclasses.replace``, ``fields`` and ``asdict`` take a struct for the dataclass that it was."""
    twin = make_dataclass(
        kind.__name__,
        [
            (name, Any) if default is msgspec.NODEFAULT else (name, Any, default)
            for item in msgspec.structs.fields(kind)
            for name, default in [(item.name, item.default)]
        ],
    )
    kind.__dataclass_fields__ = twin.__dataclass_fields__  # type: ignore[attr-defined]
    return kind


@like_dataclass
class ConsumerRecord(msgspec.Struct, frozen=True, gc=False):
    """A committed message as a consumer sees it. ``tx_id`` is None for plain messages. ``value`` is bytes, or
    what the consumer's ``value_deserializer`` has made of them.

    Immutable; it can be compared, copied and pickled, and ``dataclasses.replace`` and ``asdict`` take it. It
    has no hash, since its headers have none. The garbage collector does not visit records (a poll may make
    thousands), so a value that refers to its own record is never freed.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: Any
    headers: Mapping[str, bytes]
    tx_id: str | None

    @property
    def tag(self) -> str | None:
        """The tag that its sender gave it, or None."""
        return text_of(self.headers, TAG)

    @property
    def reply_to(self) -> str | None:
        """The app that its sender wants to be told what becomes of it, or None."""
        return text_of(self.headers, REPLY_TO)


@_by_position
@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """An open transaction as operators and feedback see it. Times in ms since the epoch."""

    app: str
    tx_id: str
    query_id: str
    topic: str
    prepared_ms: int
    timeout_ms: int
    checks: int
    parked: bool
    messages: int
    home_group: int  # group that holds the decision; -1 = this one
    home_index: int = -1  # over several groups: log index of the home group's record; -1: in one group
    parked_for: str = ""  # why a check parked it; "": it used up its checks
    fence: str = ""  # in hex: whose rows decide, so who may answer its checks; "": any producer of the app


#: In place of a topic's first group: its creator stored none, so it follows from the name.
BY_NAME = -1
#: Stands for the id of a topic that has none.
NO_ID = 0


@_by_position
@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic's replicated settings, and where its partitions are. Defaults for a new topic are its creator's
    business (``TopicOptions``)."""

    name: str
    partitions: int
    on_check_exhausted: str  # "hold": stays open, parked; "rollback": rolled back
    check_max: int
    transaction_timeout_ms: int
    retention_ms: int  # -1: unlimited
    retention_bytes: int  # per partition; -1: unlimited
    first_group: int = BY_NAME  # broker group of partition 0
    #: Distinguishes topics of the same name: a topic that is created again has a higher id. ``NO_ID``: its
    #: creator has told this group none.
    topic_id: int = field(default=NO_ID, compare=False)

    def settings(self) -> dict[str, Any]:
        """The name and the settings, without first group and id."""
        values = asdict(self)
        del values["first_group"], values["topic_id"]
        return values


def first_group(topic: TopicInfo) -> int:
    """Where the topic's partitions begin, for :func:`group_of`. A topic that was created without a first
    group begins at the sum of its name's bytes, and always will: its messages are there."""
    return sum(topic.name.encode()) if topic.first_group == BY_NAME else topic.first_group


def group_of(first: int, partition: int, groups: int) -> int:
    """The broker group that hosts a partition of a topic whose ``first_group`` is given. Nothing else
    computes it. Consecutive partitions are in consecutive groups."""
    return (first + partition) % groups
