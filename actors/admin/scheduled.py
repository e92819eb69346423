"""Delayed messages as operators see them: which of a topic wait, and cancelling one by its id."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from heapq import merge

from escrowmq.actors.admin.types import ScheduledMessage
from escrowmq.actors.client.cancelling import TOPICS_MAX, Cancellation, OtherTopic, ScheduleId
from escrowmq.actors.client.router import Router, result_of
from escrowmq.replication.calling.answers import ScheduledMessages
from escrowmq.replication.delivery_times import delivery_time
from escrowmq.replication.errors import ConfigError, InvalidMessage, Unavailable, UnknownTopic
from escrowmq.replication.model import TopicInfo

#: Upper bound of ``limit``.
LIST_MAX = 100_000
#: Rows of one answer: about 100 KB.
ROWS_MAX = 2_000
#: A later ``before`` means this one, which requests can carry, and which is later than every message.
BEFORE_MS_MAX = 2**62
#: Answers without a row that one group may give in a row: so many times 200,000 messages of other topics.
EMPTY_MAX = 1_000


class ScheduledAdmin:
    """Lists and cancels through the leaders of all groups."""

    def __init__(self, router: Router, timeout_s: float) -> None:
        self._router, self._timeout_s = router, timeout_s

    def messages(self, topic: TopicInfo, before: datetime | int | None, limit: int) -> list[ScheduledMessage]:
        """See :meth:`Admin.scheduled`."""
        if type(limit) is not int or not 1 <= limit <= LIST_MAX:
            raise ConfigError(f"limit must be 1 to {LIST_MAX}, not {limit!r}")
        try:
            before_ms = None if before is None else min(delivery_time(None, before), BEFORE_MS_MAX)
        except InvalidMessage as error:
            raise ConfigError(str(error).replace("deliver_at", "before")) from error
        every = range(self._router.info.groups)
        groups = (self._of_group(gid, topic.name, before_ms, limit) for gid in every)
        found = merge(*groups, key=lambda message: message.deliver_at)
        return [message for _, message in zip(range(limit), found, strict=False)]

    def _of_group(
        self, gid: int, topic: str, before_ms: int | None, limit: int
    ) -> Iterator[ScheduledMessage]:
        cluster_id, after, empty = self._router.info.cluster_id, b"", 0
        while limit > 0:
            asked = self._router.leader_call(
                gid, "scheduled", topic, before_ms, min(limit, ROWS_MAX), after, timeout_s=self._timeout_s
            )
            answer: ScheduledMessages | None = result_of(asked, self._timeout_s)
            if answer is None:
                return
            for partition, time_ms, owner, ordinal, size in answer.rows():
                named = ScheduleId(topic, partition, time_ms, owner, ordinal).text(cluster_id)
                yield ScheduledMessage(topic, partition, time_ms, size, named)
            limit, after = limit - len(answer.times_ms), answer.reached
            empty = 0 if answer.times_ms else empty + 1
            if not after:
                return
            if empty > EMPTY_MAX:
                raise Unavailable(
                    f"too many messages of other topics wait in group {gid}; give 'before'", 1.0
                )

    def cancel(self, message: ScheduleId) -> bool:
        """See :meth:`Admin.cancel_scheduled`. The router knows where the topic's partitions are."""
        placement, wanted = self._router.placement, Cancellation(message)
        gid = placement.group_of(message.topic, message.partition)
        for _ in range(TOPICS_MAX):
            request, again = wanted.request(placement.id_of(message.topic)), wanted.note_repeated
            asked = self._router.leader_call(
                gid, "submit", request, timeout_s=self._timeout_s, repeated=again
            )
            done = wanted.is_done(result_of(asked, self._timeout_s)[0])
            if not isinstance(done, OtherTopic):
                return done
            placement.hear_id(message.topic, done.topic_id)
        raise UnknownTopic(message.topic)
