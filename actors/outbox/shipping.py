"""The broker's side of a relay: a named producer for each shard, which sends batches by number.

A batch is refused for good only if the broker has none of it. So after a refusal, which may come from this
process alone (the topic is gone), the name is claimed again and what is open under it is rolled back: then no
earlier sending of the batch can be committed any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from escrowmq.actors.producer.encoding.delayed_messages import Later
from escrowmq.actors.producer.probing import settle
from escrowmq.actors.producer.producer import Producer
from escrowmq.feedback.database.relaying import BatchOutOfSequence, BatchRefused
from escrowmq.replication import errors
from escrowmq.replication.errors import InvalidMessage, MessageTooLarge, ProducerFenced, UnknownTopic
from escrowmq.replication.model import Message

# ------------------------------------------------------------------------------------------------------------
# Where a message would go, for those who must know it before they send it.


def partition_of(producer: Producer, message: Message, turn: int) -> int:
    """The partition of a message as a part of a transaction. ``turn``: any number, which decides for a
    message without a key and without a partition.

    Raises what sending it would raise: InvalidMessage, MessageTooLarge, UnknownTopic.
    """
    core = producer.core
    later: list[Later] = []
    encoded, _ = core.encoder.encode([message], f"{turn}", later)
    return encoded[0][1] if encoded else later[0].partition


#: For the broker's answer to a batch: less than a lease of a shard lasts.
DELIVERY_TIMEOUT_S = 10.0
#: These say that a message can never be sent as it is.
REFUSALS = (InvalidMessage, MessageTooLarge, UnknownTopic)


class RelayCluster(Protocol):
    """What a relay needs of a cluster."""

    def producer(self, app: str, **options: Any) -> Producer:
        """A producer of the application."""

    @property
    def admin(self) -> Any:
        """For what other relays have left: any topic will do to ask about it."""


def claim_name(app: str, shard: int) -> str:
    """The name of a shard's producers."""
    return f"outbox.{app}.{shard}"


class BrokerShipping:
    """See ``Shipping``. Each shard is used by one thread at a time."""

    def __init__(self, cluster: RelayCluster, app: str) -> None:
        self._cluster, self._app = cluster, app
        self._producers: dict[int, Producer] = {}
        self._claims: dict[int, int] = {}  # shard -> how often a relay here has claimed it

    def claim(self, shard: int) -> int:
        """See ``Shipping``."""
        self._claim(shard)
        self._claims[shard] = self._claims.get(shard, 0) + 1
        return self._claims[shard]

    def _claim(self, shard: int) -> Producer:
        self.close(shard)
        made = self._producers[shard] = self._cluster.producer(
            self._app,
            transactional_id=claim_name(self._app, shard),
            delivery_timeout_s=DELIVERY_TIMEOUT_S,
            transaction_linger_ms=0.0,  # one transaction at a time: nothing could join it
        )
        return made

    def last_batch(self, shard: int) -> int:
        """The number of the last batch that the broker has. Fences the shard's relay, if there is one."""
        return self._claim(shard).last_number

    def partition_of(self, shard: int, message: Message, turn: int) -> int | str:
        """See ``Shipping``."""
        try:
            return partition_of(self._producers[shard], message, turn)
        except REFUSALS as error:
            return str(error)

    def ship(self, shard: int, epoch: int, number: int, messages: Sequence[Message], digest: bytes) -> None:
        """See ``Shipping``."""
        producer = self._own(shard, epoch)
        try:
            producer.send_numbered(number, messages, digest=digest)
        except errors.OutOfStep as error:
            raise BatchOutOfSequence(str(error)) from error
        except REFUSALS as error:
            if not self._settled(shard, number, digest, error):
                raise BatchRefused(str(error), hopeless=isinstance(error, MessageTooLarge)) from error

    def settle(self, shard: int, epoch: int, number: int, digest: bytes, why: str) -> None:
        """See ``Shipping``."""
        self._own(shard, epoch)
        refusal = BatchRefused(why)
        if not self._settled(shard, number, digest, refusal):
            raise refusal

    def _own(self, shard: int, epoch: int) -> Producer:
        producer = self._producers.get(shard)
        if producer is None or self._claims[shard] != epoch:
            raise ProducerFenced(f"this process has claimed {claim_name(self._app, shard)!r} again since")
        return producer

    def _settled(self, shard: int, number: int, digest: bytes, refusal: Exception) -> bool:
        """Whether the batch is in after all. If it is not, nothing of this number is in the broker, nor will
        be."""
        producer = self._claim(shard)  # what an earlier one has prepared and arrives only now is refused
        topics = self._cluster.admin.topics()  # the batch's own may be gone: any will do
        if topics:
            try:
                return settle(producer, number, digest, topics[0].name)
            except errors.OutOfStep as error:
                raise BatchOutOfSequence(str(error)) from refusal
        if producer.last_number >= number:
            raise BatchOutOfSequence(
                f"batch {number} cannot be compared with {producer.last_number}: {refusal}"
            )
        return False  # what is open can bring no message: its topics are gone

    def close(self, shard: int | None = None) -> None:
        """The producer of one shard, or all of them."""
        for one in list(self._producers) if shard is None else [shard]:
            if (producer := self._producers.pop(one, None)) is not None:
                producer.close(0.0)  # nothing is under way
