"""Small parts of applying a PREPARE: where its messages are, and whether it comes too late."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from escrowmq.replication.format.codec import NO_EXTRA, Op, PrepareExtra
from escrowmq.replication.model import ResultCode
from escrowmq.replication.state.open_table import OpenTx
from escrowmq.replication.state.topics import Partition, TopicTable

UNTRACKED = "a transaction over several broker groups needs a producer that knows format level 2: upgrade it"


def untracked_branch(level: int, home_group: int, extra: PrepareExtra) -> list[object] | None:
    """Why this PREPARE may not open a branch, or None. From level 3 on home tracks every branch: without a
    home index its leader could not tell a late copy from a branch that is owed a decision."""
    if level > 2 and home_group >= 0 and not extra.home_index:
        return [int(ResultCode.MALFORMED), UNTRACKED]
    return None


def refusal_of_repeated(level: int, record: OpenTx, extra: PrepareExtra) -> list[object] | None:
    """Why a PREPARE does not take over an open transaction, or None. It is a late copy, or may be one.

    A PREPARE of version 1 does not tell when it was sent. From level 3 on it takes nothing from a known
    owner: that owner may be running its local transaction, and would no longer be asked.
    """
    if extra is NO_EXTRA:
        return [int(ResultCode.TX_CONFLICT), "PREPARE"] if level > 2 and record.instance else None
    return [int(ResultCode.STALE), None] if is_overtaken(record, extra) else None


def is_overtaken(record: OpenTx, extra: PrepareExtra) -> bool:
    """Whether a PREPARE of version 2 may have been sent before the one, by another instance, under which this
    transaction is open: its sender had heard of nothing later. A sender that is still alive sends it again
    with what it has heard since. (For a branch, no check asks the owner.)"""
    return (
        record.instance != extra.instance and record.home_group < 0 and extra.heard_ms <= record.prepared_ms
    )


def places(
    topics: TopicTable, index: int, attached: Sequence[Op], count: int
) -> tuple[list[tuple[int, ...] | None], list[object] | None]:
    """The places of the messages that follow a PREPARE of ``count`` transactions in entry ``index``: one
    ``OpenTx.refs`` for each transaction; and the reason to refuse them, or None."""
    refs: list[tuple[int, ...] | None] = [None] * count
    for pre in attached:
        meta = pre.meta
        partition = topics.find(meta[0], meta[1])
        if not isinstance(partition, Partition):
            return refs, [int(partition), [meta[0], meta[1]]]
        if len(meta) > 4 and meta[4] != partition.topic_id:
            return refs, [int(ResultCode.OTHER_TOPIC), [meta[0], meta[1], partition.topic_id]]
        collect_refs(refs, partition.slot, index, pre)
    return refs, None


def collect_refs(refs: list[tuple[int, ...] | None], slot: int, index: int, pre: Op) -> None:
    """Add the places of one PRE_MESSAGE's rows to their transactions; adjacent rows become one reference.

    ``refs`` has one ``OpenTx.refs`` per transaction of the PREPARE.
    """
    txs, sizes = pre.meta[2], pre.meta[3]
    pos, last, size, count = pre.body_pos, txs[0] if txs else -1, 0, 0
    # A row of the same transaction as the one before is only counted; the end acts as another transaction.
    for tx, more in zip(chain(txs, (-1,)), chain(sizes, (0,)), strict=True):
        if tx == last:
            size += more
            count += 1
            continue
        known = refs[last]
        if known is None:
            refs[last] = (slot, index, pos, size, count)
        elif known[-5] == slot and known[-3] + known[-2] == pos:
            refs[last] = (*known[:-2], known[-2] + size, known[-1] + count)
        else:
            refs[last] = (*known, slot, index, pos, size, count)
        pos += size
        last, size, count = tx, more, 1
