"""Single messages as operators see them: shown, found by key or id, and traced through the cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar, NamedTuple

import google_crc32c

from escrowmq.actors.admin.types import (
    FoundMessages,
    GroupProgress,
    MessageTrace,
    StoredMessage,
    TransactionDescription,
)
from escrowmq.actors.client.consumer_groups import coordinator_group
from escrowmq.actors.client.router import Router, result_of
from escrowmq.actors.consumer.offsets import EARLIEST, LATEST, OffsetReader
from escrowmq.replication.calling.finding_answers import FoundRows, MessageAt, ShareProgress
from escrowmq.replication.errors import (
    Closed,
    ConfigError,
    CorruptLog,
    DamagedValue,
    EscrowMQError,
    InvalidMessage,
    OffsetOutOfRange,
    TopicRecreated,
    Unavailable,
    UnknownTopic,
    UnknownTransaction,
)
from escrowmq.replication.format.codec import decode_rows
from escrowmq.replication.format.find_rows import IN_HEADER
from escrowmq.replication.format.find_table import BUSINESS_KEY, KEY, TX_ID
from escrowmq.replication.format.internal_topics import is_internal, retry_topic
from escrowmq.replication.format.packing import UnsoundValue
from escrowmq.replication.message_headers import encoded_key
from escrowmq.replication.model import ResultCode, TopicInfo

# ------------------------------------------------------------------------------------------------------------
# Asking the replicas of one partition, one call after the other, for the messages that somebody looks for.
#
# Followers come first, so that the leader has no work with it, and always in the same order: what a replica
# has read for one question answers the next one faster. A replica that does not answer, refuses, or lags for
# long is passed over for the next one.

#: How long a replica may wait for its own work before it answers, and how much longer an answer may take.
WAIT_S, ANSWER_S = 1.0, 4.0
#: How long a replica may lag behind, before another one is asked; and the pause between two attempts.
LAG_S, PAUSE_S = 2.0, 0.1


class Needle(NamedTuple):
    """What is looked for: one of the kinds of ``replication.format``; ``name`` is the header's."""

    kind: int
    needle: bytes
    name: str = ""


class PartitionSearch:
    """Searches ``[start, end)`` of one partition, piece by piece. Not thread-safe."""

    def __init__(
        self,
        router: Router,
        gid: int,
        source: tuple[str, int, int],
        needle: Needle,
        clock: Callable[[], float],
        answer_s: float = ANSWER_S,
    ) -> None:
        """``source``: topic, partition, the topic's id."""
        self._answer_s = answer_s
        self._router, self._gid, self._source, self._needle = router, gid, source, needle
        self._clock = clock
        members, leader = list(router.members(gid)), router.channels[gid].leader
        turn = source[1] % max(1, len(members) - 1)
        followers = [rid for rid in members if rid != leader]
        self._replicas = followers[turn:] + followers[:turn] + [rid for rid in members if rid == leader]
        self._lagging_since: float | None = None

    def next(self, start: int, end: int, limit: int, deadline: float) -> FoundRows | None:
        """What the next answer brings, with ``reached`` above ``start``; None: the time is over.

        Raises TopicRecreated, and at the deadline the last refusal of a replica.
        """
        refusal: EscrowMQError | None = None
        while (left_s := deadline - self._clock()) > 0:
            rid = self._replicas[0]
            try:
                found = self._ask(rid, start, end, limit, left_s)
                if found.reached > start:
                    self._lagging_since = None
                    return found
                refusal = None
                if found.end > start:
                    continue  # it reads what it needs
            except TopicRecreated:
                raise
            except (UnknownTopic, Unavailable) as error:
                refusal = error
            if not self._patient(refusal):
                self._replicas.append(self._replicas.pop(0))
            time.sleep(min(PAUSE_S, max(0.0, deadline - self._clock())))
        if refusal is not None:
            raise refusal
        return None

    def _patient(self, refusal: EscrowMQError | None) -> bool:
        """Whether to ask the same replica again: it only lags, and not for long."""
        now = self._clock()
        if refusal is None or isinstance(refusal, UnknownTopic):
            if self._lagging_since is None:
                self._lagging_since = now
            if now - self._lagging_since < LAG_S:
                return True
        self._lagging_since = None
        return False

    def _ask(self, rid: int, start: int, end: int, limit: int, left_s: float) -> FoundRows:
        topic, partition, topic_id = self._source
        arguments = self._source, tuple(self._needle), start, end, limit, min(WAIT_S, left_s)
        try:
            found: FoundRows = self._router.replica_call(self._gid, rid, "find", *arguments).result(
                min(WAIT_S, left_s) + self._answer_s
            )
        except Exception as error:  # a call of a dead or dying actor can fail in any way
            raise _refusal(rid, self._gid, error) from error
        if found.code == ResultCode.OTHER_TOPIC:
            if found.end > topic_id:
                raise TopicRecreated(topic)
            raise UnknownTopic(topic)  # it lags: it has an earlier topic
        if found.code:
            raise UnknownTopic(topic, partition if found.code == ResultCode.BAD_PARTITION else None)
        return found


def _refusal(rid: int, gid: int, error: Exception) -> EscrowMQError:
    """What a failed call means: Unavailable, if another replica may answer."""
    cause = getattr(error, "cause", error)  # Ray wraps what an actor raised
    if isinstance(cause, Closed | InvalidMessage):
        return cause
    if isinstance(cause, EscrowMQError):
        return Unavailable(str(cause), getattr(cause, "retry_after_s", 0.1))
    return Unavailable(f"replica {rid} of group {gid} does not answer: {cause!r}", 0.1)


#: Upper bound of ``limit``: what it finds is kept in memory.
FIND_MAX = 10_000
#: Bytes of rows after which a search stops and says where to go on.
FOUND_BYTES_MAX = 64 << 20
#: Messages that one call looks through for a header: a few seconds of reading.
SCANNED_MAX = 1_000_000


class _Question(NamedTuple):
    """What is looked for, where; times in ms since the epoch, None: no bound."""

    topic: TopicInfo
    needle: Needle
    partitions: tuple[int, ...]
    since_ms: int | None
    until_ms: int | None

    def mark(self) -> str:
        """A short text that differs for other questions."""
        told = self.topic.name, self.topic.topic_id, *self[1:]
        return f"{google_crc32c.value(repr(told).encode()):08x}"


class MessageAdmin:
    """The part of ``Admin`` about single messages."""

    answer_s: ClassVar[float] = ANSWER_S
    router: Router
    _offsets: OffsetReader
    _timeout_s: float

    def _topic(self, name: str) -> TopicInfo:
        raise NotImplementedError

    def show_transaction(self, tx_id: str, app: str | None = None) -> TransactionDescription:
        """See ``Admin``."""
        raise NotImplementedError

    def message(self, topic: str, partition: int, offset: int) -> StoredMessage:
        """One message that can be read.

        Raises ConfigError, UnknownTopic, TopicRecreated, OffsetOutOfRange if retention has removed it or it
        does not exist yet, DamagedValue, CorruptLog if its producer stored no message there, Unavailable.
        """
        found = self._message_at(topic, partition, offset, False)
        return _stored(topic, partition, offset, found.time_ms, found.row)

    def find(
        self,
        topic: str,
        *,
        key: bytes | str | None = None,
        business_key: str | None = None,
        tx_id: str | None = None,
        header: tuple[str, bytes | str] | None = None,
        since: datetime | int | None = None,
        until: datetime | int | None = None,
        limit: int = 100,
        partitions: Sequence[int] | None = None,
        after: str | None = None,
    ) -> FoundMessages:
        """Messages of a topic with this key, business key, transaction id or header, by partition and offset.

        Exactly one of the four is given. A message's key names its partition, as the producer chooses it, so
        only that one is searched; for messages that were sent with ``partition=``, name ``partitions``. All
        others are searched for in all partitions, and so are keys in retries and dead letters. ``since``,
        ``until``: only messages that became readable from then on, and before then: a datetime (UTC if it has
        no time zone), or ms since the epoch.

        The first search reads what nobody has searched before, which can take minutes, and later ones do not.
        A call ends after the time-out, ``limit`` messages, or a million messages looked through for a header;
        continue with ``after`` of its answer and otherwise the same arguments. All messages are found that
        could be read when the call began. Raises ConfigError, InvalidMessage for what cannot be a business
        key, UnknownTopic, TopicRecreated, DamagedValue, Unavailable.
        """
        needle = _needle(key, business_key, tx_id, header)
        if type(limit) is not int or not 1 <= limit <= FIND_MAX:
            raise ConfigError(f"limit must be 1 to {FIND_MAX}, not {limit!r}")
        since_ms, until_ms = _time_ms("since", since), _time_ms("until", until)
        if since_ms is not None and until_ms is not None and since_ms > until_ms:
            raise ConfigError(f"since ({since_ms}) is after until ({until_ms})")
        info = self._topic(topic)
        asked = _Question(info, needle, _partitions(info, needle, partitions), since_ms, until_ms)
        first, offset = _continued(asked, after) if after is not None else (0, 0)
        found: list[StoredMessage] = []
        reached: tuple[int, int] | None = None
        left_bytes = FOUND_BYTES_MAX
        for partition, upto, rows in self._answers(asked, first, offset, limit):
            if rows is None:
                reached = partition, upto
                break
            for at, time_ms, row in zip(rows.offsets, rows.times_ms, rows.rows, strict=True):
                found.append(_stored(topic, partition, at, time_ms, row))
                left_bytes -= len(row)
            if len(found) >= limit or left_bytes <= 0:
                reached = partition, upto
                break
        if reached is None:
            return FoundMessages(tuple(found))
        return FoundMessages(tuple(found), f"{reached[0]}:{reached[1]}:{asked.mark()}")

    def _answers(
        self, asked: _Question, first: int, offset: int, limit: int
    ) -> Iterator[tuple[int, int, FoundRows | None]]:
        """``(partition, the offset up to which it is searched, what was found there)``. None instead of the
        last: there is more, but the time or the number of messages to look through is used up."""
        deadline = time.monotonic() + self._timeout_s
        left = SCANNED_MAX if asked.needle.kind == IN_HEADER else None
        wanted = [partition for partition in asked.partitions if partition >= first]
        for partition, (start, end) in zip(wanted, self._ranges(asked, wanted), strict=True):
            at = max(start, offset) if partition == first else start
            name = asked.topic.name
            gid = self.router.placement.group_of(name, partition)
            source = name, partition, asked.topic.topic_id
            search = PartitionSearch(self.router, gid, source, asked.needle, time.monotonic, self.answer_s)
            while at < end:
                if left == 0:
                    yield partition, at, None
                    return
                upto = end if left is None else min(end, at + left)
                rows = search.next(at, upto, limit, deadline)
                if rows is None:
                    yield partition, at, None
                    return
                if left is not None:
                    left = max(left - (rows.reached - at), 0)
                at, limit = rows.reached, limit - len(rows.offsets)
                yield partition, at, rows

    def _ranges(self, asked: _Question, partitions: Sequence[int]) -> list[tuple[int, int]]:
        """The offsets that the times leave in each partition; the ends are the leaders'."""
        name = asked.topic.name
        since = EARLIEST if asked.since_ms is None else asked.since_ms
        until = LATEST if asked.until_ms is None else asked.until_ms
        requests = [(name, partition, what) for partition in partitions for what in (since, until)]
        found: list[int] = []
        for offset in self._offsets.offsets(requests, self._timeout_s):
            if isinstance(offset, UnknownTopic):
                raise offset
            found.append(offset)
        return list(zip(found[::2], found[1::2], strict=True))

    def trace(self, topic: str, partition: int, offset: int) -> MessageTrace:
        """The life of one message: when and by which entry of the log it became readable, who decided its
        transaction, and how far each consumer group has come.

        Raises what :meth:`message` raises. Groups without an offset in the partition are left out.
        """
        found = self._message_at(topic, partition, offset, True)
        message = _stored(topic, partition, offset, found.time_ms, found.row)
        origin = found.origin
        app = origin.app or None if origin is not None else None
        transaction: TransactionDescription | None = None
        if message.tx_id is not None:
            try:
                transaction = self.show_transaction(message.tx_id, app)
            except (UnknownTransaction, ConfigError):  # forgotten, or several apps have used the id
                transaction = None
        return MessageTrace(
            message=message,
            broker_group=self.router.placement.group_of(topic, partition),
            how=None if origin is None else origin.how,
            readable_ms=found.time_ms,
            entry=None if origin is None else origin.index,
            stored_ms=None if origin is None else origin.stored_ms,
            app=app,
            decided_by=origin.by or None if origin is not None else None,
            transaction=transaction,
            groups=self._progress(topic, partition, offset),
        )

    def _progress(self, topic: str, partition: int, offset: int) -> tuple[GroupProgress, ...]:
        """What each consumer group has done with a message, by name."""
        futures = [
            self.router.leader_call(gid, "group_places", topic, partition, timeout_s=self._timeout_s)
            for gid in range(self.router.info.groups)
        ]
        answers = [result_of(future, self._timeout_s) for future in futures]
        found = {
            group: GroupProgress(group, "stream", "passed" if committed > offset else "ahead", committed)
            for answer in answers
            for group, committed in answer.items()
        }
        for group, failed in self._failed(topic, partition, offset, found).items():
            found[group] = GroupProgress(group, "stream", "retrying", offset, failed + 1)
        shared = self._share_states(topic, partition, offset, {group: {} for group in sorted(found)})
        retrying = [told.group for told in shared if told.state == "retrying" and told.group in found]
        if retrying:  # unless they have passed their retries, too
            again = self._share_states(topic, partition, offset, self._committed_in_retries(retrying))
            shared = [told for told in shared if told.group not in retrying]
            shared += [told for told in again if told.group in retrying]
        for told in shared:
            stream = found.get(told.group)
            kind, committed = ("share", None) if stream is None else ("stream", stream.place)
            about = told.attempt, told.due_ms, told.reason, told.member, told.to, told.tx_id
            found[told.group] = GroupProgress(told.group, kind, told.state, committed, *about)
        return tuple(progress for _, progress in sorted(found.items()))

    def _share_states(
        self, topic: str, partition: int, offset: int, streams: Mapping[str, Mapping[int, int]]
    ) -> list[ShareProgress]:
        gid = self.router.placement.group_of(topic, partition)
        message = topic, partition, offset
        asked = self.router.leader_call(gid, "share_states", *message, streams, timeout_s=self._timeout_s)
        told: list[ShareProgress] = result_of(asked, self._timeout_s)
        return told

    def _committed_in_retries(self, groups: Sequence[str]) -> dict[str, Mapping[int, int]]:
        """How far groups that read by offsets have come with their retries, by partition."""
        calls = {
            group: self.router.leader_call(
                coordinator_group(group, self.router.info.groups),
                *("committed", group, [retry_topic(group)]),
                timeout_s=self._timeout_s,
            )
            for group in groups
        }
        return {
            group: result_of(call, self._timeout_s).get(retry_topic(group), {})
            for group, call in calls.items()
        }

    def _failed(
        self, topic: str, partition: int, offset: int, found: Mapping[str, GroupProgress]
    ) -> dict[str, int]:
        """The groups that wait at the message, since it has failed so often."""
        message, groups = (topic, partition, offset), self.router.info.groups
        calls = {
            group: self.router.leader_call(
                coordinator_group(group, groups),
                "failed_attempts",
                group,
                [message],
                timeout_s=self._timeout_s,
            )
            for group, progress in found.items()
            if progress.place == offset
        }
        counts = {group: result_of(call, self._timeout_s)[0] for group, call in calls.items()}
        return {group: count for group, count in counts.items() if count}

    def _message_at(self, topic: str, partition: int, offset: int, origin: bool) -> MessageAt:
        for name, number in (("partition", partition), ("offset", offset)):
            if type(number) is not int or number < 0:
                raise ConfigError(f"{name} must be a number of 0 or more, not {number!r}")
        info = self._topic(topic)
        if partition >= info.partitions:
            raise UnknownTopic(topic, partition, info.partitions)
        asked = self.router.leader_call(
            self.router.placement.group_of(topic, partition),
            "message_at",
            *(topic, partition, info.topic_id, offset, origin),
            timeout_s=self._timeout_s,
        )
        found: MessageAt = result_of(asked, self._timeout_s)
        if found.code == ResultCode.OUT_OF_RANGE:
            raise OffsetOutOfRange(
                topic, partition, offset, found.start, found.end, advice="give one in this range"
            )
        if found.code == ResultCode.OTHER_TOPIC:
            raise TopicRecreated(topic)
        if found.code:
            raise UnknownTopic(topic, partition if found.code == ResultCode.BAD_PARTITION else None)
        return found


def _stored(topic: str, partition: int, offset: int, time_ms: int, row: bytes) -> StoredMessage:
    try:
        ((key, value, headers, tx_id),) = decode_rows(row, 1)
    except UnsoundValue as error:
        raise DamagedValue(topic, partition, offset, error.reason) from error
    except CorruptLog as error:
        raise CorruptLog(f"offset {offset} of {topic}/{partition} is no message: {error}") from error
    return StoredMessage(topic, partition, offset, time_ms, key, value, headers or {}, tx_id)


def _needle(key: Any, business_key: Any, tx_id: Any, header: Any) -> Needle:
    """Raises ConfigError unless exactly one is given, of the right type."""
    given = [thing for thing in (key, business_key, tx_id, header) if thing is not None]
    if len(given) != 1:
        raise ConfigError("give exactly one of key, business_key, tx_id and header")
    if key is not None:
        return Needle(KEY, _bytes("key", key))
    if tx_id is not None:
        if type(tx_id) is not str:
            raise ConfigError(f"tx_id must be str, not {type(tx_id).__name__}")
        return Needle(TX_ID, _bytes("tx_id", tx_id))
    if business_key is not None:
        return Needle(BUSINESS_KEY, encoded_key(business_key))
    if not isinstance(header, tuple) or len(header) != 2 or type(header[0]) is not str:
        raise ConfigError(f"header must be a pair of a name and a value, not {header!r}")
    _bytes("header", header[0])
    return Needle(IN_HEADER, _bytes("header", header[1]), header[0])


def _bytes(what: str, value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise ConfigError(f"{what} must be bytes or str, not {type(value).__name__}")
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{what} {value!r} cannot be encoded as UTF-8") from error


def _partitions(info: TopicInfo, needle: Needle, wanted: Sequence[int] | None) -> tuple[int, ...]:
    if wanted is None:
        # As the producer's encoder chooses. Into internal topics brokers write, each into its own partition.
        if needle.kind == KEY and not is_internal(info.name):
            return (google_crc32c.value(needle.needle) % info.partitions,)
        return tuple(range(info.partitions))
    if isinstance(wanted, str | bytes) or not all(type(number) is int for number in wanted):
        raise ConfigError(f"partitions must be a list of numbers, not {wanted!r}")
    for number in wanted:
        if not 0 <= number < info.partitions:
            raise UnknownTopic(info.name, number, info.partitions)
    if not wanted:
        raise ConfigError("partitions is empty; leave it out to search where the messages can be")
    return tuple(sorted(set(wanted)))


def _time_ms(name: str, time_: Any) -> int | None:
    if time_ is None:
        return None
    if isinstance(time_, datetime):
        date = time_ if time_.tzinfo else time_.replace(tzinfo=UTC)
        return max(round(date.timestamp() * 1000), 0)
    if type(time_) is not int or time_ < 0:
        raise ConfigError(f"{name} must be a datetime, or ms since the epoch, not {time_!r}")
    return time_


def _continued(asked: _Question, after: Any) -> tuple[int, int]:
    """The partition and offset where an earlier answer ended."""
    parts = after.split(":") if isinstance(after, str) else []
    if len(parts) != 3 or not (parts[0].isdecimal() and parts[1].isdecimal()):
        raise ConfigError(f"after must be taken from an earlier answer, not {after!r}")
    if parts[2] != asked.mark():
        raise ConfigError("after belongs to another question, or the topic was created again; leave it out")
    return int(parts[0]), int(parts[1])
