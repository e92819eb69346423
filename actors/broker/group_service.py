"""The broker's side of consumer groups: the coordinator behind a lock, with leadership and the log.

Answers what the Broker actor's ``group_*`` and ``commit_offsets`` calls answer, as plain tuples.
Membership is decided in memory; offsets go through the log like every other operation. A commit
is checked first and replicated then, so one whose member expires in those few milliseconds still
lands: the new reader then starts behind it, which at-least-once delivery allows.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from escrowmq.actors.broker.coordinator import GroupCoordinator, Reply
from escrowmq.replication.format import ops
from escrowmq.replication.host.service import BrokerService
from escrowmq.replication.model import ResultCode

#: Longest name of a group: it stands in every offset commit.
GROUP_NAME_BYTES_MAX = 255
TOPICS_MAX = 10_000


class GroupService:
    """Consumer groups of one broker. Thread-safe; only ``commit`` waits (for the log)."""

    def __init__(
        self,
        *,
        leadership: Callable[[], tuple[bool, int | None, int]],
        partitions: Callable[[str], int | None],
        committed: Callable[[str], Mapping[str, Mapping[int, int]]],
        group_names: Callable[[], Sequence[str]],
        submit: Callable[[bytes], Reply],
        clock: Callable[[], float],
    ) -> None:
        """``leadership()``: (ready leader?, leader's replica number, term), as ``whoami`` answers.

        ``partitions(topic)``: how many, None for an unknown topic. ``committed(group)``: its offsets
        of all topics; ``group_names()``: groups that have any. ``submit``: as the actor's call.
        """
        self._leadership, self._partitions, self._committed = leadership, partitions, committed
        self._group_names, self._submit, self._clock = group_names, submit, clock
        self._lock = threading.Lock()
        self._coordinator = GroupCoordinator()

    @classmethod
    def over(cls, service: BrokerService) -> Self:
        """The consumer groups of a replica, by its own answers."""
        return cls(
            leadership=service.whoami,
            partitions=service.partition_count,
            committed=service.group_offsets,
            group_names=service.group_names,
            submit=service.submit,
            clock=time.monotonic,
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
        size = len(group.encode())
        if not 0 < size <= GROUP_NAME_BYTES_MAX:
            return "refused", f"a group's name has 1 to {GROUP_NAME_BYTES_MAX} bytes, not {size}"
        problem = _member_problem(member, topics, owned)
        if problem is not None:
            return "refused", problem
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
        """``("ok",)``, known or not."""
        return self._led(lambda coordinator, now: coordinator.leave(group, member))

    def commit(
        self, group: str, member: str, generation: int, offsets: Mapping[str, Mapping[int, int]]
    ) -> Reply:
        """``("ok",)`` once replicated; ``("stale", text)``; ``("unknown_topic", name)``; else as submit."""

        def check(coordinator: GroupCoordinator, now: float) -> Reply:
            wanted = [(topic, partition) for topic, by in offsets.items() for partition in by]
            refusal = coordinator.check_commit(group, member, generation, wanted, now)
            return ("ok",) if refusal is None else ("stale", refusal)

        checked = self._led(check)
        if checked[0] != "ok" or not offsets:
            return checked
        topics = list(offsets)
        answer = self._submit(b"".join(ops.group_offsets(group, topic, offsets[topic]) for topic in topics))
        if answer[0] != "ok":
            return answer
        for topic, result in zip(topics, answer[1], strict=True):
            if result[0] in (ResultCode.UNKNOWN_TOPIC, ResultCode.BAD_PARTITION):
                return "unknown_topic", topic
            if result[0] not in (ResultCode.OK, ResultCode.DUPLICATE):
                return "refused", f"offsets of {topic!r} were refused: {ResultCode(result[0]).name}"
        return ("ok",)

    def names(self) -> Reply:
        """``("ok", [name, ...])``: groups with members or with offsets."""

        def every_name(coordinator: GroupCoordinator, now: float) -> Reply:
            coordinator.expire(now)
            return "ok", sorted({*coordinator.names(), *self._group_names()})

        return self._led(every_name)

    def describe(self, group: str) -> Reply:
        """``("ok", members, {topic: {partition: next_offset}})``; members as the coordinator describes."""
        offsets = self._committed(group)

        def members(coordinator: GroupCoordinator, now: float) -> Reply:
            coordinator.expire(now)
            return "ok", coordinator.describe(group, now), {t: dict(by) for t, by in offsets.items()}

        return self._led(members)

    def _led(self, do: Callable[[GroupCoordinator, float], Any]) -> Reply:
        """Runs ``do`` under the lock if this replica leads; else ``("not_leader", leader, term)``."""
        ready, leader, term = self._leadership()
        if not ready:
            return "not_leader", leader, term
        with self._lock:
            now = self._clock()
            if not self._coordinator.lead(term, now):
                return "not_leader", None, term
            answer: Reply = do(self._coordinator, now)
            return answer


def _member_problem(member: Any, topics: Any, owned: Any) -> str | None:
    """What is wrong with what a member says of itself: it came over the network, with any type."""
    if not isinstance(member, str) or not 0 < len(member) <= GROUP_NAME_BYTES_MAX:
        return f"a member's name is text of 1 to {GROUP_NAME_BYTES_MAX} characters"
    if not 0 < len(topics) <= TOPICS_MAX or not all(isinstance(topic, str) for topic in topics):
        return f"a member reads 1 to {TOPICS_MAX} topics, named by text"
    if not all(isinstance(topic, str) and type(number) is int for topic, number in owned):
        return "what a member owns are pairs of a topic and the number of a partition"
    return None
