"""Builders of the operations of share groups, retries, dead letters and replies: of format level 9, and one
of level 10.

A *share group* acknowledges messages one by one. For each of its partitions the state has a start, below
which everything is final, and the ranges above it that are final, too. A message that has failed leaves its
partition: the leader writes a copy into the group's topic of retries or of dead letters (FORWARD), and makes
the original final, in one entry. Leases are in no log.

Clients build SHARE_ACK, NACK, GROUP_SETTINGS and PLACES. Leaders write what a client's NACK and SHARE_ACK
version 2 mean as FORWARDs and a SHARE_ACK version 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from escrowmq.replication.format.codec import OpType, encode_op
from escrowmq.replication.format.internal_topics import Value

#: The format level of a group whose log may have these operations.
LEVEL_OF_SHARES: Final = 9
#: And of one whose transactions may redrive dead letters.
LEVEL_OF_LETTERS: Final = 10
#: Where a group begins in a partition that it has not read yet. "": it is to have begun.
EARLIEST, LATEST = "earliest", "latest"
#: In place of a NACK's delay: the group's table of delays decides, or the message becomes a dead letter.
BY_TABLE: Final = -1
REJECT: Final = -2
#: A NACK that the leader sends itself, of a message whose lease has expired too often.
BY_LEASE = "lease"
#: A longer reason is cut.
REASON_BYTES_MAX: Final = 1_024
#: What an operator has done with dead letters: see ``share_ack``.
DROPPED, REDRIVEN = "DROPPED", "REDRIVEN"
#: And with a group.
ALTERED, DELETED = "ALTERED", "DELETED"
#: Ranges of dead letters in one transaction: the audit trail keeps all of them, of 1,000 transactions.
LETTER_RANGES_MAX: Final = 64
#: In place of the number of an alteration: whichever is in force.
ANY_NUMBER: Final = -1


def share_create(group: str, topic: str, partition: int, create: str, topic_id: int) -> bytes:
    """SHARE_ACK with ``create`` "earliest" or "latest" (the end as of this entry): the group begins to read
    the partition. Result info: its start. If it has begun before, nothing changes: DUPLICATE."""
    return encode_op(OpType.SHARE_ACK, (group, topic, partition, (), create, topic_id))


def share_ack(
    group: str, topic: str, partition: int, ranges: Sequence[int], topic_id: int, audited: str = ""
) -> bytes:
    """SHARE_ACK ``[group, topic, partition, [first, last, ...], create, topic_id]``: these offsets are final,
    the last ones included. Ranges are in ascending order, and do not overlap.

    What is final already stays so: it may be repeated. OUT_OF_RANGE with
    ``[start, end]`` of the partition: an offset is not assigned yet, and nothing is done. (Earlier versions
    say the end alone.) UNKNOWN_SHARE: the group has not begun to read the partition. A group begins by itself
    with its topics of retries and of dead letters: what is final of the latter was redriven, or dropped.
    There ``audited`` takes the place of ``create``: ``"<outcome> <who>"``, for the audit trail.
    """
    return encode_op(OpType.SHARE_ACK, (group, topic, partition, ranges, audited, topic_id))


def share_reply(
    group: str,
    topic: str,
    partition: int,
    app: str,
    offsets: Sequence[int],
    rows: Sequence[bytes],
    topic_id: int,
) -> bytes:
    """SHARE_ACK version 2 ``[group, topic, partition, app, [offset...], [size...], topic_id]`` + rows: these
    offsets, in ascending order, are final, and row ``i`` is what the app is told about offset ``i``.

    The leader writes the rows of those that are not final yet, behind which come the reserved headers, into
    the topic of the app's replies, in the same entry.
    """
    sizes = [len(row) for row in rows]
    return encode_op(
        OpType.SHARE_ACK, (group, topic, partition, app, offsets, sizes, topic_id), rows, version=2
    )


def nack(
    group: str,
    topic: str,
    partition: int,
    offsets: Sequence[int],
    delays_ms: Sequence[int],
    reasons: Sequence[str],
    member: str,
    by: str,
    topic_id: int,
    *,
    stream: bool = False,
    attempt: int = 1,
) -> bytes:
    """NACK ``[group, topic, partition, [offset...], [delay_ms...], [reason...], member, by, stream,
    topic_id]``: the group could not handle these messages.

    A delay of ``BY_TABLE`` leaves it to the group's settings, as which attempt it was decides whether the
    message comes back; with ``REJECT`` it does not. ``member``: who holds the leases, "": nobody; ``by`` is
    told in the copy. ``stream``: the group reads by offsets, so no original becomes final, and what is
    repeated is copied again. It stands as 0, or as the number of the attempt that has failed, if the group
    counts attempts at its places (``places``). In the group's own topic of dead letters it means: redrive,
    at once and as at the first attempt.

    Result: OK, also for messages that are final already; else PARTIAL with ``[place, code, info]``:
    LEASE_LOST (somebody else holds it), RETRY (send again: it did not fit), OUT_OF_RANGE with ``[start,
    end]``, UNKNOWN_TOPIC with the internal topic that is to be created, TOO_MANY_SCHEDULED.
    """
    number = attempt if stream else 0
    meta = (group, topic, partition, offsets, delays_ms, reasons, member, by, number, topic_id)
    return encode_op(OpType.NACK, meta)


def group_settings(group: str, values: Mapping[str, Value], number: int = ANY_NUMBER, by: str = "") -> bytes:
    """GROUP_SETTINGS ``[group, {setting: value}, number]``: the group has these settings from this entry on
    (see ``share_settings``); what is not named stays.

    ``number`` orders changes over the broker groups, as for ALTER_TOPIC: in group 0 that of the newest change
    that the sender knows, or ``ANY_NUMBER``; if there is a newer one, the result is RETRY; otherwise this one
    gets the entry's index as its number. The other groups get the number that group 0 has assigned; a change
    that is not newer than the one in force is a DUPLICATE. Without settings it only asks. Result info:
    ``[all settings in force, number]``. GROUP_KIND with the kind that the group has: it cannot change.

    With ``by`` it is version 2, which has it as a fourth column, and the audit trail tells who it was.
    """
    if by:
        return encode_op(OpType.GROUP_SETTINGS, (group, dict(values), number, by), version=2)
    return encode_op(OpType.GROUP_SETTINGS, (group, dict(values), number))


def delete_share_group(group: str, by: str = "") -> bytes:
    """DELETE_GROUP of a share group: its settings and what it has finished, in this broker group. LEASE_LOST
    with names of members: they hold messages of it, or wait for some, and nothing is done. DUPLICATE: there
    is nothing of it. With ``by`` it is version 2, which has it as a third column, for the audit trail."""
    if by:
        return encode_op(OpType.DELETE_GROUP, (group, 0, by), version=2)
    return encode_op(OpType.DELETE_GROUP, (group, 0))


def places(group: str, topic: str, flat: Sequence[int]) -> bytes:
    """PLACES ``[group, topic, [partition, next_offset, attempts, ...]]``: GROUP_OFFSETS, and how often the
    message at that place has failed. A commit of another place forgets the attempts."""
    return encode_op(OpType.PLACES, (group, topic, flat))


def pre_letters(group: str, partition: int, ranges: Sequence[int], topic_id: int, to: str, by: str) -> bytes:
    """PRE_LETTERS ``[group, partition, [first, last, ...], topic_id, to, by]``; follows a PREPARE, behind its
    messages: the copies of these dead letters, which lie in ``partition`` of the group's topic of them.

    The PREPARE opens nothing unless all of them are open, and no other transaction holds one
    (OFFSETS_PENDING with ``[group, topic, partition, app, tx_id]``; OFFSETS_MOVED with ``[group, topic,
    partition, offset]``: it is final). Until the transaction is settled nothing else makes them final; its
    COMMIT does. ``to`` and ``by`` are for the audit trail: into which topic, and who.
    """
    return encode_op(OpType.PRE_LETTERS, (group, partition, ranges, topic_id, to, by))


# ------------------------------------------------------------------ written by leaders only


def forward(topic: str, partition: int, times: Sequence[int], rows: Sequence[bytes]) -> bytes:
    """FORWARD ``[topic, partition, [time...], [size...]]`` + rows: messages that the leader writes into a
    partition of its own group. Time 0: readable at once; otherwise a timer whose owner is the log index of
    its entry, and whose ordinal is the position of its row in the entry."""
    sizes = [len(row) for row in rows]
    return encode_op(OpType.FORWARD, (topic, partition, times, sizes), rows)
