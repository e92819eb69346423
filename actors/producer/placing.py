"""Where a message would go, for those who must know it before they send it."""

from __future__ import annotations

from escrowmq.actors.producer.delayed_messages import Later
from escrowmq.actors.producer.producer import Producer
from escrowmq.replication.model import Message


def partition_of(producer: Producer, message: Message, turn: int) -> int:
    """The partition of a message as a part of a transaction. ``turn``: any number, which decides for a
    message without a key and without a partition.

    Raises what sending it would raise: InvalidMessage, MessageTooLarge, UnknownTopic, NotSupported (delayed,
    and the cluster is too old).
    """
    core = producer._core
    later: list[Later] = []
    placed, _ = core.encoder.place([message], f"{turn}", later)
    return placed[0][1] if placed else later[0].partition
