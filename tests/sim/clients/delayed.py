"""Clients that schedule messages, plain and in transactions, and cancel some: nothing may be readable early,
twice, or after it was cancelled; nothing may get lost.

They use a topic and an app of their own. In some worlds of one group an operator deletes the topic again and
again, and creates it at once: what waits for the earlier one must not reach the next one. What clients were
told is compared with what is readable at the end, see ``delayed_end.py``; what is released in an entry whose
time the clocks of a majority have not reached is ``early`` at once, see ``clock_bound.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from escrowmq.actors.admin.topic_creation import topic_settings
from escrowmq.replication.format import ops, timer_ops
from escrowmq.replication.format.codec import Op, encode_row
from escrowmq.replication.format.operation import OpType
from escrowmq.replication.format.ops import PrepareExtra
from escrowmq.replication.format.timer_ops import owner_of
from escrowmq.replication.model import NO_ID, ResultCode
from tests.history.events import body
from tests.sim.checks.clock_bound import ClockBound
from tests.sim.clients.delayed_end import Item, Punctual, compare, judge, readable
from tests.sim.clients.desk import Desk
from tests.sim.clients.topics import Topics
from tests.sim.clients.workload import Cluster
from tests.sim.environment.world import Violation
from tests.sim.group.broker_app import BrokerApplication
from tests.support.places import by_name

APP, TOPIC = "delayed", "later"
PER_GROUP = 2  # partitions, on average over the groups
SHARE = 0.7  # of schedules with such clients
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
RECREATED = {"share": 0.3}  # of the worlds of one group in which the topic is created again
LIFE_S = 2.5  # how long a topic lives there, on average
DONE = (ResultCode.OK, ResultCode.DUPLICATE)
#: What a request gets that names an earlier topic.
GONE = (ResultCode.UNKNOWN_TOPIC, ResultCode.OTHER_TOPIC)


def settings_of(groups: int) -> dict[str, dict[str, int | str]]:
    """Their topic in a world of so many groups."""
    return {TOPIC: topic_settings(PER_GROUP * groups, transaction_timeout_ms=500)}


@dataclass(slots=True)
class _Instance:
    name: str
    ordinals: int = 0
    sequence: Counter[tuple[str, int]] = field(default_factory=Counter)
    sending: set[tuple[str, int]] = field(default_factory=set)


class DelayedMessages:
    """The clients of one broker group, which has number ``gid`` of ``groups``. ``shared``: their topic, with
    several groups."""

    def __init__(self, cluster: Cluster, gid: int = 0, groups: int = 1, shared: Topics | None = None) -> None:
        self._desk, self._cluster = Desk(cluster, "desk-of-delayed"), cluster
        self._rng = cluster.world.stream(f"delayed{cluster.prefix}")
        self._clocks = ClockBound(cluster)
        self._carrying = cluster.world.stream("carrying")
        self._works = self._rng.random() < SHARE
        self._partitions = [(TOPIC, n) for n in range(PER_GROUP * groups) if by_name(TOPIC, n, groups) == gid]
        self._gid, self._shared = gid, shared
        self._instances: list[_Instance] = []
        self._numbers = self._lives = 0
        self._next_s = 0.0
        self._asked = False  # an operator is creating the topic
        self._life: int | None = None  # the topic's id; None: it is being created
        self._recreating = cluster.world.stream(f"delayed-lives{cluster.prefix}")
        self._recreates = groups == 1 and self._recreating.random() < RECREATED["share"]
        self._deleted_s = 0.0  # when the topic is to be deleted
        self.items: list[Item] = []
        self._old: list[Item] = []  # of topics that are deleted
        self._committed: dict[str, int] = {}  # transaction -> time of its COMMIT
        self.done: Counter[str] = Counter()
        self._punctual = Punctual(self._desk, TOPIC, self.items) if self._works else None

    @property
    def waiting(self) -> int:
        """Requests without an answer, and transactions without a decision."""
        return self._desk.waiting + self.done["begun"] - self.done["decided"]

    def heard(self, gid: int, index: int, now_ms: int, found: Sequence[Op]) -> None:
        """An entry is applied."""
        if gid != self._gid:
            return
        self._clocks.entry(index, now_ms, found)
        for op in found:
            if op.type == OpType.COMMIT and op.meta.app == APP:
                self._committed.update(dict.fromkeys(op.meta.tx_ids, now_ms))

    # -------------------------------------------------------------- what they do

    def act(self) -> None:
        """Do one or several things, if it is time."""
        now_s = self._desk.world.elapsed_s
        self._clocks.look()
        if not self._works or not self._partitions or now_s < self._next_s or self._cluster.calm:
            return
        self._next_s = now_s + self._rng.expovariate(1 / PAUSE_S)
        found = self._desk.any_leader()
        if found is None:
            return
        if self._life is None or (self._recreates and now_s >= self._deleted_s):
            self._create()
        now_ms = found[1].replica.state.now_ms
        if self._life is None or TOPIC not in found[1].replica.state.topics.topics:
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

    def _create(self) -> None:
        """Create the topic; delete the one before it, if there is one. Meanwhile clients go on with that."""
        if self._shared is not None:
            if self._shared.are_there():
                self._begin(self._shared.ids[TOPIC])
            return
        if self._asked:
            return
        self._asked, before = True, self._life
        request = b"" if before is None else ops.delete_topic(TOPIC, before)
        request += ops.create_topic(TOPIC, settings_of(1)[TOPIC])

        def created(results: list[Any]) -> None:
            if any(code not in (*DONE, *GONE) for code, *_ in results):
                raise Violation(f"deletion and creation were answered {results}", "unexpected-answer")
            self._asked = False
            self._begin(results[-1][1])

        self._desk.call(request, created, lambda: True)

    def _begin(self, life: int) -> None:
        """The topic of that id is there."""
        self._lives += 1
        self._life = life
        self._deleted_s = self._desk.world.elapsed_s + self._recreating.expovariate(1 / LIFE_S)
        self._instances = [_Instance(f"later{self._lives}-{n}") for n in range(INSTANCES)]
        self._old += self.items
        self.items.clear()

    def _is_gone(self, code: int) -> bool:
        """Whether a request was answered so because the topic that it names was deleted."""
        return self._recreates and code in GONE

    def _carry(self, leader: BrokerApplication) -> None:
        """What lies before some entry is to be carried. (The topics keep all that they have, so retention
        alone would never ask for it. No id is used twice, so open transactions need not be regarded.)"""
        carrying, last = leader.replica.admission.carrying, leader.applied_index
        carrying.begin(last if self._carrying.random() < 0.8 else self._carrying.randint(1, last))

    def _time(self, now_ms: int) -> int:
        if self._rng.random() < 0.5:
            return -self._rng.choice(DELAYS_MS)
        return max(now_ms + self._rng.choice(AHEAD_MS), 0)

    def _new(self, tp: tuple[str, int], owner: int, ordinal: int, time_ms: int) -> tuple[Item, bytes]:
        self._numbers += 1
        life = NO_ID if self._life is None else self._life
        item = Item(f"{APP}{self._gid}-{self._numbers}", tp, owner, ordinal, time_ms, life)
        self.items.append(item)
        return item, encode_row(None, body(item.id, self._rng.choice(SIZES)), None, None)

    def _send(self, by: _Instance, now_ms: int) -> None:
        """A batch of plain messages, with times or, sometimes, without."""
        tp = self._rng.choice(self._partitions)
        if tp in by.sending:
            return
        by.sending.add(tp)
        owner, first, sequence, life = owner_of(by.name), by.ordinals, by.sequence[tp], self._life or NO_ID
        count = self._rng.choice((1, 1, 2, 5))
        if self._rng.random() < 0.2:
            self._numbers += 1
            row = encode_row(None, body(f"plain{self._numbers}", 30), None, None)
            request = ops.message(*tp, by.name, 0, sequence, [row], -1, life)
            made: list[Item] = []
        else:
            by.ordinals += count
            pairs = [self._new(tp, owner, first + n, self._time(now_ms)) for n in range(count)]
            made, rows = [item for item, _ in pairs], [row for _, row in pairs]
            times = [item.time_ms for item in made]
            request = timer_ops.scheduled(*tp, by.name, 0, sequence, times, rows, owner, first, -1, life)

        def stored(results: list[Any]) -> None:
            code, *info = results[0]
            if self._is_gone(code):
                by.sending.discard(tp)  # for ever: the next topic has instances of its own
                return
            if code not in DONE:
                raise Violation(f"batch {sequence} of {by.name} was answered {results}", "unexpected-answer")
            by.sequence[tp] += 1
            by.sending.discard(tp)
            for item in made:
                item.counts_from(info[0][1])
            self._cancel_in_time(made, info[0][1])
            self.done["scheduled"] += len(made)

        self._desk.call(request, stored, lambda: True)

    def _transact(self, now_ms: int) -> None:
        self.done["begun"] += 1
        tx_id = f"d{self.done['begun']}"
        owner, made, frames = owner_of(APP, tx_id), list[Item](), list[bytes]()
        life = self._life or NO_ID
        for tp in self._rng.sample(self._partitions, min(len(self._partitions), self._rng.choice((1, 1, 2)))):
            count = self._rng.choice((1, 1, 3))
            pairs = [self._new(tp, owner, len(made) + n, self._time(now_ms)) for n in range(count)]
            rows = [row for _, row in pairs]
            new = [item for item, _ in pairs]
            sizes, txs = [len(row) for row in rows], [0] * count
            times, ordinals = [item.time_ms for item in new], [item.ordinal for item in new]
            frames.append(timer_ops.pre_scheduled(*tp, txs, sizes, times, ordinals, rows, life))
            made += new
        extra = PrepareExtra(instance=APP)
        head = ops.prepare(APP, TOPIC, [tx_id], None, 60_000, 0, [1], -1, len(frames), extra)

        def prepared(results: list[Any]) -> None:
            problem = results[0][1][0][1] if results[0][0] == ResultCode.PARTIAL else results[0][0]
            refused = self._is_gone(problem)  # an earlier copy may be open nevertheless
            if problem not in DONE and not refused:
                raise Violation(f"the PREPARE of {tx_id} was answered {results}", "unexpected-answer")
            self._desk.later(DECIDES_S * self._rng.random(), self._decide, tx_id, made, commits, refused)

        commits = self._rng.random() >= ROLLED_BACK
        self._desk.call(head + b"".join(frames), prepared, lambda: True)

    def _decide(self, tx_id: str, made: Sequence[Item], commits: bool, refused: bool) -> None:
        commits = commits and not refused

        def decided(results: list[Any]) -> None:
            code = results[0][1][0][1] if results[0][0] == ResultCode.PARTIAL else results[0][0]
            if code == ResultCode.RETRY:
                self._desk.later(0.03, self._decide, tx_id, made, commits, refused)
                return
            if code not in DONE and not (refused and code == ResultCode.UNKNOWN_TX):
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
        tp = self._rng.choice(self._partitions)
        known = [i for i in self.items[-200:] if i.partition == tp and i.due_ms and i.due_ms > now_ms - 200]
        if not known:
            return
        soon = sorted(known, key=lambda item: item.due_ms or 0)[:5]
        self._ask(self._rng.sample(soon, min(len(soon), self._rng.choice((1, 1, 3)))))

    def _ask(self, chosen: Sequence[Item]) -> None:
        tp = chosen[0].partition
        keys = [(item.due_ms or 0, item.owner, item.ordinal) for item in chosen]
        life = chosen[0].life
        for item in chosen:
            item.cancelling += 1

        def answered(results: list[Any]) -> None:
            code, *info = results[0]
            if self._is_gone(code):
                for item in chosen:
                    item.cancelling -= 1
                return
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

        self._desk.call(timer_ops.cancel(*tp, keys, life), answered, lambda: True)

    # -------------------------------------------------------------- at the end

    def check(self, leader: BrokerApplication, replicas: Sequence[BrokerApplication]) -> bool:
        """Compare with what is readable; False: a replica found damage, and has ended."""
        known = leader.replica.state.topics.topics.get(TOPIC)
        if known is None:
            return True
        found: dict[str, list[tuple[tuple[str, int], int]]] = {}
        for tp in self._partitions:
            read = readable(leader, tp)
            if read is None:
                return False
            for id, time_ms in read:
                found.setdefault(id, []).append((tp, time_ms))
        now_ms = leader.replica.group_ms(leader.now_ms())
        for item in (*self._old, *self.items):
            judge(item, found.get(item.id, ()), now_ms, known.info.topic_id)
        for app in replicas:
            compare(app)
        self.done["carried"] = sum(app.replica.admission.carrying.carried for app in replicas)
        self.done["delivered"] = sum(item.id in found for item in self.items)
        return True
