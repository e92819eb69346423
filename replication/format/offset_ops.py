"""PRE_OFFSETS: places of a consumer group that a transaction moves when it is committed; of format level 9.

So what a transaction sends, and the place up to which it has read for that, count together or not at all. For
each partition the operation says where the work began, and where it ends. If the group is not where the work
began, somebody else has done it, and the PREPARE opens nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from escrowmq.replication.format.codec import OpType, encode_op
from escrowmq.replication.model import NO_ID

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
