"""The consumer: reads committed messages, in order of each partition, from any replica.

There are two ways: *subscribe* to topics as a member of a group, whose live members share the partitions, or
*assign* partitions by hand without a group. Delivery is at least once: what ``poll`` returned and was not
committed is delivered again after a crash, or to the member that takes the partition over.

This class is the public interface and states what is promised; core.py does the work.
Thread-safe, but two threads that poll one consumer each get parts of one stream.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING

from escrowmq.actors.client.background import Background
from escrowmq.actors.client.closing import Closing
from escrowmq.actors.client.consumer_groups import TopicPartition
from escrowmq.actors.client.group_work import GroupWork
from escrowmq.actors.client.pausing import HandlesOnce, PauseOn, once
from escrowmq.actors.client.pausing import pause_on as concerns_of
from escrowmq.actors.client.replica_calls import ReplicaCalls
from escrowmq.actors.client.statistics import StatisticsTimer
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.actors.client.values import Deserializer
from escrowmq.actors.consumer import arguments as args
from escrowmq.actors.consumer.async_consumer import AsyncConsumer
from escrowmq.actors.consumer.config import ConsumerConfig, RetryPolicy
from escrowmq.actors.consumer.core import ConsumerCore
from escrowmq.actors.consumer.group_work import group_work
from escrowmq.actors.consumer.rebalance import Handler, Handlers
from escrowmq.actors.consumer.running import run
from escrowmq.actors.consumer.statistics import ConsumerStatistics
from escrowmq.replication.errors import Closed
from escrowmq.replication.model import ConsumerRecord

if TYPE_CHECKING:
    import pyarrow as pa


class Consumer(Closing):
    """Reads topics of a cluster. A context manager; iterate over it, or ``poll`` for batches."""

    def __init__(
        self,
        info: ClusterInfo,
        *,
        group: str | None = None,
        topics: Sequence[str] = (),
        auto_offset_reset: str | None = None,
        config: ConsumerConfig | None = None,
        calls: ReplicaCalls | None = None,
        on_assign: Handler | None = None,
        on_revoke: Handler | None = None,
        on_lost: Handler | None = None,
        instance_id: str | None = None,
        pattern: str | re.Pattern[str] | None = None,
        value_deserializer: Deserializer | None = None,
        statistics_callback: Callable[[ConsumerStatistics], object] | None = None,
        statistics_interval_s: float = 60.0,
        tags: Collection[str] | None = None,
        retry: RetryPolicy | None = None,
        background: Background | None = None,
    ) -> None:
        """Subscribes at once if ``topics`` or a ``pattern`` are given, which needs a ``group``. Raises
        UnknownTopic.

        ``on_assign``, ``on_revoke``, ``on_lost``: see :meth:`subscribe`. ``instance_id`` makes it a *static*
        member: until its session expires (``session_timeout_s``), also after ``close``, its partitions are
        kept for the next consumer with that id in the group. If two are alive, the next ``poll`` or
        ``commit`` of the earlier one raises MemberFenced.
        ``statistics_callback`` is called with :meth:`statistics` every ``statistics_interval_s``, in a
        separate thread, until the consumer is closed. Its exceptions are logged.

        ``value_deserializer``: makes the values of records: "json", "msgpack", "arrow" (a pyarrow Table), or
        a function of bytes. A value that it cannot read makes ``poll`` raise NotDeserializable, once
        everything before it was returned; ``seek`` past it to go on. ``poll_arrow`` needs a consumer without
        it.

        ``tags``: only messages with one of these tags are returned; the consumer passes over all others, and
        ``commit`` covers them. So all members of a group must want the same tags.

        ``retry``: what ``nack`` does. With a :class:`RetryPolicy` the group counts attempts, and gives up
        with dead letters, as it is set by ``admin.set_group``. Records are then :class:`StreamRecord`. The
        first such consumer makes the group one that reads by offsets, and creates its topics of retries and
        of dead letters, ``__retry.<group>`` and ``__dead.<group>``; the former is read beside any other
        topics. All members of a group need the same ``retry``. Raises GroupKindMismatch.

        ``auto_offset_reset`` overrides ``config``'s: "earliest", "latest" or "none" (OffsetOutOfRange).
        ``calls``, ``background``: how replicas are reached, and what runs this consumer; None: Ray, threads.
        """
        #: The implementation; for the interfaces on top of it (this one, asyncio's), not for applications.
        self.core = ConsumerCore(
            info,
            group=group,
            topics=topics,
            auto_offset_reset=auto_offset_reset,
            config=config,
            calls=calls,
            handlers=Handlers(on_assign=on_assign, on_revoke=on_revoke, on_lost=on_lost),
            instance_id=instance_id,
            pattern=pattern,
            background=background,
            value_deserializer=value_deserializer,
            tags=tags,
            retry=retry,
        )

        self._timer: StatisticsTimer[ConsumerStatistics] | None = None
        try:
            if statistics_callback is not None:
                self._timer = StatisticsTimer(statistics_callback, statistics_interval_s, self.statistics)
        except BaseException:
            self.core.close()
            raise
        self.core.on_close = self._timer.close if self._timer is not None else None

    @cached_property
    def aio(self) -> AsyncConsumer:
        """The asyncio interface of this consumer."""
        return AsyncConsumer(self.core)

    # ------------------------------------------------------------ what to read

    def subscribe(
        self,
        topics: Sequence[str] = (),
        *,
        pattern: str | re.Pattern[str] | None = None,
        on_assign: Handler | None = None,
        on_revoke: Handler | None = None,
        on_lost: Handler | None = None,
    ) -> None:
        """Reads these topics from now on (instead of any others), sharing their partitions with the group.

        Returns before partitions are assigned; ``poll`` takes them over. With auto_offset_reset "latest", the
        ends are committed where the group has no offset yet, so messages sent after this returns are
        delivered. Without any topic, or with a pattern that matches none, it reads nothing, and leaves the
        group at the next ``poll``. Raises UnknownTopic; Unavailable if no leader answers for
        ``call_timeout_s``.

        ``pattern`` instead of ``topics``: a regular expression that must match the whole name
        (``"orders-.*"``). Topics that are created later are read within ``pattern_interval_s`` (5), from
        their beginning, also with "latest"; deleted ones are given up without an error. Names that begin with
        ``__`` never match. Raises InvalidMessage.

        ``on_assign(partitions)`` is called after ``(topic, partition)`` pairs were added, before ``poll``
        returns the first record of them; it may ``seek``. ``on_revoke(partitions)`` is called before they are
        given up: a ``commit`` in it still counts, and no other member reads on before it returns.
        ``on_lost(partitions)`` is called when they are gone already (the session expired, or there was no
        ``poll`` for ``poll_interval_max_s``): another member may read them, so a commit raises StaleMember.
        Without ``on_lost``, ``on_revoke`` is called then, too. Handlers given here replace earlier ones.

        ``poll`` and ``close`` call the handlers in their thread, one at a time, without a lock. A handler may
        commit, seek and pause, but must not poll. Heartbeats continue meanwhile, but a handler that takes
        longer than ``poll_interval_max_s`` makes its member leave the group. If a handler raises, ``poll``
        raises the same; the change is made nevertheless, and the handler is not called for it again.
        """
        handlers = Handlers(on_assign=on_assign, on_revoke=on_revoke, on_lost=on_lost)
        self.core.subscribe(topics, handlers, pattern)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Reads exactly these ``(topic, partition)`` pairs, without a group. Raises UnknownTopic.

        Partitions that were assigned before continue where they are. With auto_offset_reset "latest",
        messages sent after this returns are delivered; raises Unavailable if no leader reports the ends.
        """
        self.core.assign(partitions)

    def assignment(self) -> list[TopicPartition]:
        """The partitions this consumer reads now, as of the last ``poll``."""
        return self.core.assignment()

    # ------------------------------------------------------------ reading

    def poll(self, max_records: int = 500, timeout_s: float = 1.0) -> list[ConsumerRecord]:
        """The next records, at most ``max_records``; waits for the first for at most ``timeout_s``.

        Also takes over a changed assignment, and calls the handlers of ``subscribe``. So process the records
        of the previous ``poll`` before the next one, and commit them before it or in ``on_revoke``.
        Raises OffsetOutOfRange or UnknownTopic for a partition that cannot be read any further; UnknownTopic
        when nothing came and a topic was deleted some seconds ago, until it is created again or other topics
        are subscribed to; Unavailable when no replica has answered for ``call_timeout_s``; MemberFenced when
        a later consumer has this one's ``instance_id``; Closed.
        """
        args.check_poll(max_records, timeout_s)
        return self.core.poll(self.core.taking.records, max_records, timeout_s)

    def poll_arrow(self, max_records: int = args.ARROW_RECORDS, timeout_s: float = 1.0) -> pa.Table:
        """The same records as :meth:`poll`, as one Arrow table, without a Python object for each.

        Columns: ``topic`` (dictionary), ``partition``, ``offset``, ``timestamp`` (UTC, ms), ``key``,
        ``value``, ``headers`` (a list of names and values) and ``tx_id``; keys and transaction ids may be
        null. When nothing came, the table has no rows. Positions, commits, handlers and errors are those of
        ``poll``, and both may be called in turn. Rows are in order within each partition; a partition's rows
        need not be adjacent. To ``nack`` a row, make a ``ConsumerRecord`` of it.
        Raises ConfigError if pyarrow or numpy is missing, or if there is a ``value_deserializer``, before
        anything is taken.
        """
        args.check_poll(max_records, timeout_s)
        table_of = args.check_arrow(self.core.taking.deserializes)
        return table_of(self.core.poll(self.core.taking.batches, max_records, timeout_s))

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Records one by one, until ``close``. ``commit()`` covers the record in hand, so finish it first."""
        while True:
            try:
                records = self.core.poll(self.core.taking.records, 1, 1.0)
            except Closed:
                return
            yield from records

    def pause(self, *partitions: TopicPartition) -> None:
        """``poll`` leaves these partitions (all, if none is named) out until ``resume``; they stay assigned.

        A partition that this consumer loses and gets again is not paused. Pause it in ``on_assign``, which is
        called before anything of it is returned.
        """
        self.core.set_paused(partitions, True)

    def resume(self, *partitions: TopicPartition) -> None:
        """Undoes ``pause``."""
        self.core.set_paused(partitions, False)

    # ------------------------------------------------------------ positions

    def position(self, topic: str, partition: int) -> int:
        """The next offset that ``poll`` will return (apart from redeliveries).

        Waits until the position of a new partition is known; raises Unavailable after ``call_timeout_s``.
        """
        return self.core.position(topic, partition)

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """``poll`` continues at ``offset``. If it is out of range, ``poll`` acts on auto_offset_reset."""
        self.core.seek(topic, partition, offset)

    def seek_to_time(self, topic: str, partition: int, ts: int | datetime) -> int:
        """Moves to the first message at or after ``ts`` (ms since the epoch, or a datetime); returns its
        offset.

        If there is none, moves to the end of the partition. Timestamps are the broker's.
        """
        return self.core.seek_to_time(topic, partition, ts)

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Moves to the oldest message; in all assigned partitions if none is named."""
        self.core.look_up(partitions, "earliest")

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Moves behind the newest message; in all assigned partitions if none is named."""
        self.core.look_up(partitions, "latest")

    # ------------------------------------------------------------ committing

    def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Makes the group's offset durable: everything ``poll`` has returned, or ``offsets`` as given.

        ``offsets``: (topic, partition) -> *next* offset to read. Without it, stops before records that
        wait after ``nack``. In a group that reads in order, nacks of records up to which this moves the
        offset are durable with it, and it raises what prevents a dead letter. Raises OffsetOutOfRange for a
        one beyond the partition's end; MemberFenced; StaleMember if a partition has moved to another member
        (uncommitted records are delivered again there); OutcomeUnknown if no answer came in time: committing
        again is safe.
        """
        self.core.commit(offsets)

    def group_work(self) -> GroupWork:
        """What ``poll`` has returned since the group's offset was last moved, up to the lowest nacked record.
        ``Transaction.send_offsets`` calls this."""
        return group_work(self.core)

    def committed(self, topic: str, partition: int) -> int | None:
        """What the group has committed: the next offset to read. None: nothing yet (with "latest", the ends
        count as committed from the moment the first consumer was created)."""
        return self.core.committed(topic, partition)

    def nack(self, record: ConsumerRecord, delay_s: float | None = None, reason: str = "") -> None:
        """Reports a record that could not be processed now: it comes again, after ``delay_s``, or as the
        group's table says. At its last attempt it becomes a dead letter instead, with ``reason`` (cut to
        1 KiB).

        ``retry`` with order "concurrent": any member of the group gets a copy, with the same ``origin``.
        Returns when that is durable; only then a commit passes the record. Raises TooManyScheduled,
        Unavailable or OutcomeUnknown: then this consumer's ``poll`` returns it again after five seconds.

        Order "ordered": from now on ``poll`` returns nothing of the partition, and after the pause this
        record and all behind it again; behind a dead letter it goes on at once. So leave out what you have
        in hand of the partition behind it; a nack of that does nothing. It counts together with what lies
        before the record: at once if the group's offset is there, else when ``commit``, or a transaction
        with ``send_offsets``, has moved it there. So commit after it: if the partition moves before, or if
        the transaction is rolled back, the nack was none. Raises StaleMember if the partition has moved,
        Unavailable or OutcomeUnknown: then the record comes again after five seconds, and its next reader
        may not know of the attempt; InvalidMessage for what a transaction has that was prepared or committed
        (until ``poll`` returns it again after a ``seek``), and for what ``poll`` returned before this
        consumer took the partition over.

        Without ``retry``: this consumer's ``poll`` returns the record again after ``delay_s`` (5). Until then
        ``commit()`` stops before it. Only this consumer knows of it: if it dies or loses the partition, the
        next reader gets everything from this record on again. Breaks the order of the record's key, counts
        no attempts, and keeps no reason. Raises Overloaded at 10,000 such records.
        """
        self.core.retries.nack(record, delay_s, reason)

    def reject(self, record: ConsumerRecord, reason: str = "") -> None:
        """No attempt will ever succeed: the record becomes a dead letter now. Otherwise as :meth:`nack`.
        Raises ConfigError without ``retry``."""
        self.core.retries.reject(record, reason)

    def run(
        self,
        handler: Callable[..., object],
        *,
        ordered: bool | None = None,
        stop: threading.Event | None = None,
        inbox: HandlesOnce | None = None,
        pause_on: PauseOn = (),
    ) -> None:
        """Calls ``handler(record)`` for one record after the other, until ``stop`` is set or this consumer is
        closed. Needs ``retry``.

        When the handler raises, the record is nacked, with the exception as the reason; in a group that reads
        in order, nothing of its partition is handled until it comes again. Commits every second, and before
        partitions move. A value that cannot be read is nacked, too. Outages are waited out.

        ``ordered``: states which order the handler needs; raises ConfigError if the consumer's policy is the
        other one. A handler that takes longer than ``poll_interval_max_s`` loses its partitions. What it
        raises that is no ``Exception`` (SystemExit) ends this, too; ``asyncio.CancelledError`` is a failure
        like others, unless ``aio.run`` itself is cancelled. ``inbox``: as for
        :meth:`ShareConsumer.run`.

        ``pause_on``: exceptions that say nothing about the record, since what the handler needs is away:
        classes, or a function that says so of an exception. The partition then waits at the record, at first
        0.5 s and up to 30 s, and no attempt is counted. An exception that wraps such a one (``raise ...
        from``, a group) counts, too. With an ``inbox``, the errors of a database that cannot be reached
        (``escrowmq.integrations.database_is_away``) are among them unasked. A member that waits keeps its
        partitions. Raises ConfigError.
        """
        handle = once(handler, inbox, self.core.group, awaited=False)
        run(self.core, handle, ordered, stop, concerns_of(pause_on, inbox))

    def statistics(self) -> ConsumerStatistics:
        """Its counters and present state. Cheap, from any thread, also after ``close``."""
        return self.core.statistics()

    # ------------------------------------------------------------ the end

    def close(self) -> None:
        """Calls ``on_revoke``, leaves the group (its partitions move on at once, except those of a static
        member) and stops. Commits nothing by itself. Raises an error of a handler after everything is closed.
        Idempotent."""
        try:
            self._say_goodbye()
        finally:
            self.core.close()

    def __exit__(self, *exception: object) -> None:
        """The end of a ``with`` block closes. If an exception leaves the block, no handler is called: the
        last records may be unprocessed, and an ``on_revoke`` that commits would skip them."""
        if not any(exception):
            self.close()
        else:
            self.core.close()

    def _say_goodbye(self) -> None:
        telling = self.core.telling
        if telling is not None and (call := telling.leaving(threading.get_ident())) is not None:
            try:
                telling.call(call)
            finally:
                self._say_goodbye()
