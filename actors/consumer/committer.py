"""Committing a group's offsets, through fail-overs, and never as a zombie (a member that has been replaced).

After a fail-over the new leader knows no members, so it refuses a commit at first. The consumer then joins
again, stating what it reads. It repeats the commit only if the coordinator confirms that no other member was
given those partitions in between; otherwise the commit is a zombie's, and the application gets StaleMember,
as it does if the consumer has joined again on its own, and lost them before.

A commit must not arrive late either, after a newer one, and move the group's offset back. So a consumer makes
its commits one after the other. And if a call was sent again without an answer to the first sending, that
copy may still be on its way: the consumer then joins again before its next commit, since the coordinator
refuses what comes under an old generation.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from escrowmq.actors.client.consumer_groups import (
    GroupCallRefused,
    MembershipStale,
    TopicMissing,
    TopicPartition,
    coordinator_group,
)
from escrowmq.actors.client.router import Router, result_of
from escrowmq.actors.consumer.membership_thread import Membership, MembershipThread
from escrowmq.actors.consumer.offsets import OffsetReader
from escrowmq.actors.consumer.positions import PartitionState, Positions
from escrowmq.actors.consumer.record_drain import Redelivery
from escrowmq.actors.consumer.statistics import Counted
from escrowmq.replication.errors import (
    InvalidMessage,
    OffsetOutOfRange,
    StaleMember,
    Unavailable,
    UnknownTopic,
)

#: Joining again recovers from a fail-over; a member refused this often has lost its membership for good.
ATTEMPTS_MAX = 3


class Committer:
    """Commits of one consumer. Blocking; safe to call from any thread."""

    def __init__(
        self,
        router: Router,
        membership_thread: MembershipThread,
        membership: Membership,
        positions: Positions,
        redelivery: Redelivery,
        offsets: OffsetReader,
        condition: threading.Condition,
        timeout_s: float,
        counted: Counted | None = None,
    ) -> None:
        self._router, self._membership_thread, self._membership = router, membership_thread, membership
        self._positions, self._redelivery, self._condition = positions, redelivery, condition
        self._offsets, self._counted = offsets, counted or Counted()
        self._timeout_s = timeout_s
        self._turn = threading.Lock()
        #: The join under whose generation copies of a commit may be on their way.
        self._copies_of_join: int | None = None

    def commit(
        self,
        offsets: Mapping[TopicPartition, int] | None,
        attempts: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """See :meth:`Consumer.commit`. ``attempts``: how often the messages at these offsets have failed, for
        all of them or for none."""
        deadline = self._router.clock() + self._timeout_s
        if not self._turn.acquire(timeout=min(self._timeout_s, threading.TIMEOUT_MAX)):
            raise Unavailable("another commit of this consumer takes too long", 1.0)
        try:
            self._commit(offsets, attempts or {}, deadline)
        finally:
            self._turn.release()

    def _commit(
        self,
        offsets: Mapping[TopicPartition, int] | None,
        attempts: Mapping[TopicPartition, int],
        deadline: float,
    ) -> None:
        with self._condition:
            self._membership.check_not_fenced()
            wanted = self._delivered() if offsets is None else self._explicit(offsets)
            if not attempts and any(state.failed.at(offset) for state, offset in wanted.items()):
                attempts = {state.tp: state.failed.at(offset) for state, offset in wanted.items()}
        if not wanted:
            return
        self._check_ends(wanted, deadline)
        for _ in range(ATTEMPTS_MAX):
            with self._condition:
                joins, generation = self._membership.joins, self._membership.generation
                self._check_held(wanted, "partitions were lost since they were read")
            if joins == self._copies_of_join:
                refusal: str | None = "an earlier commit of this consumer may be on its way"
            else:
                refusal = self._send(wanted, attempts, joins, generation, deadline)
            if refusal is None:
                with self._condition:
                    for state, offset in wanted.items():
                        state.moved_to(offset)
                now = self._router.clock()
                self._counted.commits += 1
                self._counted.commit_latencies.observe(now - deadline + self._timeout_s, now)
                return
            self._rejoin(wanted, joins, refusal, deadline)
        raise StaleMember(f"{refusal}; poll again to join")

    def _delivered(self) -> dict[PartitionState, int]:
        """What poll has returned since the last commit, up to the first record that was nacked and waits."""
        wanted: dict[PartitionState, int] = {}
        for state in self._positions.states():
            if state.position is not None:
                floor = self._redelivery.floor(state.tp)
                offset = state.position if floor is None else min(floor, state.position)
                if offset != state.committed:
                    wanted[state] = offset
        return wanted

    def _explicit(self, offsets: Mapping[TopicPartition, int]) -> dict[PartitionState, int]:
        wanted: dict[PartitionState, int] = {}
        for tp, offset in offsets.items():
            state = self._positions.get(tp)
            if state is None:
                raise StaleMember(f"{tp} is not assigned to this consumer now, so it cannot commit it")
            wanted[state] = offset
        return wanted

    def _check_ends(self, wanted: Mapping[PartitionState, int], deadline: float) -> None:
        """Refuses an offset beyond a partition's end, which would make the group skip what comes next. A
        consumer that commits what it has read stays below the end that its last fetch reported; for anything
        else the leader is asked."""
        beyond = {state.tp: offset for state, offset in wanted.items() if offset > state.log_end}
        if not beyond:
            return
        left_s = max(deadline - self._router.clock(), 0.001)
        for tp, bounds in self._offsets.bounds(beyond, left_s).items():
            if isinstance(bounds, UnknownTopic):
                raise bounds
            if beyond[tp] > bounds[1]:
                raise OffsetOutOfRange(*tp, beyond[tp], *bounds)

    def _send(
        self,
        wanted: Mapping[PartitionState, int],
        attempts: Mapping[TopicPartition, int],
        joins: int,
        generation: int,
        deadline: float,
    ) -> str | None:
        """None when the commit is durable; otherwise why the coordinator refused this member."""
        member = self._membership
        by_topic = _by_topic({state.tp: offset for state, offset in wanted.items()})
        told = (None, _by_topic(attempts)) if attempts else ()
        gid = coordinator_group(member.group, self._router.info.groups)
        left_s = max(deadline - self._router.clock(), 0.001)

        def repeated() -> None:
            self._copies_of_join = joins

        call = self._router.leader_call(
            *(gid, "commit_offsets", member.group, member.member, generation, by_topic, *told),
            timeout_s=left_s,
            repeated=repeated,
        )
        answer: MembershipStale | TopicMissing | GroupCallRefused | None = result_of(call, left_s)
        if answer is None:
            return None
        if isinstance(answer, MembershipStale):
            return answer.reason
        if isinstance(answer, TopicMissing):
            raise UnknownTopic(answer.topic)
        raise answer.error(member.group, InvalidMessage(f"the offsets were refused: {answer.reason}"))

    def _rejoin(
        self, wanted: Mapping[PartitionState, int], joins: int, refusal: str, deadline: float
    ) -> None:
        """Joins again; returns if this member still has all of ``wanted``, otherwise raises StaleMember."""
        member = self._membership
        with self._condition:
            if member.joins == joins:
                member.on_stale()
                self._membership_thread.wake(heartbeat=True)
            while member.joins == joins and not member.reads_nothing and not member.idle:
                member.check_not_fenced()
                left_s = deadline - self._router.clock()
                if left_s <= 0:
                    raise Unavailable(f"joining group {member.group!r} again takes too long", 1.0)
                self._condition.wait(left_s)
            self._check_held(wanted, refusal)

    def _check_held(self, wanted: Mapping[PartitionState, int], reason: str) -> None:
        """Raises StaleMember if this member has lost any of ``wanted`` since it was read, even if it has been
        given the same partition again: others may have read on in between."""
        member = self._membership
        same = all(self._positions.get(state.tp) is state for state in wanted)
        if member.idle or not same or not member.still_holds(frozenset(state.tp for state in wanted)):
            raise StaleMember(f"{reason}; what was not committed is delivered again to its new reader")


def _by_topic(numbers: Mapping[TopicPartition, int]) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for (topic, partition), number in numbers.items():
        found.setdefault(topic, {})[partition] = number
    return found
