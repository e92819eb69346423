"""The operations of plain messages, transactions, topics, consumer groups' offsets, claims and cuts.

Each is a class (see ``operation``), with a function beside it that builds its frame where that takes more
than its columns. Those of delayed messages are in ``timer_ops``, those of share groups in ``share_ops``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

from msgspec import field

from escrowmq.replication.format.internal_topics import RESERVED, is_internal, owner_of, owner_problem
from escrowmq.replication.format.operation import MapColumn, Operation, OpType, Sender
from escrowmq.replication.format.settings import alter_problem, setting_problem, settings_problem
from escrowmq.replication.limits import (
    CLAIM_NAME_CHARS_MAX,
    GENERATION_MAX,
    GROUPS_MAX,
    NAME_CHARS_MAX,
    NUMBER_MAX,
    PARTICIPANTS_MAX,
    TIMEOUT_MS_MAX,
    ids_problem,
    name_problem,
)
from escrowmq.replication.model import BY_NAME, NO_ID


def id_problem(topic_id: int) -> str | None:
    """What is wrong with a topic's id, or None. ``NO_ID``: whichever topic has the name.

    A client must be able to say that, also in SCHEDULED, CANCEL and PRE_OFFSETS. It has heard of every topic
    that it names, but it keeps a bounded number of ids (``TopicPlacement``), and messages may wait in it
    until the id of their topic is among those that it has forgotten.
    """
    return None if NO_ID <= topic_id <= NUMBER_MAX else f"a topic's id must be {NO_ID} to {NUMBER_MAX}"


def brokers_topic_problem(topic: str) -> str | None:
    """Why no client may send messages to the topic, or None."""
    if topic.startswith(RESERVED) and is_internal(topic):
        return f"only brokers write messages into topic {topic!r}"
    return None


def pairs_problem(kind: OpType, flat: Sequence[int]) -> str | None:
    """What is wrong with pairs of partition and offset, or None."""
    if len(flat) % 2 or not all(0 <= n <= NUMBER_MAX for n in flat):
        return f"{kind.name} needs pairs of partition and offset, both 0 or more"
    return None


def _flat(pairs: Mapping[int, int]) -> list[int]:
    return [n for pair in pairs.items() for n in pair]


# ------------------------------------------------------------------ plain messages


#: Of the epoch that a message has, the upper bits are its claim's; the others count, at each producer and for
#: each partition, how often batches had to be numbered anew. Without a claim the upper ones are 0.
_COUNTED_BITS: Final = 32
#: The highest epoch of a claim, and of a message.
CLAIM_EPOCH_MAX: Final = (1 << 31) - 1
EPOCH_MAX: Final = (1 << 63) - 1


class MessageOp(Operation, frozen=True):
    """Plain messages of one partition; body: ``count`` rows.

    ``epoch``: under a claim (see CLAIM) the claim's epoch times 2^32, plus a number that the producer counts
    in each partition; without one that number alone. ``seq`` numbers the batches of this producer, partition
    and epoch from 0 (idempotence; -1: none). ``heard_ms``: the newest time of an entry of this group that the
    client had heard of before it first sent this batch (-1: none); a batch with ``seq`` 0 may be refused as
    STALE because of it, with the time of the entry. ``topic_id``: nothing is stored in another topic of that
    name. Result info: ``[base_offset, timestamp_ms]``.
    """

    KIND = OpType.MESSAGE
    NEW_WORK: ClassVar[bool] = True
    topic: str
    partition: int
    producer: str
    epoch: int
    seq: int
    count: int
    heard_ms: int
    topic_id: int

    def problem(self, body_bytes: int) -> str | None:
        if self.count < 1 or body_bytes < self.count or self.partition < 0:
            return "MESSAGE needs at least one row and a partition of 0 or more"
        if not (0 <= self.epoch <= EPOCH_MAX and -1 <= self.seq <= NUMBER_MAX):
            return f"MESSAGE's epoch must be 0 to {EPOCH_MAX}, and its sequence number up to {NUMBER_MAX}"
        if not -1 <= self.heard_ms <= NUMBER_MAX:
            return f"MESSAGE's heard_ms must be -1 to {NUMBER_MAX}"
        problem = id_problem(self.topic_id) or name_problem("producer", self.producer)
        return problem or brokers_topic_problem(self.topic)


def message(
    topic: str,
    partition: int,
    producer: str,
    epoch: int,
    seq: int,
    rows: Sequence[bytes | memoryview],
    heard_ms: int = -1,
    topic_id: int = NO_ID,
    count: int | None = None,
) -> bytes:
    """MESSAGE. ``count``: how many messages there are, if several of them are joined in ``rows``."""
    count = len(rows) if count is None else count
    return MessageOp(topic, partition, producer, epoch, seq, count, heard_ms, topic_id).frame(rows)


# ------------------------------------------------------------------ transactions


#: Bytes of a fence's name.
FENCE_BYTES: Final = 16
#: The newest PREPARE of a transaction that was prepared twice in one entry is that entry's index plus this,
#: which nobody was told.
TWINS: Final = 1 << 52
#: ``PrepareExtra.on_timeout`` of a transaction without a local one: nobody is asked about it.
ROLLBACK: Final = "rollback"
#: Who decides then, and about one that a newer claim has overtaken.
BY_TIMEOUT: Final = "timeout"
BY_CLAIM: Final = "claim"
#: The decider, unless the caller names another; and what the name of one begins with that is a home group.
BY_PRODUCER: Final = "producer"
BY_HOME: Final = "home:"
#: Replaces the number of references in a client's COMMIT: commit all of these transactions, or none.
TOGETHER: Final = -1


class PrepareExtra(MapColumn, frozen=True):
    """What most PREPAREs need little of: a map on the wire, defaults left out.

    ``instance``: the sending producer, which a check asks first. ``participants``: broker groups of the
    branches, without home. ``parts``: how many PREPAREs the transaction has here (0: not told).
    ``home_index``: in a branch, the log index of home's record of each transaction. ``given``: the
    application chose the ids, so they may come back at any time. ``heard_ms``: the newest time of an entry of
    this group that the client has seen (-1: none). ``claim``: name and epoch of the producer (see CLAIM), and
    number and digest of the transaction: number 0 and no digest, or 16 bytes and one transaction, whose home
    is the claim's group. ``on_timeout``: "rollback": when its time has passed, the
    leader rolls it back, and nobody is asked ("": somebody is); not in branches, which follow home.
    ``fence``: 16 bytes that name the table in an application's database in which its rows say what was
    committed: only who has that one may answer a check (empty: any producer of the app); not in branches
    either.
    """

    instance: str = ""
    participants: list[int] = field(default_factory=list)
    parts: int = 0
    home_index: list[int] = field(default_factory=list)
    given: bool = False
    heard_ms: int = -1
    claim: tuple[str, int, int, bytes] | None = None
    on_timeout: str = ""
    fence: bytes = b""

    def problem(self, transactions: int, home_group: int) -> str | None:
        """What is wrong with it in a PREPARE of so many transactions, or None."""
        groups = self.participants
        if len(self.instance) > NAME_CHARS_MAX:
            return f"PREPARE's instance has at most {NAME_CHARS_MAX} characters"
        if len(groups) > PARTICIPANTS_MAX or len(set(groups)) != len(groups):
            return f"PREPARE has at most {PARTICIPANTS_MAX} participants, and each once"
        if not all(0 <= group < GROUPS_MAX for group in groups) or (groups and home_group >= 0):
            return "PREPARE's participants are groups, and only home names them"
        if len(self.home_index) != (transactions if home_group >= 0 else 0):
            return "PREPARE has one home index for each transaction of a branch, and none elsewhere"
        if not all(0 < index <= NUMBER_MAX for index in self.home_index):
            return f"PREPARE's home indexes must be 1 to {NUMBER_MAX}"
        if self.fence and (len(self.fence) != FENCE_BYTES or home_group >= 0):
            return f"PREPARE's fence has {FENCE_BYTES} bytes, and a branch, which follows its home, has none"
        if not (0 <= self.parts <= NUMBER_MAX and -1 <= self.heard_ms <= NUMBER_MAX):
            return f"PREPARE's parts and heard_ms must be at most {NUMBER_MAX}"
        if self.claim is not None and (problem := claimed_problem(self.claim, transactions)) is not None:
            return problem
        if self.on_timeout not in ("", ROLLBACK):
            return f"on_timeout must be {ROLLBACK!r} or empty, not {self.on_timeout!r}"
        if self.on_timeout and home_group >= 0:
            return "a branch follows its home: it has no on_timeout"
        return None


NO_EXTRA = PrepareExtra()


class Prepare(Operation, frozen=True):
    """Opens the transactions (part 0) or adds to them (part 1, 2, ...). The next ``attached`` operations are
    its PRE_MESSAGEs and others of its parts.

    ``topic``: the home topic, whose feedback actor checks the transaction. ``query_ids`` nil: each equals its
    tx id. ``timeout_ms`` 0: the topic's. ``digests``: CRC32C of each transaction's rows in this part, before
    values are compressed, so that an id reused with other content is recognised. ``home_group`` -1: decided
    here, else the group whose decision counts. ``extra``: see ``PrepareExtra``.

    Result at home, if there are ``participants`` or the ids are ``given``: if it opened all of them, the log
    index of this entry; otherwise a list of that index and, for each transaction, the index at which it was
    opened (-1: it is refused).
    """

    KIND = OpType.PREPARE
    NEW_WORK: ClassVar[bool] = True
    app: str
    topic: str
    tx_ids: Sequence[str]
    query_ids: Sequence[str] | None
    timeout_ms: int
    part: int
    digests: Sequence[int]
    home_group: int
    attached: int
    extra: PrepareExtra

    def level_needed(self) -> int:
        return max(self.LEVEL, self.extra.level_needed())

    def problem(self, body_bytes: int) -> str | None:
        """See ``Operation``. What is attached is checked with it (``validation``)."""
        digests, count = self.digests, len(self.tx_ids)
        if len(digests) != count or (self.query_ids is not None and len(self.query_ids) != count):
            return "PREPARE's columns differ in length"
        if not 0 <= self.timeout_ms <= TIMEOUT_MS_MAX:
            return f"PREPARE's timeout must be 0 to {TIMEOUT_MS_MAX} ms"
        smallest, largest = min(digests, default=0), max(digests, default=0)
        if not (0 <= self.part <= NUMBER_MAX and 0 <= smallest <= largest <= NUMBER_MAX):
            return f"PREPARE's part and digests must be 0 to {NUMBER_MAX}"
        if not -1 <= self.home_group < GROUPS_MAX:
            return "PREPARE's home group must be -1 or the number of a group"
        if self.query_ids and max(map(len, self.query_ids)) > NAME_CHARS_MAX:
            return f"a query id has at most {NAME_CHARS_MAX} characters"
        if len(set(self.tx_ids)) != count:
            return "PREPARE names a transaction twice"
        return self.extra.problem(count, self.home_group) or ids_problem(self.app, self.tx_ids)


def prepare(
    app: str,
    topic: str,
    tx_ids: Sequence[str],
    query_ids: Sequence[str] | None,
    timeout_ms: int,
    part: int,
    digests: Sequence[int],
    home_group: int,
    attached: int,
    extra: PrepareExtra = NO_EXTRA,
) -> bytes:
    """PREPARE. Without ``extra`` it may be late: a group that has forgotten something refuses it."""
    return Prepare(
        app, topic, tx_ids, query_ids, timeout_ms, part, digests, home_group, attached, extra
    ).frame()


class PreMessage(Operation, frozen=True):
    """Held-back messages of one partition; body: a row each.

    ``txs[i]``: the index of row i's transaction in the PREPARE before. ``sizes[i]``: its bytes.
    ``topic_id``: the PREPARE opens nothing if there is another topic of that name.
    """

    KIND = OpType.PRE_MESSAGE
    ATTACHED: ClassVar[bool] = True
    topic: str
    partition: int
    txs: Sequence[int]
    sizes: Sequence[int]
    topic_id: int


def pre_message(
    topic: str,
    partition: int,
    txs: Sequence[int],
    sizes: Sequence[int],
    rows: Sequence[bytes],
    topic_id: int = NO_ID,
) -> bytes:
    """PRE_MESSAGE."""
    return PreMessage(topic, partition, txs, sizes, topic_id).frame(rows)


def _decision_problem(
    app: str, tx_ids: Sequence[str], by: str, home_index: Sequence[int], home_group: int
) -> str | None:
    if (problem := name_problem("by", by)) is not None:
        return problem
    if home_index and not (len(home_index) == len(tx_ids) and all(0 < i <= NUMBER_MAX for i in home_index)):
        return "a decision over several groups takes one home index for each transaction"
    if not -1 <= home_group < GROUPS_MAX or (home_group >= 0 and not home_index):
        return "the home group of a decision must be -1 or the number of a group, with home indexes"
    return ids_problem(app, tx_ids)


class Commit(Operation, frozen=True):
    """Commits transactions. ``by``: ``producer``, ``feedback``, ``policy:check_max``, ``operator:<name>``, or
    ``home:<group>``: the home group's decision about a branch, which only brokers send.

    As clients send it ``references`` is 0. Ids that cannot be committed are named in the result, and the
    others are committed; with -1 (``TOGETHER``) none is committed then. Ids that are already committed do not
    count as failures. In the log it is the number of REF_MESSAGEs and TX_MESSAGEs before it, and nothing
    follows it.

    ``home_index``: over several groups, for each transaction, the log index of home's record; ``home_group``:
    the group of that log, -1 where the decision is for home itself. An id that is open under another index
    belongs to another transaction, which is left alone. The leader has checked both, so in the log there are
    neither.
    """

    KIND = OpType.COMMIT
    SENDER = Sender.REWRITTEN
    app: str
    tx_ids: Sequence[str]
    by: str
    references: int
    home_index: Sequence[int]
    home_group: int

    def problem(self, body_bytes: int) -> str | None:
        if self.references not in (0, TOGETHER):
            return f"a client's COMMIT has 0 or {TOGETHER} in place of references"
        return _decision_problem(self.app, self.tx_ids, self.by, self.home_index, self.home_group)


def commit(
    app: str,
    tx_ids: Sequence[str],
    by: str = BY_PRODUCER,
    home_index: Sequence[int] = (),
    home_group: int = -1,
    *,
    together: bool = False,
) -> bytes:
    """COMMIT as clients send it."""
    number = TOGETHER if together else 0
    return Commit(app, tx_ids, by, number, home_index, home_group).frame()


class Rollback(Operation, frozen=True):
    """Rolls transactions back. ``by``, ``home_index`` and ``home_group``: as in COMMIT; ``by`` may also be
    ``timeout`` or ``claim``, of leaders. Where a home group sends it, ids that are not known here are
    remembered as rolled back. In the log it has only the ids that the leader has not left out.

    ``newest_index``: what a check decides under: for each transaction, the log index of its newest PREPARE
    when the check began. A transaction that was prepared again since then is left open and answered RETRY.
    Empty: unconditional.
    """

    KIND = OpType.ROLLBACK
    SENDER = Sender.REWRITTEN
    app: str
    tx_ids: Sequence[str]
    by: str
    newest_index: Sequence[int]
    home_index: Sequence[int]
    home_group: int

    def problem(self, body_bytes: int) -> str | None:
        if len(self.newest_index) not in (0, len(self.tx_ids)):
            return "ROLLBACK's columns differ in length"
        return _decision_problem(self.app, self.tx_ids, self.by, self.home_index, self.home_group)


def rollback(
    app: str,
    tx_ids: Sequence[str],
    by: str = BY_PRODUCER,
    home_index: Sequence[int] = (),
    home_group: int = -1,
    *,
    newest_index: Sequence[int] = (),
) -> bytes:
    """ROLLBACK."""
    return Rollback(app, tx_ids, by, newest_index, home_index, home_group).frame()


class Checked(Operation, frozen=True):
    """A producer answered UNKNOWN (or hung): counts the check; may park. With a ``reason`` no check, now or
    later, can decide these: they are parked, and the reason is shown with them."""

    KIND = OpType.CHECKED
    app: str
    tx_ids: Sequence[str]
    reason: str

    def problem(self, body_bytes: int) -> str | None:
        if len(self.reason) > NAME_CHARS_MAX:
            return f"a reason has at most {NAME_CHARS_MAX} characters"
        return ids_problem(self.app, self.tx_ids)


def checked(app: str, tx_ids: Sequence[str], reason: str = "") -> bytes:
    """CHECKED."""
    return Checked(app, tx_ids, reason).frame()


def _indexes_problem(app: str, tx_ids: Sequence[str], home_indexes: Sequence[int]) -> str | None:
    if len(tx_ids) != len(home_indexes) or not all(-1 <= index <= NUMBER_MAX for index in home_indexes):
        return "it takes one home index for each transaction"
    return ids_problem(app, tx_ids)


class TxDone(Operation, frozen=True):
    """Branch group ``group`` has carried out home's decision. Clients and leaders send it."""

    KIND = OpType.TX_DONE
    app: str
    tx_ids: Sequence[str]
    home_indexes: Sequence[int]
    group: int

    def problem(self, body_bytes: int) -> str | None:
        return _indexes_problem(self.app, self.tx_ids, self.home_indexes)


class Inquire(Operation, frozen=True):
    """Changes nothing. ``home_indexes``: of home's record of each transaction; -1: any transaction with this
    id.

    Result info, for each: ``[state, home_index, parts prepared, parts expected, home_group, groups]`` as of
    this entry. ``groups``: of an open one at home its participants, of a decided one those that have not done
    it.
    """

    KIND = OpType.INQUIRE
    app: str
    tx_ids: Sequence[str]
    home_indexes: Sequence[int]

    def problem(self, body_bytes: int) -> str | None:
        return _indexes_problem(self.app, self.tx_ids, self.home_indexes)


def done(app: str, tx_ids: Sequence[str], home_indexes: Sequence[int], group: int) -> bytes:
    """TX_DONE."""
    return TxDone(app, tx_ids, home_indexes, group).frame()


def inquire(app: str, tx_ids: Sequence[str], home_indexes: Sequence[int]) -> bytes:
    """INQUIRE."""
    return Inquire(app, tx_ids, home_indexes).frame()


class RefMessage(Operation, frozen=True):
    """Where messages are that the COMMIT or RELEASE behind it makes readable. ``references``: log index,
    position (from the first byte of that entry's command), bytes and messages of each, flat. Adjacent
    messages that become readable together share one."""

    KIND = OpType.REF_MESSAGE
    SENDER = Sender.LEADER
    topic: str
    partition: int
    references: Sequence[int]


def reference(topic: str, partition: int, flat: Sequence[int]) -> bytes:
    """REF_MESSAGE."""
    return RefMessage(topic, partition, flat).frame()


class TxMessage(Operation, frozen=True):
    """As REF_MESSAGE, with the bodies: ``count`` rows, which the leader has copied because they lie in
    another segment than the one that is written (up to 4 MiB in an entry), or are small
    (``broker.copy_bytes_max``)."""

    KIND = OpType.TX_MESSAGE
    SENDER = Sender.LEADER
    topic: str
    partition: int
    count: int


def copied(topic: str, partition: int, count: int, rows: bytes) -> bytes:
    """TX_MESSAGE."""
    return TxMessage(topic, partition, count).frame((rows,))


# ------------------------------------------------------------------ offsets in transactions
# What a transaction sends, and the offset up to which it has read for that, count together or not at all.


#: In place of an offset: the group has none there yet.
NONE_YET: Final = -1


class PreOffsets(Operation, frozen=True):
    """Offsets of a consumer group that a transaction moves when it is committed; follows a PREPARE, behind
    its messages. ``moves``: partition, from, to, flat. ``from``: the group's committed offset when the work
    began (-1: it had none). If the group is not there, somebody else has done the work, and the PREPARE opens
    nothing.
    """

    KIND = OpType.PRE_OFFSETS
    ATTACHED: ClassVar[bool] = True
    group: str
    topic: str
    moves: Sequence[int]
    topic_id: int

    def problem(self, body_bytes: int) -> str | None:
        if not 0 < len(self.group) <= NAME_CHARS_MAX:
            return f"group must have 1 to {NAME_CHARS_MAX} characters"
        flat = self.moves
        if body_bytes or not flat or len(flat) % 3 or not 0 <= self.topic_id <= NUMBER_MAX:
            return "PRE_OFFSETS needs triples of partition, from and to, and the id of its topic"
        partitions, begins, ends = flat[::3], flat[1::3], flat[2::3]
        if min(partitions) < 0 or len(set(partitions)) != len(partitions):
            return "PRE_OFFSETS needs partitions of 0 or more, each once"
        if min(begins) < NONE_YET or min(ends) < 0 or max(ends) > NUMBER_MAX:
            return f"PRE_OFFSETS goes from {NONE_YET} or more to 0 or more"
        if any(begin > end for begin, end in zip(begins, ends, strict=True)):
            return "PRE_OFFSETS goes forwards: `from` is at most `to`"
        return None


def pre_offsets(group: str, topic: str, moves: Mapping[int, tuple[int, int]], topic_id: int = NO_ID) -> bytes:
    """PRE_OFFSETS. ``moves``: partition -> (from, to)."""
    flat = [n for partition, (begin, end) in moves.items() for n in (partition, begin, end)]
    return PreOffsets(group, topic, flat, topic_id).frame()


class GroupOffsetsOp(Operation, frozen=True):
    """Where the group continues to read. ``offsets``: partition, next offset, flat."""

    KIND = OpType.GROUP_OFFSETS
    group: str
    topic: str
    offsets: Sequence[int]

    def problem(self, body_bytes: int) -> str | None:
        return pairs_problem(self.KIND, self.offsets) or name_problem("group", self.group)


def group_offsets(group: str, topic: str, offsets: Mapping[int, int]) -> bytes:
    """GROUP_OFFSETS."""
    return GroupOffsetsOp(group, topic, _flat(offsets)).frame()


class DeleteGroup(Operation, frozen=True):
    """Deletes what is known of a consumer group in this broker group; claims and commits of memberships up to
    that ``generation`` of the coordinator are void. ``by``: for the audit trail ("": not told). LEASE_LOST
    with names of members of a share group: they hold messages of it, or wait for some, and nothing is done.
    DUPLICATE: there is nothing of it."""

    KIND = OpType.DELETE_GROUP
    group: str
    generation: int
    by: str

    def problem(self, body_bytes: int) -> str | None:
        if not 0 <= self.generation <= GENERATION_MAX:
            return f"a generation must be 0 to {GENERATION_MAX}"
        if len(self.by) > NAME_CHARS_MAX:
            return f"a name has at most {NAME_CHARS_MAX} characters"
        return name_problem("group", self.group)


def delete_group(group: str, generation: int = 0, by: str = "") -> bytes:
    """DELETE_GROUP."""
    return DeleteGroup(group, generation, by).frame()


# ------------------------------------------------------------------ topics


def _too_large(settings: Mapping[str, object]) -> str | None:
    for key, value in settings.items():
        limit = TIMEOUT_MS_MAX if key == "transaction_timeout_ms" else NUMBER_MAX
        if isinstance(value, int) and value > limit:
            return f"topic setting {key!r} must be at most {limit}, not {value}"
    return None


class CreateTopic(Operation, frozen=True):
    """``settings``: by name; what is not named has the value of ``UNSTATED`` (``format/settings.py``).
    ``first_group``: the broker group of partition 0; partition p is in group (``first_group`` + p) modulo
    the groups. -1: the sum of the bytes of the name in UTF-8 takes its place. ``topic_id``: the id that group
    0 has assigned; 0 asks group 0 for one. The result info is the id. The same settings again are no error:
    DUPLICATE. Outside of group 0 a topic with a lower id is replaced, since its deletion was cut short; if
    there is one with a higher id, this creation came too late: OTHER_TOPIC."""

    KIND = OpType.CREATE_TOPIC
    NEW_WORK: ClassVar[bool] = True
    name: str
    settings: Mapping[str, int | str]
    first_group: int
    topic_id: int

    def problem(self, body_bytes: int) -> str | None:
        problem = id_problem(self.topic_id) or settings_problem(self.name, self.settings)
        return problem or _too_large(self.settings)

    def placing_problem(self, groups: int | None) -> str | None:
        """What is wrong with where it puts the topic, or None. ``groups``: None if not known."""
        if not BY_NAME <= self.first_group < (GROUPS_MAX if groups is None else groups):
            return f"there is no broker group {self.first_group} for a topic to begin at"
        name = self.name
        if not is_internal(name):
            return None
        if (problem := owner_problem("its owner", owner_of(name))) is not None:
            return problem
        begins = groups == 1 or self.first_group == 0
        if groups is not None and (self.settings.get("partitions", 1) != groups or not begins):
            return f"topic {name!r} has one partition in each of {groups} broker groups, from group 0 on"
        return None


def create_topic(
    name: str, settings: Mapping[str, object], first_group: int = BY_NAME, topic_id: int = NO_ID
) -> bytes:
    """CREATE_TOPIC."""
    return CreateTopic(name, dict(settings), first_group, topic_id).frame()  # type: ignore[arg-type]


class AlterTopic(Operation, frozen=True):
    """Other values of a topic's settings from this entry on, except ``partitions``. ``topic_id``: the topic
    that is meant; 0: any of that name.

    ``number`` orders alterations over the broker groups. In group 0: that of the newest alteration that the
    sender knows; if there is a newer one, the result is RETRY, otherwise this one gets the entry's index as
    its number. -1: none is known, so it only asks. The other groups get the number that group 0 has assigned;
    an alteration that is not newer than the one in force is a DUPLICATE. Result info: ``[settings in force,
    number of the newest alteration, id]``.
    """

    KIND = OpType.ALTER_TOPIC
    name: str
    settings: Mapping[str, int | str]
    number: int
    topic_id: int

    def problem(self, body_bytes: int) -> str | None:
        if not -1 <= self.number <= NUMBER_MAX:
            return f"the number of an alteration must be -1 to {NUMBER_MAX}"
        problem = id_problem(self.topic_id) or alter_problem(self.name, self.settings)
        return problem or _too_large(self.settings)


def alter_topic(
    name: str, settings: Mapping[str, int | str], number: int = -1, topic_id: int = NO_ID
) -> bytes:
    """ALTER_TOPIC."""
    return AlterTopic(name, dict(settings), number, topic_id).frame()


class DeleteTopic(Operation, frozen=True):
    """Deletes this topic and no later one of that name; ``topic_id`` 0: whichever there is. Outside of group
    0 it also deletes one with a lower id. Open transactions that hold messages for it keep them until they
    are settled. UNKNOWN_TOPIC comes with the id that group 0 has assigned last."""

    KIND = OpType.DELETE_TOPIC
    name: str
    topic_id: int

    def problem(self, body_bytes: int) -> str | None:
        return id_problem(self.topic_id)


def delete_topic(name: str, topic_id: int = NO_ID) -> bytes:
    """DELETE_TOPIC."""
    return DeleteTopic(name, topic_id).frame()


class Trim(Operation, frozen=True):
    """Retention by time or size: lower offsets of this topic, and of no later one, are gone. ``starts``:
    partition, first offset, flat. ``topic_id`` 0: whichever topic has the name."""

    KIND = OpType.TRIM
    topic: str
    starts: Sequence[int]
    topic_id: int

    def problem(self, body_bytes: int) -> str | None:
        return id_problem(self.topic_id) or pairs_problem(self.KIND, self.starts)


def trim(topic: str, starts: Mapping[int, int], topic_id: int = NO_ID) -> bytes:
    """TRIM."""
    return Trim(topic, _flat(starts), topic_id).frame()


# ------------------------------------------------------------------ the group itself


class SettingsOp(Operation, frozen=True):
    """Replicated settings of the broker group to change, by name. Result info: all in force."""

    KIND = OpType.SETTINGS
    values: Mapping[str, int]

    def problem(self, body_bytes: int) -> str | None:
        return setting_problem(self.values)


def settings(values: Mapping[str, int]) -> bytes:
    """SETTINGS."""
    return SettingsOp(dict(values)).frame()


class Retain(Operation, frozen=True):
    """Forget everything in log entries before ``first_index``, which is bounded by what is still needed."""

    KIND = OpType.RETAIN
    SENDER = Sender.LEADER
    first_index: int


def retain(first_index: int) -> bytes:
    """RETAIN."""
    return Retain(first_index).frame()


class Level(Operation, frozen=True):
    """From here on the log may hold what software of a lower format level cannot read. Irreversible, and
    harmless if repeated."""

    KIND = OpType.LEVEL
    SENDER = Sender.LEADER
    level: int


def level(level: int) -> bytes:
    """LEVEL."""
    return Level(level).frame()


# ------------------------------------------------------------------ cuts
# How far the partitions of a group go, and which decisions over several groups it has taken.
#
# A client asks every group for it three times to find a stable cut: ends of partitions that contain all of a
# transaction or none of it (actors/admin/stable_cut.py).


#: Topics of one CUT: a leader reads the ends of all of their partitions at once.
TOPICS_PER_CUT_MAX: Final = 200
#: For so long a leader may keep commits over several groups waiting for a cut. It helps a cut to be stable
#: where such commits come all the time, and is short enough for those who wait for them.
HOLD_MS_MAX: Final = 250


class Cut(Operation, frozen=True):
    """Changes nothing, and tells how far this group goes as of this entry. ``hold_ms``: for so long the
    leader keeps further commits over several groups waiting; 0: no longer.

    Result info: ``[index, index of the newest commit over several groups that was decided here, decisions
    that are not carried out everywhere, [[topic_id, [partition, end, ...]], ...]]``.
    """

    KIND = OpType.CUT
    topics: Sequence[str]
    hold_ms: int

    def problem(self, body_bytes: int) -> str | None:
        if len(self.topics) > TOPICS_PER_CUT_MAX or not 0 <= self.hold_ms <= HOLD_MS_MAX:
            return f"CUT takes up to {TOPICS_PER_CUT_MAX} topics and 0 to {HOLD_MS_MAX} ms"
        return None


def cut(topics: Sequence[str], hold_ms: int) -> bytes:
    """CUT."""
    return Cut(topics, hold_ms).frame()


# ------------------------------------------------------------------ claims
# A named producer's epoch, and the number of its last committed transaction.
#
# Whoever starts as the producer of a name claims a higher epoch than the last one had, in the claim's group
# and then with the same epoch in all others. From then on earlier ones are fenced. A transaction may have a
# number, and a digest of all that it sends; the claim's group, which is its home, remembers the last ones
# that were committed.


#: In place of a transaction's number: it has none.
UNNUMBERED: Final = 0
DIGEST_BYTES: Final = 16
#: Behind its name, a producer's name for delayed messages: their batches are numbered apart from the others.
OF_DELAYED: Final = "/later"


def _claim_problem(name: str, epoch: int) -> str | None:
    if not 0 < len(name) <= CLAIM_NAME_CHARS_MAX:
        return f"the name of a claim must have 1 to {CLAIM_NAME_CHARS_MAX} characters"
    if name.endswith(OF_DELAYED):
        return f"the name of a claim must not end in {OF_DELAYED!r}"
    if not 0 < epoch <= CLAIM_EPOCH_MAX:
        return f"the epoch of a claim must be 1 to {CLAIM_EPOCH_MAX}"
    return None


class ClaimOp(Operation, frozen=True):
    """The claimant is the only producer of the name from now on. Result info: ``[epoch, last number]``.
    FENCED, with the newest epoch: another has claimed it with that one, or with a higher one. Harmless if
    repeated.

    Clients send it to the claim's group first (the first 8 bytes of the name's SHA-256, big-endian, modulo
    the number of groups), then with the same epoch to the others. The claim's group is home to the
    transactions that have a number.
    """

    KIND = OpType.CLAIM
    name: str
    epoch: int
    claimant: str

    def problem(self, body_bytes: int) -> str | None:
        if not 0 < len(self.claimant) <= CLAIM_NAME_CHARS_MAX:
            return f"a claimant must have 1 to {CLAIM_NAME_CHARS_MAX} characters"
        return _claim_problem(self.name, self.epoch)


def claim(name: str, epoch: int, claimant: str) -> bytes:
    """CLAIM."""
    return ClaimOp(name, epoch, claimant).frame()


def claimed_problem(claim: tuple[str, int, int, bytes], transactions: int) -> str | None:
    """What is wrong with what a PREPARE says about its claim, or None."""
    name, epoch, number, digest = claim
    if (problem := _claim_problem(name, epoch)) is not None:
        return problem
    if not UNNUMBERED <= number <= NUMBER_MAX:
        return f"the number of a transaction must be {UNNUMBERED} to {NUMBER_MAX}"
    if number != UNNUMBERED and transactions != 1:
        return "a PREPARE with a number has one transaction"
    if len(digest) != (0 if number == UNNUMBERED else DIGEST_BYTES):
        return f"a transaction with a number has a digest of {DIGEST_BYTES} bytes, and no other has one"
    return None


def first_epoch(claimed: int) -> int:
    """The first epoch of messages under a claim; 0: without one."""
    return claimed << _COUNTED_BITS


def claimed_epoch(epoch: int) -> int:
    """The claim's epoch in that of a message; 0: it has none."""
    return epoch >> _COUNTED_BITS


def claim_group(name: str, groups: int) -> int:
    """The broker group that is asked for an epoch first, and is home to the numbered transactions."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % groups
