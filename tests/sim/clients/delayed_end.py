"""What delayed messages must have become, in the calm and at the end.

- ``early``: readable before its time, or though its transaction was rolled back;
- ``late``: not released a second after its time, although all replicas are well and agree on a leader; or the
  group's time stands still;
- ``schedule-lost``: not readable a second after its time, in the end;
- ``schedule-duplicate``: readable twice;
- ``cancelled-delivered``: readable, though a cancellation was answered as done;
- ``cancel-lied``: not readable, though all cancellations were answered as too late;
- ``namesake``: readable in a topic that was created after the one that it was sent to was deleted;
- ``timers-differ``: a replica's records that wait are not as many as its state says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from escrowmq.replication.format.codec import decode_rows
from escrowmq.replication.model import NO_ID
from escrowmq.replication.timers.record import TIME_MAX, deliver_ms_of
from tests.history.events import identify
from tests.sim.clients.desk import Desk
from tests.sim.environment.world import Violation
from tests.sim.group.broker_app import BrokerApplication
from tests.sim.group.replica import SimReplica

LATE_MS = 1_000
WATCH_S = 0.1
QUIET_S = 1.0  # a leader has so much time to release what became due before it
SLOWEST = 0.4  # of the world's time: the group's time, under a leader whose clock is behind

TopicPartition = tuple[str, int]


@dataclass(eq=False, slots=True)
class Item:
    """One message. ``time_ms``: as it was sent, see format/timer_ops.py. ``due_ms``: known once it is
    effective. ``life``: the id of the topic that it was sent to."""

    id: str
    partition: TopicPartition
    owner: int
    ordinal: int
    time_ms: int
    life: int = NO_ID
    due_ms: int | None = None
    effective: bool = False  # acknowledged, or its transaction's commit is
    rolled_back: bool = False
    cancelled: bool = False
    told_too_late: bool = False
    cancelling: int = 0  # cancellations that wait for their answers

    def counts_from(self, now_ms: int) -> None:
        """It became effective in an entry of that time."""
        self.effective = True
        self.due_ms = self.time_ms if self.time_ms >= 0 else now_ms - self.time_ms

    def is_due(self, now_ms: int) -> bool:
        """Whether it has to be readable at that time of the group."""
        waits = self.effective and not self.cancelled and not self.cancelling
        return waits and (self.due_ms or 0) + LATE_MS <= now_ms


def judge(item: Item, found: Sequence[tuple[TopicPartition, int]], now_ms: int, life: int = NO_ID) -> None:
    """Compare a message with where and since when it is readable. ``life``: the id of the topic there."""
    if item.life != life:
        if found:
            raise Violation(f"{item} is readable in the topic {life}: {found}", "namesake")
        return
    if len(found) > 1:
        raise Violation(f"{item} is readable twice: {found}", "schedule-duplicate")
    if found:
        tp, time_ms = found[0]
        if tp != item.partition:
            raise Violation(f"{item} is in {tp}", "wrong-place")
        if item.rolled_back or (item.due_ms is not None and time_ms < item.due_ms):
            raise Violation(f"{item} was readable at {time_ms}", "early")
        if item.cancelled:
            raise Violation(f"{item} was readable at {time_ms}", "cancelled-delivered")
    elif item.effective and not item.cancelled and not item.cancelling:
        if item.told_too_late:
            raise Violation(f"{item} is not readable at {now_ms}", "cancel-lied")
        if item.is_due(now_ms):
            raise Violation(f"{item} is not readable at {now_ms}", "schedule-lost")


def compare(app: BrokerApplication) -> None:
    """A replica's store with its counts."""
    timers = app.replica.state.timers
    records, _ = timers.store.listed(timers.released, TIME_MAX, 1 << 30)
    slots = app.replica.state.topics.slots
    live = [record for record in records if int.from_bytes(record[8:12], "big") in slots]
    if len(live) != timers.counts.total:
        text = f"{timers.counts.total} messages wait, and {len(live)} records are there"
        raise Violation(text, "timers-differ")


def readable(app: BrokerApplication, tp: TopicPartition) -> list[tuple[str, int]] | None:
    """Ids and times of all that is readable; None: the replica has ended."""
    found: list[tuple[str, int]] = []
    while True:
        result = app.fetch(*tp, len(found))
        if result is None:
            return None
        before, at = len(found), 0
        for base, count, time_ms, size in result[5]:
            rows = decode_rows(result[6][at : at + size], count)
            at += size
            if base + count > len(found):
                found += [(identify(row[1]), time_ms) for row in rows[max(len(found) - base, 0) :]]
        if len(found) == before:
            return found


def _is_ill(replica: SimReplica) -> bool:
    """Whether it is still learning, its disk hangs, or its log is damaged. If it leads, it will hand over."""
    node, journal = replica.node, replica.journal
    hangs = journal.durable_index < node.commit_index
    return node.rejoining or hangs or journal.damaged_after(node.applied_index) is not None


class Punctual:
    """Watches, from the calm on, that each message is released soon after its time."""

    def __init__(self, desk: Desk, topic: str, items: Sequence[Item]) -> None:
        self._desk, self._topic, self._items = desk, topic, items
        self._leader: tuple[str, int, int] | None = None  # name, process and term
        self._since_s = 0.0
        self._since_ms = 0
        self._desk.later(WATCH_S, self._look)

    def _look(self) -> None:
        self._desk.later(WATCH_S, self._look)
        cluster, now_s = self._desk.cluster, self._desk.world.elapsed_s
        replicas = self._desk.replicas()
        leaders = [(replica, app) for replica, app in replicas if replica.node.ready]
        well = len(replicas) == len(cluster.replicas) and not any(_is_ill(r) for r, _ in replicas)
        if not cluster.calm or cluster.network.is_late or not well or len(leaders) != 1:
            self._leader = None
            return
        replica, app = leaders[0]
        now_ms = app.replica.group_ms(int(app.now_s * 1000))
        leader = replica.name, replica.incarnation, replica.node.term
        if leader != self._leader:
            self._leader, self._since_s, self._since_ms = leader, now_s, now_ms
        elif (quiet_s := now_s - self._since_s) >= QUIET_S:
            if now_ms - self._since_ms < SLOWEST * 1000 * quiet_s - 2_000 * WATCH_S:
                text = f"{now_ms - self._since_ms} ms of the group's time have passed in {quiet_s:.1f} s"
                raise Violation(text, "late")
            self._judge(app, now_ms)

    def _judge(self, app: BrokerApplication, now_ms: int) -> None:
        reached_ms = deliver_ms_of(app.replica.state.timers.released)
        known = app.replica.state.topics.topics.get(self._topic)
        if known is None:
            return
        for item in self._items:
            if item.life == known.info.topic_id and item.is_due(now_ms) and reached_ms < (item.due_ms or 0):
                raise Violation(f"{item} is not released at {now_ms}, only up to {reached_ms}", "late")
