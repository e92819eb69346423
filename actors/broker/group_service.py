"""The broker's side of consumer groups: the coordinator behind a lock, with leadership and the log.

Answers the Broker actor's ``group_*`` and ``commit_offsets`` calls: ``("ok", what the coordinator says)``
at the leader, and ``("not_leader", leader, term)`` elsewhere, as all calls for leaders do. Membership is
decided in memory; offsets go through the log like every other operation. A commit is checked and queued for
the log under one lock, so that those of a partition stand in the log in the order in which their members held
it: one that is delayed is refused, and never puts the group's place back behind its new reader.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, TypeVar

from escrowmq.actors.broker.coordinator import GroupCoordinator
from escrowmq.actors.client.consumer_groups import (
    GROUP_NAME_BYTES_MAX,
    GroupCallRefused,
    GroupSnapshot,
    MembershipStale,
    TopicMissing,
)
from escrowmq.replication.calling.answers import Leadership, Reply
from escrowmq.replication.format import ops
from escrowmq.replication.host.reads import Reads
from escrowmq.replication.host.requests import Requests, Turn
from escrowmq.replication.host.running import RunningReplica
from escrowmq.replication.model import ResultCode

TOPICS_MAX = 10_000

T = TypeVar("T")


class GroupService:
    """Consumer groups of one broker. Thread-safe; only ``commit`` waits (for the log)."""

    def __init__(
        self,
        *,
        leadership: Callable[[], Leadership],
        partitions: Callable[[str], int | None],
        committed: Callable[[str], Mapping[str, Mapping[int, int]]],
        group_names: Callable[[], Sequence[str]],
        submit: Callable[[bytes, Turn], Reply],
        clock: Callable[[], float],
        which: Callable[[str], object] = lambda topic: None,
    ) -> None:
        """``leadership()``: (ready leader?, leader's replica number, term), as ``whoami`` answers.

        ``partitions(topic)``: how many, None for an unknown topic. ``committed(group)``: its offsets
        of all topics; ``group_names()``: groups that have any. ``submit``: see ``Requests.submit_in_turn``.
        ``which(topic)``: see ``GroupCoordinator``.
        """
        self._leadership, self._partitions, self._committed = leadership, partitions, committed
        self._group_names, self._submit, self._clock = group_names, submit, clock
        self._lock = threading.Lock()
        self._coordinator = GroupCoordinator(which)

    @classmethod
    def over(cls, running: RunningReplica, reads: Reads, requests: Requests) -> Self:
        """The consumer groups of a running replica."""
        return cls(
            leadership=running.whoami,
            partitions=reads.partition_count,
            committed=reads.group_offsets,
            group_names=reads.group_names,
            submit=requests.submit_in_turn,
            clock=time.monotonic,
            which=reads.which_topic,
        )

    def join(
        self,
        group: str,
        member: str,
        topics: Sequence[str],
        session_timeout_s: float,
        owned: Sequence[tuple[str, int]] = (),
    ) -> Reply:
        """See :meth:`GroupCoordinator.join`. Topics that do not exist (yet, any more) give nothing."""
        problem = _group_problem(group) or _member_problem(member, topics, owned)
        if problem is not None:
            return "ok", GroupCallRefused(problem)
        had_offsets = bool(self._committed(group))
        return self._led(
            lambda coordinator, now: coordinator.join(
                group,
                member,
                topics,
                session_timeout_s,
                now,
                partitions=self._partitions,
                had_offsets=had_offsets,
                owned=owned,
            )
        )

    def heartbeat(self, group: str, member: str, generation: int) -> Reply:
        """See :meth:`GroupCoordinator.heartbeat`."""
        return self._led(
            lambda coordinator, now: coordinator.heartbeat(
                group, member, generation, now, partitions=self._partitions
            )
        )

    def leave(self, group: str, member: str) -> Reply:
        """``("ok", None)``, known or not."""
        return self._led(lambda coordinator, now: coordinator.leave(group, member))

    def commit(
        self, group: str, member: str, generation: int, offsets: Mapping[str, Mapping[int, int]]
    ) -> Reply:
        """``("ok", None)`` once replicated; ``("ok", MembershipStale | TopicMissing | GroupCallRefused)``;
        any other status as submit."""
        wanted = [(topic, partition) for topic, by in offsets.items() for partition in by]

        def check(queue: Callable[[], None]) -> Reply | None:
            def check_and_queue(coordinator: GroupCoordinator, now: float) -> MembershipStale | None:
                problem = coordinator.check_commit(group, member, generation, wanted, now)
                if problem is not None:
                    return MembershipStale(problem)
                queue()
                return None

            checked = self._led(check_and_queue)
            return None if checked == ("ok", None) else checked

        if not offsets:
            return check(lambda: None) or ("ok", None)
        topics = list(offsets)
        request = b"".join(ops.group_offsets(group, topic, offsets[topic]) for topic in topics)
        answer = self._submit(request, check)
        if answer[0] != "ok" or isinstance(answer[1], MembershipStale):
            return answer
        for topic, (code, *_) in zip(topics, answer[1], strict=True):
            if code in (ResultCode.UNKNOWN_TOPIC, ResultCode.BAD_PARTITION):
                return "ok", TopicMissing(topic)
            if code not in (ResultCode.OK, ResultCode.DUPLICATE):
                return "ok", GroupCallRefused(f"offsets of {topic!r} were refused: {ResultCode(code).name}")
        return "ok", None

    def names(self) -> Reply:
        """``("ok", [name, ...])``: groups with members or with offsets."""

        def every_name(coordinator: GroupCoordinator, now: float) -> list[str]:
            coordinator.expire(now)
            return sorted({*coordinator.names(), *self._group_names()})

        return self._led(every_name)

    def describe(self, group: str) -> Reply:
        """``("ok", GroupSnapshot)``."""
        offsets = self._committed(group)

        def snapshot(coordinator: GroupCoordinator, now: float) -> GroupSnapshot:
            coordinator.expire(now)
            return GroupSnapshot(coordinator.describe(group, now), {t: dict(by) for t, by in offsets.items()})

        return self._led(snapshot)

    def _led(self, do: Callable[[GroupCoordinator, float], T]) -> Reply:
        """Runs ``do`` under the lock if this replica leads: ``("ok", what it returns)``."""
        leadership = self._leadership()
        if not leadership.ready:
            return leadership.refusal()
        with self._lock:
            now = self._clock()
            if not self._coordinator.lead(leadership.term, now):
                return leadership._replace(leader=None).refusal()
            return "ok", do(self._coordinator, now)


def _group_problem(group: str) -> str | None:
    size = len(group.encode())
    if not 0 < size <= GROUP_NAME_BYTES_MAX:
        return f"a group's name has 1 to {GROUP_NAME_BYTES_MAX} bytes, not {size}"
    return None


def _member_problem(member: Any, topics: Any, owned: Any) -> str | None:
    """What is wrong with what a member says of itself: it came over the network, with any type."""
    if not isinstance(member, str) or not 0 < len(member) <= GROUP_NAME_BYTES_MAX:
        return f"a member's name is text of 1 to {GROUP_NAME_BYTES_MAX} characters"
    if not 0 < len(topics) <= TOPICS_MAX or not all(isinstance(topic, str) for topic in topics):
        return f"a member reads 1 to {TOPICS_MAX} topics, named by text"
    if not all(isinstance(topic, str) and type(number) is int for topic, number in owned):
        return "what a member owns are pairs of a topic and the number of a partition"
    return None
