"""Replies: an app hears what became of the messages that it sent with ``reply_to``.

When a share group is done with such a message, its broker writes a reply into the app's topic of replies, in
the entry of the log that settles the message: so there is one reply for each group and message, or none yet.
The topic exists from the first ``replies(app)`` on; before that, nobody can hear, and replies are dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from escrowmq.actors.client.closing import Closing
from escrowmq.actors.client.results import submitting
from escrowmq.actors.client.share_groups import create_internal_topic
from escrowmq.actors.consumer.consumer import Consumer
from escrowmq.replication.errors import ConfigError
from escrowmq.replication.format.forwarded import BY, DONE, GROUP, OUTCOME, REASON, Origin, history
from escrowmq.replication.format.internal_topics import owner_problem, replies_topic
from escrowmq.replication.model import ConsumerRecord


@dataclass(frozen=True, slots=True)
class Reply:
    """What became of one message in one share group.

    ``outcome``: "done" (``result`` is what the consumer gave to ``ack``), or "failed" (it is a dead letter
    now: ``reason`` says why, and ``by`` who said so). ``origin``: the message that was sent (topic,
    partition, offset, timestamp), for an inbox: with ``group`` it is unique, but for dead letters that were
    redriven. ``key``: the message's key, if it failed. ``attempts``: how often it was delivered. ``record``:
    the reply as it is stored.
    """

    outcome: str
    group: str
    origin: Origin | None
    attempts: int
    reason: str
    by: str
    result: bytes
    key: bytes | None
    record: ConsumerRecord

    @property
    def done(self) -> bool:
        """Whether it was handled."""
        return self.outcome == DONE


class Replies(Closing):
    """The replies to one app, read as a member of a consumer group; see ``Cluster.replies``. A context
    manager; iterate over it, or ``poll`` for batches."""

    def __init__(self, consumer: Consumer, app: str) -> None:
        """``consumer``: a member of the group, which has subscribed to nothing yet."""
        #: The consumer underneath, for ``seek``, ``pause`` and the like.
        self.consumer = consumer
        core = consumer.core
        wait_s = core.config.call_timeout_s

        try:
            create_internal_topic(submitting(core.router, wait_s), core.info.groups, replies_topic(app))
            consumer.subscribe([replies_topic(app)])
        except BaseException:
            consumer.close()
            raise

    def poll(self, max_records: int = 500, timeout_s: float = 1.0) -> list[Reply]:
        """The next replies; as :meth:`Consumer.poll`. Delivery is at least once."""
        return [_reply(record) for record in self.consumer.poll(max_records, timeout_s)]

    def commit(self) -> None:
        """Makes the offsets durable: all replies that ``poll`` has returned are handled."""
        self.consumer.commit()

    def __iter__(self) -> Iterator[Reply]:
        """Replies one by one, until ``close``. ``commit()`` covers the one in hand, so finish it first."""
        return map(_reply, self.consumer)

    def close(self) -> None:
        """Leaves the group. Idempotent."""
        self.consumer.close()


def check_app(app: object) -> None:
    """Raises ConfigError if no app of this name can get replies."""
    if type(app) is not str:
        raise ConfigError(f"an app's name is a str, not {app!r}")
    if (problem := owner_problem("app", app)) is not None:
        raise ConfigError(problem)


def _reply(record: ConsumerRecord) -> Reply:
    told = {name: content.decode(errors="replace") for name, content in record.headers.items()}
    past = history(record.headers)
    return Reply(
        told.get(OUTCOME, ""),
        told.get(GROUP, ""),
        past.origin,
        past.attempt,
        told.get(REASON, ""),
        told.get(BY, ""),
        record.value,
        record.key,
        record,
    )
