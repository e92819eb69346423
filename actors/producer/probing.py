"""Whether a number is in, for those who can no longer send its messages: their topic may be gone.

A PREPARE with a number that is not above the last committed one opens nothing. The broker answers whether
that one has the same digest, whatever messages the PREPARE has, so one empty message to any topic will do.
"""

from __future__ import annotations

from escrowmq.actors.producer.numbered import Numbered
from escrowmq.actors.producer.producer import Producer
from escrowmq.replication.claim_errors import OutOfStep
from escrowmq.replication.errors import InvalidMessage
from escrowmq.replication.model import Message


def was_committed(producer: Producer, number: int, digest: bytes, topic: str) -> bool:
    """Whether ``number``, which must not be above the producer's last one, is the last one and was committed
    with this digest. ``topic``: any that exists; nothing is stored in it.

    Raises what sending a numbered transaction raises, but not OutOfStep.
    """
    core = producer._core
    claimed = core.claimed
    if claimed is None or number > claimed.number:
        raise InvalidMessage(f"number {number} is not in under this producer's name, so nothing can be asked")
    probe = Numbered(core, claimed, number, digest)
    probe.send(Message(topic, b"", partition=0))
    try:
        if probe._prepare() is not None:
            return True
    except OutOfStep:
        return False
    probe.rollback()  # the name was forgotten meanwhile: never commit what was only a question
    return False
