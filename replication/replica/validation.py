"""Admission of a client's request: anything that could make ``apply`` fail is refused here.

The typed decoders of codec.py have checked shapes; this checks what they cannot: that columns are of
equal length, ordinals are in range, sizes add up, PRE_MESSAGEs follow their PREPARE, and that clients send
no operations that only a leader may write.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Final

from escrowmq.replication.errors import CorruptLog, InvalidMessage, UnknownVersion
from escrowmq.replication.format.codec import (
    FENCE_BYTES,
    LEVEL_OF_FENCES,
    NO_EXTRA,
    Op,
    OpType,
    PrepareExtra,
    decode_ops,
)
from escrowmq.replication.format.internal_topics import (
    DELAY_MS_MAX,
    RESERVED,
    dead_topic,
    group_settings_problem,
    is_internal,
    owner_of,
    owner_problem,
)
from escrowmq.replication.format.ops import ANY_ID, HOLD_MS_MAX, NONE_YET, ROLLBACK, TOPICS_PER_CUT_MAX
from escrowmq.replication.format.share_ops import (
    ANY_NUMBER,
    DROPPED,
    EARLIEST,
    LATEST,
    LETTER_RANGES_MAX,
    LEVEL_OF_LETTERS,
    LEVEL_OF_SHARES,
    REDRIVEN,
    REJECT,
)
from escrowmq.replication.format.timer_ops import EPOCH_MAX, LEVEL_OF_TIMERS, ORDINALS, OWNER_MAX
from escrowmq.replication.model import BY_NAME, NO_ID
from escrowmq.replication.replica.claim_validation import (
    claim_problem,
    claimed_place_problem,
    claimed_problem,
)
from escrowmq.replication.state.dedup import setting_problem
from escrowmq.replication.state.topics import alter_problem, settings_problem
from escrowmq.replication.state.transactions import BY_HOME

# ------------------------------------------------------------------ offsets
# Admission of transactions that move places of consumer groups, or about which nobody is asked.
#
# What decoders cannot check. See validation.py, which calls this.


#: Of one transaction: about a megabyte of memory while it is open.
PLACES_MAX: Final = 10_000


def on_timeout_problem(extra: PrepareExtra, home_group: int) -> str | None:
    """What is wrong with a PREPARE's ``on_timeout``, or None."""
    if extra.on_timeout not in ("", ROLLBACK):
        return f"on_timeout must be {ROLLBACK!r} or empty, not {extra.on_timeout!r}"
    if extra.on_timeout and home_group >= 0:
        return "a branch follows its home: it has no on_timeout"
    return None


def offsets_problem(prepare: Op, attached: Sequence[Op]) -> str | None:
    """What is wrong with the PRE_OFFSETS behind a PREPARE, or None."""
    moving = [op for op in attached if op.type == OpType.PRE_OFFSETS]
    if not moving:
        return None
    extra = prepare.meta[9] if len(prepare.meta) > 9 else NO_EXTRA
    if len(prepare.meta[2]) != 1 or prepare.meta[5] or extra is NO_EXTRA:
        return "PRE_OFFSETS follows the first PREPARE, of version 2, of one transaction"
    if any(op.type != OpType.PRE_OFFSETS for op in attached[-len(moving) :]):
        return "PRE_OFFSETS stands behind the messages"
    if len({tuple(op.meta[:2]) for op in moving}) != len(moving):
        return "a transaction moves the places of a group in a topic once"
    if sum(len(op.meta[2]) for op in moving) > 3 * PLACES_MAX:
        return f"a transaction moves at most {PLACES_MAX} places"
    return next((problem for op in moving if (problem := _moved_problem(op)) is not None), None)


def _moved_problem(op: Op) -> str | None:
    group, _, flat, topic_id = op.meta
    if not 0 < len(group) <= NAME_CHARS_MAX:
        return f"group must have 1 to {NAME_CHARS_MAX} characters"
    if op.body_size or not flat or len(flat) % 3 or not 0 <= topic_id <= NUMBER_MAX:
        return "PRE_OFFSETS needs triples of partition, from and to, and the id of its topic"
    partitions, begins, ends = flat[::3], flat[1::3], flat[2::3]
    if min(partitions) < 0 or len(set(partitions)) != len(partitions):
        return "PRE_OFFSETS needs partitions of 0 or more, each once"
    if min(begins) < NONE_YET or min(ends) < 0 or max(ends) > NUMBER_MAX:
        return f"PRE_OFFSETS goes from {NONE_YET} or more to 0 or more"
    if any(begin > end for begin, end in zip(begins, ends, strict=True)):
        return "PRE_OFFSETS goes forwards: `from` is at most `to`"
    return None


# ------------------------------------------------------------------ share groups
# Admission of requests about share groups, retries and internal topics: what decoders cannot check.
#
# See validation.py, which calls this.


#: What clients send: added with level 9.
SHARES: Final = frozenset((OpType.SHARE_ACK, OpType.NACK, OpType.GROUP_SETTINGS, OpType.PLACES))
#: Ranges or offsets of one operation.
RANGES_MAX: Final = 20_000
#: Offsets of one NACK: each may need a row to be read.
NACKED_MAX: Final = 1_000
#: A member's id is 32 hexadecimal digits; a name is something a person has given.
NAME_CHARS_MAX: Final = 512
#: Characters of a reason. In the copy it is cut to ``REASON_BYTES_MAX`` bytes.
REASON_CHARS_MAX: Final = 65_536


def share_problem(op: Op) -> str | None:
    """What is wrong with a client's operation of ``SHARES``, or None."""
    meta = op.meta
    if op.type == OpType.PLACES:
        return _places_problem(meta[2]) or owner_problem("group", meta[0])
    if op.type == OpType.GROUP_SETTINGS:
        if not ANY_NUMBER <= meta[2] <= NUMBER_MAX:
            return f"the number of a change must be {ANY_NUMBER} to {NUMBER_MAX}"
        if len(meta) > 3 and len(meta[3]) > NAME_CHARS_MAX:
            return f"a name has at most {NAME_CHARS_MAX} characters"
        return group_settings_problem(meta[1]) or owner_problem("group", meta[0])
    if meta[2] < 0 or not NO_ID <= meta[-1] <= NUMBER_MAX:
        return f"a partition is 0 or more, and a topic's id {NO_ID} to {NUMBER_MAX}"
    if op.type == OpType.NACK:
        problem = _nack_problem(op)
    elif type(meta[3]) is str:
        problem = _reply_problem(op)
    else:
        problem = _ack_problem(op)
    return problem or owner_problem("group", meta[0]) or _foreign_problem(meta[0], meta[1])


def _foreign_problem(group: str, topic: str) -> str | None:
    if is_internal(topic) and owner_of(topic) != group:
        return f"{topic!r} is not a topic of group {group!r}"
    return None


def _ack_problem(op: Op) -> str | None:
    ranges, create = op.meta[3], op.meta[4]
    if create.startswith((f"{DROPPED} ", f"{REDRIVEN} ")) and op.meta[1] == dead_topic(op.meta[0]):
        if len(create) > NAME_CHARS_MAX:
            return f"who settles dead letters is named in up to {NAME_CHARS_MAX} characters"
    elif create:
        if create not in (EARLIEST, LATEST) or ranges:
            return f"a group begins at {EARLIEST!r} or {LATEST!r}, with an operation of its own"
        return None
    return _ranges_problem(OpType.SHARE_ACK, ranges)


def _ranges_problem(kind: OpType, ranges: Sequence[int]) -> str | None:
    if not 2 <= len(ranges) <= 2 * RANGES_MAX or len(ranges) % 2:
        return f"{kind.name} needs 1 to {RANGES_MAX} pairs of first and last offset"
    firsts, lasts = ranges[::2], ranges[1::2]
    if firsts[0] < 0 or lasts[-1] > NUMBER_MAX:
        return f"an offset must be 0 to {NUMBER_MAX}"
    if any(map(int.__gt__, firsts, lasts)) or any(map(int.__ge__, lasts, firsts[1:])):
        return "ranges must be in ascending order, and must not overlap"
    return None


def letters_problem(prepare: Op, attached: Sequence[Op]) -> str | None:
    """What is wrong with the PRE_LETTERS behind a PREPARE, or None."""
    places = [at for at, op in enumerate(attached) if op.type == OpType.PRE_LETTERS]
    if not places:
        return None
    extra = prepare.meta[9] if len(prepare.meta) > 9 else NO_EXTRA
    if len(prepare.meta[2]) != 1 or prepare.meta[5] or prepare.meta[7] >= 0 or not extra.on_timeout:
        return "PRE_LETTERS follows the first PREPARE, at home, of a transaction with on_timeout"
    if places != [len(attached) - 1]:
        return "there is one PRE_LETTERS, behind everything else"
    group, partition, ranges, topic_id, to, by = attached[-1].meta
    if attached[-1].body_size or partition < 0 or not NO_ID <= topic_id <= NUMBER_MAX:
        return f"a partition is 0 or more, and a topic's id {NO_ID} to {NUMBER_MAX}"
    if len(ranges) > 2 * LETTER_RANGES_MAX or max(len(to), len(by)) > NAME_CHARS_MAX:
        most = LETTER_RANGES_MAX
        return f"PRE_LETTERS has up to {most} ranges, and names of up to {NAME_CHARS_MAX} characters"
    return _ranges_problem(OpType.PRE_LETTERS, ranges) or owner_problem("group", group)


def _reply_problem(op: Op) -> str | None:
    _, _, _, app, offsets, sizes, _ = op.meta
    if not offsets or len(offsets) > RANGES_MAX or len(offsets) != len(sizes):
        return f"a SHARE_ACK with replies needs 1 to {RANGES_MAX} offsets, and a size for each"
    if min(sizes) < 1 or sum(sizes) != op.body_size:
        return "SHARE_ACK's columns do not fit its body"
    return _offsets_problem(offsets) or owner_problem("app", app)


def _nack_problem(op: Op) -> str | None:
    _, _, _, offsets, delays_ms, reasons, member, by, attempt, _ = op.meta
    if not offsets or len(offsets) > NACKED_MAX or not len(offsets) == len(delays_ms) == len(reasons):
        return f"NACK needs 1 to {NACKED_MAX} offsets, and a delay and a reason for each"
    if min(delays_ms) < REJECT or max(delays_ms) > DELAY_MS_MAX:
        return f"a delay must be 0 to {DELAY_MS_MAX} ms"
    if not 0 <= attempt <= NUMBER_MAX:
        return f"the number of an attempt must be 0 to {NUMBER_MAX}"
    if max(map(len, reasons)) > REASON_CHARS_MAX or max(len(member), len(by)) > NAME_CHARS_MAX:
        return f"a reason has at most {REASON_CHARS_MAX} characters, and a name {NAME_CHARS_MAX}"
    return _offsets_problem(offsets)


def _offsets_problem(offsets: Sequence[int]) -> str | None:
    if offsets[0] < 0 or offsets[-1] > NUMBER_MAX or any(map(int.__ge__, offsets, offsets[1:])):
        return f"offsets must be 0 to {NUMBER_MAX}, in ascending order, and each once"
    return None


def _places_problem(flat: Sequence[int]) -> str | None:
    if len(flat) % 3 or not all(0 <= n <= NUMBER_MAX for n in flat):
        return "PLACES needs triples of partition, offset and attempts, all of them 0 or more"
    return None


def internal_topic_problem(op: Op, groups: int | None) -> str | None:
    """What is wrong with a CREATE_TOPIC of an internal topic, or None. ``groups``: None if not known."""
    name, settings, *placed = op.meta
    if not is_internal(name):
        return None
    if (problem := owner_problem("its owner", owner_of(name))) is not None:
        return problem
    if groups is None:
        return None
    begins = groups == 1 or (placed and placed[0] == 0)
    if settings.get("partitions", 1) != groups or not begins:
        return f"topic {name!r} has one partition in each of {groups} broker groups, from group 0 on"
    return None


# ------------------------------------------------------------------ validation


_FROM_CLIENTS = frozenset(
    (
        OpType.MESSAGE,
        OpType.PREPARE,
        OpType.PRE_MESSAGE,
        OpType.COMMIT,
        OpType.ROLLBACK,
        OpType.CREATE_TOPIC,
        OpType.ALTER_TOPIC,
        OpType.DELETE_TOPIC,
        OpType.GROUP_OFFSETS,
        OpType.TRIM,
        OpType.CHECKED,
        OpType.SETTINGS,
        OpType.TX_DONE,
        OpType.INQUIRE,
        OpType.DELETE_GROUP,
        OpType.SCHEDULED,
        OpType.PRE_SCHEDULED,
        OpType.CANCEL,
        OpType.CUT,
        OpType.CLAIM,
        OpType.PRE_OFFSETS,
        OpType.PRE_LETTERS,
        *SHARES,
    )
)
#: Types of operations that were added with level 2; two older ones have had a second version since then.
_LEVEL_2 = frozenset((OpType.TX_DONE, OpType.INQUIRE, OpType.SETTINGS))
#: Added with level 3, in which MESSAGE got a second version.
_LEVEL_3 = frozenset((OpType.ALTER_TOPIC,))
#: Number of columns of the second version of CREATE_TOPIC, which level 4 added.
_PLACED = 3
#: From level 6 on, operations that name topics have a version with the topic's id. Value: its number of
#: columns.
_LEVEL_6 = frozenset((OpType.DELETE_GROUP,))
_WITH_ID: Mapping[int, int] = {
    OpType.MESSAGE: 8,
    OpType.PRE_MESSAGE: 5,
    OpType.CREATE_TOPIC: 4,
    OpType.DELETE_TOPIC: 2,
    OpType.ALTER_TOPIC: 4,
    OpType.TRIM: 3,
}
#: The column with the topic's id in these operations, if they have it. (PRE_MESSAGE's is checked with its
#: PREPARE.)
_ID_AT: Mapping[int, int] = {kind: columns - 1 for kind, columns in _WITH_ID.items()}
#: What clients send about delayed messages: added with level 8.
_TIMERS = frozenset((OpType.SCHEDULED, OpType.PRE_SCHEDULED, OpType.CANCEL))
#: Added with level 9; some older ones have further columns since then.
_LEVEL_9 = frozenset((*SHARES, OpType.CUT, OpType.CLAIM, OpType.PRE_OFFSETS))
#: Parts of a transaction: checked with the PREPARE before them.
_BEHIND_PREPARE = frozenset(
    (OpType.PRE_MESSAGE, OpType.PRE_SCHEDULED, OpType.PRE_OFFSETS, OpType.PRE_LETTERS)
)
NAME_BYTES_MAX = 512
IDS_PER_OPERATION_MAX = 20_000
#: Clients' numbers are later added to others: sums must stay within what snapshots can hold.
NUMBER_MAX = (1 << 53) - 1
#: Term and counter of a coordinator, 32 bits each at most.
GENERATION_MAX = (1 << 63) - 1
#: A transaction, or a message with a delay, may wait for ten years.
TIMEOUT_MS_MAX = 10 * 366 * 86_400_000
GROUPS_MAX = 1 << 16
#: Branch groups of one transaction.
PARTICIPANTS_MAX = 64
#: Unicode categories of characters that would break the lines of a log or a table.
_CONTROL = frozenset(("Cc", "Zl", "Zp"))


def has_control_characters(name: str) -> bool:
    """Whether a name has control characters. Clients refuse such names for new things; existing ones stay."""
    return not name.isprintable() and any(unicodedata.category(c) in _CONTROL for c in name)


#: What is refused when only the disk reserve is left. All else settles existing work, or makes room.
_NEW_WORK = frozenset((OpType.MESSAGE, OpType.SCHEDULED, OpType.PREPARE, OpType.CREATE_TOPIC, OpType.NACK))


def brings_new_work(ops: Sequence[Op]) -> bool:
    """Whether a request adds messages, transactions or topics, rather than settling existing ones."""
    return any(op.type in _NEW_WORK for op in ops)


def level_needed(ops: Sequence[Op]) -> int:
    """The lowest format level of a group whose log may have these operations."""
    needed = 1
    for op in ops:
        kind, columns = op.type, len(op.meta)
        if kind == OpType.PRE_LETTERS:
            return LEVEL_OF_LETTERS
        if kind == OpType.PREPARE and columns > 9 and op.meta[9].fence:
            return LEVEL_OF_FENCES
        if needed >= LEVEL_OF_SHARES:
            continue  # only what is above it matters
        if (
            kind in _LEVEL_9
            or (kind == OpType.CREATE_TOPIC and is_internal(op.meta[0]))
            or (kind == OpType.DELETE_GROUP and columns > 2)
            or (kind == OpType.PREPARE and columns > 9 and (op.meta[9].claim or op.meta[9].on_timeout))
        ):
            needed = LEVEL_OF_SHARES
            continue
        if kind in _TIMERS:
            needed = LEVEL_OF_TIMERS
            continue
        if kind in _LEVEL_6 or columns >= _WITH_ID.get(kind, columns + 1):
            needed = max(needed, 6)
            continue
        if kind == OpType.MESSAGE:
            if columns > 6:
                needed = max(needed, 3)
            continue
        if kind == OpType.CREATE_TOPIC and columns >= _PLACED:
            needed = max(needed, 4)
        if kind in _LEVEL_3:
            needed = max(needed, 3)
        elif needed < 2 and (
            kind in _LEVEL_2
            or (kind == OpType.PREPARE and columns > 9)
            or (kind == OpType.ROLLBACK and columns > 3)
            or (kind == OpType.COMMIT and columns > 4)
            or (kind == OpType.CHECKED and columns > 2)
        ):
            needed = 2
    return needed


def parse_request(
    request: bytes, *, from_broker: bool = False, place: tuple[int, int] | None = None
) -> list[Op]:
    """Decode and check a request; raises InvalidMessage that names the operation and the problem.

    ``from_broker``: it may decide in the name of a home group. ``place``: the number of this group and the
    number of groups, if references to groups are to be checked too.
    """
    try:
        ops = decode_ops(request)
    except (CorruptLog, UnknownVersion) as error:
        raise InvalidMessage(f"request cannot be decoded: {error}") from error
    at = 0
    while at < len(ops):
        op = ops[at]
        problem = _problem(op) or (None if from_broker else _not_for_clients(op))
        if op.type == OpType.PREPARE and problem is None:
            attached = ops[at + 1 : at + 1 + op.meta[8]]
            problem = _prepare_problem(op, attached) or (place and _place_problem(op, *place))
            at += len(attached)
        elif op.type == OpType.CREATE_TOPIC and problem is None:
            problem = _placing_problem(op, place and place[1])
        elif op.type in _BEHIND_PREPARE:
            problem = f"{OpType(op.type).name} without its PREPARE before it"
        elif op.type == OpType.DELETE_TOPIC and any(_creates(o, op.meta[0]) for o in ops[:at]):
            # A leader writes no deletion while a creation of that name is under way (admission.py).
            problem = f"it creates topic {op.meta[0]!r} and deletes it again; send the deletion by itself"
        if problem is not None:
            raise InvalidMessage(f"operation {at} of the request: {problem}")
        at += 1
    return ops


def _placing_problem(op: Op, groups: int | None) -> str | None:
    """What is wrong with where a CREATE_TOPIC puts the topic. ``groups``: None if not known."""
    if len(op.meta) >= _PLACED:
        lowest = BY_NAME if len(op.meta) > _PLACED else 0
        if not lowest <= op.meta[2] < (GROUPS_MAX if groups is None else groups):
            return f"there is no broker group {op.meta[2]} for a topic to begin at"
    return internal_topic_problem(op, groups)


def _for_brokers(topic: str) -> str | None:
    """Why no client may send messages to the topic, or None."""
    if topic.startswith(RESERVED) and is_internal(topic):
        return f"only brokers write messages into topic {topic!r}"
    return None


def _problem(op: Op) -> str | None:
    if op.type not in _FROM_CLIENTS:
        return f"operations of type {op.type} are written by leaders only"
    meta = op.meta
    if op.type == OpType.MESSAGE:
        if meta[5] < 1 or op.body_size < meta[5] or meta[1] < 0:
            return "MESSAGE needs at least one row and a partition of 0 or more"
        if not (0 <= meta[3] <= EPOCH_MAX and -1 <= meta[4] <= NUMBER_MAX):
            return f"MESSAGE's epoch must be 0 to {EPOCH_MAX}, and its sequence number up to {NUMBER_MAX}"
        if len(meta) > 6 and not -1 <= meta[6] <= NUMBER_MAX:
            return f"MESSAGE's heard_ms must be -1 to {NUMBER_MAX}"
        return _name_problem("producer", meta[2]) or _for_brokers(meta[0])
    if op.type in _TIMERS:
        return _timer_problem(op) or (_for_brokers(meta[0]) if op.type == OpType.SCHEDULED else None)
    if op.type in SHARES:
        return share_problem(op)
    if op.type in (OpType.COMMIT, OpType.ROLLBACK, OpType.CHECKED):
        if len(meta) > 2 and (problem := _name_problem("by or reason", meta[2])) is not None:
            return problem
        if op.type == OpType.ROLLBACK and len(meta) > 3 and len(meta[3]) not in (0, len(meta[1])):
            return "ROLLBACK's columns differ in length"
        if len(meta) > 4 and not (len(meta[4]) == len(meta[1]) and all(0 < i <= NUMBER_MAX for i in meta[4])):
            return "a decision over several groups takes one home index for each transaction"
        if len(meta) > 5 and not -1 <= meta[5] < GROUPS_MAX:
            return "the home group of a decision must be -1 or the number of a group"
        return _ids_problem(meta[0], meta[1])
    if op.type in (OpType.TX_DONE, OpType.INQUIRE):
        if len(meta[1]) != len(meta[2]) or not all(-1 <= index <= NUMBER_MAX for index in meta[2]):
            return "it takes one home index for each transaction"
        return _ids_problem(meta[0], meta[1])
    if op.type == OpType.CUT:
        if len(meta[0]) > TOPICS_PER_CUT_MAX or not 0 <= meta[1] <= HOLD_MS_MAX:
            return f"CUT takes up to {TOPICS_PER_CUT_MAX} topics and 0 to {HOLD_MS_MAX} ms"
        return None
    if op.type == OpType.SETTINGS:
        return setting_problem(*meta)
    if op.type == OpType.CLAIM:
        return claim_problem(*meta)
    if (problem := _id_problem(op)) is not None:
        return problem
    if op.type == OpType.CREATE_TOPIC:
        return settings_problem(*meta[:2]) or _too_large(meta[1])
    if op.type == OpType.ALTER_TOPIC:
        if len(meta) > 2 and not -1 <= meta[2] <= NUMBER_MAX:
            return f"the number of an alteration must be -1 to {NUMBER_MAX}"
        return alter_problem(*meta[:2]) or _too_large(meta[1])
    if op.type == OpType.GROUP_OFFSETS:
        if len(meta[2]) % 2 or not all(0 <= n <= NUMBER_MAX for n in meta[2]):
            return "GROUP_OFFSETS needs pairs of partition and offset, both 0 or more"
        return _name_problem("group", meta[0])
    if op.type == OpType.DELETE_GROUP:
        if not 0 <= meta[1] <= GENERATION_MAX:
            return f"a generation must be 0 to {GENERATION_MAX}"
        if len(meta) > 2 and len(meta[2]) > NAME_CHARS_MAX:
            return f"a name has at most {NAME_CHARS_MAX} characters"
        return _name_problem("group", meta[0])
    if op.type == OpType.TRIM and (len(meta[1]) % 2 or not all(0 <= n <= NUMBER_MAX for n in meta[1])):
        return "TRIM needs pairs of partition and offset, both 0 or more"
    return None


def _timer_problem(op: Op) -> str | None:
    """What is wrong with an operation about delayed messages, apart from a PRE_SCHEDULED's rows, which are
    checked with its PREPARE."""
    if type(op.meta[0]) is bytes:
        return "CANCEL version 2 and 3 are written by leaders only"
    meta, topic_id = op.meta, op.meta[-1]
    if meta[1] < 0 or not NO_ID <= topic_id <= NUMBER_MAX:
        return f"a partition is 0 or more, and a topic's id {NO_ID} to {NUMBER_MAX}"
    if op.type == OpType.CANCEL:
        times, owners, ordinals = (meta[2][n::3] for n in range(3))
        if not meta[2] or len(meta[2]) % 3 or len(times) > IDS_PER_OPERATION_MAX:
            return f"CANCEL needs 1 to {IDS_PER_OPERATION_MAX} triples of time, owner and ordinal"
        if not (min(times) >= 0 and max(times) <= NUMBER_MAX and all(0 <= o <= OWNER_MAX for o in owners)):
            return f"CANCEL's times must be 0 to {NUMBER_MAX}, and its owners 64 bits"
        if is_internal(meta[0]):  # its group would neither get it again nor have a dead letter
            return f"what waits in topic {meta[0]!r} is retried; reject it when it comes, for a dead letter"
    elif op.type == OpType.PRE_SCHEDULED:
        _, _, txs, _, times, ordinals, _ = meta
        if not len(txs) == len(times) == len(ordinals):
            return "PRE_SCHEDULED's columns differ in length"
    else:
        _, _, producer, epoch, seq, times, sizes, owner, first, heard_ms, _ = meta
        ordinals = (first, first + len(times) - 1)
        if not times or len(times) != len(sizes) or min(sizes) < 1 or sum(sizes) != op.body_size:
            return "SCHEDULED's columns do not fit its body"
        if not (0 <= epoch <= EPOCH_MAX and -1 <= seq <= NUMBER_MAX and -1 <= heard_ms <= NUMBER_MAX):
            return f"SCHEDULED's sequence number and heard_ms must be at most {NUMBER_MAX}"
        if not 0 <= owner <= OWNER_MAX:
            return "an owner has 64 bits"
        if (problem := _name_problem("producer", producer)) is not None:
            return problem
    if times and not (min(times) >= -TIMEOUT_MS_MAX and max(times) <= NUMBER_MAX):
        return f"a time must be at most {NUMBER_MAX}, and a delay at most {TIMEOUT_MS_MAX} ms"
    if ordinals and not (min(ordinals) >= 0 and max(ordinals) < ORDINALS):
        return f"an ordinal must be 0 to {ORDINALS - 1}"
    return None


def _id_problem(op: Op) -> str | None:
    where = _ID_AT.get(op.type, len(op.meta))
    if len(op.meta) <= where or NO_ID <= op.meta[where] <= NUMBER_MAX or _asks_only(op):
        return None
    return f"a topic's id must be {NO_ID} to {NUMBER_MAX}"


def _creates(op: Op, name: str) -> bool:
    return op.type == OpType.CREATE_TOPIC and op.meta[0] == name


def _asks_only(op: Op) -> bool:
    """An alteration without settings, of any topic that has the name."""
    return op.type == OpType.ALTER_TOPIC and op.meta[3] == ANY_ID and not op.meta[1]


def _not_for_clients(op: Op) -> str | None:
    if op.type in (OpType.COMMIT, OpType.ROLLBACK) and op.meta[2].startswith(BY_HOME):
        return f"only brokers decide in the name of a home group ({op.meta[2]!r})"
    return None


def _prepare_problem(op: Op, attached: Sequence[Op]) -> str | None:
    app, _, tx_ids, query_ids, timeout_ms, part, digests, home_group, announced = op.meta[:9]
    if announced < 0 or len(attached) != announced:
        return f"PREPARE announces {announced} PRE_MESSAGEs and {len(attached)} follow"
    if len(digests) != len(tx_ids) or (query_ids is not None and len(query_ids) != len(tx_ids)):
        return "PREPARE's columns differ in length"
    if not 0 <= timeout_ms <= TIMEOUT_MS_MAX:
        return f"PREPARE's timeout must be 0 to {TIMEOUT_MS_MAX} ms"
    if not (
        0 <= part <= NUMBER_MAX and 0 <= min(digests, default=0) <= max(digests, default=0) <= NUMBER_MAX
    ):
        return f"PREPARE's part and digests must be 0 to {NUMBER_MAX}"
    if not -1 <= home_group < GROUPS_MAX:
        return "PREPARE's home group must be -1 or the number of a group"
    if query_ids is not None and query_ids and max(map(len, query_ids)) > NAME_BYTES_MAX:
        return f"a query id has at most {NAME_BYTES_MAX} characters"
    if len(set(tx_ids)) != len(tx_ids):
        return "PREPARE names a transaction twice"
    if len(op.meta) > 9:
        problem = _extra_problem(op.meta[9], len(tx_ids), home_group)
        problem = problem or claimed_problem(op.meta[9].claim, len(tx_ids))
        problem = problem or on_timeout_problem(op.meta[9], home_group)
        if problem is not None:
            return problem
    given: set[tuple[int, int]] = set()
    for pre in attached:
        if pre.type == OpType.PRE_SCHEDULED:
            if (problem := _timer_problem(pre)) is not None:
                return problem
            before = len(given)
            given.update(zip(pre.meta[2], pre.meta[5], strict=True))
            if len(given) != before + len(pre.meta[2]):
                return "PRE_SCHEDULED gives an ordinal twice in one transaction"
        elif pre.type in (OpType.PRE_OFFSETS, OpType.PRE_LETTERS):
            continue
        elif pre.type != OpType.PRE_MESSAGE:
            return f"PREPARE is followed by an operation of type {pre.type} instead of PRE_MESSAGE"
        topic, number, txs, sizes = pre.meta[:4]
        if (problem := _for_brokers(topic)) is not None:
            return problem
        if len(pre.meta) > 4 and not NO_ID <= pre.meta[-1] <= NUMBER_MAX:
            return f"a topic's id must be {NO_ID} to {NUMBER_MAX}"
        if number < 0 or not txs or len(txs) != len(sizes) or sum(sizes) != pre.body_size:
            return f"{OpType(pre.type).name}'s columns do not fit its body"
        if min(txs) < 0 or max(txs) >= len(tx_ids) or min(sizes) < 1:
            return f"{OpType(pre.type).name} refers to a transaction that its PREPARE does not name"
    return letters_problem(op, attached) or offsets_problem(op, attached) or _ids_problem(app, tx_ids)


def _extra_problem(extra: PrepareExtra, count: int, home_group: int) -> str | None:
    groups = extra.participants
    if len(extra.instance) > NAME_BYTES_MAX:
        return f"PREPARE's instance has at most {NAME_BYTES_MAX} characters"
    if len(groups) > PARTICIPANTS_MAX or len(set(groups)) != len(groups):
        return f"PREPARE has at most {PARTICIPANTS_MAX} participants, and each once"
    if not all(0 <= group < GROUPS_MAX for group in groups) or (groups and home_group >= 0):
        return "PREPARE's participants are groups, and only home names them"
    if len(extra.home_index) not in (0, count) or (extra.home_index and home_group < 0):
        return "PREPARE has one home index for each transaction of a branch, or none"
    if not all(0 < index <= NUMBER_MAX for index in extra.home_index):
        return f"PREPARE's home indexes must be 1 to {NUMBER_MAX}"
    if extra.fence and (len(extra.fence) != FENCE_BYTES or home_group >= 0):
        return f"PREPARE's fence has {FENCE_BYTES} bytes, and a branch, which follows its home, has none"
    if not (0 <= extra.parts <= NUMBER_MAX and -1 <= extra.heard_ms <= NUMBER_MAX):
        return f"PREPARE's parts and heard_ms must be at most {NUMBER_MAX}"
    return None


def _place_problem(op: Op, gid: int, groups: int) -> str | None:
    home_group = op.meta[7]
    participants = op.meta[9].participants if len(op.meta) > 9 else ()
    if home_group < 0 and len(op.meta) > 9 and op.meta[9].claim is not None:
        problem = claimed_place_problem(op.meta[9].claim, gid, groups)
        if problem is not None:
            return problem
    if home_group >= groups or home_group == gid:
        return f"group {gid} of {groups} has no branch of group {home_group}"
    if any(group >= groups or group == gid for group in participants):
        return f"not all of {list(participants)} can have branches of group {gid} of {groups}"
    return None


def _too_large(settings: Mapping[str, object]) -> str | None:
    for key, value in settings.items():
        limit = TIMEOUT_MS_MAX if key == "transaction_timeout_ms" else NUMBER_MAX
        if isinstance(value, int) and value > limit:
            return f"topic setting {key!r} must be at most {limit}, not {value}"
    return None


def _ids_problem(app: str, tx_ids: Sequence[str]) -> str | None:
    if not tx_ids or len(tx_ids) > IDS_PER_OPERATION_MAX:
        return f"1 to {IDS_PER_OPERATION_MAX} transaction ids per operation, not {len(tx_ids)}"
    longest = max(map(len, tx_ids))
    if longest > NAME_BYTES_MAX or not all(tx_ids):
        return f"a transaction id has 1 to {NAME_BYTES_MAX} characters"
    return _name_problem("app", app)


def _name_problem(what: str, name: str) -> str | None:
    if not 0 < len(name) <= NAME_BYTES_MAX:
        return f"{what} must have 1 to {NAME_BYTES_MAX} characters"
    return None
