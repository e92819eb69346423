"""Failures of a consumer whose partitions wait: ``order="ordered"``.

``nack`` suspends the partition: reading goes back to the message, and ``poll`` returns nothing of the
partition until the pause is over. How often the message has failed is committed with the group's place
(PLACES), so whoever reads the partition next goes on counting. After the last attempt the message becomes a
dead letter, and reading goes on behind it.

A place has one number of attempts, that of the message which is next there. So a nack commits the place of
its partition: everything before the message counts as handled.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from escrowmq.actors.client.consumer_groups import GroupSnapshot, coordinator_group
from escrowmq.actors.client.router import result_of
from escrowmq.actors.client.share_groups import settings_told
from escrowmq.actors.consumer import arguments as args
from escrowmq.actors.consumer.committer import Committer
from escrowmq.actors.consumer.membership import Membership
from escrowmq.actors.consumer.positions import Failed, PartitionState
from escrowmq.actors.consumer.retries import AGAIN_S, ConcurrentRetries, Reader, Retries, stream_record
from escrowmq.actors.consumer.retry_policy import ORDERED
from escrowmq.actors.consumer.stream_record import StreamRecord, attempt_of
from escrowmq.actors.consumer.subscribing import Subscribing
from escrowmq.replication.format.share_ops import BY_TABLE, REJECT
from escrowmq.replication.format.share_settings import GroupSettings
from escrowmq.replication.model import ConsumerRecord


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

    def found(self, places: Sequence[tuple[str, int, int]]) -> None:
        """Asks how often the messages at these places (topic, partition, offset) have failed, before any of
        them is returned. Raises Unavailable."""
        reader, group = self._reader, self._member.group
        gid = coordinator_group(group, reader.router.info.groups)
        asked = reader.router.leader_call(gid, "failed_attempts", group, places, timeout_s=self._timeout_s)
        counts: Sequence[int] = result_of(asked, self._timeout_s)
        with reader.condition:
            for (topic, partition, offset), count in zip(places, counts, strict=True):
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
            try:
                self._settle(state, record, delay_ms, reason, by)
            except BaseException:
                with self._reader.condition:
                    self._resume_at(state, self._reader.clock() + AGAIN_S)
                raise

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
            state.returned = max(state.position or 0, state.returned if state.resume_at else 0)
            state.restart(record.offset)
            reader.positions.suspend(state, float("inf"))
            return state

    def _settle(
        self, state: PartitionState, record: ConsumerRecord, delay_ms: int, reason: str, by: str
    ) -> None:
        reader, offset = self._reader, record.offset
        settings, now = self._settings(), reader.clock()
        failed = state.failed.at(offset) + 1
        since = state.failed.since if failed > 1 and state.failed.since is not None else now
        attempt = attempt_of(record) + failed - 1
        age_ms = (now - since) * 1000
        if delay_ms == REJECT or attempt >= settings.max_attempts or 0 <= settings.max_age_ms <= age_ms:
            self._send(state, offset, REJECT, reason, by, attempt)
            place, noted, pause_s = offset + 1, Failed(offset + 1, 0, now), 0.0
        else:
            pause_s = (settings.delay_ms(attempt) if delay_ms == BY_TABLE else delay_ms) / 1000
            place, noted = offset, Failed(offset, failed, since)
        with reader.condition:
            state.failed = noted
            if state.position == offset != place:
                state.restart(place)
        self._committer.commit({state.tp: place}, {state.tp: noted.times})
        with reader.condition:
            self._resume_at(state, reader.clock() + pause_s)

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
