"""Transactions that move a consumer group's committed offsets: PRE_OFFSETS beside the blocks of messages.

They go to the group whose log has these offsets: with its part of the messages if there are any, else as one
more branch, or alone if the transaction has no message. The digest covers them, so that an id that is used
again with other offsets is recognised.
"""

from __future__ import annotations

from collections.abc import Callable

import google_crc32c

from escrowmq.actors.client.group_work import GroupWork
from escrowmq.actors.producer.encoding.blocks import PrepareBlock
from escrowmq.actors.producer.encoding.encoder import TxPlan, announce

_extend: Callable[[int, bytes], int] = google_crc32c.extend


def only_offsets(
    tx_id: str, query_id: str, work: GroupWork, gid: int, timeout_ms: int, given_id: bool
) -> TxPlan:
    """The plan of a transaction without a message, and without its offsets yet. Its home topic is one that
    was read."""
    block = PrepareBlock(work.topic, -1, timeout_ms, 0, (tx_id,), (query_id,), (0,), {}, 0, given_id)
    return TxPlan(tx_id, query_id, work.topic, (gid,), block, None, 0, given_id)


def first_block(plan: TxPlan) -> PrepareBlock:
    """The one that opens the transaction at home."""
    if plan.single is not None:
        return plan.single
    assert plan.parts is not None
    return plan.parts[plan.groups[0]][0]


def with_offsets(plan: TxPlan, work: GroupWork, gid: int) -> None:
    """Adds the committed offsets that the transaction moves. ``gid``: the group whose log has them."""
    frames, home = work.frames(), first_block(plan)
    if not frames:
        return
    parts = {plan.groups[0]: [home]} if plan.parts is None else plan.parts
    if gid not in parts:
        parts[gid] = [_branch(home, plan.groups[0])]
        plan.groups = (*plan.groups, gid)
        plan.single, plan.parts = None, parts
    block = parts[gid][0]
    block.offsets = frames
    size = sum(map(len, frames))
    block.size, plan.size = block.size + size, plan.size + size
    for first in {id(home): home, id(block): block}.values():
        first.digests = (_extend(first.digests[0], b"".join(frames)),)
    announce(parts, plan.groups)


def _branch(home: PrepareBlock, home_group: int) -> PrepareBlock:
    """A block without messages in another group than home."""
    return PrepareBlock(
        home.home_topic, home_group, home.timeout_ms, 0, home.tx_ids, home.query_ids, (0,), {}, 0, home.given
    )
