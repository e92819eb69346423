"""Claims: a named producer's epoch, and the number of its last committed transaction; of format level 9.

Whoever starts as the producer of a name raises the claim's epoch, in the claim's group and then in all
others. From then on earlier ones are fenced. A transaction may have a number, and a digest of all that it
sends; the claim's group, which is its home, remembers the last ones that were committed.
"""

from __future__ import annotations

import hashlib
from typing import Final

from escrowmq.replication.format.codec import OpType, encode_op

#: The format level of a group whose log may have this.
LEVEL_OF_CLAIMS: Final = 9
#: In place of an epoch: a higher one than any before, which only the claim's group gives.
NEXT_EPOCH: Final = 0
#: In place of a transaction's number: it has none.
UNNUMBERED: Final = 0
DIGEST_BYTES: Final = 16


def claim(name: str, epoch: int = NEXT_EPOCH) -> bytes:
    """CLAIM ``[name, epoch]``: result info ``[epoch, last number]``. FENCED, with the newest epoch: another
    has claimed it since."""
    return encode_op(OpType.CLAIM, (name, epoch))


def claim_group(name: str, groups: int) -> int:
    """The broker group that gives the claim's epochs, and is home to its numbered transactions."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % groups
