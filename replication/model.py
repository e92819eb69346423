"""Values that every layer shares: messages, records, results, transaction states.

Frozen and small. Nothing here does I/O; validation happens in ``Message`` itself, so that a wrong
type is reported where the caller wrote it and never after a network hop.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from escrowmq.replication.errors import InvalidMessage


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
    OUT_OF_RANGE = 20  # of fetch: the offset is before the log's start or after its end
    TOO_MANY_SCHEDULED = 21  # no more messages can wait for their time in this group; info = the limit


@dataclass(frozen=True, slots=True)
class Message:
    """A message to send.

    ``value`` is bytes, or whatever the producer's ``value_serializer`` takes; it is checked when the message
    is sent. ``key`` is bytes or None; ``headers`` maps str to bytes. ``partition`` overrides the choice by
    key (``crc32c(key) % partitions``; without a key, sticky round robin).
    """

    topic: str
    value: Any = b""
    key: bytes | None = None
    headers: Mapping[str, bytes] = field(default_factory=dict)
    partition: int | None = None

    def __post_init__(self) -> None:
        if type(self.topic) is not str or not self.topic:
            raise InvalidMessage(f"topic must be a non-empty str, not {self.topic!r}")
        if self.key is not None and type(self.key) is not bytes:
            raise InvalidMessage(f"key must be bytes or None, not {type(self.key).__name__}; encode it first")
        if self.headers:
            for name, value in self.headers.items():
                if type(name) is not str:
                    raise InvalidMessage(f"header name must be str, not {type(name).__name__}")
                if type(value) is not bytes:
                    raise InvalidMessage(f"header {name!r} must be bytes, not {type(value).__name__}")
        if self.partition is not None and (type(self.partition) is not int or self.partition < 0):
            raise InvalidMessage(f"partition must be a non-negative int or None, not {self.partition!r}")


@dataclass(frozen=True, slots=True)
class RecordMetadata:
    """Where a plain message was stored. ``timestamp`` is the broker's, in ms since the epoch."""

    topic: str
    partition: int
    offset: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class ConsumerRecord:
    """A committed message as a consumer sees it. ``tx_id`` is None for plain messages. ``value`` is bytes, or
    what the consumer's ``value_deserializer`` has made of them."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: Any
    headers: Mapping[str, bytes]
    tx_id: str | None


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
    home_index: int = -1  # over several groups: log index of the home group's record; -1: not told
    parked_for: str = ""  # why a check parked it; "": it used up its checks

    def __setstate__(self, values: Sequence[Any]) -> None:
        """Also reads what an earlier version pickles: values by position, without the newer fields."""
        for item in fields(self)[len(values) :]:
            object.__setattr__(self, item.name, item.default)
        for item, value in zip(fields(self), values, strict=False):
            object.__setattr__(self, item.name, value)


#: In place of a topic's first group: its creator stored none, so it follows from the name.
BY_NAME = -1
#: Stands for the id of a topic that has none.
NO_ID = 0


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
    #: Distinguishes topics of the same name: a topic that is created again has a higher id. ``NO_ID``: it was
    #: created below format level 6, or by a client of an earlier version.
    topic_id: int = field(default=NO_ID, compare=False)

    def __getstate__(self) -> list[Any]:
        return [read(self) for read in _READ]

    def __setstate__(self, values: Sequence[Any]) -> None:
        """Also reads what an earlier version pickles: values by position, without the newer fields. Uses the
        slots' own descriptors: a listing of all topics makes ten thousand of these, and reflection costs 8 us
        each."""
        if len(values) < len(_WRITE):
            values = [*values, *_DEFAULTS[len(values) :]]
        for write, value in zip(_WRITE, values, strict=False):
            write(self, value)

    def settings(self) -> dict[str, Any]:
        """The settings without first group and id, as earlier versions know and store them."""
        values = asdict(self)
        del values["first_group"], values["topic_id"]
        return values


_SLOTS = [TopicInfo.__dict__[item.name] for item in fields(TopicInfo)]
_READ, _WRITE = [slot.__get__ for slot in _SLOTS], [slot.__set__ for slot in _SLOTS]
_DEFAULTS = [item.default for item in fields(TopicInfo)]


def first_group(topic: TopicInfo) -> int:
    """Where the topic's partitions begin, for :func:`group_of`. A topic that was created without a first
    group begins at the sum of its name's bytes, and always will: its messages are there."""
    return sum(topic.name.encode()) if topic.first_group == BY_NAME else topic.first_group


def group_of(first: int, partition: int, groups: int) -> int:
    """The broker group that hosts a partition of a topic whose ``first_group`` is given. Nothing else
    computes it. Consecutive partitions are in consecutive groups."""
    return (first + partition) % groups
