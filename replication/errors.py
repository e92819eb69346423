"""The error tree: a small set of types, each of which tells the caller what to do.

Every error crosses process borders (Ray pickles it), so all constructor arguments are kept in
``args`` and each class can be rebuilt from them. Retryable errors carry ``retry_after_s``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class EscrowMQError(Exception):
    """Base of every error that EscrowMQ raises deliberately."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.args


class NotLeader(EscrowMQError):
    """This replica does not lead its group; clients follow ``leader`` (replica number or None)."""

    def __init__(self, leader: int | None = None, term: int = 0) -> None:
        super().__init__(leader, term)
        self.leader, self.term = leader, term

    def __str__(self) -> str:
        return f"not the leader (leader: {self.leader}, term {self.term}); send to the leader instead"


class _Retryable(EscrowMQError):
    def __init__(self, message: str, retry_after_s: float = 0.1) -> None:
        super().__init__(message, retry_after_s)
        self.message, self.retry_after_s = message, retry_after_s

    def __str__(self) -> str:
        return f"{self.message}; retry after {self.retry_after_s:g} s"


class Unavailable(_Retryable):
    """No majority or no leader right now. Nothing was done."""


class Overloaded(_Retryable):
    """A bounded queue is full. Nothing was done; try again after ``retry_after_s``."""


class DiskFull(_Retryable):
    """The replica cannot write, or is about to run out of room: it refuses new work until space is freed.
    Nothing was done."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message, retry_after_s)


class UnknownTopic(EscrowMQError):
    """The topic or its partition does not exist. ``gone``: the topic existed when reading began."""

    def __init__(
        self, topic: str, partition: int | None = None, partitions: int | None = None, gone: bool = False
    ) -> None:
        super().__init__(topic, partition, partitions, gone)
        self.topic, self.partition, self.partitions, self.gone = topic, partition, partitions, gone

    def __str__(self) -> str:
        if self.gone:
            return (
                f"topic {self.topic!r} was deleted while it was read; create it again with "
                f"admin.create_topic({self.topic!r}), or read topics that exist"
            )
        if self.partition is None:
            return f"unknown topic {self.topic!r}; create it: admin.create_topic({self.topic!r})"
        if self.partitions is None:
            return f"topic {self.topic!r} has no partition {self.partition}; see admin.describe_topic"
        return (
            f"topic {self.topic!r} has no partition {self.partition} (it has {self.partitions}); "
            f"choose one of 0 to {self.partitions - 1}"
        )


class TopicRecreated(UnknownTopic):
    """The topic was deleted and created again. Nothing was done to the new topic.

    For a message or a transaction: it was sent more than once, and may be stored in the earlier topic.
    """

    def __str__(self) -> str:
        return (
            f"topic {self.topic!r} was deleted and created again: nothing was done to the new one; "
            "repeat the call if you mean the new one"
        )


class UnknownGroup(EscrowMQError):
    """No consumer group of that name has members or committed offsets."""

    def __init__(self, group: str) -> None:
        super().__init__(group)
        self.group = group

    def __str__(self) -> str:
        return f"unknown consumer group {self.group!r}; 'escrowmq group list' shows the existing ones"


class GroupNotEmpty(EscrowMQError):
    """A consumer group has live members, which would continue where they are. Nothing was done. ``members``:
    their names, as far as known."""

    def __init__(self, group: str, members: Sequence[str] = ()) -> None:
        super().__init__(group, members)
        self.group, self.members = group, tuple(members)

    def __str__(self) -> str:
        shown = ", ".join(self.members[:3]) + (", ..." if len(self.members) > 3 else "")
        return (
            f"consumer group {self.group!r} has live members{shown and f' ({shown})'}; stop them first "
            f"('escrowmq group describe {self.group}' shows them), or wait until their session has ended"
        )


class UnknownDeadLetter(EscrowMQError):
    """The consumer group never had a dead letter at such an offset, or has none there any more. Nothing was
    done. ``ids``: those that were given."""

    def __init__(self, group: str, ids: Sequence[str]) -> None:
        super().__init__(group, ids)
        self.group, self.ids = group, tuple(ids)

    def __str__(self) -> str:
        shown = ", ".join(map(repr, self.ids[:3])) + (", ..." if len(self.ids) > 3 else "")
        return (
            f"group {self.group!r} does not have the dead letters {shown}; 'escrowmq dead list "
            f"{self.group}' shows the ids of those that it has"
        )


class TopicExists(EscrowMQError):
    """A topic of that name exists with other settings."""


class InvalidMessage(EscrowMQError, TypeError):
    """A message, header, key or option has a wrong type or value; the text names it."""


class InvalidDecision(InvalidMessage):
    """A callback ran, but its return value is not a decision: the transaction is left to the check."""


class NotSerializable(InvalidMessage):
    """The producer's ``value_serializer`` cannot make bytes of a value. Nothing was sent."""


class NotDeserializable(EscrowMQError):
    """The consumer's ``value_deserializer`` cannot read a message's value."""

    def __init__(self, topic: str, partition: int, offset: int, reason: str) -> None:
        super().__init__(topic, partition, offset, reason)
        self.topic, self.partition, self.offset, self.reason = topic, partition, offset, reason

    def __str__(self) -> str:
        return (
            f"the value of {self.topic}/{self.partition}, offset {self.offset}, cannot be read: "
            f"{self.reason}; to leave it out, seek({self.topic!r}, {self.partition}, {self.offset + 1})"
        )


class MessageTooLarge(EscrowMQError):
    """A message, or one part of a transaction, exceeds the configured limit."""

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(size_bytes, limit_bytes)
        self.size_bytes, self.limit_bytes = size_bytes, limit_bytes

    def __str__(self) -> str:
        return (
            f"message of {self.size_bytes} bytes exceeds the limit of {self.limit_bytes}; "
            "store large bodies elsewhere and send a reference, or raise producer.message_bytes_max"
        )


class TransactionConflict(EscrowMQError):
    """The transaction cannot be run or decided as asked, because its id is recorded differently.

    The subclass says why: :class:`TransactionSettled`, :class:`TransactionIdTaken` or
    :class:`TransactionRunning`; this class itself where the reason is not known.
    """

    def __init__(self, tx_id: str, recorded_state: str) -> None:
        super().__init__(tx_id, recorded_state)
        self.tx_id, self.recorded_state = tx_id, recorded_state

    def __str__(self) -> str:
        return f"transaction {self.tx_id!r} is already recorded as {self.recorded_state}; that is final"


class TransactionSettled(TransactionConflict):
    """This very transaction was settled before, or was decided the other way; see ``recorded_state``."""

    def __str__(self) -> str:
        sent = self.recorded_state == "COMMITTED"
        then = "its messages are sent: for others" if sent else "to send its messages"
        return (
            f"transaction {self.tx_id!r} is already recorded as {self.recorded_state}, which is final; "
            f"{then} use another id"
        )


def decided_otherwise(tx_id: str, recorded: str) -> TransactionConflict:
    """The error for a decision that contradicts the recorded one."""
    return (TransactionConflict if recorded == "PREPARE" else TransactionSettled)(tx_id, recorded)


class TransactionIdTaken(TransactionConflict):
    """The id belongs to other content, whose state is ``recorded_state``. Nothing was done."""

    def __str__(self) -> str:
        return (
            f"transaction id {self.tx_id!r} belongs to other content, recorded as {self.recorded_state}; "
            "choose another id, or send the same messages as the first time"
        )


class TransactionRunning(TransactionConflict):
    """This producer is already running a transaction with this id; this call did nothing."""

    def __str__(self) -> str:
        return (
            f"this producer is already running transaction {self.tx_id!r}; wait for its result "
            "instead of running it twice, or choose another id"
        )


class UnknownTransaction(EscrowMQError):
    """No open transaction has this id, and neither does any that the broker still remembers."""

    def __init__(self, tx_id: str) -> None:
        super().__init__(tx_id)
        self.tx_id = tx_id

    def __str__(self) -> str:
        return f"unknown transaction {self.tx_id!r}: never prepared here, or settled too long ago to remember"


class NotFullyPrepared(EscrowMQError):
    """A transaction cannot be committed by hand because not all of it was prepared; it can be rolled back."""

    def __init__(self, tx_id: str, lacking: str) -> None:
        super().__init__(tx_id, lacking)
        self.tx_id, self.lacking = tx_id, lacking

    def __str__(self) -> str:
        return (
            f"transaction {self.tx_id!r} cannot be committed: {self.lacking}. Its producer never finished "
            "preparing it, so its local transaction was not run under this id; roll it back"
        )


class TooManyOpenTransactions(_Retryable):
    """The limit of open transactions for this app and topic is reached: slow down."""


class TooManyScheduled(_Retryable):
    """As many messages wait for their time in this broker group as it takes (``broker.timers_max``). Nothing
    was done."""


class OutcomeUnknown(EscrowMQError):
    """The call may or may not have taken effect; the check, or a retry with the same id, settles it."""

    def __init__(self, tx_id: str) -> None:
        super().__init__(tx_id)
        self.tx_id = tx_id

    def __str__(self) -> str:
        return (
            f"the outcome of {self.tx_id!r} is not known here; retry with the same id, or leave it to the "
            "transaction check"
        )


class ProducerFenced(EscrowMQError):
    """Another producer has claimed this one's ``transactional_id`` since; this one must stop. What was sent
    only once is not stored; what was sent again, because the first sending got no answer, may be."""


class OffsetOutOfRange(EscrowMQError):
    """The offset lies before the log's start or after its end. ``settled``: it was not to be read, but a
    group is done with it."""

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        start: int,
        end: int,
        settled: bool = False,
        advice: str = "seek inside it, or set auto_offset_reset",
    ) -> None:
        super().__init__(topic, partition, offset, start, end, settled, advice)
        self.topic, self.partition, self.offset, self.start, self.end = topic, partition, offset, start, end
        self.settled, self.advice = settled, advice

    def __str__(self) -> str:
        where = f"offset {self.offset} of {self.topic}/{self.partition}"
        if self.settled:
            return f"{where} cannot be settled: the partition has [{self.start}, {self.end}] without the end"
        return f"{where} is outside [{self.start}, {self.end}]; {self.advice}"


class NothingCommitted(OffsetOutOfRange):
    """There is no committed offset to begin at, and ``auto_offset_reset`` is "none"; ``offset`` is -1."""

    def __str__(self) -> str:
        return (
            f"there is no committed offset of {self.topic}/{self.partition}, and auto_offset_reset is "
            f"'none'; seek to an offset in [{self.start}, {self.end}], or set auto_offset_reset to "
            "'earliest' or 'latest'"
        )


class DataLoss(EscrowMQError):
    """Messages that a query was about to read no longer exist: retention removed them, or their topic was
    deleted."""

    def __str__(self) -> str:
        return (
            f"{self.args[0]}. Some data may have been lost: retention removed it before it was read, or the "
            "topic was deleted. To continue the query without it, set option 'failOnDataLoss' to 'false'"
        )


class StaleMember(EscrowMQError):
    """The consumer is no longer a member of this generation of its group: join again."""


class MemberFenced(EscrowMQError):
    """Another live member of the group has the same ``instance_id``, and began later: this one must stop."""

    def __init__(self, group: str, instance_id: str) -> None:
        super().__init__(group, instance_id)
        self.group, self.instance_id = group, instance_id

    def __str__(self) -> str:
        return (
            f"another member of group {self.group!r} began with instance_id {self.instance_id!r} and reads "
            "the partitions of this one; close this consumer, and give each live member its own id"
        )


class LeaseLost(EscrowMQError):
    """The lease of a message ended, and another consumer of the share group has the message. Nothing was
    done."""

    def __init__(self, topic: str, partition: int, offset: int) -> None:
        super().__init__(topic, partition, offset)
        self.topic, self.partition, self.offset = topic, partition, offset

    def __str__(self) -> str:
        return (
            f"the lease of {self.topic}/{self.partition}, offset {self.offset}, ended, and another consumer "
            "has the message; leave it to that one (if it was handled here, ack still counts), and raise "
            "lease_s or lease_extend_max_s if handlers need longer"
        )


class RecordNotHeld(EscrowMQError):
    """A share consumer was told about a message that it does not hold. Nothing was done."""

    def __init__(self, topic: str, partition: int, offset: int) -> None:
        super().__init__(topic, partition, offset)
        self.topic, self.partition, self.offset = topic, partition, offset

    def __str__(self) -> str:
        return (
            f"this consumer does not hold {self.topic}/{self.partition}, offset {self.offset}: it did not "
            "poll it, or it was acked, nacked, rejected or released before; settle each record once, with "
            "the consumer that polled it"
        )


class GroupKindMismatch(EscrowMQError):
    """A consumer group is read by offsets ("stream"), or message by message ("share"): which of both its
    first use has decided, and this group's is the other one. Nothing was done."""

    def __init__(self, group: str, kind: str) -> None:
        super().__init__(group, kind)
        self.group, self.kind = group, kind

    def __str__(self) -> str:
        way = "cluster.share_consumer" if self.kind == "share" else "cluster.consumer"
        return (
            f"{self.group!r} is a {self.kind} group, and stays one: use {way}(...) with it, or choose "
            "another name for this consumer's group"
        )


class Closed(EscrowMQError):
    """The producer, consumer or cluster object was closed."""


class CorruptLog(EscrowMQError):
    """A record failed its checksum, or a file is damaged. Damage is never repaired by truncating the log."""


class DamagedEntry(CorruptLog):
    """One known entry of the log fails its checksum; the replica fetches it from another replica."""


class DamagedValue(CorruptLog):
    """A compressed value cannot be unpacked, announces too many bytes, or is not what was sent."""

    def __init__(self, topic: str, partition: int, offset: int, reason: str) -> None:
        super().__init__(topic, partition, offset, reason)
        self.topic, self.partition, self.offset, self.reason = topic, partition, offset, reason

    def __str__(self) -> str:
        return (
            f"the compressed value of {self.topic}/{self.partition}, offset {self.offset}, is damaged: "
            f"{self.reason}; to leave it out, seek({self.topic!r}, {self.partition}, {self.offset + 1})"
        )


class UnknownVersion(EscrowMQError):
    """The data was written by a newer version of EscrowMQ (or not by EscrowMQ at all)."""


class NotSupported(EscrowMQError):
    """A replica of the cluster runs older software (upgrade every replica first), or something that the call
    needs is missing: the text says what. Nothing was done."""


class DataDirMismatch(EscrowMQError):
    """The data directory belongs to another cluster, group or replica."""


class DataDirLocked(EscrowMQError):
    """Another live replica holds the data directory."""


class DiskFailed(EscrowMQError):
    """The disk failed to read or write. The process must end: restart it, or replace the disk."""


class FsyncFailed(DiskFailed):
    """fdatasync or fsync failed: the page cache can no longer be trusted, so the process must end."""


class ReadFailed(DiskFailed):
    """Two reads in a row did not return what was written: the replica repairs itself from a peer."""


class OutOfDescriptors(DiskFailed):
    """The process, or the machine, has as many files open as its limit allows: raise it, and start again."""


class OffsetGone(EscrowMQError, LookupError):
    """This replica does not hold the log entry: retention dropped it, or it was never written. Read a later
    one."""


class Superseded(EscrowMQError):
    """Another process has taken this replica's place. This one never takes part again, and leaves its
    directory as it is."""

    def __init__(self, who: str, by: int) -> None:
        super().__init__(who, by)
        self.who, self.by = who, by

    def __str__(self) -> str:
        return (
            f"{self.who} was replaced: its peers know incarnation {self.by} of it, on another disk. It no "
            "longer takes part in the group; its directory may be removed once its replacement "
            "is a full member"
        )


class ChangeRefused(EscrowMQError):
    """The group will never take this step of a membership change; the text says what to request instead."""


class ChangeNotYet(EscrowMQError):
    """The group cannot take this step of a membership change yet: ask again, with the same id. The text says
    what it is waiting for."""


class NotAuthorized(EscrowMQError):
    """Wrong or missing cluster secret."""


class ConfigError(EscrowMQError, ValueError):
    """A configuration value is unknown or out of range; the text names it and says what is allowed."""


class SettingsDiffer(ConfigError):
    """The cluster runs with settings that differ from those requested. ``differences``: one map for each,
    with ``path``, ``running``, ``wanted``, and ``how`` to change it."""

    def __init__(self, message: str, differences: Sequence[Mapping[str, Any]] = ()) -> None:
        super().__init__(message, differences)
        self.message, self.differences = message, differences

    def __str__(self) -> str:
        return self.message


class ClusterNotFound(EscrowMQError):
    """There is no Ray cluster at the given address, or no EscrowMQ on it."""


class JavaNotFound(EscrowMQError):
    """Spark needs Java and none was found."""


class SafetyViolation(EscrowMQError):
    """A safety property of the log was about to be violated. The process must end; report it with its log."""


class ApplyFailed(EscrowMQError):
    """Applying a committed entry raised an exception, which is a bug. The process must end rather than skip
    or repeat it."""


class WireError(EscrowMQError):
    """A peer sent something that is not a message of this protocol, or exceeds its limits. Its connection is
    closed."""


# ------------------------------------------------------------------ claims
# Errors of named producers, beside ``ProducerFenced``. As those of errors.py: each is rebuilt from its
# ``args``.


class OutOfStep(EscrowMQError):
    """A numbered transaction of a named producer does not follow the last one. Nothing was done. ``last``:
    the number of the last one that is committed; it may be ``number``, with other messages."""

    def __init__(self, transactional_id: str, number: int, last: int) -> None:
        super().__init__(transactional_id, number, last)
        self.transactional_id, self.number, self.last = transactional_id, number, last

    def __str__(self) -> str:
        why = "is committed with other messages" if self.number == self.last else "comes too late"
        return (
            f"transaction {self.number} of {self.transactional_id!r} {why}: number {self.last} is the last "
            "that is committed. Whatever counts the numbers has gone back, perhaps to a backup: find out "
            "which of its messages are in the broker already"
        )


# ------------------------------------------------------------------ offsets
# Errors of transactions that move offsets of a consumer group. Part of the tree in errors.py.


#: Suggested pause: a transaction without a local one is usually decided within milliseconds.
PENDING_RETRY_S = 0.1


class OffsetsMoved(EscrowMQError):
    """The group is no longer where this work began: another member has done it, or somebody has set the
    offset. Nothing of this transaction will be read; go on from ``committed`` (-1: none)."""

    def __init__(self, group: str, topic: str, partition: int, committed: int) -> None:
        super().__init__(group, topic, partition, committed)
        self.group, self.topic, self.partition, self.committed = group, topic, partition, committed

    def __str__(self) -> str:
        return (
            f"group {self.group!r} is at {self.committed} of {self.topic}/{self.partition}, which is not "
            "where this work began: somebody else has done it; poll again, which goes on from there"
        )


class OffsetsPending(EscrowMQError):
    """An open transaction is about to move the group's committed offset. Nothing was done: try again when it
    is settled, after ``retry_after_s`` or so."""

    def __init__(self, group: str, topic: str, partition: int) -> None:
        super().__init__(group, topic, partition)
        self.group, self.topic, self.partition = group, topic, partition
        self.retry_after_s = PENDING_RETRY_S

    def __str__(self) -> str:
        return (
            f"an open transaction holds the offset of group {self.group!r} in {self.topic}/{self.partition}; "
            "wait until it is settled ('escrowmq txn list' shows open ones)"
        )
