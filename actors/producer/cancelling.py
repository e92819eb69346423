"""A producer asks the broker to cancel a delayed message, of any producer."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from escrowmq.actors.client.cancelling import Cancellation, OtherTopic
from escrowmq.actors.producer.core import ProducerCore
from escrowmq.replication.errors import UnknownTopic


def cancel(core: ProducerCore, wanted: Cancellation) -> Future[Any]:
    """Asks the broker to cancel it; see ``is_cancelled`` for the answer. Its topic may be looked up first.
    Raises UnknownTopic."""
    topic, partition = wanted.message.topic, wanted.message.partition
    count = core.encoder.partitions(topic)
    if partition >= count:
        raise UnknownTopic(topic, partition, count)
    request = wanted.request(core.router.placement.id_of(topic))
    gid = core.encoder.group_of(topic, partition)
    timeout_s, again = core.config.delivery_timeout_s, wanted.note_repeated
    return core.router.leader_call(gid, "submit", request, timeout_s=timeout_s, repeated=again)


def is_cancelled(core: ProducerCore, wanted: Cancellation, results: Sequence[Any]) -> bool | None:
    """What was answered; None: nothing was done, ask again. Raises UnknownTopic, OutcomeUnknown."""
    topic = wanted.message.topic
    try:
        done = wanted.is_done(results[0])
    except UnknownTopic:
        core.catalog.forget(topic)
        raise
    if isinstance(done, OtherTopic):
        core.router.placement.hear_id(topic, done.topic_id)
        return None
    return done
