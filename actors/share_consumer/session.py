"""What a share consumer does in the background: asks for messages, extends leases, sends acks.

It is a source of the client's router, which calls ``pump`` in every turn and brings answers to it, so all of
it happens in one thread. The application's threads share its state under the consumer's condition. Requests
go through the router's channels, which follow leaders and repeat what got no answer.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any

from escrowmq.actors.client.catalog import TopicCatalog
from escrowmq.actors.client.channel import Request
from escrowmq.actors.client.failures import Failure
from escrowmq.actors.client.results import outcome, submitting
from escrowmq.actors.client.router import Router, result_of
from escrowmq.actors.client.share_groups import make_internal_topics, of_kind, why_not
from escrowmq.actors.share_consumer.config import ShareConsumerConfig
from escrowmq.actors.share_consumer.held_batches import (
    AckAccumulator,
    Acquired,
    Batch,
    HeldBatches,
    Ranges,
    TopicIdPartition,
    flat,
    merged,
    pairs,
    ranges_of,
)
from escrowmq.actors.share_consumer.statistics import ShareCounted
from escrowmq.replication.calling.answers import AcquiredRow, PartitionRanges
from escrowmq.replication.errors import (
    CorruptLog,
    DiskFull,
    EscrowMQError,
    GroupKindMismatch,
    OutcomeUnknown,
    Overloaded,
    TopicRecreated,
    Unavailable,
    UnknownTopic,
)
from escrowmq.replication.format.settings import SHARE, GroupSettings
from escrowmq.replication.format.share_ops import EARLIEST, share_ack, share_create
from escrowmq.replication.model import ResultCode

# ------------------------------------------------------------------------------------------------------------
# Before a share consumer can ask for messages: the group's kind, its internal topics, and where it begins.
#
# All of it exists after the first consumer of a group, so it is asked first and written only where it is
# missing. Every step may be repeated, also by several consumers at once. Blocking calls, each bounded.


@dataclass(frozen=True, slots=True)
class Begun:
    """``topics``: broker group -> the topics of which it has partitions. ``partitions``: all of these,
    with the ids of their topics."""

    settings: GroupSettings
    topics: Mapping[int, Sequence[str]]
    partitions: Set[TopicIdPartition]


def begin(router: Router, group: str, topics: Sequence[str], create: str, timeout_s: float) -> Begun:
    """Makes everything that the group needs. ``create``: "earliest" or "latest", where it begins in
    partitions that it has never read.

    Raises UnknownTopic, GroupKindMismatch, Overloaded, Unavailable.
    """
    catalog = TopicCatalog(router, timeout_s, clock=router.clock)
    names = tuple(dict.fromkeys(topics))
    catalog.learn(names)
    by_group: dict[int, dict[str, list[int]]] = {}
    for topic in names:
        for partition in range(catalog.partitions(topic)):
            gid = router.placement.group_of(topic, partition)
            by_group.setdefault(gid, {}).setdefault(topic, []).append(partition)
    # From here on something is written: a misspelt topic has no effect.
    submit = submitting(router, timeout_s)
    settings = of_kind(submit, router.info.groups, group, SHARE)
    make_internal_topics(router, submit, group, timeout_s)
    every: set[TopicIdPartition] = set()
    for gid, found in by_group.items():
        tps = [(topic, partition) for topic, numbers in found.items() for partition in numbers]
        ids = router.placement.id_of
        every.update((*tp, ids(tp[0])) for tp in tps)
        request = b"".join(share_create(group, *tp, create, ids(tp[0])) for tp in tps)
        results = result_of(router.submit(gid, request, timeout_s), timeout_s)
        for (topic, _), result in zip(tps, results, strict=True):
            code, info = outcome(result)
            if code not in (ResultCode.OK, ResultCode.DUPLICATE):
                raise not_begun(group, topic, code, info)
    # A broker group without partitions of the topics has no retries of them either.
    return Begun(settings, {gid: sorted(found) for gid, found in by_group.items()}, every)


def not_begun(group: str, topic: str, code: int, info: Any) -> EscrowMQError:
    """Why a group cannot read a partition."""
    if code == ResultCode.GROUP_KIND:
        return GroupKindMismatch(group, str(info))
    if code == ResultCode.OTHER_TOPIC:
        return TopicRecreated(topic)
    if code in (ResultCode.UNKNOWN_TOPIC, ResultCode.BAD_PARTITION):
        return UnknownTopic(topic)
    if code == ResultCode.TOO_MANY_SHARES:
        return Overloaded(f"share groups already read {info} partitions of a broker group, its limit", 1.0)
    return EscrowMQError(f"group {group!r} cannot read {topic!r}: {ResultCode(code).name} {info!r}")


# ------------------------------------------------------------------------------------------------------------
# Which broker groups a share consumer asks for messages, when, and for how many.
#
# There is no assignment: any consumer may ask any broker group. Up to eight of them are asked at a time, and
# a call waits at the leader until there is something. Groups take turns, so each is asked, however many there
# are. Nothing is asked for that the application does not want: what lies in this buffer, no other consumer
# gets.
#
# Pure: takes ``now``.

#: After a failed call. The channel has repeated it for its whole time by then.
FAILED_PAUSE_S = 0.5
#: After an answer without messages of a broker group that has no partition of the consumer's topics.
OTHERS_PAUSE_S = 5.0


@dataclass(slots=True, eq=False)
class AskedGroup:
    """A broker group. ``other``: it had no partition of the consumer's topics. It may still have retries of
    the group, from topics that were deleted or that others read, and partitions of a topic that was created
    again: so it is asked now and then, and nobody waits for it."""

    gid: int
    other: bool = False
    #: Messages asked for in the call under way; 0: there is none.
    asked: int = 0
    #: The number of this call, and that of the last answer that brought messages: see ``share_acquire`` in
    #: replication/calling/answers.py.
    call: int = 0
    received: int = -1
    not_before: float = 0.0
    troubled_since: float | None = None
    error: EscrowMQError | None = None


class Asking:
    """See the module's text. Every method runs under the consumer's lock."""

    def __init__(
        self, gids: Iterable[int], at_a_time: int, wait_s: float, others: Iterable[int] = ()
    ) -> None:
        """``others``: see ``AskedGroup.other``."""
        self._groups = deque(AskedGroup(gid) for gid in gids)
        self._at_a_time = at_a_time
        #: How long a leader may wait for messages. Shorter if groups wait for their turn meanwhile.
        self.wait_s = wait_s / -(-max(len(self._groups), 1) // at_a_time)
        self._groups.extend(AskedGroup(gid, other=True) for gid in others)

    def next(self, now: float, buffered: int, target: int) -> list[AskedGroup]:
        """Groups to ask now, each for ``asked`` messages, if ``target`` are wanted in the buffer. The caller
        reports the answers.

        Each group is asked for its share of what is missing: which of them has messages is not known before.
        At least for one: a call that waits at a group without messages must not keep others unasked.
        """
        ready = self._ready(now, buffered, target)
        if ready:
            missing = target - buffered - sum(group.asked for group in self._groups)
            share = max(-(-missing // len(ready)), 1)
            for group in ready:
                group.asked = share
                group.call += 1
                self._groups.remove(group)
                self._groups.append(group)
        return ready

    def may_ask(self, now: float, buffered: int, target: int) -> bool:
        """Whether ``next`` has something."""
        return bool(self._ready(now, buffered, target))

    def _ready(self, now: float, buffered: int, target: int) -> list[AskedGroup]:
        """Nothing as long as half of what is wanted is there, so that calls are few."""
        if not target or 2 * buffered > target:
            return []
        free = self._at_a_time - sum(1 for group in self._groups if group.asked)
        ready = [group for group in self._groups if not group.asked and group.not_before <= now]
        return ready[: max(free, 0)]

    def answered(self, group: AskedGroup, again_s: float, now: float) -> None:
        """The leader has answered; without messages, it may say when to ask again."""
        group.asked, group.troubled_since, group.error = 0, None, None
        group.not_before = now + again_s

    def failed(self, group: AskedGroup, error: EscrowMQError, now: float, asked_at: float) -> None:
        """There was no answer, or one that says why there are no messages."""
        group.asked, group.error = 0, error
        group.not_before = now + (OTHERS_PAUSE_S if group.other else FAILED_PAUSE_S)
        if group.troubled_since is None and not group.other:
            group.troubled_since = asked_at

    def next_ask(self, now: float) -> float:
        """When a group that may not be asked now may be; infinity if there is none."""
        times = (group.not_before for group in self._groups if not group.asked and group.not_before > now)
        return min(times, default=float("inf"))

    def trouble(self, now: float, for_s: float) -> EscrowMQError | None:
        """Why some group has given no answer for so long, or never will."""
        for group in self._groups:
            if group.error is None or group.troubled_since is None:
                continue
            if not hasattr(group.error, "retry_after_s") or now - group.troubled_since >= for_s:
                return group.error
        return None


# ------------------------------------------------------------------------------------------------------------
# How many messages a share consumer has ahead: those that its application begins within half a second.
#
# What lies in one consumer's buffer, no other one gets. A number cannot say how much that may be: a hundred
# messages are a moment of one application and half an hour of another. So the time that a message takes is
# measured, from poll to poll, and what is held (with the application and ahead of it) is what is done within
# ``AHEAD_S``. A consumer whose messages take longer has nothing ahead, and waits for one call to the broker
# before each: a hundredth of its time at most.
#
# Pure: takes ``now``.

#: A hundred calls to a broker: a longer time keeps nobody busier.
AHEAD_S = 0.5
#: What has waited here for so long goes back to the broker: the application has become slower than it was.
HOLD_S = 1.0
#: What a message is taken to need before one was measured: the first has one ahead.
FIRST_S = 0.25
#: Polls that get something are looked at together, for so long or until so many messages are done: a fast
#: application pays for each look.
LOOK_S, LOOK_DONE = 0.01, 16
#: A message has an eighth of the weight, and less if others are worked on at the same time: what begins
#: together often ends together, and then one of them has taken all of the time.
WEIGHT_OF_ONE = 8


class Pace:
    """What a message takes, by the time between polls: an average whose newest messages count most."""

    __slots__ = ("_busy", "_done", "_each_s", "_looked_at", "_spent_s")

    def __init__(self) -> None:
        self._each_s, self._spent_s, self._looked_at = FIRST_S, 0.0, -LOOK_S
        self._done, self._busy = 0, False

    def polled(self, now: float, done: int, held: int, given: int) -> None:
        """The application polls and is given some messages. By now it has ``done`` so many altogether, and
        still ``held`` some others."""
        if given and self._busy and done < self._done + LOOK_DONE and now < self._looked_at + LOOK_S:
            return
        self._spent_s += self._since(now)
        self._looked_at, self._busy = now, held + given > 0
        count, self._done = done - self._done, done
        if count > 0:
            old = _old_weight(held) ** count
            self._each_s = self._each_s * old + self._spent_s / count * (1 - old)
            self._spent_s = 0.0

    def holds(self, now: float, held: int) -> int:
        """How many are done within ``AHEAD_S``. One that takes long counts while it is not done."""
        old = _old_weight(held)
        each_s = self._each_s * old + (self._spent_s + self._since(now) - LOOK_S) * (1 - old)
        return int(AHEAD_S / max(self._each_s, each_s, 1e-6))

    def _since(self, now: float) -> float:
        """Time of work since the last poll. Without messages the application has nothing to do."""
        return now - self._looked_at if self._busy else 0.0


def _old_weight(held: int) -> float:
    return 1 - 1 / (WEIGHT_OF_ONE + 2 * held)


log = logging.getLogger(__name__)

#: Requests with acks under way to one broker group. With more of them than this the leader is the bottleneck,
#: and larger requests are cheaper for it.
ACKS_UNDER_WAY_MAX = 4
#: Pause before acks without an answer are sent again, beyond the channel's own attempts.
ACK_AGAIN_S = 0.5

#: Errors after which an ack is sent again: it was not taken, or nobody knows whether it was.
_WORTH_ANOTHER_TRY = (Unavailable, Overloaded, DiskFull, OutcomeUnknown)

#: The group reads a partition.
_BEGUN = (ResultCode.OK, ResultCode.DUPLICATE)

#: Messages of one call, the broker's limit.
ASKED_MAX = 10_000

#: Takes an answer, or the error in its place, and when the call was made.
Done = Callable[[Any, float], None]


class ShareSession:
    """See the module's text. ``pump`` and answers: in the router's thread. The rest: under the condition."""

    def __init__(
        self,
        group: str,
        member: str,
        topics: Mapping[int, Sequence[str]],
        begun: Set[TopicIdPartition],
        idle_s: float,
        config: ShareConsumerConfig,
        router: Router,
        condition: threading.Condition,
        held_batches: HeldBatches,
        counted: ShareCounted,
    ) -> None:
        """``topics``: broker group -> the topics that it has partitions of; ``begun``: the partitions that
        the group reads. ``idle_s``: what an application has polled for without getting it is kept for so long
        until it polls again."""
        self._group, self._member, self._idle_s = group, member, idle_s
        self._hold_s = min(HOLD_S, idle_s)
        others = [gid for gid in range(router.info.groups) if gid not in topics]
        every = sorted({topic for some in topics.values() for topic in some})
        self._topics = {**topics, **dict.fromkeys(others, every)}
        self._config, self._router, self._condition = config, router, condition
        self._held_batches, self._counted = held_batches, counted
        self.ack_accumulator = AckAccumulator(config.ack_linger_ms / 1000, config.ack_records)
        self.asking = Asking(topics, config.groups_at_a_time, config.acquire_wait_s, others)
        #: Messages that polls wait for now, and what the last one asked for if it got nothing.
        self.waiting, self._unmet, self._polled_at = 0, 0, -math.inf
        self._pace = Pace()
        #: The application cannot work until it polls again: what comes is for others.
        self.aside = False
        self._acks_under_way = dict.fromkeys(self._topics, 0)
        #: Why acks were put back, and why acks were given up, the last time, since the application asked.
        self.ack_delayed: EscrowMQError | None = None
        self.ack_given_up: EscrowMQError | None = None
        #: Topics that a broker does not know any more.
        self.gone: set[str] = set()
        self._begun = set(begun)
        #: A broker does not know that the group reads what it has read: it was deleted meanwhile. An
        #: application's thread begins again, since that takes calls which block.
        self.forgotten = False
        #: Why the group cannot begin to read a partition that is younger than this consumer.
        self.not_begun: EscrowMQError | None = None
        #: A bug that ended the work. Kept to be raised: otherwise the topics would just look empty.
        self.failure: Exception | None = None
        #: Nothing more is asked for; and nothing at all is sent any more.
        self.stopping = self.ended = False

    @property
    def acks_unconfirmed(self) -> bool:
        """Whether some acks have no answer yet."""
        return bool(self.ack_accumulator) or any(self._acks_under_way.values())

    # ------------------------------------------------------------ the router's side

    def pump(self, now: float) -> float:
        """See ``Source``."""
        with self._condition:
            if self.failure is None:
                try:
                    return self._pump(now)
                except Exception as error:
                    self._failed(error)
            return math.inf

    def stopped(self, detail: str) -> None:
        """See ``Source``."""
        with self._condition:
            self.stopping = self.ended = True
            self._condition.notify_all()

    def _failed(self, error: Exception) -> None:
        log.error("a share consumer failed; close it", exc_info=error)
        self.failure = error
        self._condition.notify_all()

    def _pump(self, now: float) -> float:
        full = {gid for gid, under_way in self._acks_under_way.items() if under_way >= ACKS_UNDER_WAY_MAX}
        for gid in self.ack_accumulator.due(now):
            if gid not in full:
                self._send_acks(gid)
        self._give_back_late(now)
        alike: dict[tuple[int, float], list[Batch]] = {}
        for batch in self._held_batches.tend(now):
            alike.setdefault((batch.gid, batch.lease_s), []).append(batch)
        for (gid, lease_s), batches in alike.items():
            self._extend(gid, batches, lease_s)
        for asked in self.asking.next(now, self._held_batches.buffered, self._target(now)):
            self._ask(asked)
        late = self._held_batches.waits_since() + self._hold_s
        if late <= now:  # polled for in vain; the next poll may change how long it waits
            late = self._held_batches.waits_since() + self._patience_s
        return min(
            self._held_batches.next_tend(),
            self.asking.next_ask(now),
            self.ack_accumulator.next_due(full),
            late,
        )

    # ------------------------------------------------------------ how much is wanted

    def polled(self, asked: int, got: int, now: float) -> bool:
        """The application has polled for so many messages. Whether something is to be done about it now."""
        held = self._held_batches
        self._pace.polled(now, held.done, held.handed - got, got)
        self._polled_at, self.aside = now, False
        self._unmet = 0 if got else asked
        if got and 2 * held.buffered > self._config.prefetch_records > 0:
            return False  # the usual case with many messages, and cheap
        target = self._target(now)
        return held.buffered > 0 if not target else self.asking.may_ask(now, held.buffered, target)

    def _target(self, now: float) -> int:
        """Messages to have in the buffer: those that polls wait for, and some ahead."""
        if self.stopping or self.aside:
            return 0
        wanted = max(self.waiting, self._unmet)
        if self.waiting or now < self._polled_at + self._hold_s:
            ahead = self._pace.holds(now, self._held_batches.handed) - self._held_batches.handed
            return max(min(ahead, wanted + self._config.prefetch_records), wanted)
        return wanted if now < self._polled_at + self._idle_s else 0

    @property
    def _patience_s(self) -> float:
        """How long a message may wait here. What was polled for in vain may wait for the next poll."""
        return self._idle_s if self._unmet else self._hold_s

    def _give_back_late(self, now: float) -> None:
        """The application is busy, or hangs: others have time for what lies here, and nothing is asked for
        until it polls again."""
        if self._held_batches.waits_since() + self._patience_s <= now:
            self.aside = True
        if not self._target(now):
            self.give_back()

    def _call(self, gid: int, method: str, args: tuple[Any, ...], done: Done, wait_s: float = 0.0) -> None:
        now = self._router.clock()

        def ended(answer: Any, maybe_done: bool, _: int) -> None:
            if isinstance(answer, Failure):
                answer = answer.error(f"{method} at group {gid}")
            with self._condition:
                try:
                    done(answer, now)
                except Exception as error:
                    self._failed(error)
                self._condition.notify_all()

        deadline = now + self._config.call_timeout_s + wait_s
        # Callers wait on the condition, if at all: the clock of a cluster in memory does not move for these.
        request = Request(method, args, deadline, ended, windowed=False, patience_s=wait_s, awaited=False)
        self._router.channels[gid].submit(request, now)

    # ------------------------------------------------------------ messages

    def _ask(self, asked: AskedGroup) -> None:
        wait_s = 0.0 if asked.other else self.asking.wait_s
        bytes_max = self._config.acquire_bytes
        about = self._topics[asked.gid], min(asked.asked, ASKED_MAX), bytes_max, self._config.lease_s, wait_s
        args = self._group, self._member, *about, asked.call, asked.received
        self._call(asked.gid, "share_acquire", args, partial(self._acquired, asked), wait_s)

    def _acquired(self, asked: AskedGroup, answer: Any, asked_at: float) -> None:
        now = self._router.clock()
        self._counted.acquires += 1
        if isinstance(answer, EscrowMQError):
            self.asking.failed(asked, answer, now, asked_at)
            return
        _, rows, lease_s, again_s, number = answer
        self._held_batches.answered[asked.gid] = asked.call
        if number >= 0:
            asked.received = number
        if not asked.other:
            self.gone.difference_update(self._topics[asked.gid])
        found = False
        for row in map(AcquiredRow._make, rows):
            if row.code == ResultCode.OK:
                try:
                    content = Acquired(row)
                except CorruptLog as error:  # the leases run out, and another replica may lead by then
                    self.asking.failed(asked, error, now, asked_at)
                    return
                self._counted.bytes += content.size
                self._held_batches.add(asked.gid, content, now, lease_s)
                found = True
            elif not (asked.other and row.code != ResultCode.UNKNOWN_SHARE):
                again_s = max(again_s, FAILED_PAUSE_S)
                self._not_there(asked.gid, row)
        if asked.other and not found:
            again_s = max(again_s, OTHERS_PAUSE_S)
        self.asking.answered(asked, again_s, now)
        self._give_back_late(now)

    def _not_there(self, gid: int, row: AcquiredRow) -> None:
        source = row.topic, row.partition, row.topic_id
        if row.code != ResultCode.UNKNOWN_SHARE:
            self.gone.add(row.topic)
        elif source in self._begun:
            self.forgotten = True
        else:  # a partition or a topic that is younger than this consumer: nothing of it was read yet
            begin = share_create(self._group, row.topic, row.partition, EARLIEST, row.topic_id)
            self._call(gid, "submit", (begin,), partial(self._begun_with, source))

    def _begun_with(self, source: TopicIdPartition, answer: Any, asked_at: float) -> None:
        if isinstance(answer, EscrowMQError):
            return
        code, info = outcome(answer[1][0])
        self.not_begun = None
        if code in _BEGUN:
            self._begun.add(source)
        elif code in (ResultCode.TOO_MANY_SHARES, ResultCode.GROUP_KIND):
            self.not_begun = not_begun(self._group, source[0], code, info)

    def begun_again(self, partitions: Set[TopicIdPartition]) -> None:
        """The group exists again, and reads these partitions."""
        self._begun |= partitions
        self.forgotten = False

    # ------------------------------------------------------------ leases

    def _extend(self, gid: int, batches: list[Batch], lease_s: float) -> None:
        ranges = _joined((batch.source, ranges_of(batch.tended)) for batch in batches)
        args = self._group, self._member, ranges, lease_s
        self._call(gid, "share_extend", args, partial(self._extended, batches))

    def _extended(self, batches: list[Batch], answer: Any, asked_at: float) -> None:
        if isinstance(answer, EscrowMQError):
            for batch in batches:
                self._held_batches.not_extended(batch, self._router.clock())
            return
        self._counted.extensions += 1
        lost = {(topic, partition): list(pairs(ranges)) for topic, partition, ranges in answer[1]}
        for batch in batches:
            refused = [
                offset
                for first, last in lost.get(batch.source[:2], ())
                for offset in batch.tended
                if first <= offset <= last
            ]
            self._held_batches.extended(batch, refused, asked_at)

    def give_back(self) -> None:
        """Release what lies in the buffer."""
        by_group: dict[int, list[tuple[TopicIdPartition, Ranges]]] = {}
        for batch, offsets in self._held_batches.give_back():
            by_group.setdefault(batch.gid, []).append((batch.source, ranges_of(offsets)))
            self._counted.released += len(offsets)
        for gid, given in by_group.items():
            args = self._group, self._member, _joined(given), self._held_batches.answered[gid]
            self._call(gid, "share_release", args, _ignore)

    # ------------------------------------------------------------ acks

    def _send_acks(self, gid: int) -> None:
        acks = self.ack_accumulator.take(gid)
        request = b"".join(
            share_ack(self._group, topic, partition, flat(ranges), topic_id)
            for (topic, partition, topic_id), ranges in acks.items()
        )
        self._acks_under_way[gid] += 1
        self._call(gid, "submit", (request,), partial(self._acked, gid, acks))

    def _acked(self, gid: int, acks: Mapping[TopicIdPartition, Ranges], answer: Any, asked_at: float) -> None:
        now = self._router.clock()
        self._acks_under_way[gid] -= 1
        failed = answer if isinstance(answer, EscrowMQError) else None
        if failed is None:
            self._counted.ack_latencies.observe(now - asked_at, now)
        for at, (source, ranges) in enumerate(acks.items()):
            count = sum(last - first + 1 for first, last in ranges)
            error = failed or _why_not_acked(self._group, source, ranges, *outcome(answer[1][at]))
            if error is None:
                self._counted.acked += count
                continue
            # An ack counts whenever it comes, so it is worth every attempt.
            if isinstance(error, _WORTH_ANOTHER_TRY) and not self.ended:
                self.ack_delayed = error
                self.ack_accumulator.put_back(gid, source, ranges, now + ACK_AGAIN_S)
            else:
                self.ack_given_up = error
                self._counted.acks_failed += count


def _why_not_acked(
    group: str, source: TopicIdPartition, ranges: Ranges, code: int, info: Any
) -> EscrowMQError | None:
    topic, partition, _ = source
    if code in (ResultCode.OK, ResultCode.DUPLICATE):
        return None
    if code == ResultCode.TOO_MANY_SHARES:
        return Overloaded(f"a broker group keeps no more than {info} ranges of acks out of order", 1.0)
    if code == ResultCode.RETRY:
        return Unavailable("the request was refused together with others", 0.1)
    return why_not(group, (topic, partition, ranges[-1][1]), code, info)


def _joined(parts: Iterable[tuple[TopicIdPartition, Ranges]]) -> list[PartitionRanges]:
    """One entry for each partition, with sorted ranges."""
    by_partition: dict[tuple[str, int], Ranges] = {}
    for (topic, partition, _), ranges in parts:
        by_partition.setdefault((topic, partition), []).extend(ranges)
    return [(topic, partition, flat(merged(ranges))) for (topic, partition), ranges in by_partition.items()]


def _ignore(answer: Any, asked_at: float) -> None:
    """What was not given back comes back when its lease ends."""
