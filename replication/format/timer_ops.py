"""The operations of delayed and scheduled messages.

A *time* is when a message becomes readable, in ms since the epoch. A negative one is a delay in ms, counted
from the entry that makes it effective: the SCHEDULED itself, or the COMMIT of its transaction. A *timer* is
a message that waits; its *key* is ``(time, slot of its partition, owner, ordinal)``. ``owner`` stands for
whoever scheduled it, and ``ordinal`` counts what that one scheduled: so messages of one owner for one
millisecond keep their order, and a client knows a timer's key without asking.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import ClassVar, Final

from escrowmq.replication.format.internal_topics import is_internal
from escrowmq.replication.format.operation import Operation, OpType, Sender
from escrowmq.replication.format.ops import EPOCH_MAX, brokers_topic_problem, id_problem
from escrowmq.replication.limits import IDS_PER_OPERATION_MAX, NUMBER_MAX, TIMEOUT_MS_MAX, name_problem
from escrowmq.replication.model import NO_ID

#: One above the highest ordinal, and the highest owner.
ORDINALS: Final = 1 << 32
OWNER_MAX: Final = (1 << 64) - 1


def owner_of(name: str, tx_id: str = "") -> int:
    """The owner of what the transaction ``tx_id`` of the app ``name`` schedules; or, without an id, that of a
    producer instance's name. Part of the format: clients and leaders compute it."""
    text = b"\0".join((name.encode(), tx_id.encode()))
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")


def _times_problem(times: Sequence[int], ordinals: Sequence[int]) -> str | None:
    if times and not (min(times) >= -TIMEOUT_MS_MAX and max(times) <= NUMBER_MAX):
        return f"a time must be at most {NUMBER_MAX}, and a delay at most {TIMEOUT_MS_MAX} ms"
    if ordinals and not (min(ordinals) >= 0 and max(ordinals) < ORDINALS):
        return f"an ordinal must be 0 to {ORDINALS - 1}"
    return None


def _target_problem(partition: int, topic_id: int) -> str | None:
    return "a partition is 0 or more" if partition < 0 else id_problem(topic_id)


class Scheduled(Operation, frozen=True):
    """Plain messages of one partition, each readable from its time on; body: a row each.

    Row ``i`` has the ordinal ``first_ordinal + i``. The other columns are those of MESSAGE, and the sequence
    numbers are counted together with those of MESSAGEs of the same ``producer``. Under a claim that is the
    claim's name with ``/later`` behind it. Result info: ``[-1, timestamp_ms]``, also for a repetition
    (DUPLICATE); a delay is counted from that timestamp.
    """

    KIND = OpType.SCHEDULED
    NEW_WORK: ClassVar[bool] = True
    topic: str
    partition: int
    producer: str
    epoch: int
    seq: int
    times: Sequence[int]
    sizes: Sequence[int]
    owner: int
    first_ordinal: int
    heard_ms: int
    topic_id: int

    def problem(self, body_bytes: int) -> str | None:
        if (problem := _target_problem(self.partition, self.topic_id)) is not None:
            return problem
        times, sizes = self.times, self.sizes
        if not times or len(times) != len(sizes) or min(sizes) < 1 or sum(sizes) != body_bytes:
            return "SCHEDULED's columns do not fit its body"
        if not 0 <= self.epoch <= EPOCH_MAX:
            return f"SCHEDULED's epoch must be 0 to {EPOCH_MAX}"
        if not (-1 <= self.seq <= NUMBER_MAX and -1 <= self.heard_ms <= NUMBER_MAX):
            return f"SCHEDULED's sequence number and heard_ms must be at most {NUMBER_MAX}"
        if not 0 <= self.owner <= OWNER_MAX:
            return "an owner has 64 bits"
        ends = self.first_ordinal, self.first_ordinal + len(times) - 1
        problem = name_problem("producer", self.producer) or _times_problem(times, ends)
        return problem or brokers_topic_problem(self.topic)


def scheduled(
    topic: str,
    partition: int,
    producer: str,
    epoch: int,
    seq: int,
    times: Sequence[int],
    rows: Sequence[bytes],
    owner: int,
    first_ordinal: int,
    heard_ms: int = -1,
    topic_id: int = NO_ID,
) -> bytes:
    """SCHEDULED."""
    sizes = [len(row) for row in rows]
    return Scheduled(
        topic, partition, producer, epoch, seq, times, sizes, owner, first_ordinal, heard_ms, topic_id
    ).frame(rows)


class PreScheduled(Operation, frozen=True):
    """As PRE_MESSAGE, but a message is readable from its time on, and not before its transaction is
    committed.

    ``ordinals`` count within a transaction, over all its parts; the owner is the transaction's.
    """

    KIND = OpType.PRE_SCHEDULED
    ATTACHED: ClassVar[bool] = True
    topic: str
    partition: int
    txs: Sequence[int]
    sizes: Sequence[int]
    times: Sequence[int]
    ordinals: Sequence[int]
    topic_id: int

    def problem(self, body_bytes: int) -> str | None:
        """See ``Operation``. Its rows are checked with its PREPARE, as those of PRE_MESSAGE."""
        if (problem := _target_problem(self.partition, self.topic_id)) is not None:
            return problem
        if not len(self.txs) == len(self.times) == len(self.ordinals):
            return "PRE_SCHEDULED's columns differ in length"
        return _times_problem(self.times, self.ordinals)


def pre_scheduled(
    topic: str,
    partition: int,
    txs: Sequence[int],
    sizes: Sequence[int],
    times: Sequence[int],
    ordinals: Sequence[int],
    rows: Sequence[bytes],
    topic_id: int = NO_ID,
) -> bytes:
    """PRE_SCHEDULED."""
    return PreScheduled(topic, partition, txs, sizes, times, ordinals, topic_id).frame(rows)


class Cancel(Operation, frozen=True):
    """These messages shall not become readable. ``keys``: time, owner, ordinal, flat. Of each the log
    decides, once, whether it was cancelled or released.

    Result: OK if all are cancelled; otherwise PARTIAL with ``[index, UNKNOWN_TIMER, None]`` for those that
    are not: never scheduled, readable already, or about to be. RETRY in place of UNKNOWN_TIMER: the message
    was carried (CARRY) while an open transaction holds another one under the same key; send it again once
    that is decided. Cancelling again is no error. In the log it is a CANCELLED.
    """

    KIND = OpType.CANCEL
    SENDER = Sender.REWRITTEN
    topic: str
    partition: int
    keys: Sequence[int]
    topic_id: int

    def problem(self, body_bytes: int) -> str | None:
        if (problem := _target_problem(self.partition, self.topic_id)) is not None:
            return problem
        times, owners, ordinals = (self.keys[n::3] for n in range(3))
        if not self.keys or len(self.keys) % 3 or len(times) > IDS_PER_OPERATION_MAX:
            return f"CANCEL needs 1 to {IDS_PER_OPERATION_MAX} triples of time, owner and ordinal"
        if not (min(times) >= 0 and max(times) <= NUMBER_MAX and all(0 <= o <= OWNER_MAX for o in owners)):
            return f"CANCEL's times must be 0 to {NUMBER_MAX}, and its owners 64 bits"
        if is_internal(self.topic):  # its group would neither get it again nor have a dead letter
            return (
                f"what waits in topic {self.topic!r} is retried; reject it when it comes, for a dead letter"
            )
        return _times_problem(times, ordinals)


def cancel(topic: str, partition: int, keys: Sequence[tuple[int, int, int]], topic_id: int = NO_ID) -> bytes:
    """CANCEL. ``keys``: time, owner and ordinal of each."""
    return Cancel(topic, partition, [n for key in keys for n in key], topic_id).frame()


class Cancelled(Operation, frozen=True):
    """The leader has found all of these timers, and none of them is in a RELEASE before it.

    ``copies``: how often each key is there; once, unless an application has used a transaction's id again.
    ``counts``: slot, block, timers, bytes, flat. ``newest``: of each key it kills only what lies in entries
    up to this one, where the leader has found the newest copy.
    """

    KIND = OpType.CANCELLED
    SENDER = Sender.LEADER
    keys: bytes
    copies: Sequence[int]
    counts: Sequence[int]
    newest: Sequence[int]


def cancelled(keys: bytes, copies: Sequence[int], counts: Sequence[int], newest: Sequence[int]) -> bytes:
    """CANCELLED."""
    return Cancelled(keys, copies, counts, newest).frame()


class TimerOp(Operation, frozen=True):
    """Messages that the COMMIT behind it makes effective, and among whose references it counts: ``records``
    of 40 bytes each."""

    KIND = OpType.TIMER
    SENDER = Sender.LEADER
    records: bytes


def timer(records: bytes) -> bytes:
    """TIMER."""
    return TimerOp(records).frame()


class Release(Operation, frozen=True):
    """All timers up to ``key`` are due and, apart from cancelled ones, in the ``references`` REF_MESSAGEs and
    TX_MESSAGEs before it. ``counts``: slot, block of 4,096 log indexes, timers and bytes that waited, flat;
    cancelled ones were counted before."""

    KIND = OpType.RELEASE
    SENDER = Sender.LEADER
    key: bytes
    references: int
    counts: Sequence[int]


def release(key: bytes, references: int, counts: Sequence[int]) -> bytes:
    """RELEASE."""
    return Release(key, references, counts).frame()


class Carry(Operation, frozen=True):
    """Messages that wait for long are stored anew, so that the entries in which they lay can go. ``records``:
    as they were, in order, 40 bytes each, with all living copies of each key; body: their messages, in the
    same order. No open transaction lies before the entries that are left."""

    KIND = OpType.CARRY
    SENDER = Sender.LEADER
    records: bytes


def carry(records: bytes, rows: Sequence[bytes]) -> bytes:
    """CARRY."""
    return Carry(records).frame(rows)
