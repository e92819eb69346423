"""Planted faults in share groups: what is final, what is leased, what becomes of a failure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from escrowmq.replication.format import forwarded
from escrowmq.replication.replica import copies as of_failures
from escrowmq.replication.replica.copies import Failures
from escrowmq.replication.replica.share_admission import ShareAdmission
from escrowmq.replication.sharing.window import Window
from escrowmq.replication.state.machine import GroupOperations
from escrowmq.replication.state.shares import Shares
from escrowmq.replication.state.topics import Partition
from tests.controls.planting import plant
from tests.sim.sharing import groups


def shared(patch: pytest.MonkeyPatch) -> None:
    """There are share groups, and members that use them."""
    patch.setattr(groups, "SHARE", 1.0)


@plant("acks-not-in-the-snapshot", "acked-again", "state-differs", "CorruptLog", conditions=shared, start=10)
def acks_not_in_the_snapshot(patch: pytest.MonkeyPatch) -> None:
    """A replica that begins with a snapshot knows the starts of share groups, and not what is final above."""
    restore = Shares.restore

    def without(self: Shares, group: str, partition: Any, start: int, expired: int, flat: list[int]) -> None:
        restore(self, group, partition, start, expired, [])

    patch.setattr(Shares, "restore", without)


@plant(
    "latest-twice",
    "stuck",
    "state-differs",
    "dead-letter-lost",
    "acked-again",
    "over-attempts",
    conditions=shared,
    start=5,
)
def latest_twice(patch: pytest.MonkeyPatch) -> None:
    """A group that begins with a partition for the second time begins there anew."""
    begin = GroupOperations._begin

    def begin_anew(self: GroupOperations, group: str, partition: Partition, create: str) -> Any:
        self._shares.pairs.pop((group, partition.slot), None)
        return begin(self, group, partition, create)

    patch.setattr(GroupOperations, "_begin", begin_anew)


@plant("attempt-not-carried-on", "over-attempts", "retry-early", "retried-twice", conditions=shared, start=5)
def attempt_not_carried_on(patch: pytest.MonkeyPatch) -> None:
    """A message that comes back is at its first attempt again."""
    history = forwarded.history
    patch.setattr(of_failures, "history", lambda headers: history(headers)._replace(attempt=1))


@plant("dead-at-once", "dead-early", conditions=shared, start=7)
def dead_at_once(patch: pytest.MonkeyPatch) -> None:
    """A message becomes a dead letter one attempt too early."""
    comes_back = Failures._comes_back
    early = staticmethod(
        lambda settings, past, *rest: comes_back(settings, past._replace(attempt=past.attempt + 1), *rest)
    )
    patch.setattr(Failures, "_comes_back", early)


@plant("one-attempt-too-many", "over-attempts", conditions=shared, start=10)
def one_attempt_too_many(patch: pytest.MonkeyPatch) -> None:
    """A message comes back once more often than its group's settings say."""
    comes_back = Failures._comes_back
    late = staticmethod(
        lambda settings, past, *rest: comes_back(settings, past._replace(attempt=past.attempt - 1), *rest)
    )
    patch.setattr(Failures, "_comes_back", late)


@plant("back-at-half-time", "retry-early", conditions=shared, start=5)
def back_at_half_time(patch: pytest.MonkeyPatch) -> None:
    """A message comes back after half of its pause."""
    time_ms = of_failures._time_ms

    def half(settings: Any, past: Any, delay_ms: int, now_ms: int) -> int:
        found = time_ms(settings, past, delay_ms, now_ms)
        return now_ms + (found - now_ms) // 2 if found else 0

    patch.setattr(of_failures, "_time_ms", half)


@plant("failure-without-a-copy", "dead-letter-lost", conditions=shared, start=6)
def failure_without_a_copy(patch: pytest.MonkeyPatch) -> None:
    """The original of a message that has failed becomes final, and no copy of it is written."""
    patch.setattr(ShareAdmission, "_forward", lambda self, writer, targets: None)


@plant(
    "nack-against-what-is-under-way",
    "retried-twice",
    "redriven-twice",
    "over-attempts",
    conditions=shared,
    start=9,
)
def nack_against_what_is_under_way(patch: pytest.MonkeyPatch) -> None:
    """A failure is carried out although an ack or a failure of that message is under way."""
    patch.setattr(ShareAdmission, "_is_settled", lambda self, key, pair, offset: pair.has(offset))


@plant("leases-forgotten", "double-lease", conditions=shared, start=4)
def leases_forgotten(patch: pytest.MonkeyPatch) -> None:
    """What a call has leased may be handed out to the next one."""
    hold = Window._hold

    def careless(self: Window, piece: Any) -> None:
        if piece.grant.until_ms is None or piece.grant.doomed:
            hold(self, piece)
        else:
            self._free(piece.first, piece.last, piece.expiries)

    patch.setattr(Window, "_hold", careless)


@plant("lease-lost-with-an-ack", "double-lease", conditions=shared, within=40, start=9)
def lease_lost_with_an_ack(patch: pytest.MonkeyPatch) -> None:
    """An ack or a failure that comes to nothing ends the lease of whoever holds the message."""
    unsettled = Window.unsettled

    def freed(self: Window, first: int, last: int) -> Sequence[Any]:
        for piece in self._held_in(first, last):
            piece.before = None
        return unsettled(self, first, last)

    patch.setattr(Window, "unsettled", freed)
