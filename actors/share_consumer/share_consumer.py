"""The share consumer: takes single messages under leases, and settles each by itself.

Any number of consumers of one *share group* read the same topics at the same time; the number of partitions
does not limit them, and no order is kept. A message belongs to one consumer until it is settled or its lease
ends. Delivery is at least once: a message that was not acked comes again, to any consumer of the group.

This class is the public interface and states what is promised; core.py does the work. Thread-safe.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property

from escrowmq.actors.client.background import Background
from escrowmq.actors.client.call_arguments import check_wait
from escrowmq.actors.client.closing import Closing
from escrowmq.actors.client.pausing import HandlesOnce, PauseOn, once
from escrowmq.actors.client.pausing import pause_on as concerns_of
from escrowmq.actors.client.replica_calls import ReplicaCalls
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.actors.client.values import Deserializer
from escrowmq.actors.consumer.arguments import check_poll
from escrowmq.actors.share_consumer.async_share_consumer import AsyncShareConsumer
from escrowmq.actors.share_consumer.config import ShareConsumerConfig, check_threads
from escrowmq.actors.share_consumer.core import ShareConsumerCore
from escrowmq.actors.share_consumer.held_batches import ShareRecord
from escrowmq.actors.share_consumer.running import Runner
from escrowmq.actors.share_consumer.statistics import ShareConsumerStatistics
from escrowmq.replication.errors import Closed


class ShareConsumer(Closing):
    """Takes messages of a share group. A context manager; ``poll``, iterate, or ``run`` a handler."""

    def __init__(
        self,
        info: ClusterInfo,
        *,
        group: str,
        topics: Sequence[str],
        config: ShareConsumerConfig | None = None,
        calls: ReplicaCalls | None = None,
        background: Background | None = None,
        value_deserializer: Deserializer | None = None,
        tags: Collection[str] | None = None,
    ) -> None:
        """Begins to read at once. Raises UnknownTopic, GroupKindMismatch, Unavailable.

        The first consumer of a group makes it a share group, which ``cluster.consumer`` cannot read, and
        creates its topics of retries and of dead letters, ``__retry.<group>`` and ``__dead.<group>``. The
        group begins in each partition as ``auto_offset_reset`` says; with "latest", messages sent after this
        returns are delivered.

        ``value_deserializer``: makes the values of records: "json", "msgpack", "arrow", or a function of
        bytes. A message whose value it cannot read is nacked, and ends as a dead letter.
        ``tags``: only messages with one of these tags are returned. The others are acked unasked, so the
        whole group is done with them: all of its consumers must want the same tags.
        ``calls``, ``background``: how replicas are reached, and what runs this consumer; None: Ray, threads.
        """
        #: The implementation; for the interfaces on top of it (this one, asyncio's), not for applications.
        self.core = ShareConsumerCore(
            info,
            group=group,
            topics=topics,
            config=config,
            calls=calls,
            background=background,
            value_deserializer=value_deserializer,
            tags=tags,
        )

    @cached_property
    def aio(self) -> AsyncShareConsumer:
        """The asyncio interface of this consumer."""
        return AsyncShareConsumer(self.core)

    # ------------------------------------------------------------ reading

    def poll(self, max_records: int = 500, timeout_s: float = 1.0) -> list[ShareRecord]:
        """Messages that belong to this consumer from now on, at most ``max_records``; waits for the first for
        at most ``timeout_s``.

        Settle each record: until then its lease is extended, for ``lease_extend_max_s`` at most. Ask for few
        if each takes long: no other consumer gets what this returned. What was only taken ahead is given
        back after a second.
        Raises UnknownTopic when nothing came and a topic was deleted; Unavailable when a broker group has
        given no answer for ``call_timeout_s``; Closed.
        """
        check_poll(max_records, timeout_s)
        return self.core.poll(max_records, timeout_s)

    def __iter__(self) -> Iterator[ShareRecord]:
        """Records one by one, until ``close``. Settle each."""
        while True:
            try:
                records = self.core.poll(1, 1.0)
            except Closed:
                return
            yield from records

    def run(
        self,
        handler: Callable[..., object],
        *,
        threads: int = 8,
        stop: threading.Event | None = None,
        inbox: HandlesOnce | None = None,
        pause_on: PauseOn = (),
    ) -> None:
        """Calls ``handler(record)`` in so many threads, until ``stop`` is set or this consumer is closed.

        When the handler returns, the record is acked; when it raises, nacked, with the exception as the
        reason. A handler may settle its record by itself. A handler that has not returned after
        ``lease_extend_max_s`` is taken to hang: its record is nacked, and another thread goes on in its
        place. Such threads cannot be ended, so give handlers time-outs; at four times ``threads`` of them
        this raises Overloaded. Outages are waited out. It has ahead what its threads begin within half
        a second, and ``prefetch_records`` at most.

        With an ``inbox`` (``escrowmq.integrations``) of this group, ``handler(record, db)`` is called in a
        database transaction of its own, which is committed before the record is acked. A record that comes
        again after that is acked without it.

        ``pause_on``: as for :meth:`Consumer.run`, and with an ``inbox`` unasked the errors of a database that
        cannot be reached. The record is released, so another consumer gets it, and no attempt is counted;
        this one takes no more for a while, at first 0.5 s and up to 30 s, and gives back what it has ahead.

        Returns when the handlers under way have returned and all acks are durable. What a handler raises that
        is no ``Exception`` (SystemExit) ends it, too. Call it from one thread.
        """
        handle = once(handler, inbox, self.core.group, awaited=False)
        concerns = concerns_of(pause_on, inbox)
        Runner(self.core, handle, check_threads(threads), stop or threading.Event(), concerns).run()

    # ------------------------------------------------------------ settling

    def ack(self, record: ShareRecord, result: bytes | None = None) -> None:
        """The message is done: the group never gets it again. Returns at once; acks of 5 ms travel together.

        With ``result``, the app that the sender named in ``reply_to`` is told that it is done, with these
        bytes (see ``Cluster.replies``): once, however often this is repeated. Then it returns when that is
        durable, or raises Unavailable, DiskFull or OutcomeUnknown. Without ``reply_to`` nobody is told.

        Counts also after the lease has ended. It is repeated through outages for as long as this consumer
        lives; ``flush`` and ``close`` wait for it. Raises RecordNotHeld; Closed.
        """
        self.core.ack(record, result)

    def nack(self, record: ShareRecord, delay_s: float | None = None, reason: str = "") -> None:
        """The message could not be handled now: it comes again, to any consumer of the group, as the next
        attempt.

        After ``delay_s``, or else as the group's table says (``admin.set_group``). At the last attempt it
        becomes a dead letter instead, with ``reason`` (cut to 1 KiB). Returns when that is durable: then the
        partition does not hold the message any more. Raises InvalidMessage, RecordNotHeld; LeaseLost if
        another consumer has the message by now; TooManyScheduled; Unavailable, DiskFull or OutcomeUnknown: it
        may be repeated.
        """
        self.core.nack(record, delay_s, reason)

    def reject(self, record: ShareRecord, reason: str = "") -> None:
        """No attempt will ever succeed: the message becomes a dead letter now. Otherwise as :meth:`nack`."""
        self.core.reject(record, reason)

    def release(self, record: ShareRecord) -> None:
        """Gives the message back unhandled: another consumer gets it at once, and it counts as no attempt.
        Raises RecordNotHeld, LeaseLost, Unavailable, OutcomeUnknown."""
        self.core.release(record)

    def extend(self, record: ShareRecord, lease_s: float) -> None:
        """The message's lease ends ``lease_s`` (1 s to 12 hours) from now, whatever ``lease_extend_max_s``
        is. From then on it is not extended unless you do. Raises InvalidMessage, RecordNotHeld, LeaseLost,
        Unavailable, OutcomeUnknown."""
        self.core.extend(record, lease_s)

    def flush(self, timeout_s: float | None = None) -> None:
        """Waits until all acks are durable, for ``call_timeout_s`` at most. Raises Unavailable if some are
        not by then; UnknownTopic if the topic of some was deleted."""
        check_wait(timeout_s)
        self.core.flush(self.core.config.call_timeout_s if timeout_s is None else timeout_s)

    def statistics(self) -> ShareConsumerStatistics:
        """Its counters and present state. Cheap, from any thread, also after ``close``."""
        return self.core.statistics()

    # ------------------------------------------------------------ the end

    def close(self) -> None:
        """Waits for acks, gives back what ``poll`` has not returned, and stops. What was polled and not
        settled comes again when its lease ends, and counts as a lease that ended. Raises Unavailable if acks
        could not be confirmed, after everything is closed. Idempotent."""
        self.core.close()
