"""Failures of a consumer whose partitions wait: ``order="ordered"``.

``nack`` suspends the partition: reading goes back to the message, and ``poll`` returns nothing of the
partition until the pause is over. How often the message has failed is committed with the group's offset
(PLACES), so whoever reads the partition next goes on counting. After the last attempt the message becomes a
dead letter, and reading goes on behind it. Its copy is in another log than the group's offset, so the member
first commits the offset before the message: one that has lost the partition gets StaleMember, and no copy.

An offset has one number of attempts, that of the message there. A nack never moves the group's offset:
what lies before the message may be in a transaction that is not committed yet, and may never be. So the nack
counts together with what lies before: at once if the offset is there already, else when ``commit`` or a
transaction has moved it there. If that never happens, the nack was none. While a handler is run for one
record after the other (running.py), what lies before was handled, and the nack commits it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from escrowmq.actors.client.consumer_groups import GroupSnapshot, TopicPartition, coordinator_group
from escrowmq.actors.client.router import result_of
from escrowmq.actors.client.share_groups import settings_told
from escrowmq.actors.consumer import arguments as args
from escrowmq.actors.consumer.committer import Committer
from escrowmq.actors.consumer.config import ORDERED
from escrowmq.actors.consumer.membership_thread import Membership
from escrowmq.actors.consumer.positions import Failed, PartitionState
from escrowmq.actors.consumer.records import StreamRecord, attempt_of
from escrowmq.actors.consumer.retries import AGAIN_S, ConcurrentRetries, Reader, Retries, stream_record
from escrowmq.actors.consumer.subscribing import Subscribing
from escrowmq.replication.errors import EscrowMQError
from escrowmq.replication.format.settings import GroupSettings
from escrowmq.replication.format.share_ops import REJECT
from escrowmq.replication.model import ConsumerRecord

log = logging.getLogger(__name__)


class _Failure(NamedTuple):
    """What a nack has decided. ``noted``: how often the message has failed then. ``until``: the end of the
    pause, if it begins now."""

    offset: int
    dies: bool
    attempt: int
    noted: Failed
    pause_s: float
    until: float
    reason: str
    by: str


class OrderedRetries(Retries):
    """See the module's text. Blocking; thread-safe."""

    def __init__(
        self,
        reader: Reader,
        member: Membership,
        subscribing: Subscribing,
        committer: Committer,
        timeout_s: float,
    ) -> None:
        super().__init__(reader, member, subscribing, timeout_s)
        self._committer = committer
        self._turn = threading.Lock()
        #: What counts only once the group's offset in its partition is there.
        self._waiting: dict[TopicPartition, _Failure] = {}

    def found(self, messages: Sequence[tuple[str, int, int]]) -> None:
        """Asks how often the messages at these offsets (topic, partition, offset) have failed, before any of
        them is returned. Raises Unavailable."""
        reader, group = self._reader, self._member.group
        gid = coordinator_group(group, reader.router.info.groups)
        asked = reader.router.leader_call(gid, "failed_attempts", group, messages, timeout_s=self._timeout_s)
        counts: Sequence[int] = result_of(asked, self._timeout_s)
        with reader.condition:
            for (topic, partition, offset), count in zip(messages, counts, strict=True):
                state = reader.positions.get((topic, partition))
                if state is not None:
                    state.failed = Failed(offset, count)

    def with_past(self, record: ConsumerRecord) -> StreamRecord:
        """Locked: the record as ``poll`` returns it."""
        state = self._reader.positions.get((record.topic, record.partition))
        failed = 0 if state is None else state.failed.at(record.offset)
        return stream_record(record, attempt_of(record) + failed)

    def _failed(self, record: ConsumerRecord, delay_ms: int, reason: str, by: str) -> None:
        with self._turn:
            state = self._suspended(record)
            if state is None:
                return
            with self._coming_again(state):
                failure = self._decided(state, record, delay_ms, reason, by)
                if not self._waits(state, failure):
                    self._carry_out(state, failure)
                    with self._reader.condition:
                        self._resume_at(state, self._reader.clock() + failure.pause_s)

    @contextmanager
    def _coming_again(self, state: PartitionState) -> Iterator[None]:
        """Whatever fails in the block, the record comes again."""
        try:
            yield
        except BaseException:
            with self._reader.condition:
                self._resume_at(state, self._reader.clock() + AGAIN_S)
            raise

    @property
    def has_waiting(self) -> bool:
        """See :meth:`LocalRetries.settle_waiting`."""
        return bool(self._waiting)

    def settle_waiting(self, *, raises: bool = False) -> None:
        """See :meth:`LocalRetries.settle_waiting`."""
        if not self._waiting:
            return
        with self._turn:
            for tp, failure in list(self._waiting.items()):
                if (state := self._due(tp, failure)) is None:
                    continue
                try:
                    with self._coming_again(state):
                        self._carry_out(state, failure)
                    with self._reader.condition:
                        self._resume_at(state, self._reader.clock() if failure.dies else failure.until)
                except EscrowMQError as error:
                    if raises:
                        raise
                    log.warning("%s/%d, offset %d, could not be nacked: %s", *tp, failure.offset, error)

    def _due(self, tp: TopicPartition, failure: _Failure) -> PartitionState | None:
        """The suspended partition, if the failure counts now."""
        with self._reader.condition:
            state = self._reader.positions.get(tp)
            suspended = state is not None and state.resume_at and state.position == failure.offset
            if state is None or not suspended:  # it was lost, moved, or given back by a transaction
                del self._waiting[tp]
                return None
            if state.has_work_before(failure.offset):
                return None
            del self._waiting[tp]
            self._reader.positions.suspend(state, float("inf"))
            return state

    def _suspended(self, record: ConsumerRecord) -> PartitionState | None:
        """Goes back to the record. None: it comes again anyway, behind one that was nacked."""
        reader = self._reader
        with reader.condition:
            state = reader.assigned(record.topic, record.partition)
            if (
                state.resume_at
                and state.position is not None
                and state.position <= record.offset < state.returned
            ):
                return None
            args.check_returned(record, state.position)
            args.check_not_taken(record, state.taken)
            self._waiting.pop(state.tp, None)
            nacked_at = record.offset if state.nacked_at is None else state.nacked_at
            state.nacked_at = min(record.offset, nacked_at)
            state.returned = max(state.position or 0, state.returned if state.resume_at else 0)
            state.restart(record.offset)
            reader.positions.suspend(state, float("inf"))
            return state

    def _decided(
        self, state: PartitionState, record: ConsumerRecord, delay_ms: int, reason: str, by: str
    ) -> _Failure:
        offset, settings, now = record.offset, self._settings(), self._reader.clock()
        failed = state.failed.at(offset) + 1
        since = state.failed.since if failed > 1 and state.failed.since is not None else now
        attempt = attempt_of(record) + failed - 1
        age_ms = (now - since) * 1000
        dies = delay_ms == REJECT or attempt >= settings.max_attempts or 0 <= settings.max_age_ms <= age_ms
        pause_s = (delay_ms if delay_ms >= 0 else settings.delay_ms(attempt)) / 1000
        noted = Failed(offset + 1, 0, now) if dies else Failed(offset, failed, since)
        return _Failure(
            *(offset, dies, attempt, noted),
            *(0.0 if dies else pause_s, now + pause_s, reason, by),
        )

    def _waits(self, state: PartitionState, failure: _Failure) -> bool:
        """Whether it does not count yet. The pause begins all the same; if a message that dies comes again
        behind it, this is the same attempt."""
        with self._reader.condition:
            if self.one_by_one or not state.has_work_before(failure.offset):
                return False
            if not failure.dies:
                state.failed = failure.noted
            self._waiting[state.tp] = failure
            self._resume_at(state, failure.until)
            return True

    def _carry_out(self, state: PartitionState, failure: _Failure) -> None:
        """Makes it durable."""
        offset, noted = failure.offset, failure.noted
        if failure.dies:
            self._committer.commit({state.tp: offset})
            self._send(state, offset, REJECT, failure.reason, failure.by, failure.attempt)
        with self._reader.condition:
            state.failed = noted
            if state.position == offset != noted.offset:
                state.restart(noted.offset)
        self._committer.commit({state.tp: noted.offset}, {state.tp: noted.times})

    def _settings(self) -> GroupSettings:
        """Those in force: they count from the next failure on."""
        router, group = self._reader.router, self._member.group
        gid = coordinator_group(group, router.info.groups)
        asked = router.leader_call(gid, "group_describe", group, timeout_s=self._timeout_s)
        snapshot: GroupSnapshot = result_of(asked, self._timeout_s)
        return settings_told(snapshot.settings)

    def _resume_at(self, state: PartitionState, at: float) -> None:
        """Locked: the pause begins."""
        if state.resume_at:  # otherwise the application has sought elsewhere
            self._reader.positions.suspend(state, at)
            self._reader.condition.notify_all()


def retries_of(
    order: str,
    reader: Reader,
    member: Membership,
    subscribing: Subscribing,
    committer: Committer,
    timeout_s: float,
) -> ConcurrentRetries | OrderedRetries:
    """Those of a ``RetryPolicy``."""
    if order == ORDERED:
        return OrderedRetries(reader, member, subscribing, committer, timeout_s)
    return ConcurrentRetries(reader, member, subscribing, timeout_s)
