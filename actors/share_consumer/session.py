"""What a share consumer does in the background: asks for messages, extends leases, sends acks.

It is a source of the client's router, which calls ``pump`` in every turn and brings answers to it, so all of
it happens in one thread. The application's threads share its state under the consumer's condition. Requests
go through the router's channels, which follow leaders and repeat what got no answer.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import partial
from typing import Any

from escrowmq.actors.client.channel import Request
from escrowmq.actors.client.failures import Failure
from escrowmq.actors.client.results import outcome
from escrowmq.actors.client.router import Router
from escrowmq.actors.client.settling_calls import why_not
from escrowmq.actors.share_consumer.ack_accumulator import AckAccumulator, Ranges
from escrowmq.actors.share_consumer.acquired import Acquired
from escrowmq.actors.share_consumer.asking import FAILED_PAUSE_S, OTHERS_PAUSE_S, AskedGroup, Asking
from escrowmq.actors.share_consumer.beginning import not_begun
from escrowmq.actors.share_consumer.config import ShareConsumerConfig
from escrowmq.actors.share_consumer.held_batches import Batch, HeldBatches, PlaceOfBatch
from escrowmq.actors.share_consumer.pace import HOLD_S, Pace
from escrowmq.actors.share_consumer.ranges import flat, merged, pairs, ranges_of
from escrowmq.actors.share_consumer.statistics import ShareCounted
from escrowmq.replication.calling.share_answers import AcquiredRow, Place
from escrowmq.replication.errors import (
    CorruptLog,
    DiskFull,
    EscrowMQError,
    OutcomeUnknown,
    Overloaded,
    Unavailable,
)
from escrowmq.replication.format.share_ops import EARLIEST, share_ack, share_create
from escrowmq.replication.model import ResultCode

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
        begun: Set[PlaceOfBatch],
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
        place = row.topic, row.partition, row.topic_id
        if row.code != ResultCode.UNKNOWN_SHARE:
            self.gone.add(row.topic)
        elif place in self._begun:
            self.forgotten = True
        else:  # a partition or a topic that is younger than this consumer: nothing of it was read yet
            begin = share_create(self._group, row.topic, row.partition, EARLIEST, row.topic_id)
            self._call(gid, "submit", (begin,), partial(self._begun_with, place))

    def _begun_with(self, place: PlaceOfBatch, answer: Any, asked_at: float) -> None:
        if isinstance(answer, EscrowMQError):
            return
        code, info = outcome(answer[1][0])
        self.not_begun = None
        if code in _BEGUN:
            self._begun.add(place)
        elif code in (ResultCode.TOO_MANY_SHARES, ResultCode.GROUP_KIND):
            self.not_begun = not_begun(self._group, place[0], code, info)

    def begun_again(self, places: Set[PlaceOfBatch]) -> None:
        """The group exists again, and reads these partitions."""
        self._begun |= places
        self.forgotten = False

    # ------------------------------------------------------------ leases

    def _extend(self, gid: int, batches: list[Batch], lease_s: float) -> None:
        places = _joined((batch.place, ranges_of(batch.tended)) for batch in batches)
        args = self._group, self._member, places, lease_s
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
                for first, last in lost.get(batch.place[:2], ())
                for offset in batch.tended
                if first <= offset <= last
            ]
            self._held_batches.extended(batch, refused, asked_at)

    def give_back(self) -> None:
        """Release what lies in the buffer."""
        by_group: dict[int, list[tuple[PlaceOfBatch, Ranges]]] = {}
        for batch, offsets in self._held_batches.give_back():
            by_group.setdefault(batch.gid, []).append((batch.place, ranges_of(offsets)))
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

    def _acked(self, gid: int, acks: Mapping[PlaceOfBatch, Ranges], answer: Any, asked_at: float) -> None:
        now = self._router.clock()
        self._acks_under_way[gid] -= 1
        failed = answer if isinstance(answer, EscrowMQError) else None
        if failed is None:
            self._counted.ack_latencies.observe(now - asked_at, now)
        for at, (place, ranges) in enumerate(acks.items()):
            count = sum(last - first + 1 for first, last in ranges)
            error = failed or _why_not_acked(self._group, place, ranges, *outcome(answer[1][at]))
            if error is None:
                self._counted.acked += count
                continue
            # An ack counts whenever it comes, so it is worth every attempt.
            if isinstance(error, _WORTH_ANOTHER_TRY) and not self.ended:
                self.ack_delayed = error
                self.ack_accumulator.put_back(gid, place, ranges, now + ACK_AGAIN_S)
            else:
                self.ack_given_up = error
                self._counted.acks_failed += count


def _why_not_acked(
    group: str, place: PlaceOfBatch, ranges: Ranges, code: int, info: Any
) -> EscrowMQError | None:
    topic, partition, _ = place
    if code in (ResultCode.OK, ResultCode.DUPLICATE):
        return None
    if code == ResultCode.TOO_MANY_SHARES:
        return Overloaded(f"a broker group keeps no more than {info} ranges of acks out of order", 1.0)
    if code == ResultCode.RETRY:
        return Unavailable("the request was refused together with others", 0.1)
    return why_not(group, (topic, partition, ranges[-1][1]), code, info)


def _joined(parts: Iterable[tuple[PlaceOfBatch, Ranges]]) -> list[Place]:
    """One entry for each partition, with sorted ranges."""
    by_place: dict[tuple[str, int], Ranges] = {}
    for (topic, partition, _), ranges in parts:
        by_place.setdefault((topic, partition), []).extend(ranges)
    return [(topic, partition, flat(merged(ranges))) for (topic, partition), ranges in by_place.items()]


def _ignore(answer: Any, asked_at: float) -> None:
    """What was not given back comes back when its lease ends."""
