"""Planted faults in delayed messages: when they are released, what is cancelled, what a restart finds."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from escrowmq.replication.format.codec import Op
from escrowmq.replication.format.timer_ops import Cancel
from escrowmq.replication.model import NO_ID, ResultCode
from escrowmq.replication.raft.replicator import GroupClock
from escrowmq.replication.replica import checkpoints
from escrowmq.replication.replica.compaction import Compaction
from escrowmq.replication.replica.releases import Releases, Timing
from escrowmq.replication.replica.replica import GroupTime
from escrowmq.replication.state import timer_operations
from escrowmq.replication.state.dedup import ProducerMemory
from escrowmq.replication.state.open_tx import OpenTx
from escrowmq.replication.state.timer_operations import TimerOperations
from escrowmq.replication.state.timers import TimerCounts, Timers, records_of
from escrowmq.replication.timers import sealed_file
from escrowmq.replication.timers.record import FIRST_KEY, living
from tests.controls.planting import plant
from tests.sim.clients import delayed

LOST = ("schedule-lost", "timers-differ", "CorruptLog")


def timed(patch: pytest.MonkeyPatch) -> None:
    """There are clients that use delayed messages."""
    patch.setattr(delayed, "SHARE", 1.0)


def merging_eagerly(patch: pytest.MonkeyPatch) -> None:
    """Also, any two files are merged as soon as there are two, the newest first."""
    timed(patch)
    patch.setattr(checkpoints, "choose_timers", lambda files, *_: list(files[-2:]) if len(files) > 1 else [])


def created_again(patch: pytest.MonkeyPatch) -> None:
    """Also, their topic is deleted and created again all the time."""
    timed(patch)
    patch.setitem(delayed.RECREATED, "share", 1.0)


@plant("released-early", "early", "schedule-lost", "late", conditions=timed, start=18)
def released_early(patch: pytest.MonkeyPatch) -> None:
    """A leader releases messages 50 ms before their time."""
    due = Releases.due
    patch.setattr(Releases, "due", lambda self, now_ms, **how: due(self, now_ms + 50, **how))


@plant("delay-from-prepare", "early", "late", "cancel-lied", conditions=timed, start=9)
def delay_from_prepare(patch: pytest.MonkeyPatch) -> None:
    """A delay in a transaction is counted from its PREPARE and not from its COMMIT."""

    def records(self: Releases, app: str, tx_id: str, record: OpenTx, now_ms: int) -> list[bytes]:
        return list(records_of(record.timers, delayed.owner_of(app, tx_id), record.prepared_ms))

    patch.setattr(Releases, "records", records)


@plant("released-past-the-coming", *LOST, conditions=timed, start=13)
def released_past_the_coming(patch: pytest.MonkeyPatch) -> None:
    """A release may pass the time of a message whose entry is proposed and not applied."""
    patch.setattr(Releases, "coming", lambda self, timing, earliest_ms: None)


@plant("released-again", "schedule-duplicate", "unbounded", *LOST, conditions=timed, start=16)
def released_again(patch: pytest.MonkeyPatch) -> None:
    """A leader begins the next release before the one before it is applied."""
    due = Releases.due

    def again(self: Releases, now_ms: int, **how: Any) -> list[bytes]:
        self._releasing = b""
        return due(self, now_ms, **how)

    patch.setattr(Releases, "due", again)


@plant(
    "cancelled-while-released",
    "cancelled-delivered",
    "unbounded",
    "timers-differ",
    "CorruptLog",
    conditions=timed,
    start=9,
)
def cancelled_while_released(patch: pytest.MonkeyPatch) -> None:
    """A message can be cancelled while its release is under way."""
    cancel = Releases.cancel

    def careless(self: Releases, *args: Any) -> Any:
        releasing, self._releasing = self._releasing, b""
        try:
            return cancel(self, *args)
        finally:
            self._releasing = releasing

    patch.setattr(Releases, "cancel", careless)


@plant(
    "released-while-cancelled",
    "cancelled-delivered",
    "unbounded",
    "timers-differ",
    "CorruptLog",
    conditions=timed,
    start=13,
)
def released_while_cancelled(patch: pytest.MonkeyPatch) -> None:
    """A release contains messages whose CANCEL is under way."""
    due = Releases.due

    def careless(self: Releases, now_ms: int, **how: Any) -> list[bytes]:
        cancelling, self._cancelling = self._cancelling, Counter()
        try:
            return due(self, now_ms, **how)
        finally:
            self._cancelling = cancelling

    patch.setattr(Releases, "due", careless)


@plant("cancelled-in-secret", "cancel-lied", conditions=timed, start=13)
def cancelled_in_secret(patch: pytest.MonkeyPatch) -> None:
    """A cancellation is carried out and answered as too late."""
    cancel = Releases.cancel

    def secret(self: Releases, meta: Cancel, deleting: Counter[Any], timing: Timing) -> Any:
        frame, _ = cancel(self, meta, deleting, timing)
        late = [[at, int(ResultCode.UNKNOWN_TIMER), None] for at in range(len(meta.keys) // 3)]
        return frame, [int(ResultCode.PARTIAL), late]

    patch.setattr(Releases, "cancel", secret)


@plant(
    "cursor-not-in-the-snapshot",
    "state-differs",
    "schedule-duplicate",
    *LOST,
    conditions=timed,
    within=40,
    start=9,
)
def cursor_not_in_the_snapshot(patch: pytest.MonkeyPatch) -> None:
    """A replica that begins with a snapshot has the cursor of an empty one."""
    restore = Timers.restore
    patch.setattr(Timers, "restore", lambda self, released, counts: restore(self, FIRST_KEY, counts))


@plant("schedules-repeated", "schedule-duplicate", "early", "unbounded", conditions=timed, start=13)
def schedules_repeated(patch: pytest.MonkeyPatch) -> None:
    """A batch of scheduled messages that is sent again is stored again."""
    scheduled = TimerOperations.scheduled

    def again(self: TimerOperations, index: int, now_ms: int, op: Op) -> list[Any]:
        meta = op.meta
        partition = self._topics.find(meta.topic, meta.partition)
        key = (meta.producer, getattr(partition, "slot", -1))
        known = ProducerMemory.get(self._producers, key)
        seq = 0 if known is None else known[1]
        return scheduled(self, index, now_ms, op._replace(meta=replace(meta, seq=seq)))

    patch.setattr(TimerOperations, "scheduled", again)


@plant(
    "tombstones-lost-by-merges",
    "cancelled-delivered",
    "state-differs",
    "timers-differ",
    "CorruptLog",
    conditions=merging_eagerly,
    often={"snapshot": 30, "roll": 30},
    within=40,
    start=14,
    passing_over=["AssertionError"],  # a merge that leaves nothing of its files stops the replica
)
def tombstones_lost_by_merges(patch: pytest.MonkeyPatch) -> None:
    """A merge leaves out tombstones, though what they kill may be in a file that is not merged with it."""
    patch.setattr(sealed_file, "settled", living)


@plant("time-stands-still", "late", conditions=timed, often={"leader-ahead": 20, "clock-wall": 20}, start=21)
def time_stands_still(patch: pytest.MonkeyPatch) -> None:
    """The group's time waits until the clocks have caught up with the last entry."""

    def waits(self: GroupTime, clock_ms: int | None, read_ms: int) -> int:
        self.ms = max(self.ms, clock_ms or 0, self._state.now_ms)
        return self.ms

    patch.setattr(GroupTime, "_go_on", waits)


@plant("release-remembered", "late", *LOST, conditions=timed, start=1, chaos_s=12.0, often={"partition": 120})
def release_remembered(patch: pytest.MonkeyPatch) -> None:
    """A leader that leads again still waits for the release that it had begun the time before."""
    forget = Releases.forget

    def careless(self: Releases) -> None:
        releasing = self._releasing
        forget(self)
        self._releasing = releasing

    patch.setattr(Releases, "forget", careless)


@plant("waiting-for-a-deleted-topic", "timers-differ", "unbounded", conditions=created_again, start=9)
def waiting_for_a_deleted_topic(patch: pytest.MonkeyPatch) -> None:
    """What waits for a topic is still counted when that is deleted."""
    patch.setattr(TimerCounts, "forget", lambda self, slots: None)


@plant(
    "scheduled-for-the-namesake",
    "namesake",
    conditions=created_again,
    start=13,
    passing_over=["unexpected-answer"],  # the topic does not know the batch before
)
def scheduled_for_the_namesake(patch: pytest.MonkeyPatch) -> None:
    """A batch with delayed messages is stored in a topic that was created later."""
    scheduled = TimerOperations.scheduled

    def anywhere(self: TimerOperations, index: int, now_ms: int, op: Op) -> list[Any]:
        return scheduled(self, index, now_ms, op._replace(meta=replace(op.meta, topic_id=NO_ID)))

    patch.setattr(TimerOperations, "scheduled", anywhere)


@plant(
    "carried-without-the-rule",
    "schedule-duplicate",
    "cancelled-delivered",
    "timers-differ",
    "unbounded",
    conditions=timed,
    start=9,
)
def carried_without_the_rule(patch: pytest.MonkeyPatch) -> None:
    """What is carried stays where it was, too."""
    patch.setattr(timer_operations, "tombstone", lambda key, log_index, copies: b"")


@plant(
    "carried-against-a-cancellation",
    "cancelled-delivered",
    "timers-differ",
    "CorruptLog",
    conditions=timed,
    start=10,
    within=40,
)
def carried_against_a_cancellation(patch: pytest.MonkeyPatch) -> None:
    """A message can be cancelled while it is being carried, and carried while it is being cancelled."""
    patch.setattr(Compaction, "waits", lambda self, submission: False)
    patch.setattr(Releases, "is_cancelling", lambda self, key: False)


@plant("carried-past-a-release", "schedule-duplicate", *LOST, conditions=timed, start=309, within=40)
def carried_past_a_release(patch: pytest.MonkeyPatch) -> None:
    """A message can be released while it is being carried."""
    write = Compaction.write

    def careless(self: Compaction, *args: Any) -> Any:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Releases, "coming", lambda self, timing, earliest_ms: None)
            return write(self, *args)

    patch.setattr(Compaction, "write", careless)


@plant("own-clock", "early", conditions=timed, start=11, within=60, often={"clock-ahead": 12})
def own_clock(patch: pytest.MonkeyPatch) -> None:
    """A leader writes the time of its own clock into entries, however far ahead of the others' that is."""
    patch.setattr(GroupClock, "lower_median_ms", lambda self, own_ms: own_ms)


@plant("own-clock-of-a-follower", "early", conditions=timed, start=10, within=60, often={"clock-wall": 12})
def own_clock_of_a_follower(patch: pytest.MonkeyPatch) -> None:
    """A new leader goes on from the time of the clock that it had as a follower."""
    at = GroupTime.at

    def kept(self: GroupTime, own_ms: int) -> int:
        told = at(self, own_ms)
        self.of_the_group = self.clocks is not None
        self.ms = max(self.ms, told)
        return told

    patch.setattr(GroupTime, "at", kept)
