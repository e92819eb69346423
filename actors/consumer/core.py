"""The implementation of a consumer, behind its two interfaces (consumer.py, async_consumer.py).

The core checks arguments, takes over assignments, hands out records, moves positions and raises errors.
Fetching and membership run in two threads (fetcher.py, membership_thread.py). All state that they share with
the application's threads is guarded by one condition, which also wakes ``poll``.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TypeAlias, TypeVar

from escrowmq.actors.client.background import Background, Threads
from escrowmq.actors.client.call_arguments import check_not_internal
from escrowmq.actors.client.closing import FORKED, tell_after_fork
from escrowmq.actors.client.consumer_groups import TopicPartition, dynamic_name, static_name
from escrowmq.actors.client.replica_calls import ReplicaCalls
from escrowmq.actors.client.router import Router, over_ray
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.actors.client.values import Deserializer, deserializer_of
from escrowmq.actors.client.wakeup import ObservableCondition
from escrowmq.actors.consumer import arguments as args
from escrowmq.actors.consumer.committer import Committer
from escrowmq.actors.consumer.config import ConsumerConfig, RetryPolicy, check_retry
from escrowmq.actors.consumer.fetcher import FetchThread, ReplicaChoice
from escrowmq.actors.consumer.membership_thread import Membership, MembershipThread
from escrowmq.actors.consumer.offsets import OffsetReader
from escrowmq.actors.consumer.ordered_retries import OrderedRetries, retries_of
from escrowmq.actors.consumer.positions import PartitionState, Positions
from escrowmq.actors.consumer.rebalance import HandlerCall, Handlers, Rebalance, RebalanceCallbacks
from escrowmq.actors.consumer.record_drain import RecordDrain, Redelivery
from escrowmq.actors.consumer.retries import LocalRetries, Retries
from escrowmq.actors.consumer.statistics import ConsumerStatistics, Counted
from escrowmq.actors.consumer.subscribing import Subscribing, TopicPattern
from escrowmq.replication.errors import (
    Closed,
    ConfigError,
    EscrowMQError,
    InvalidMessage,
    OutcomeUnknown,
    StaleMember,
    Unavailable,
    UnknownTopic,
)
from escrowmq.replication.message_headers import tags_wanted

T = TypeVar("T")
#: Hands out what is available at a time, at most so many records.
Take: TypeAlias = Callable[[int, float], list[T]]
#: Name of the router's thread.
THREAD = "escrowmq-consumer"


class ConsumerCore:
    """The parts of one consumer. Call methods marked *locked* while holding ``condition``."""

    #: Only for a member of a group.
    committer: Committer | None = None
    take_over: Rebalance | None = None
    telling: RebalanceCallbacks | None = None
    #: A partition was lost whose records ``poll`` had returned, and no commit had: see group_work.py.
    lost_work = False

    def __init__(
        self,
        info: ClusterInfo,
        *,
        group: str | None = None,
        topics: Sequence[str] = (),
        auto_offset_reset: str | None = None,
        config: ConsumerConfig | None = None,
        calls: ReplicaCalls | None = None,
        handlers: Handlers | None = None,
        instance_id: str | None = None,
        pattern: str | re.Pattern[str] | None = None,
        background: Background | None = None,
        value_deserializer: Deserializer | None = None,
        tags: Collection[str] | None = None,
        retry: RetryPolicy | None = None,
    ) -> None:
        """See :class:`Consumer`."""
        chosen = deserializer_of(value_deserializer), tags_wanted(tags)
        config = config or ConsumerConfig()
        if auto_offset_reset is not None:
            config = replace(config, auto_offset_reset=auto_offset_reset)
        args.check_group(group)
        args.check_topics(topics)
        args.check_needs_group(group, bool(topics) or pattern is not None, handlers not in (None, Handlers()))
        args.check_instance(instance_id, group)
        check_retry(retry, group)
        self.info, self.config, self.group = info, config, group
        self.background = background = background or Threads()
        self.condition = background.condition()
        self.closed, self._why = False, "this consumer was closed; create a new one"
        #: Set by the interface on top, which has more to stop; called however this is closed.
        self.on_close: Callable[[], None] | None = None
        tell_after_fork(self)
        self.positions = Positions(
            fetch_bytes=config.fetch_bytes,
            buffer_bytes=config.buffer_bytes,
            linger_s=config.fetch_linger_ms / 1000,
        )
        self.redelivery = Redelivery()
        self.retries: LocalRetries | Retries = LocalRetries(self)
        self.counted, self.calls = Counted(), calls or over_ray(info)
        self.router = Router(info, config.channel, self.calls, name=THREAD, background=background)
        self.clock, self.offsets = background.clock, OffsetReader(self.router)
        self._subscribing = Subscribing(
            self.router, self.offsets, group, config.auto_offset_reset, config.call_timeout_s
        )
        salt = random.randrange(info.replicas)  # it only spreads load: no outcome depends on it
        choice = ReplicaChoice(info.replicas, salt=salt, members=self.router.members)
        self.fetch = FetchThread(
            self.positions, choice, config, self.calls, self.condition, background, self.counted
        )
        self.taking = RecordDrain(self.positions, self.redelivery, self.counted, self.fetch.wake, *chosen)
        self.membership: Membership | None = None
        if group is not None:
            name = static_name(instance_id, time.time_ns() // 10**6) if instance_id else dynamic_name(group)
            self.membership = Membership(group, name)
        self.membership_thread = MembershipThread(
            self.router,
            self.offsets,
            self.positions,
            self.membership,
            self.condition,
            config,
            self.fetch.wake,
            self._subscribing,
            background,
        )
        if self.membership is not None:
            self._make_parts_of_a_member(self.membership, handlers or Handlers())
        try:
            self._begin(topics, pattern, retry)
        except BaseException:
            self.close()
            raise

    def _make_parts_of_a_member(self, member: Membership, handlers: Handlers) -> None:
        wait_s = self.config.call_timeout_s
        self.take_over = Rebalance(self.positions, member, self._assigned_now)
        self.take_over.handlers = handlers
        self.telling = RebalanceCallbacks(self.take_over, self.condition, lambda: self.closed, wait_s)
        self.committer = Committer(
            self.router,
            self.membership_thread,
            member,
            self.positions,
            self.redelivery,
            self.offsets,
            self.condition,
            wait_s,
            self.counted,
        )

    def _begin(
        self, topics: Sequence[str], pattern: str | re.Pattern[str] | None, retry: RetryPolicy | None
    ) -> None:
        if retry is not None and self.membership is not None:
            self._begin_retries(retry, self.membership)
        if topics or pattern is not None:
            self.subscribe(topics, pattern=pattern)

    def _begin_retries(self, retry: RetryPolicy, member: Membership) -> None:
        assert self.committer is not None
        wait_s = self.config.call_timeout_s
        self.retries = made = retries_of(retry.order, self, member, self._subscribing, self.committer, wait_s)
        if isinstance(made, OrderedRetries):
            self.membership_thread.on_offsets = made.found
        self.taking.with_past = made.with_past
        made.begin()

    def check_open(self) -> None:
        """Raises Closed after ``close``."""
        if self.closed:
            raise Closed(self._why)

    # ------------------------------------------------------------ what to read

    def subscribe(
        self,
        topics: Sequence[str],
        handlers: Handlers | None = None,
        pattern: str | re.Pattern[str] | None = None,
    ) -> None:
        """See :meth:`Consumer.subscribe`."""
        args.check_topics(topics)
        if isinstance(self.retries, Retries):
            check_not_internal(topics)
        member = self.membership
        if member is None or self.take_over is None:
            raise ConfigError("subscribe needs a group; create the consumer with group=...")
        if topics and pattern is not None:
            raise InvalidMessage("subscribe to topics or to a pattern, not to both at once")
        self.check_open()
        member.check_not_fenced()
        following = None if pattern is None else TopicPattern(pattern)
        if following is None:
            wanted = self._subscribing.topics(topics)
        else:
            self._subscribing.pattern(following)
            wanted = following.topics
        with self.condition:
            if handlers is not None:
                self.take_over.handlers = self.take_over.handlers.updated(handlers)
            self.membership_thread.pattern = following
            assigned = self.positions.assigned()
            member.subscribe(wanted, frozenset(tp for tp in assigned if member.still_holds(frozenset((tp,)))))
            self.membership_thread.polled_at = self.clock()
        self.membership_thread.wake(heartbeat=True)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """See :meth:`Consumer.assign`."""
        if self.group is not None:
            raise ConfigError("assign is for consumers without a group; create one with group=None")
        self.check_open()
        wanted: dict[TopicPartition, int] = {}
        pairs = [args.check_partition(pair) for pair in partitions]
        catalog = self._subscribing.catalog
        catalog.learn(catalog.unknown(topic for topic, _ in pairs))
        for topic, partition in pairs:
            count = catalog.partitions(topic)
            if partition >= count:
                raise UnknownTopic(topic, partition, count)
            wanted[topic, partition] = self.router.placement.group_of(topic, partition)
        found: dict[TopicPartition, int] = {}
        if self.config.auto_offset_reset == "latest":
            with self.condition:
                fresh = [tp for tp in wanted if self.positions.get(tp) is None]
            found = self._subscribing.positions_now(fresh)
        with self.condition:
            ids = {topic: self.router.placement.id_of(topic) for topic, _ in pairs}
            for tp in self.positions.assign(wanted, self.positions.assigned(), ids, by_name=True):
                self.redelivery.drop(tp)
            for tp, offset in found.items():
                if (state := self.positions.get(tp)) is not None:
                    self.positions.resolve(tp, state.epoch, offset)
        self.fetch.wake()
        self.membership_thread.wake()

    def assignment(self) -> list[TopicPartition]:
        """See :meth:`Consumer.assignment`."""
        with self.condition:
            self.check_open()
            return self.positions.assigned()

    # ------------------------------------------------------------ poll

    def poll(self, take: Take[T], max_records: int, timeout_s: float) -> list[T]:
        """See :meth:`Consumer.poll`; the caller has checked the arguments.

        ``take``: one of the methods of ``taking``."""
        self.retries.settle_waiting()
        deadline, me = self.clock() + timeout_s, threading.get_ident()
        with self.condition:  # a cluster in memory fetches when the lock is released
            self.taking.resume(self.clock())
        while True:
            with self.condition:
                while True:
                    found, look_again, call = self.take(take, max_records, me)
                    if found:
                        return found
                    if call is not None:
                        break
                    now = self.clock()
                    if now >= deadline:
                        self.raise_trouble()
                        return []
                    self.condition.wait(min(deadline, look_again) - now)
            assert self.telling is not None
            self.telling.call(call)

    def take(
        self, take: Take[T], max_records: int, caller: object
    ) -> tuple[list[T], float, HandlerCall | None]:
        """What ``take`` finds available now, and when to look again if nothing new comes before; or the
        handler that ``caller`` calls first, with ``telling`` and without the lock."""
        with self.condition:
            self.check_open()
            now = self.clock()
            if self.take_over is not None and self.telling is not None:
                if self.telling.busy(caller):
                    return [], float("inf"), None  # the end of the handler is news
                if (call := self._take_over(self.take_over, now, caller)) is not None:
                    return [], now, call
            self._raise_error()
            found = take(max_records, now)
            if not found and self.taking.interrupted:
                return [], now, None
            due = self.redelivery.next_due()
            # A due record that was not taken is in a paused partition: ``resume`` notifies the condition.
            again = float("inf") if due is None or due <= now else due
            return found, min(again, self.positions.resume_next), None

    def _take_over(self, take_over: Rebalance, now: float, caller: object) -> HandlerCall | None:
        """Takes over a new assignment, if the membership thread has brought one: by polling, this thread
        shows that it is done with the old one."""
        self.membership_thread.polled_at = now
        member = self.membership
        assert member is not None
        if member.idle:
            member.idle = False
            self.membership_thread.wake(heartbeat=True)
        return take_over.next(caller)

    def _assigned_now(self, partitions: frozenset[TopicPartition], kept: frozenset[TopicPartition]) -> None:
        wanted = {tp: self.router.placement.group_of(*tp) for tp in partitions}
        assert self.membership is not None
        before = {state.tp: state for state in self.positions.states()}
        for tp in self.positions.assign(wanted, kept, self.membership.ids):
            self.redelivery.drop(tp)
            self.lost_work = self.lost_work or before[tp].has_work
        self.counted.assignments += 1
        self.membership_thread.wake(heartbeat=True)  # confirms, so released partitions move on at once

    def _raise_error(self) -> None:
        failure = self.fetch.failure or self.membership_thread.failure
        if failure is not None:
            raise EscrowMQError(f"a thread of this consumer failed ({failure!r}); close it") from failure
        if self.membership is not None:
            self.membership.check_not_fenced()
        for state in self.positions.states():
            if state.error is not None:
                raise type(state.error)(*state.error.args)
        error = self.membership_thread.error
        if self.membership_thread.trouble_since is not None and error is not None and not _passing(error):
            raise type(error)(*error.args)

    def raise_trouble(self) -> None:
        """Raises an error if nothing came for longer than a fail-over explains, or nothing can come."""
        with self.condition:
            for topic in sorted(self.membership_thread.gone):
                raise UnknownTopic(topic, gone=True)
            now, patience_s = self.clock(), self.config.call_timeout_s
            trouble = self.fetch.fetches.trouble(now, patience_s)
            since = self.membership_thread.trouble_since
            if trouble is None and since is not None and now - since >= patience_s:
                error = self.membership_thread.error
                trouble = f"the coordinator of group {self.group!r} does not answer ({error})"
        if isinstance(trouble, EscrowMQError):
            raise type(trouble)(*trouble.args)
        if trouble is not None:
            raise Unavailable(trouble, 1.0)

    # ------------------------------------------------------------ positions

    def assigned(self, topic: str, partition: int) -> PartitionState:
        """Locked: the state of an assigned partition. Raises StaleMember."""
        self.check_open()
        state = self.positions.get(args.check_partition((topic, partition)))
        if state is None:
            raise StaleMember(
                f"{topic}/{partition} is not assigned to this consumer now; assigned are "
                f"{self.positions.assigned()[:10]}; a new assignment comes with poll"
            )
        return state

    def named(self, partitions: Sequence[TopicPartition]) -> list[PartitionState]:
        """Locked: the states of these partitions, or of all if none is named."""
        self.check_open()
        if not partitions:
            return self.positions.states()
        return [self.assigned(*args.check_partition(pair)) for pair in partitions]

    def position(self, topic: str, partition: int) -> int:
        """See :meth:`Consumer.position`."""
        with self.condition:
            deadline = self.clock() + self.config.call_timeout_s
            while True:
                state = self.assigned(topic, partition)
                if state.error is not None:
                    raise type(state.error)(*state.error.args)
                if state.position is not None:
                    return state.position
                left_s = deadline - self.clock()
                if left_s <= 0:
                    raise Unavailable(f"the position of {topic}/{partition} cannot be looked up", 1.0)
                self.condition.wait(left_s)

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Reading continues at ``offset``; records that wait for redelivery there are forgotten."""
        args.check_offset(offset)
        with self.condition:
            state = self.assigned(topic, partition)
            state.restart(offset)
            state.resume_at = 0.0
            self.redelivery.drop((topic, partition))
            self.condition.notify_all()
        self.fetch.wake()

    def seek_to_time(self, topic: str, partition: int, ts: int | datetime) -> int:
        """See :meth:`Consumer.seek_to_time`."""
        ts_ms = args.check_time(ts)
        with self.condition:
            self.assigned(topic, partition)
        (found,) = self.offsets.offsets([(topic, partition, ts_ms)], self.config.call_timeout_s)
        if isinstance(found, UnknownTopic):
            raise found
        self.seek(topic, partition, found)
        return found

    def look_up(self, partitions: Sequence[TopicPartition], goal: str) -> None:
        """Reading continues at what ``goal`` stands for, as soon as the membership thread has looked it
        up."""
        with self.condition:
            for state in self.named(partitions):
                state.look_up(goal)
                self.redelivery.drop(state.tp)
        self.membership_thread.wake()

    def set_paused(self, partitions: Sequence[TopicPartition], paused: bool) -> None:
        """Pause or resume."""
        with self.condition:
            for state in self.named(partitions):
                if paused and state.position is not None:
                    state.restart(state.position)  # what was already fetched would only fill the buffer
                state.paused = paused
            self.condition.notify_all()
        self.fetch.wake()

    # ------------------------------------------------------------ committing

    def commit(self, offsets: Mapping[TopicPartition, int] | None) -> None:
        """See :meth:`Consumer.commit`."""
        self.check_open()
        if self.committer is None:
            raise ConfigError("a consumer without a group cannot commit; keep position() yourself")
        for tp, offset in (offsets or {}).items():
            args.check_partition(tp)
            args.check_offset(offset)
        self.committer.commit(offsets)
        self.retries.settle_waiting(raises=True)

    def committed(self, topic: str, partition: int) -> int | None:
        """See :meth:`Consumer.committed`."""
        self.check_open()
        if self.group is None:
            raise ConfigError("a consumer without a group cannot commit; keep position() yourself")
        tp = args.check_partition((topic, partition))
        return self.offsets.committed(self.group, [topic], self.config.call_timeout_s).get(tp)

    def statistics(self) -> ConsumerStatistics:
        """See :meth:`Consumer.statistics`."""
        with self.condition:
            return self.counted.told(
                self.clock(),
                self.positions.states(),
                group=self.group,
                member=None if self.membership is None else self.membership.member,
                fetches_in_flight=self.fetch.fetches.in_flight,
                buffer_bytes_max=self.config.buffer_bytes,
                nacked=len(self.redelivery),
            )

    # ------------------------------------------------------------ the end

    def forked(self) -> None:
        """See :class:`~escrowmq.actors.client.closing.Forkable`."""
        self.condition = ObservableCondition()
        self.closed, self._why = True, f"this consumer cannot be used: {FORKED}"

    def close(self) -> None:
        """Stops the threads, in an order in which none waits for another's calls. Idempotent."""
        with self.condition:
            if self.closed:
                return
            self.closed = True
            self.condition.notify_all()
        self.membership_thread.close()
        self.fetch.close()
        self.router.close()  # closes the calls, too
        self.membership_thread.join_thread()
        if self.on_close is not None:
            self.on_close()


def _passing(error: EscrowMQError) -> bool:
    """Whether a retry may cure the error; such errors are raised only when they last."""
    return hasattr(error, "retry_after_s") or isinstance(error, OutcomeUnknown | Closed)
