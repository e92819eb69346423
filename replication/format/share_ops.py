"""The operations of share groups, retries, dead letters and replies.

A *share group* acknowledges messages one by one. For each of its partitions the state has a start, below
which everything is final, and the ranges above it that are final, too. A message that has failed leaves its
partition: the leader writes a copy into the group's topic of retries or of dead letters (FORWARD), and makes
the original final, in one entry. Leases are in no log. What a client's NACK and SHARE_REPLY mean, the leader
writes as FORWARDs and a SHARE_ACK.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

from escrowmq.replication.format.internal_topics import dead_topic, is_internal, owner_of, owner_problem
from escrowmq.replication.format.operation import Operation, OpType, Sender
from escrowmq.replication.format.ops import id_problem
from escrowmq.replication.format.settings import DELAY_MS_MAX, Value, group_settings_problem
from escrowmq.replication.limits import (
    NACKED_MAX,
    NAME_CHARS_MAX,
    NUMBER_MAX,
    RANGES_MAX,
    REASON_CHARS_MAX,
)
from escrowmq.replication.model import NO_ID

#: Where a group begins in a partition that it has not read yet. "": it is to have begun.
EARLIEST, LATEST = "earliest", "latest"
#: In place of a NACK's delay: the group's table of delays decides, or the message becomes a dead letter.
BY_TABLE: Final = -1
REJECT: Final = -2
#: A NACK that the leader sends itself, of a message whose lease has expired too often.
BY_LEASE = "lease"
#: A longer reason is cut.
REASON_BYTES_MAX: Final = 1_024
#: What an operator has done with dead letters: see ``ShareAck``.
DROPPED, REDRIVEN = "DROPPED", "REDRIVEN"
#: And with a group.
ALTERED, DELETED = "ALTERED", "DELETED"
#: Ranges of dead letters in one transaction: the audit trail keeps all of them, of 1,000 transactions.
LETTER_RANGES_MAX: Final = 64
#: In place of the number of an alteration: whichever is in force.
ANY_NUMBER: Final = -1


def _where_problem(group: str, topic: str, partition: int, topic_id: int) -> str | None:
    if partition < 0:
        return "a partition is 0 or more"
    if (problem := id_problem(topic_id) or owner_problem("group", group)) is not None:
        return problem
    if is_internal(topic) and owner_of(topic) != group:
        return f"{topic!r} is not a topic of group {group!r}"
    return None


def _ranges_problem(kind: OpType, ranges: Sequence[int]) -> str | None:
    if not 2 <= len(ranges) <= 2 * RANGES_MAX or len(ranges) % 2:
        return f"{kind.name} needs 1 to {RANGES_MAX} pairs of first and last offset"
    firsts, lasts = ranges[::2], ranges[1::2]
    if firsts[0] < 0 or lasts[-1] > NUMBER_MAX:
        return f"an offset must be 0 to {NUMBER_MAX}"
    if any(map(int.__gt__, firsts, lasts)) or any(map(int.__ge__, lasts, firsts[1:])):
        return "ranges must be in ascending order, and must not overlap"
    return None


def _offsets_problem(offsets: Sequence[int]) -> str | None:
    if offsets[0] < 0 or offsets[-1] > NUMBER_MAX or any(map(int.__ge__, offsets, offsets[1:])):
        return f"offsets must be 0 to {NUMBER_MAX}, in ascending order, and each once"
    return None


class ShareAck(Operation, frozen=True):
    """These offsets are final: ``ranges`` first, last, flat, in ascending order, the last ones included.

    What is final already stays so: it may be repeated. OUT_OF_RANGE with ``[start, end]`` of the partition:
    an offset is not assigned yet, and nothing is done. UNKNOWN_SHARE: the group has not begun to read the
    partition. A group begins by itself with its topics of retries and of dead letters: what is final of the
    latter was redriven, or dropped; there ``create`` may be ``"REDRIVEN <who>"`` or ``"DROPPED <who>"``, for
    the audit trail.

    With ``create`` "earliest" or "latest" (the end as of this entry) and no ranges the group begins to read
    the partition. Result info: its start. If it has begun before, nothing changes: DUPLICATE.
    """

    KIND = OpType.SHARE_ACK
    group: str
    topic: str
    partition: int
    ranges: Sequence[int]
    create: str
    topic_id: int

    def problem(self, body_bytes: int) -> str | None:
        problem = _where_problem(self.group, self.topic, self.partition, self.topic_id)
        if problem is not None:
            return problem
        create = self.create
        if create.startswith((f"{DROPPED} ", f"{REDRIVEN} ")) and self.topic == dead_topic(self.group):
            if len(create) > NAME_CHARS_MAX:
                return f"who settles dead letters is named in up to {NAME_CHARS_MAX} characters"
        elif create:
            if create not in (EARLIEST, LATEST) or self.ranges:
                return f"a group begins at {EARLIEST!r} or {LATEST!r}, with an operation of its own"
            return None
        return _ranges_problem(self.KIND, self.ranges)


def share_create(group: str, topic: str, partition: int, create: str, topic_id: int = NO_ID) -> bytes:
    """SHARE_ACK with which the group begins to read the partition."""
    return ShareAck(group, topic, partition, [], create, topic_id).frame()


def share_ack(
    group: str,
    topic: str,
    partition: int,
    ranges: Sequence[int],
    topic_id: int = NO_ID,
    audited: str = "",
) -> bytes:
    """SHARE_ACK of ``ranges``. ``audited``: see ``ShareAck.create``."""
    return ShareAck(group, topic, partition, ranges, audited, topic_id).frame()


class ShareReply(Operation, frozen=True):
    """These offsets, in ascending order, are final, and row ``i`` of the body is what the app is told about
    offset ``i``. The leader writes the rows of those that are not final yet, behind which come the reserved
    headers, into the topic of the app's replies, in the same entry, with a SHARE_ACK."""

    KIND = OpType.SHARE_REPLY
    SENDER = Sender.REWRITTEN
    group: str
    topic: str
    partition: int
    app: str
    offsets: Sequence[int]
    sizes: Sequence[int]
    topic_id: int

    def problem(self, body_bytes: int) -> str | None:
        offsets, sizes = self.offsets, self.sizes
        if not offsets or len(offsets) > RANGES_MAX or len(offsets) != len(sizes):
            return f"a SHARE_REPLY needs 1 to {RANGES_MAX} offsets, and a size for each"
        if min(sizes) < 1 or sum(sizes) != body_bytes:
            return "SHARE_REPLY's columns do not fit its body"
        problem = _offsets_problem(offsets) or owner_problem("app", self.app)
        return problem or _where_problem(self.group, self.topic, self.partition, self.topic_id)


def share_reply(
    group: str,
    topic: str,
    partition: int,
    app: str,
    offsets: Sequence[int],
    rows: Sequence[bytes],
    topic_id: int = NO_ID,
) -> bytes:
    """SHARE_REPLY."""
    sizes = [len(row) for row in rows]
    return ShareReply(group, topic, partition, app, offsets, sizes, topic_id).frame(rows)


class Nack(Operation, frozen=True):
    """The group could not handle these messages.

    A delay of ``BY_TABLE`` (-1) leaves it to the group's settings, as which attempt it was decides whether
    the message comes back; with ``REJECT`` (-2) it does not. ``member``: who holds the leases, "": nobody;
    ``by`` is told in the copy. ``attempt`` is 0, or the group reads by offsets: then no original becomes
    final, what is repeated is copied again, and it is the number of the attempt that has failed, if the group
    counts attempts (``PLACES``). In the group's own topic of dead letters it means: redrive, at once and as
    at the first attempt.

    Result: OK, also for messages that are final already; else PARTIAL with ``[index, code, info]``:
    LEASE_LOST (somebody else holds it), RETRY (send again: it did not fit), OUT_OF_RANGE with ``[start,
    end]``, UNKNOWN_TOPIC with the internal topic that is to be created, TOO_MANY_SCHEDULED, DUPLICATE (a dead
    letter that is final already), OFFSETS_PENDING (an open transaction holds the dead letter). In the log it
    is a FORWARD of the copies and, unless the group reads by offsets, a SHARE_ACK.
    """

    KIND = OpType.NACK
    SENDER = Sender.REWRITTEN
    NEW_WORK: ClassVar[bool] = True
    group: str
    topic: str
    partition: int
    offsets: Sequence[int]
    delays_ms: Sequence[int]
    reasons: Sequence[str]
    member: str
    by: str
    attempt: int
    topic_id: int

    def problem(self, body_bytes: int) -> str | None:
        offsets, delays_ms, reasons = self.offsets, self.delays_ms, self.reasons
        if not offsets or len(offsets) > NACKED_MAX or not len(offsets) == len(delays_ms) == len(reasons):
            return f"NACK needs 1 to {NACKED_MAX} offsets, and a delay and a reason for each"
        if min(delays_ms) < REJECT or max(delays_ms) > DELAY_MS_MAX:
            return f"a delay must be 0 to {DELAY_MS_MAX} ms"
        if not 0 <= self.attempt <= NUMBER_MAX:
            return f"the number of an attempt must be 0 to {NUMBER_MAX}"
        longest = max(len(self.member), len(self.by))
        if max(map(len, reasons)) > REASON_CHARS_MAX or longest > NAME_CHARS_MAX:
            return f"a reason has at most {REASON_CHARS_MAX} characters, and a name {NAME_CHARS_MAX}"
        problem = _offsets_problem(offsets)
        return problem or _where_problem(self.group, self.topic, self.partition, self.topic_id)


def nack(
    group: str,
    topic: str,
    partition: int,
    offsets: Sequence[int],
    delays_ms: Sequence[int],
    reasons: Sequence[str],
    member: str,
    by: str,
    topic_id: int = NO_ID,
    *,
    stream: bool = False,
    attempt: int = 1,
) -> bytes:
    """NACK. ``stream``: the group reads by offsets, and this ``attempt`` has failed."""
    number = attempt if stream else 0
    return Nack(group, topic, partition, offsets, delays_ms, reasons, member, by, number, topic_id).frame()


class GroupSettingsOp(Operation, frozen=True):
    """The group has these settings from this entry on; what is not named stays.

    ``number`` orders changes over the broker groups, as for ALTER_TOPIC: in group 0 that of the newest change
    that the sender knows, or ``ANY_NUMBER`` (-1); if there is a newer one, the result is RETRY; otherwise
    this one gets the entry's index as its number. The other groups get the number that group 0 has assigned;
    a change that is not newer than the one in force is a DUPLICATE. Without settings it only asks. Result
    info: ``[all settings in force, number]``. GROUP_KIND with the kind that the group has: it cannot change.
    ``by``: for the audit trail ("": not told).
    """

    KIND = OpType.GROUP_SETTINGS
    group: str
    settings: Mapping[str, int | str | list[int]]
    number: int
    by: str

    def problem(self, body_bytes: int) -> str | None:
        if not ANY_NUMBER <= self.number <= NUMBER_MAX:
            return f"the number of a change must be {ANY_NUMBER} to {NUMBER_MAX}"
        if len(self.by) > NAME_CHARS_MAX:
            return f"a name has at most {NAME_CHARS_MAX} characters"
        return group_settings_problem(self.settings) or owner_problem("group", self.group)


def group_settings(group: str, values: Mapping[str, Value], number: int = ANY_NUMBER, by: str = "") -> bytes:
    """GROUP_SETTINGS."""
    return GroupSettingsOp(group, dict(values), number, by).frame()


class Places(Operation, frozen=True):
    """GROUP_OFFSETS, and how often the message at that offset has failed. ``places``: partition, next offset,
    attempts, flat. A commit of another offset forgets the attempts."""

    KIND = OpType.PLACES
    group: str
    topic: str
    places: Sequence[int]

    def problem(self, body_bytes: int) -> str | None:
        if len(self.places) % 3 or not all(0 <= n <= NUMBER_MAX for n in self.places):
            return "PLACES needs triples of partition, offset and attempts, all of them 0 or more"
        return owner_problem("group", self.group)


def places(group: str, topic: str, flat: Sequence[int]) -> bytes:
    """PLACES."""
    return Places(group, topic, flat).frame()


class PreLetters(Operation, frozen=True):
    """Follows a PREPARE, behind its messages: the copies of these dead letters, which lie in ``partition`` of
    the group's topic of them. ``ranges``: first, last, flat.

    The PREPARE opens nothing unless all of them are open, and no other transaction holds one (OFFSETS_PENDING
    with ``[group, topic, partition, app, tx_id]``; OFFSETS_MOVED with ``[group, topic, partition, offset]``:
    it is final). Until the transaction is settled nothing else makes them final; its COMMIT does. ``to`` and
    ``by`` are for the audit trail: into which topic, and who.
    """

    KIND = OpType.PRE_LETTERS
    ATTACHED: ClassVar[bool] = True
    group: str
    partition: int
    ranges: Sequence[int]
    topic_id: int
    to: str
    by: str

    def problem(self, body_bytes: int) -> str | None:
        if body_bytes or self.partition < 0:
            return "a partition is 0 or more, and PRE_LETTERS has no body"
        if len(self.ranges) > 2 * LETTER_RANGES_MAX or max(len(self.to), len(self.by)) > NAME_CHARS_MAX:
            most = LETTER_RANGES_MAX
            return f"PRE_LETTERS has up to {most} ranges, and names of up to {NAME_CHARS_MAX} characters"
        if self.topic_id == NO_ID:  # who read the letters knows it; a later topic has others there
            return "PRE_LETTERS names the topic of its letters by id"
        problem = id_problem(self.topic_id) or _ranges_problem(self.KIND, self.ranges)
        return problem or owner_problem("group", self.group)


def pre_letters(group: str, partition: int, ranges: Sequence[int], topic_id: int, to: str, by: str) -> bytes:
    """PRE_LETTERS."""
    return PreLetters(group, partition, ranges, topic_id, to, by).frame()


class Forward(Operation, frozen=True):
    """Messages that the leader writes into a partition of its own group; body: a row each. Time 0: readable
    at once; otherwise a timer whose owner is the log index of its entry, and whose ordinal is the position of
    its row in the entry."""

    KIND = OpType.FORWARD
    SENDER = Sender.LEADER
    topic: str
    partition: int
    times: Sequence[int]
    sizes: Sequence[int]


def forward(topic: str, partition: int, times: Sequence[int], rows: Sequence[bytes]) -> bytes:
    """FORWARD."""
    return Forward(topic, partition, times, [len(row) for row in rows]).frame(rows)
