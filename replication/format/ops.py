"""Builders of every operation: the one place that knows the layout of metadata columns.

Clients build MESSAGE, PREPARE (with its PRE_MESSAGEs), COMMIT, ROLLBACK and the administrative
operations. REF_MESSAGE and TX_MESSAGE are built by the leader only: it turns a client's COMMIT
into references, and they and the COMMIT travel in one entry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from escrowmq.replication.format.codec import OpType, PrepareExtra, encode_op
from escrowmq.replication.model import BY_NAME, NO_ID


def message(
    topic: str,
    partition: int,
    producer: str,
    epoch: int,
    seq: int,
    rows: Sequence[bytes | memoryview],
    heard_ms: int | None = None,
    topic_id: int = NO_ID,
    count: int | None = None,
) -> bytes:
    """MESSAGE ``[topic, partition, producer, epoch, seq, count]`` + rows: plain messages of one partition.

    ``seq`` numbers the batches of this producer and partition from 0 (idempotence; -1: none).
    Result info: ``[base_offset, timestamp_ms]``. With ``heard_ms`` it is version 2, for groups of level 3:
    the newest time of an entry of this group that the client had heard of before it first sent this batch
    (-1: none). It may then be refused as STALE, with the time of the entry. With ``topic_id`` it is version
    3, for groups of level 6: the id of its topic; nothing is stored in another topic of that name.
    ``count``: how many messages there are, if several of them are joined in ``rows``.
    """
    meta = (topic, partition, producer, epoch, seq, len(rows) if count is None else count)
    if heard_ms is None:
        return encode_op(OpType.MESSAGE, meta, rows)
    if topic_id == NO_ID:
        return encode_op(OpType.MESSAGE, (*meta, heard_ms), rows, version=2)
    return encode_op(OpType.MESSAGE, (*meta, heard_ms, topic_id), rows, version=3)


def prepare(
    app: str,
    topic: str,
    tx_ids: Sequence[str],
    query_ids: Sequence[str] | None,
    timeout_ms: int,
    part: int,
    digests: Sequence[int],
    home_group: int,
    pre_messages: int,
    extra: PrepareExtra | None = None,
) -> bytes:
    """PREPARE ``[app, topic, tx_ids, query_ids|nil, timeout_ms, part, digests, home_group, pre_messages]``.

    Opens the transactions (part 0) or adds to them (part 1, 2, ...). The next ``pre_messages``
    operations of the same request are its PRE_MESSAGEs. ``topic`` is the home topic, whose feedback
    actor checks the transaction; ``timeout_ms`` 0 = the topic's; ``digests`` are CRC32C of each transaction's
    rows in this part, so that an id reused with other content is recognised; ``home_group`` -1: decided
    here, else the group whose decision counts. ``query_ids`` nil: each equals its tx id. With ``extra``
    it is version 2, which only groups of level 2 accept: a tenth column, see ``PrepareExtra``.
    """
    meta = (app, topic, tx_ids, query_ids, timeout_ms, part, digests, home_group, pre_messages)
    return (
        encode_op(OpType.PREPARE, meta)
        if extra is None
        else encode_op(OpType.PREPARE, (*meta, extra), version=2)
    )


def pre_message(
    topic: str,
    partition: int,
    txs: Sequence[int],
    sizes: Sequence[int],
    rows: Sequence[bytes],
    topic_id: int = NO_ID,
) -> bytes:
    """PRE_MESSAGE ``[topic, partition, txs, sizes]`` + rows: held-back messages of one partition.

    ``txs[i]`` is the place of message i's transaction in the PREPARE before; ``sizes[i]`` its bytes. With
    ``topic_id`` it is version 2, for groups of level 6: the id of their topic; the PREPARE opens nothing if
    there is another topic of that name.
    """
    if topic_id == NO_ID:
        return encode_op(OpType.PRE_MESSAGE, (topic, partition, txs, sizes), rows)
    return encode_op(OpType.PRE_MESSAGE, (topic, partition, txs, sizes, topic_id), rows, version=2)


#: The decider, unless the caller names another.
BY_PRODUCER = "producer"
#: Replaces the number of references in a client's COMMIT: commit all of these transactions, or none.
TOGETHER = -1


def commit(app: str, tx_ids: Sequence[str], by: str = BY_PRODUCER, *, together: bool = False) -> bytes:
    """COMMIT as clients send it ``[app, tx_ids, by, 0]``; by: producer, feedback, or ``operator:<name>``.

    Ids that cannot be committed are named in the result, and the others are committed. With ``together`` (the
    last number is -1) none is committed then. Ids that are already committed do not count as failures.
    """
    return encode_op(OpType.COMMIT, (app, tx_ids, by, TOGETHER if together else 0))


def rollback(app: str, tx_ids: Sequence[str], by: str = BY_PRODUCER) -> bytes:
    """ROLLBACK ``[app, tx_ids, by]``."""
    return encode_op(OpType.ROLLBACK, (app, tx_ids, by))


def rollback_under(app: str, tx_ids: Sequence[str], by: str, newest_index: Sequence[int]) -> bytes:
    """ROLLBACK version 2 ``[app, tx_ids, by, newest_index]``, for groups of level 2: what a check decides.

    ``newest_index``: for each transaction, the log index of its newest PREPARE when the check began. A
    transaction that was prepared again since then is left open and answered RETRY. Empty: unconditional.
    """
    return encode_op(OpType.ROLLBACK, (app, tx_ids, by, newest_index), version=2)


def commit_branches(
    app: str,
    tx_ids: Sequence[str],
    by: str,
    home_index: Sequence[int],
    home_group: int = -1,
    *,
    together: bool = False,
) -> bytes:
    """COMMIT version 2 ``[app, tx_ids, by, 0, home_index, home_group]``, for groups of level 2: over several
    groups.

    ``home_index``: for each transaction, the log index of home's record; ``home_group``: the group of that
    log, -1 where the decision is for home itself. An id that is open under another index belongs to another
    transaction, which is left alone. The leader writes this into the log as version 1.
    """
    meta = (app, tx_ids, by, TOGETHER if together else 0, home_index, home_group)
    return encode_op(OpType.COMMIT, meta, version=2)


def rollback_branches(
    app: str,
    tx_ids: Sequence[str],
    by: str,
    home_index: Sequence[int],
    home_group: int = -1,
    *,
    newest_index: Sequence[int] = (),
) -> bytes:
    """ROLLBACK version 3 ``[app, tx_ids, by, newest_index, home_index, home_group]``: as ``commit_branches``,
    and, unless ``newest_index`` is empty, as ``rollback_under``. Where a home group sends it, ids that are
    not known here are remembered as rolled back."""
    meta = (app, tx_ids, by, newest_index, home_index, home_group)
    return encode_op(OpType.ROLLBACK, meta, version=3)


def checked(app: str, tx_ids: Sequence[str]) -> bytes:
    """CHECKED ``[app, tx_ids]``: a producer answered UNKNOWN (or hung). Counts the check; may park."""
    return encode_op(OpType.CHECKED, (app, tx_ids))


def park(app: str, tx_ids: Sequence[str], reason: str) -> bytes:
    """CHECKED version 2 ``[app, tx_ids, reason]``, for groups of level 2: no check, now or later, can decide
    these. They are parked, and the reason is shown with them."""
    return encode_op(OpType.CHECKED, (app, tx_ids, reason), version=2)


def create_topic(
    name: str, settings: Mapping[str, object], first_group: int | None = None, topic_id: int | None = None
) -> bytes:
    """CREATE_TOPIC ``[name, settings]`` or, version 2, ``[name, settings, first_group]``, for groups of
    level 4; settings are the fields of ``TopicInfo`` without the name.

    ``first_group``: where partition 0 is; None: derived from the name, see ``model.first_group``.
    ``topic_id``: version 3, for groups of level 6: the id that group 0 has assigned; ``NO_ID`` asks group 0
    for one. Then the result info is the id.
    """
    if topic_id is not None:
        first = BY_NAME if first_group is None else first_group
        return encode_op(OpType.CREATE_TOPIC, (name, dict(settings), first, topic_id), version=3)
    if first_group is None:
        return encode_op(OpType.CREATE_TOPIC, (name, dict(settings)))
    return encode_op(OpType.CREATE_TOPIC, (name, dict(settings), first_group), version=2)


def delete_topic(name: str, topic_id: int | None = None) -> bytes:
    """DELETE_TOPIC ``[name]`` or, version 2, ``[name, topic_id]``, for groups of level 6: this topic and no
    later one of that name. Open transactions that hold messages for it keep them until settled."""
    if topic_id is None:
        return encode_op(OpType.DELETE_TOPIC, (name,))
    return encode_op(OpType.DELETE_TOPIC, (name, topic_id), version=2)


#: Stands for the id of any topic of that name, in an alteration without settings, which only asks.
ANY_ID = -1


def alter_topic(
    name: str, settings: Mapping[str, int | str], number: int | None = None, topic_id: int | None = None
) -> bytes:
    """ALTER_TOPIC ``[name, settings]`` or, version 2, ``[name, settings, number]``, for groups of level 3:
    other values from this entry on.

    Settings are those of CREATE_TOPIC except ``partitions``. ``number``: see ``TopicTable.alter``; None:
    unconditional. Result info: all settings in force, or with a number ``[settings, number of the newest
    alteration]``. ``topic_id``: version 3, for groups of level 6: the id of the topic that is meant; the
    result has the id after the number.
    """
    if topic_id is not None:
        number = -1 if number is None else number
        return encode_op(OpType.ALTER_TOPIC, (name, dict(settings), number, topic_id), version=3)
    if number is None:
        return encode_op(OpType.ALTER_TOPIC, (name, dict(settings)))
    return encode_op(OpType.ALTER_TOPIC, (name, dict(settings), number), version=2)


def group_offsets(group: str, topic: str, offsets: Mapping[int, int]) -> bytes:
    """GROUP_OFFSETS ``[group, topic, [partition, next_offset, ...]]``: where the group continues reading."""
    flat = [n for pair in offsets.items() for n in pair]
    return encode_op(OpType.GROUP_OFFSETS, (group, topic, flat))


def delete_group(group: str, generation: int) -> bytes:
    """DELETE_GROUP ``[group, generation]``, for groups of level 6: its places are deleted, and memberships up
    to that generation of the coordinator are void."""
    return encode_op(OpType.DELETE_GROUP, (group, generation))


def settings(values: Mapping[str, int]) -> bytes:
    """SETTINGS ``[{name: value}]``: replicated settings to change; see state/dedup.py."""
    return encode_op(OpType.SETTINGS, (dict(values),))


def retain(first_index: int) -> bytes:
    """RETAIN ``[first_index]``: forget everything in log entries before ``first_index``."""
    return encode_op(OpType.RETAIN, (first_index,))


def trim(topic: str, starts: Mapping[int, int], topic_id: int | None = None) -> bytes:
    """TRIM ``[topic, [partition, first offset, ...]]`` or, version 2, with ``topic_id`` at the end, for
    groups of level 6: retention by time or size. Lower offsets of this topic, and of no later one, are
    gone."""
    flat = [n for pair in starts.items() for n in pair]
    if topic_id is None:
        return encode_op(OpType.TRIM, (topic, flat))
    return encode_op(OpType.TRIM, (topic, flat, topic_id), version=2)


# ------------------------------------------------------------------ written by leaders only


def reference(topic: str, partition: int, flat_refs: Sequence[int]) -> bytes:
    """REF_MESSAGE ``[topic, partition, [log index, position, bytes, messages, ...]]``, no body.

    Each quadruple points to messages of a PRE_MESSAGE; adjacent messages that commit together share one.
    """
    return encode_op(OpType.REF_MESSAGE, (topic, partition, flat_refs))


def copied(topic: str, partition: int, count: int, rows: bytes) -> bytes:
    """TX_MESSAGE ``[topic, partition, count]`` + rows: bodies copied because they are in another segment."""
    return encode_op(OpType.TX_MESSAGE, (topic, partition, count), (rows,))


def decided_commit(app: str, tx_ids: Sequence[str], by: str, references: int) -> bytes:
    """COMMIT as it is in the log, after its ``references`` REF_MESSAGEs and TX_MESSAGEs."""
    return encode_op(OpType.COMMIT, (app, tx_ids, by, references))


def done(app: str, tx_ids: Sequence[str], home_indexes: Sequence[int], group: int) -> bytes:
    """TX_DONE ``[app, tx_ids, home_indexes, group]``: branch group ``group`` carried out home's decision."""
    return encode_op(OpType.TX_DONE, (app, tx_ids, home_indexes, group))


def inquire(app: str, tx_ids: Sequence[str], home_indexes: Sequence[int]) -> bytes:
    """INQUIRE ``[app, tx_ids, home_indexes]``: changes nothing; its result is the state as of this entry."""
    return encode_op(OpType.INQUIRE, (app, tx_ids, home_indexes))


def level(level: int) -> bytes:
    """LEVEL ``[level]``: from here on the log may hold what older software cannot read. Irreversible."""
    return encode_op(OpType.LEVEL, (level,))


# ------------------------------------------------------------------------------------------------------------
# CUT: how far the partitions of a group go, and which decisions over several groups it has taken.
#
# A client asks every group for it three times to find a stable cut: ends of partitions that contain all of a
# transaction or none of it (actors/admin/stable_cut.py).

#: The format level that added CUT.
LEVEL_OF_CUT = 9
#: Topics of one CUT: a leader reads the ends of all of their partitions at once.
TOPICS_PER_CUT_MAX = 200
#: For so long a leader may keep commits over several groups waiting for a cut. It helps a cut to be stable
#: where such commits come all the time, and is short enough for those who wait for them.
HOLD_MS_MAX = 250


def cut(topics: Sequence[str], hold_ms: int) -> bytes:
    """CUT ``[topics, hold_ms]``: changes nothing; its result is a ``GroupCut`` as of this entry.

    ``hold_ms``: for so long the leader keeps further commits over several groups waiting; 0: no longer.
    """
    return encode_op(OpType.CUT, (topics, hold_ms))


# ------------------------------------------------------------------------------------------------------------
# PRE_OFFSETS: places of a consumer group that a transaction moves when it is committed; of format level 9.
#
# So what a transaction sends, and the place up to which it has read for that, count together or not at all.
# For each partition the operation says where the work began, and where it ends. If the group is not where the
# work began, somebody else has done it, and the PREPARE opens nothing.

#: The format level of a group whose log may have this, and transactions with ``on_timeout``.
LEVEL_OF_OFFSETS: Final = 9
#: In place of an offset: the group has none there yet.
NONE_YET: Final = -1
#: ``PrepareExtra.on_timeout`` of a transaction without a local one: nobody is asked about it.
ROLLBACK: Final = "rollback"
#: Who decides then.
BY_TIMEOUT: Final = "timeout"


def pre_offsets(
    group: str, topic: str, places: Mapping[int, tuple[int, int]], topic_id: int = NO_ID
) -> bytes:
    """PRE_OFFSETS ``[group, topic, [partition, from, to, ...], topic_id]``; follows a PREPARE, behind its
    messages. ``from``: the group's committed offset when the work began (``NONE_YET``: it had none)."""
    flat = [n for partition, (begin, end) in places.items() for n in (partition, begin, end)]
    return encode_op(OpType.PRE_OFFSETS, (group, topic, flat, topic_id))
