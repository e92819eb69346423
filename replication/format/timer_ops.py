"""Builders of the operations of delayed and scheduled messages, of format level 8, and CARRY of level 9.

A *time* is when a message becomes readable, in ms since the epoch. A negative one is a delay in ms, counted
from the entry that makes it effective: the SCHEDULED itself, or the COMMIT of its transaction. A *timer* is
a message that waits; its *key* is ``(time, slot of its partition, owner, ordinal)``. ``owner`` stands for
whoever scheduled it, and ``ordinal`` counts what that one scheduled: so messages of one owner for one
millisecond keep their order, and a client knows a timer's key without asking.

Clients build SCHEDULED, PRE_SCHEDULED (behind their PREPARE, as PRE_MESSAGEs) and CANCEL. Leaders build
TIMER, RELEASE, CARRY, and the later versions of CANCEL."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

from escrowmq.replication.format.codec import OpType, encode_op

#: The format level of a group whose log may have these operations.
LEVEL_OF_TIMERS: Final = 8
#: And of CARRY, and CANCEL version 3.
LEVEL_OF_CARRYING: Final = 9
#: One above the highest ordinal, and the highest owner.
ORDINALS: Final = 1 << 32
OWNER_MAX: Final = (1 << 64) - 1
#: Behind its name, a producer's name for delayed messages: their batches are numbered apart from the others.
OF_DELAYED: Final = "/later"


def owner_of(name: str, tx_id: str = "") -> int:
    """The owner of what the transaction ``tx_id`` of the app ``name`` schedules; or, without an id, that of a
    producer instance's name. Part of the format: clients and leaders compute it."""
    text = b"\0".join((name.encode(), tx_id.encode()))
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")


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
    heard_ms: int,
    topic_id: int,
) -> bytes:
    """SCHEDULED ``[topic, partition, producer, epoch, seq, times, sizes, owner, first_ordinal, heard_ms,
    topic_id]`` + rows: plain messages of one partition, each readable from its time on.

    Row ``i`` has the ordinal ``first_ordinal + i``. The other columns are those of MESSAGE version 3, and
    the sequence numbers are counted together with those of MESSAGEs. Result info: ``[-1, timestamp_ms]``,
    also for a repetition (DUPLICATE); a delay is counted from that timestamp."""
    sizes = [len(row) for row in rows]
    meta = (topic, partition, producer, epoch, seq, times, sizes, owner, first_ordinal, heard_ms, topic_id)
    return encode_op(OpType.SCHEDULED, meta, rows)


def pre_scheduled(
    topic: str,
    partition: int,
    txs: Sequence[int],
    sizes: Sequence[int],
    times: Sequence[int],
    ordinals: Sequence[int],
    rows: Sequence[bytes],
    topic_id: int,
) -> bytes:
    """PRE_SCHEDULED ``[topic, partition, txs, sizes, times, ordinals, topic_id]``: as PRE_MESSAGE version 2,
    but a message is readable from its time on, and not before its transaction is committed.

    ``ordinals`` count within a transaction, over all its parts. Its owner is ``owner_of(app, tx_id)``.
    """
    meta = (topic, partition, txs, sizes, times, ordinals, topic_id)
    return encode_op(OpType.PRE_SCHEDULED, meta, rows)


def cancel(topic: str, partition: int, keys: Sequence[tuple[int, int, int]], topic_id: int) -> bytes:
    """CANCEL as clients send it ``[topic, partition, [time, owner, ordinal, ...], topic_id]``: these messages
    shall not become readable. Of each the log decides, once, whether it was cancelled or released.

    Result: OK if all are cancelled; otherwise PARTIAL with ``[place, UNKNOWN_TIMER, None]`` for those that
    are not: never scheduled, readable already, or about to be. Cancelling again is no error."""
    flat = [n for key in keys for n in key]
    return encode_op(OpType.CANCEL, (topic, partition, flat, topic_id))


# ------------------------------------------------------------------ written by leaders only


def timer(records: bytes) -> bytes:
    """TIMER ``[records]``: what the COMMIT behind it makes effective, 40 bytes each (timers/record.py)."""
    return encode_op(OpType.TIMER, (records,))


def release(key: bytes, references: int, counts: Sequence[int]) -> bytes:
    """RELEASE ``[key, references, [slot, block, timers, bytes, ...]]``: all timers up to this key, apart from
    cancelled ones, are in the ``references`` REF_MESSAGEs and TX_MESSAGEs before it.

    ``counts``: how many waited, by slot and block of 4,096 log indexes; cancelled ones were counted before.
    """
    return encode_op(OpType.RELEASE, (key, references, counts))


def decided_cancel(keys: bytes, copies: Sequence[int], counts: Sequence[int]) -> bytes:
    """CANCEL version 2 ``[keys, copies, [slot, block, timers, bytes, ...]]``: as it is in the log. The
    leader has found all of these timers, and none of them is in a RELEASE before it. ``copies``: how often
    each key is there; once, unless an application has used a transaction's id again.

    It kills whatever lies before it under these keys, also what becomes effective later: below level 9 only.
    """
    return encode_op(OpType.CANCEL, (keys, copies, counts), version=2)


def named_cancel(keys: bytes, copies: Sequence[int], counts: Sequence[int], newest: Sequence[int]) -> bytes:
    """CANCEL version 3 ``[keys, copies, counts, [log index...]]``, from level 9 on: as version 2, but of each
    key it kills only what lies in entries up to this one, where the leader has found the newest copy."""
    return encode_op(OpType.CANCEL, (keys, copies, counts, newest), version=3)


def carry(records: bytes, rows: Sequence[bytes]) -> bytes:
    """CARRY ``[records]`` + rows: these timers, which are all copies of their keys, lie here from now on.

    ``records``: as they were, in order, 40 bytes each (timers/record.py); ``rows``: their messages."""
    return encode_op(OpType.CARRY, (records,), rows)


# ------------------------------------------------------------------------------------------------------------
# Claims: a named producer's epoch, and the number of its last committed transaction; of format level 9.
#
# Whoever starts as the producer of a name claims a higher epoch than the last one had, in the claim's group
# and then with the same epoch in all others. From then on earlier ones are fenced. A transaction may have a
# number, and a digest of all that it sends; the claim's group, which is its home, remembers the last ones
# that were committed.

#: The format level of a group whose log may have this.
LEVEL_OF_CLAIMS: Final = 9
#: Of the epoch that a message has, the upper bits are the claim's; the others count, at each producer and for
#: each partition, how often batches had to be numbered anew. Without a claim the upper ones are 0.
_COUNTED_BITS: Final = 32
#: The highest epoch of a claim, and of a message.
CLAIM_EPOCH_MAX: Final = (1 << 31) - 1
EPOCH_MAX: Final = (1 << 63) - 1
#: In place of a transaction's number: it has none.
UNNUMBERED: Final = 0
DIGEST_BYTES: Final = 16
#: Who decides a transaction about which nobody is asked, and which a newer claim has overtaken.
BY_CLAIM: Final = "claim"


def claim(name: str, epoch: int, claimant: str) -> bytes:
    """CLAIM ``[name, epoch, claimant]``: result info ``[epoch, last number]``. FENCED, with the newest epoch:
    another has claimed it with that one, or with a higher one. Harmless if repeated."""
    return encode_op(OpType.CLAIM, (name, epoch, claimant))


def first_epoch(claimed: int) -> int:
    """The first epoch of messages under a claim; 0: without one."""
    return claimed << _COUNTED_BITS


def claimed_epoch(epoch: int) -> int:
    """The claim's epoch in that of a message; 0: it has none."""
    return epoch >> _COUNTED_BITS


def claim_group(name: str, groups: int) -> int:
    """The broker group that is asked for an epoch first, and is home to the numbered transactions."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % groups
