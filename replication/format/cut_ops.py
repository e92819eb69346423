"""CUT: how far the partitions of a group go, and which decisions over several groups it has taken.

A client asks every group for it three times to find a stable cut: ends of partitions that contain all of a
transaction or none of it (actors/client/stable_cut.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from escrowmq.replication.format.codec import OpType, encode_op

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
