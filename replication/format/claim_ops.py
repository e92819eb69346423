"""Claims: a named producer's epoch, and the number of its last committed transaction; of format level 9.

Whoever starts as the producer of a name claims a higher epoch than the last one had, in the claim's group and
then with the same epoch in all others. From then on earlier ones are fenced. A transaction may have a number,
and a digest of all that it sends; the claim's group, which is its home, remembers the last ones that were
committed.
"""

from __future__ import annotations

import hashlib
from typing import Final

from escrowmq.replication.format.codec import OpType, encode_op

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
