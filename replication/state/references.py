"""Where the messages of open transactions lie: references ``(slot, log index, position, bytes, messages)``.

A record holds them flat, five numbers each, in the order of the messages. Applied identically on every
replica.
"""

from __future__ import annotations

from itertools import chain

from escrowmq.replication.format.codec import Op


def collect_refs(refs: list[tuple[int, ...] | None], slot: int, index: int, pre: Op) -> None:
    """Add the places of one PRE_MESSAGE's rows to their transactions; neighbours become one reference."""
    txs, sizes = pre.meta[2], pre.meta[3]
    pos, last, size, count = pre.body_pos, txs[0] if txs else -1, 0, 0
    # A row that goes on with its transaction only counts; the end stands for a transaction of its own.
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
