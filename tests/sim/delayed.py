"""Clients that schedule messages, plain and in transactions, and cancel some: nothing may be readable early,
twice, or after it was cancelled; nothing may get lost.

They use a topic and an app of their own. What they were told is compared with what is readable at the end:

- ``early``: readable before its time, or though its transaction was rolled back; or released in an entry
  whose time the clocks of a majority have not reached (clock_bound.py);
- ``schedule-lost``: not readable a second after its time, in the calm;
- ``schedule-duplicate``: readable twice;
- ``cancelled-delivered``: readable, though a cancellation was answered as done;
- ``cancel-lied``: not readable, though all cancellations were answered as too late;
- ``timers-differ``: a replica's records that wait are not as many as its state says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from escrowmq.actors.admin.topic_creation import topic_settings
from escrowmq.replication.format import ops, timer_ops
from escrowmq.replication.format.codec import Op, OpType, PrepareExtra, decode_rows, encode_row
from escrowmq.replication.format.timer_ops import LEVEL_OF_TIMERS, owner_of
from escrowmq.replication.model import ResultCode
from escrowmq.replication.timers.record import TIME_MAX
from tests.history.events import body, identify
from tests.sim.broker_app import BrokerApplication
from tests.sim.clock_bound import ClockBound
from tests.sim.desk import Desk
from tests.sim.workload import Cluster
from tests.sim.world import Violation

APP, TOPIC = "delayed", "later"
PLACES = ((TOPIC, 0), (TOPIC, 1))
SHARE = 0.7  # of schedules with such clients, where the format level allows it
PAUSE_S = 0.08  # between two actions, on average
INSTANCES = 3
#: Delays and times from now, in ms. Some are past, some come after the end.
DELAYS_MS = (0, 1, 1, 30, 100, 100, 400, 400, 1_500, 4_000, 1_000_000)
AHEAD_MS = (-100_000, -50, 0, 5, 20, 50, 200, 1_000, 3_000, 1_000_000)
SIZES = (1, 1, 30, 60, 300)
CANCELLED = 0.3  # share of actions that cancel
IN_TRANSACTIONS = 0.4
ROLLED_BACK = 0.25
AT_THE_MOMENT, SOON_MS = 0.7, 1_500  # share of batches of which one is cancelled as it becomes due
CARRIED = 0.6  # share of times to act at which the leader begins to carry, if it may
DECIDES_S = 0.4  # the longest time from the answer to a PREPARE to the decision
LATE_MS = 1_000
DONE = (ResultCode.OK, ResultCode.DUPLICATE)


@dataclass(eq=False, slots=True)
class Item:
    """One message. ``time_ms``: as it was sent, see timer_ops.py. ``due_ms``: known once it is effective."""

    id: str
    place: tuple[str, int]
    owner: int
    ordinal: int
    time_ms: int
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


@dataclass(slots=True)
class _Instance:
    name: str
    ordinals: int = 0
    sequence: Counter[tuple[str, int]] = field(default_factory=Counter)
    sending: set[tuple[str, int]] = field(default_factory=set)


class DelayedMessages:
    """The clients of one broker group."""

    def __init__(self, cluster: Cluster) -> None:
        self._desk, self._cluster = Desk(cluster, "desk-of-delayed"), cluster
        self._rng = cluster.world.stream("delayed")
        self._clocks = ClockBound(cluster)
        self._carrying = cluster.world.stream("carrying")
        self._works = self._rng.random() < SHARE
        self._instances = [_Instance(f"later{n}") for n in range(INSTANCES)]
        self._numbers = 0
        self._next_s = 0.0
        self._created = False
        self.items: list[Item] = []
        self._committed: dict[str, int] = {}  # transaction -> time of its COMMIT
        self.done: Counter[str] = Counter()

    @property
    def waiting(self) -> int:
        """Requests without an answer, and transactions without a decision."""
        return self._desk.waiting + self.done["begun"] - self.done["decided"]

    def heard(self, gid: int, index: int, now_ms: int, found: Sequence[Op]) -> None:
        """An entry is applied."""
        self._clocks.entry(index, now_ms, found)
        for op in found:
            if op.type == OpType.COMMIT and op.meta[0] == APP:
                self._committed.update(dict.fromkeys(op.meta[1], now_ms))

    # -------------------------------------------------------------- what they do

    def act(self) -> None:
        """Do one or several things, if it is time."""
        now_s = self._desk.world.elapsed_s
        self._clocks.look()
        if not self._works or now_s < self._next_s or self._cluster.calm:
            return
        self._next_s = now_s + self._rng.expovariate(1 / PAUSE_S)
        found = self._desk.any_leader()
        if found is None or found[1].replica.state.level < LEVEL_OF_TIMERS:
            return
        if not self._created:
            settings = topic_settings(len(PLACES), transaction_timeout_ms=500)
            self._created = True
            self._desk.call(ops.create_topic(TOPIC, settings), lambda results: None, lambda: True)
        now_ms = found[1].replica.state.now_ms
        if TOPIC not in found[1].replica.state.topics.topics:
            return
        if self._carrying.random() < CARRIED:
            self._carry(found[1])
        for _ in range(self._rng.choice((1, 2, 4))):
            chance = self._rng.random()
            if chance < CANCELLED:
                self._cancel(now_ms)
            elif chance < CANCELLED + IN_TRANSACTIONS:
                self._transact(now_ms)
            else:
                self._send(self._rng.choice(self._instances), now_ms)

    def _carry(self, leader: BrokerApplication) -> None:
        """What lies before some entry is to be carried. (The topics keep all that they have, so retention
        alone would never ask for it. No id is used twice, so open transactions need not be regarded.)"""
        carrying, last = leader.replica.admission.carrying, leader.applied_index
        carrying.begin(last if self._carrying.random() < 0.8 else self._carrying.randint(1, last))

    def _time(self, now_ms: int) -> int:
        if self._rng.random() < 0.5:
            return -self._rng.choice(DELAYS_MS)
        return max(now_ms + self._rng.choice(AHEAD_MS), 0)

    def _new(self, place: tuple[str, int], owner: int, ordinal: int, time_ms: int) -> tuple[Item, bytes]:
        self._numbers += 1
        item = Item(f"{APP}{self._numbers}", place, owner, ordinal, time_ms)
        self.items.append(item)
        return item, encode_row(None, body(item.id, self._rng.choice(SIZES)), None, None)

    def _send(self, by: _Instance, now_ms: int) -> None:
        """A batch of plain messages, with times or, sometimes, without."""
        place = self._rng.choice(PLACES)
        if place in by.sending:
            return
        by.sending.add(place)
        owner, first, sequence = owner_of(by.name), by.ordinals, by.sequence[place]
        count = self._rng.choice((1, 1, 2, 5))
        if self._rng.random() < 0.2:
            self._numbers += 1
            row = encode_row(None, body(f"plain{self._numbers}", 30), None, None)
            request = ops.message(*place, by.name, 0, sequence, [row])
            made: list[Item] = []
        else:
            by.ordinals += count
            pairs = [self._new(place, owner, first + n, self._time(now_ms)) for n in range(count)]
            made, rows = [item for item, _ in pairs], [row for _, row in pairs]
            times = [item.time_ms for item in made]
            request = timer_ops.scheduled(*place, by.name, 0, sequence, times, rows, owner, first, -1, 0)

        def stored(results: list[Any]) -> None:
            code, *info = results[0]
            if code not in DONE:
                raise Violation(f"batch {sequence} of {by.name} was answered {results}", "unexpected-answer")
            by.sequence[place] += 1
            by.sending.discard(place)
            for item in made:
                item.counts_from(info[0][1])
            self._cancel_in_time(made, info[0][1])
            self.done["scheduled"] += len(made)

        self._desk.call(request, stored, lambda: True)

    def _transact(self, now_ms: int) -> None:
        self.done["begun"] += 1
        tx_id = f"d{self.done['begun']}"
        owner, made, frames = owner_of(APP, tx_id), list[Item](), list[bytes]()
        for place in self._rng.sample(PLACES, self._rng.choice((1, 1, 2))):
            count = self._rng.choice((1, 1, 3))
            pairs = [self._new(place, owner, len(made) + n, self._time(now_ms)) for n in range(count)]
            rows = [row for _, row in pairs]
            new = [item for item, _ in pairs]
            sizes, txs = [len(row) for row in rows], [0] * count
            times, ordinals = [item.time_ms for item in new], [item.ordinal for item in new]
            frames.append(timer_ops.pre_scheduled(*place, txs, sizes, times, ordinals, rows, 0))
            made += new
        extra = PrepareExtra(instance=APP)
        head = ops.prepare(APP, TOPIC, [tx_id], None, 60_000, 0, [1], -1, len(frames), extra)

        def prepared(results: list[Any]) -> None:
            problem = results[0][1][0][1] if results[0][0] == ResultCode.PARTIAL else results[0][0]
            if problem not in DONE:
                raise Violation(f"the PREPARE of {tx_id} was answered {results}", "unexpected-answer")
            self._desk.later(DECIDES_S * self._rng.random(), self._decide, tx_id, made, commits)

        commits = self._rng.random() >= ROLLED_BACK
        self._desk.call(head + b"".join(frames), prepared, lambda: True)

    def _decide(self, tx_id: str, made: Sequence[Item], commits: bool) -> None:
        def decided(results: list[Any]) -> None:
            code = results[0][1][0][1] if results[0][0] == ResultCode.PARTIAL else results[0][0]
            if code == ResultCode.RETRY:
                self._desk.later(0.03, self._decide, tx_id, made, commits)
                return
            if code not in DONE:
                raise Violation(f"the decision on {tx_id} was answered {results}", "unexpected-answer")
            self.done["decided"] += 1
            for item in made:
                if commits:
                    item.counts_from(self._committed[tx_id])
                else:
                    item.rolled_back = True

        decide = ops.commit if commits else ops.rollback
        self._desk.call(decide(APP, [tx_id]), decided, lambda: True)

    def _cancel_in_time(self, made: Sequence[Item], now_ms: int) -> None:
        """Cancel one of them at about the moment when it is released."""
        soon = [item for item in made if item.due_ms is not None and 0 < item.due_ms - now_ms < SOON_MS]
        if soon and self._rng.random() < AT_THE_MOMENT:
            item = self._rng.choice(soon)
            wait_ms = (item.due_ms or 0) - now_ms + self._rng.uniform(-15, 5)
            self._desk.later(max(wait_ms, 0) / 1000, self._ask, [item])

    def _cancel(self, now_ms: int) -> None:
        """Some that wait, or are about to be released, or were just released."""
        place = self._rng.choice(PLACES)
        known = [i for i in self.items[-200:] if i.place == place and i.due_ms and i.due_ms > now_ms - 200]
        if not known:
            return
        soon = sorted(known, key=lambda item: item.due_ms or 0)[:5]
        self._ask(self._rng.sample(soon, min(len(soon), self._rng.choice((1, 1, 3)))))

    def _ask(self, chosen: Sequence[Item]) -> None:
        place = chosen[0].place
        keys = [(item.due_ms or 0, item.owner, item.ordinal) for item in chosen]
        for item in chosen:
            item.cancelling += 1

        def answered(results: list[Any]) -> None:
            code, *info = results[0]
            if code not in (ResultCode.OK, ResultCode.PARTIAL):
                raise Violation(f"a CANCEL was answered {results}", "unexpected-answer")
            late = {at: why for at, why, _ in info[0]} if info else {}
            if any(why != ResultCode.UNKNOWN_TIMER for why in late.values()):
                raise Violation(f"a CANCEL was answered {results}", "unexpected-answer")
            for at, item in enumerate(chosen):
                item.cancelling -= 1
                if at not in late:
                    item.cancelled = True
                else:
                    item.told_too_late = True
                self.done["too late" if at in late else "cancelled"] += 1

        self._desk.call(timer_ops.cancel(*place, keys, 0), answered, lambda: True)

    # -------------------------------------------------------------- at the end

    def check(self, leader: BrokerApplication, replicas: Sequence[BrokerApplication]) -> bool:
        """Compare with what is readable; False: a replica found damage, and has ended."""
        state = leader.replica.state
        if TOPIC not in state.topics.topics:
            return True
        found: dict[str, list[tuple[tuple[str, int], int]]] = {}
        for place in PLACES:
            read = _readable(leader, place)
            if read is None:
                return False
            for id, time_ms in read:
                found.setdefault(id, []).append((place, time_ms))
        now_ms = leader.replica.group_ms(leader._now_ms())
        for item in self.items:
            self._judge(item, found.get(item.id, ()), now_ms)
        for app in replicas:
            _compare(app)
        self.done["carried"] = sum(app.replica.admission.carrying.carried for app in replicas)
        self.done["delivered"] = sum(item.id in found for item in self.items)
        return True

    def _judge(self, item: Item, found: Sequence[tuple[tuple[str, int], int]], now_ms: int) -> None:
        if len(found) > 1:
            raise Violation(f"{item} is readable twice: {found}", "schedule-duplicate")
        if found:
            place, time_ms = found[0]
            if place != item.place:
                raise Violation(f"{item} is in {place}", "wrong-place")
            if item.rolled_back or (item.due_ms is not None and time_ms < item.due_ms):
                raise Violation(f"{item} was readable at {time_ms}", "early")
            if item.cancelled:
                raise Violation(f"{item} was readable at {time_ms}", "cancelled-delivered")
        elif item.effective and not item.cancelled and not item.cancelling:
            if item.told_too_late:
                raise Violation(f"{item} is not readable at {now_ms}", "cancel-lied")
            if (item.due_ms or 0) + LATE_MS <= now_ms:
                raise Violation(f"{item} is not readable at {now_ms}", "schedule-lost")


def _compare(app: BrokerApplication) -> None:
    """A replica's store with its counts."""
    timers = app.replica.state.timers
    records, _ = timers.store.listed(timers.released, TIME_MAX, 1 << 30)
    live = [
        record for record in records if int.from_bytes(record[8:12], "big") in app.replica.state.topics.slots
    ]
    if len(live) != timers.counts.total:
        text = f"{timers.counts.total} messages wait, and {len(live)} records are there"
        raise Violation(text, "timers-differ")


def _readable(app: BrokerApplication, place: tuple[str, int]) -> list[tuple[str, int]] | None:
    """Ids and times of all that is readable; None: the replica has ended."""
    found: list[tuple[str, int]] = []
    while True:
        result = app.fetch(*place, len(found))
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
