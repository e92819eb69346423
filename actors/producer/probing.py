"""What became of a number, for those who can no longer send its messages: their topic may be gone.

The question is a PREPARE of one empty message, which is never committed. The broker's answer says what is
committed under the claim, and what is open.
"""

from __future__ import annotations

from escrowmq.actors.producer.producer import Producer
from escrowmq.actors.producer.transactions.numbered import LeftOpen, Numbered, roll_back
from escrowmq.replication.errors import InvalidMessage, OutcomeUnknown, OutOfStep
from escrowmq.replication.format.ops import DIGEST_BYTES
from escrowmq.replication.model import Message

#: Each try settles one transaction that was left open, of which a claim has one, or notices that it was
#: committed meanwhile.
TRIES = 5
_NOTHING = bytes(DIGEST_BYTES)


def settle(producer: Producer, number: int, digest: bytes, topic: str) -> bool:
    """Whether ``number`` is committed with this digest. If not, nothing of it is open, nor can it be
    committed later by an earlier producer of the name. ``topic``: any that exists; nothing is stored in it.

    Raises what sending a numbered transaction raises; OutOfStep: a later number is committed, or this one
    with another digest.
    """
    core = producer.core
    claimed = core.claimed
    if claimed is None:
        raise InvalidMessage("only a producer with a transactional_id has numbered transactions")
    asked = digest if number <= claimed.number else _NOTHING
    for _ in range(TRIES):
        probe = Numbered(core, claimed, number, asked)
        probe.send(Message(topic, b"", partition=0))
        try:
            if probe._prepare() is not None:
                return True
        except LeftOpen as left:
            roll_back(core, claimed, left)
            continue
        except OutOfStep:
            if asked == digest:
                raise
            asked = digest  # an earlier producer has just committed it
            continue
        probe.rollback()
        return False
    raise OutcomeUnknown(f"{claimed.name}.{number}")
